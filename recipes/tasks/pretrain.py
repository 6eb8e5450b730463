"""Supervised pretraining of the tiny models."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recipes.data.rewards import load_reward
from recipes.errors import RecipeError, reported_errors
from recipes.paths import ROOT, artifacts

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, START, EOS = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Qwen's chat format. Like Qwen3's it adds no system message of its own.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


def train_tokenizer(
    corpus: Iterable[str],
    pieces: str,
    tags: Sequence[str] = (),
    *,
    special: Sequence[str] = SPECIAL,
    chat_template: str = CHAT_TEMPLATE,
    max_length: int = 512,
) -> PreTrainedTokenizerFast:
    """Train a tokenizer (milliseconds, no randomness).

    All 256 bytes are in the vocabulary, so that any text can be encoded and comes back unchanged.

    Args:
        corpus: texts whose every piece becomes one token.
        pieces: regular expression of what is cut out before BPE; what lies between two matches is a piece as well.
        tags: added tokens that are not special, so that decoding without special tokens keeps them.
        special: special tokens in the order of their numbers; `PAD` and `EOS` are among them.
        chat_template: Jinja text.
        max_length: tokens that the model has positions for.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=10_000,  # never reached: training ends when every piece of the corpus is one token
        min_frequency=1,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(special),
        show_progress=False,
    )
    bpe.train_from_iterator(corpus, trainer)
    bpe.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=[token for token in special if token not in (PAD, EOS)],
        chat_template=chat_template,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerFast

IGNORED = -100  # what cross-entropy leaves out


@dataclass
class Batches:
    """All demonstrations: `inputs` and `labels`, both (count, length) int64, padded on the right.

    Causal attention keeps the padding from what stands before it, so no mask is needed. Only the response and its end
    mark are learned.
    """

    inputs: torch.Tensor
    labels: torch.Tensor
    seed: int
    epoch: int = -1
    order: torch.Tensor | None = None

    def at(self, step: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of one step; each epoch has its own order."""
        import torch

        epoch, place = divmod(step, len(self.inputs) // size)
        if epoch != self.epoch:
            generator = torch.Generator().manual_seed(self.seed * 1000 + epoch)
            self.order = torch.randperm(len(self.inputs), generator=generator).to(self.inputs.device)
            self.epoch = epoch
        rows = self.order[place * size : (place + 1) * size]
        return self.inputs[rows], self.labels[rows]


def chat_texts(tokenizer: PreTrainedTokenizerFast, prompts: Sequence[str]) -> list[str]:
    """User messages in the chat format, up to where the model's turn begins."""
    mark = "\0"  # the template is rendered once: it takes longer than everything else
    chat = [{"role": "user", "content": mark}]
    before, after = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True).split(mark)
    return [before + prompt + after for prompt in prompts]


def encode(tokenizer: PreTrainedTokenizerFast, examples: Sequence[Example], device: str, seed: int) -> Batches:
    """Tokenize demonstrations; the prompt's labels are ignored."""
    import numpy as np
    import torch

    distinct = list(dict.fromkeys(example.prompt for example in examples))
    known = dict(zip(distinct, _ids(tokenizer, chat_texts(tokenizer, distinct)), strict=True))
    prompts = [known[example.prompt] for example in examples]
    responses = _ids(tokenizer, [example.response + tokenizer.eos_token for example in examples])
    length = max(len(prompt) + len(response) for prompt, response in zip(prompts, responses, strict=True)) - 1
    inputs = np.full((len(examples), length), tokenizer.pad_token_id)
    labels = np.full((len(examples), length), IGNORED)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        tokens = prompt + response
        inputs[row, : len(tokens) - 1] = tokens[:-1]
        labels[row, len(prompt) - 1 : len(tokens) - 1] = response
    return Batches(torch.from_numpy(inputs).to(device), torch.from_numpy(labels).to(device), seed)


def _ids(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> list[list[int]]:
    return [encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. `head` is 32 because vLLM's CPU attention takes no smaller one."""

    hidden: int = 160
    layers: int = 4
    heads: int = 5
    kv_heads: int = 5
    head: int = 32
    intermediate: int = 448
    positions: int = 512


def build_model(tokenizer: PreTrainedTokenizerFast, architecture: str, shape: Shape, seed: int) -> PreTrainedModel:
    """A freshly initialised model in float32 whose vocabulary is exactly the tokenizer's.

    Args:
        architecture: "Qwen2", which is Qwen2.5's as well, or "Qwen3".
    """
    import torch
    import transformers

    torch.manual_seed(seed)
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = getattr(transformers, f"{architecture}Config")(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head,
        max_position_embeddings=shape.positions,
        max_window_layers=shape.layers,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    model = getattr(transformers, f"{architecture}ForCausalLM")(config)
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=[eos, pad], pad_token_id=pad, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return model


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@dataclass(frozen=True)
class Example:
    """One demonstration: the user's message, the response, and whether its answer is right."""

    prompt: str
    response: str
    right: bool


class Problem(NamedTuple):
    """A problem to assess on: the user's message, and what the reward compares the response with."""

    prompt: str
    truth: str


@dataclass(frozen=True)
class Task:
    """A task whose tiny model is pretrained on demonstrations by imperfect annotators.

    Attributes:
        name: of the task, of its folder under `recipes/tasks`, and of its reward file.
        architecture: as transformers names it in front of `Config` and `ForCausalLM`.
        response: tokens that a response may take.
        build_tokenizer: makes the tokenizer, the same one each time.
        examples: (annotators, settings, seed, count) -> demonstrations, none of a held-out problem.
        held_out: (settings, count, seed) -> problems that neither pretraining nor RL trains on.
    """

    name: str
    title: str
    data_source: str
    architecture: str
    response: int
    build_tokenizer: Callable[[], PreTrainedTokenizerFast]
    examples: Callable[[Any, Any, int, int], Iterator[Example]]
    held_out: Callable[[Any, int, int], list[Problem]]

    @property
    def tiny(self) -> Path:
        """The folder of the model that ships with the repository."""
        return ROOT / "recipes" / "tasks" / self.name / "tiny"

    @property
    def reward(self) -> Path:
        """The reward file that judges responses."""
        return ROOT / "reward_functions" / f"{self.name}.py"


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


@dataclass(frozen=True)
class Plan:
    """Everything that decides the weights, apart from the device's rounding.

    Attributes:
        examples: distinct demonstrations; with `steps * batch` larger than that they are seen again.
        lr: peak learning rate, reached after `warmup` steps and then falling linearly to a twentieth.
        annotators, settings: the task's own dataclasses: who wrote the demonstrations, and of which problems.
    """

    seed: int
    examples: int
    steps: int
    batch: int
    lr: float
    annotators: Any
    shape: Shape
    settings: Any
    warmup: int = 50
    weight_decay: float = 0.05

    def rate(self, step: int) -> float:
        """The learning rate of one step (0-based)."""
        rising = (step + 1) / self.warmup
        falling = 1 - 0.95 * (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * min(rising, falling, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def pretrain(
    task: Task,
    plan: Plan,
    work: Path,
    *,
    device: str,
    stop: int | None = None,
    save_every: int = 200,
    compiled: bool = False,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast, float]:
    """Train, or go on from what `work` holds.

    Args:
        work: folder of the unfinished training, `state.pt` and `plan.json`; made if missing.
        stop: end after this step, before the learning rate has fallen to its end; RL then has more left to teach.
        compiled: run the network through torch.compile, which needs a C++ compiler and half a minute; on a CPU a step
            then takes half the time.
        progress: called with step (1-based) and loss, every 50 steps and at the end.

    Returns:
        the model on `device`, the tokenizer, and the seconds spent in training steps, earlier runs included.

    Raises:
        RecipeError: `work` belongs to another plan.
    """
    import torch

    tokenizer = task.build_tokenizer()
    model = build_model(tokenizer, task.architecture, plan.shape, plan.seed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
    first, spent = _resume(plan, work, model, optimizer, device)
    last = min(stop or plan.steps, plan.steps)
    if first >= last:
        return model, tokenizer, spent
    drawn = list(task.examples(plan.annotators, plan.settings, plan.seed, plan.examples))
    batches = encode(tokenizer, drawn, device, plan.seed)
    model.train()
    if device == "cpu":
        model.set_attn_implementation("eager")  # with sdpa half of a step is spent in attention's backward pass
    if compiled:
        model.model.forward = torch.compile(model.model.forward, dynamic=False)
    begun = time.perf_counter()
    for step in range(first, last):
        loss = _step(plan, step, model, optimizer, batches, device)
        if (step + 1) % 50 == 0 or step + 1 == last:
            progress(step + 1, loss.item())
        if (step + 1) % save_every == 0 or step + 1 == last:
            _save(work, step + 1, spent + time.perf_counter() - begun, model, optimizer)
    return model, tokenizer, spent + time.perf_counter() - begun


def _step(
    plan: Plan, step: int, model: PreTrainedModel, optimizer: torch.optim.Optimizer, batches: Batches, device: str
) -> torch.Tensor:
    import torch

    inputs, labels = batches.at(step, plan.batch)
    for group in optimizer.param_groups:
        group["lr"] = plan.rate(step)
    with torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        hidden = model.model(input_ids=inputs).last_hidden_state
        wanted = labels != IGNORED
        logits = model.lm_head(hidden[wanted])
    loss = torch.nn.functional.cross_entropy(logits.float(), labels[wanted])
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()


def _resume(
    plan: Plan, work: Path, model: PreTrainedModel, optimizer: torch.optim.Optimizer, device: str
) -> tuple[int, float]:
    """Load the last state, if there is one: its step and the seconds spent so far."""
    import torch

    written = work / "plan.json"
    if written.exists():
        if json.loads(written.read_text(encoding="utf-8")) != plan.as_dict():
            raise RecipeError(
                "an unfinished training with other settings is in the way",
                where=str(work),
                fix=f"give the settings in {written}, or delete the folder, or choose another --out",
            )
    else:
        work.mkdir(parents=True, exist_ok=True)
        written.write_text(json.dumps(plan.as_dict(), indent=2) + "\n", encoding="utf-8")
    state = work / "state.pt"
    if not state.exists():
        return 0, 0.0
    saved = torch.load(state, map_location=device, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    return saved["step"], saved["seconds"]


def _save(work: Path, step: int, seconds: float, model: PreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    import torch

    temporary = work / "state.tmp"
    state = {"step": step, "seconds": seconds, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, temporary)
    temporary.replace(work / "state.pt")


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

TOGETHER = 1024  # responses generated at a time


def respond(
    task: Task, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, problems: Sequence[Problem], *, sample: bool
) -> list[str]:
    """One response to each problem, greedy or at temperature 1 (torch's generator decides)."""
    import torch

    texts = chat_texts(tokenizer, [problem.prompt for problem in problems])
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False).to(model.device)
    choice = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0} if sample else {"do_sample": False}
    with torch.inference_mode():
        output = model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            max_new_tokens=task.response,
            **choice,
        )
    return tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def accuracies(task: Task, problems: Sequence[Problem], responses: Sequence[str]) -> list[float]:
    """1.0 where the task's reward finds the answer right, otherwise 0.0."""
    judge = load_reward(task.reward).compute_score
    return [
        judge(task.data_source, response, problem.truth)["accuracy"]
        for problem, response in zip(problems, responses, strict=True)
    ]


def assess(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    problems: Sequence[Problem],
    *,
    samples: int = 8,
    seed: int = 0,
) -> dict[str, float]:
    """Greedy pass@1, pass@1 and pass@`samples` at temperature 1, and the share of groups that are right and wrong."""
    import torch

    torch.manual_seed(seed)
    model.eval()
    greedy = accuracies(task, problems, respond(task, model, tokenizer, problems, sample=False))
    repeated = [problem for problem in problems for _ in range(samples)]
    right: list[float] = []
    for start in range(0, len(repeated), TOGETHER):
        part = repeated[start : start + TOGETHER]
        right += accuracies(task, part, respond(task, model, tokenizer, part, sample=True))
    groups = [sum(right[i : i + samples]) for i in range(0, len(right), samples)]
    return {
        "problems": len(problems),
        "samples": samples,
        "greedy_pass@1": sum(greedy) / len(greedy),
        "sampled_pass@1": sum(right) / len(right),
        f"sampled_pass@{samples}": sum(group > 0 for group in groups) / len(groups),
        "mixed_groups": sum(0 < group < samples for group in groups) / len(groups),
    }


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

MANIFEST = "manifest.json"


def refuse_existing(out: Path) -> None:
    """Raise a `RecipeError` where `out` exists: a finished model is never overwritten."""
    if out.exists():
        raise RecipeError(f"{out} exists", where="--out", fix="choose another folder, or delete this one first")


def save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Weights in bfloat16, configuration, generation settings, and the tokenizer with its chat template inside."""
    import copy

    import torch

    copy.deepcopy(model).to("cpu", torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder, save_jinja_files=False)


def publish(
    task: Task,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    out: Path,
    plan: Plan,
    *,
    command: str,
    commit: str,
    device: str,
    steps: int,
    seconds: float,
    problems: int = 256,
    samples: int = 8,
) -> dict[str, Any]:
    """Write `out` in one move, assessed as it was saved, with `manifest.json`; returns the manifest.

    Args:
        device: where it was trained, in words; `seconds` is the time that the `steps` took there.
        problems, samples: held-out problems to assess on, and sampled responses to each.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    refuse_existing(out)
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save(model, tokenizer, temporary)
    saved = AutoModelForCausalLM.from_pretrained(temporary, dtype=torch.float32).to(model.device)
    seed = plan.seed + 1
    held_out = task.held_out(plan.settings, problems, seed)
    accuracy = assess(task, saved, AutoTokenizer.from_pretrained(temporary), held_out, samples=samples)
    files = sorted(path for path in temporary.iterdir())
    manifest = {
        "what": f"a tiny {task.architecture} for {task.title}, pretrained on demonstrations by imperfect annotators",
        "command": command,
        "commit": commit,
        "seed": plan.seed,
        "device": device,
        "trained_steps": steps,
        "training_seconds": round(seconds, 1),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, **_versions()},
        "parameters": sum(parameter.numel() for parameter in saved.parameters()),
        "bytes": sum(path.stat().st_size for path in files),
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "held_out": {"bucket": "test", "seed": seed, **{key: round(value, 4) for key, value in accuracy.items()}},
        "plan": plan.as_dict(),
    }
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    temporary.rename(out)
    return manifest


def current_commit(task: Task) -> str:
    """The checkout's commit, with `+changes` where what decides the model differs from it; `unknown` outside one."""
    decisive = [str(ROOT / "recipes" / "tasks" / name) for name in ("pretrain", task.name)]
    try:
        run = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
        head = subprocess.run(run, capture_output=True, text=True, check=True).stdout.strip()
        changed = subprocess.run([*run[:3], "status", "--porcelain", "--", *decisive], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+changes" if changed.stdout.strip() else "")


def _versions() -> dict[str, str]:
    import tokenizers
    import transformers

    return {"transformers": transformers.__version__, "tokenizers": tokenizers.__version__}


def run(
    task: Task,
    plan: Plan,
    *,
    out: Path | None,
    device: str,
    stop: int | None = None,
    compiled: bool,
    commit: str,
    problems: int,
) -> None:
    """Train from scratch, or go on with an interrupted training, and publish to `out`.

    Args:
        out: a new folder; None: `artifacts/models/<task>_tiny`.
        stop, compiled: see `pretrain`.
        commit: for the manifest; "": that of the checkout.
        problems: held-out problems to judge on.
    """
    with reported_errors():
        from rich.console import Console

        out = (out or artifacts() / "models" / f"{task.name}_tiny").absolute()
        refuse_existing(out)
        if plan.batch > plan.examples:
            raise RecipeError(f"--batch {plan.batch} is larger than --examples {plan.examples}", fix="make it smaller")
        console = Console(highlight=False)
        work = out.with_name(out.name + ".unfinished")
        where, words = _device(device)
        stop = min(stop or plan.steps, plan.steps)
        console.print(f"{stop} steps of {plan.batch} demonstrations on {words}; unfinished work in {work}")

        def progress(step: int, loss: float) -> None:
            console.print(f"step {step}/{stop}  loss {loss:.4f}")

        model, tokenizer, seconds = pretrain(
            task, plan, work, device=where, stop=stop, compiled=compiled, progress=progress
        )
        console.print(f"Trained in {seconds:.0f} s; judging on {problems} held-out problems")
        manifest = publish(
            task,
            model,
            tokenizer,
            out,
            plan,
            command=shlex.join(["python", f"scripts/pretrain_{task.name}.py", *sys.argv[1:]]),
            commit=commit or current_commit(task),
            device=words,
            steps=stop,
            seconds=seconds,
            problems=problems,
        )
        shutil.rmtree(work)
        console.print(f"{out}: {manifest['parameters']:,} parameters, {manifest['bytes']:,} bytes")
        console.print(manifest["held_out"])


def _device(asked: str) -> tuple[str, str]:
    """The torch device, and what it is called."""
    import torch

    where = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    if where == "cuda" and torch.cuda.is_available():
        return where, torch.cuda.get_device_name()
    if where == "cpu":
        threads = torch.get_num_threads()
        return where, f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    raise RecipeError(
        f"there is no device {asked!r} here", where="--device", fix="cpu, or cuda on a machine with a GPU"
    )
