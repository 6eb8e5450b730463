"""Supervised pretraining of the tiny models: one trainer and one tokenizer builder; each task has a `Spec`.

A task's `pretraining.py` says which demonstrations its model learns from and how the model is built. The trainer here
optimises, resumes, assesses with the task's own reward, and writes the model's folder with a manifest.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import platform
import shlex
import shutil
import statistics
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from recipes.data.rewards import load_reward
from recipes.errors import RecipeError
from recipes.files import whole_folder
from recipes.paths import ROOT, artifacts
from recipes.provenance import git_commit, sha256, versions

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

PAD, START, EOS = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

# Qwen's chat format. Like Qwen3's it adds no system message of its own.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
IGNORED = -100
"""The label that cross-entropy leaves out."""
MANIFEST = "manifest.json"
PLAIN_SAMPLING = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
"""Generation settings of a tiny model: its distribution as it is."""


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


@dataclass(frozen=True, kw_only=True)
class PretrainPlan:
    """Everything that decides the weights, apart from the data and the device's rounding.

    Attributes:
        lr: peak learning rate, reached after `warmup` steps and then falling linearly to a twentieth.
    """

    seed: int = 1
    steps: int
    batch: int
    lr: float
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


Plan = TypeVar("Plan", bound=PretrainPlan)


class Problem(NamedTuple):
    """A problem to assess on: what the model is shown, and what the reward compares its response with."""

    prompt: Any
    truth: str


class Spec(ABC, Generic[Plan]):
    """A task, as the trainer needs it.

    Attributes:
        name: of the task, of its folder under `recipes/tasks`, of its reward file and of its data source.
        what: the first line of the manifest.
        plan: that of the shipped model; `stop` is the step at which its training was ended, if before the last.
        auto_model, auto_processor: the classes of transformers that load the written folder.
        together: responses generated at a time.
        problems: held-out problems to assess on, unless a number is given.
    """

    name: str
    what: str
    plan: Plan
    stop: int | None = None
    auto_model = "AutoModelForCausalLM"
    auto_processor = "AutoTokenizer"
    together = 1024
    problems = 256

    @property
    def tiny(self) -> Path:
        """The folder of the model that ships with the repository."""
        return ROOT / "recipes" / "tasks" / self.name / "tiny"

    @abstractmethod
    def build(self, plan: Plan) -> tuple[PreTrainedModel, Any]:
        """A freshly initialised model in float32 and its tokenizer or processor."""

    @abstractmethod
    def losses(self, plan: Plan, model: PreTrainedModel, processor: Any) -> Callable[[int], torch.Tensor]:
        """A function from a step (0-based) to the loss of its batch; it must not depend on the steps before."""

    @abstractmethod
    def held_out(self, plan: Plan, count: int) -> list[Problem]:
        """Problems that neither pretraining nor RL trains on."""

    @abstractmethod
    def respond(self, model: PreTrainedModel, processor: Any, prompts: Sequence[Any], *, sample: bool) -> list[str]:
        """One response to each prompt, greedy or at temperature 1."""

    def reward(self) -> Callable[[str, Problem], dict[str, Any]]:
        """Return what scores a response to a problem: the task's own reward."""
        compute_score = load_reward(ROOT / "reward_functions" / f"{self.name}.py").compute_score
        return lambda response, problem: compute_score(self.name, response, problem.truth)

    def save_processor(self, processor: Any, folder: Path) -> None:
        """Write the tokenizer or processor."""
        processor.save_pretrained(folder)

    def findings(self, model: PreTrainedModel, processor: Any, problems: Sequence[Problem]) -> dict[str, Any]:
        """Return what else is worth knowing about the model on held-out problems, for the manifest."""
        return {}

    def facts(self) -> dict[str, Any]:
        """More for the manifest, such as the files that the demonstrations were made from."""
        return {}


def train(
    spec: Spec[Plan],
    plan: Plan,
    work: Path,
    *,
    device: str = "cpu",
    stop: int | None = None,
    save_every: int = 100,
    compiled: bool = False,
    progress: Callable[[int, float], None] = lambda step, loss: None,
) -> tuple[PreTrainedModel, Any, float]:
    """Train, or go on from what `work` holds.

    Args:
        work: folder of the unfinished training's `state.pt`; made if missing.
        stop: end after this step, before the learning rate has fallen to its end; RL then has more left to teach.
        compiled: run the network through torch.compile, which needs a C++ compiler and half a minute; on a CPU a step
            then takes half the time.
        progress: called with step (1-based) and loss, every 25 steps and at the end.

    Returns:
        The model on `device`, its tokenizer or processor, and the seconds of all training steps, earlier runs included.

    Raises:
        RecipeError: `work` belongs to another plan.
    """
    import torch

    model, processor = spec.build(plan)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
    work.mkdir(parents=True, exist_ok=True)
    state = work / "state.pt"
    first, spent = 0, 0.0
    if state.exists():
        saved = torch.load(state, map_location=device, weights_only=True)
        if saved.get("plan") != plan.as_dict():
            raise RecipeError(
                f"an unfinished training with other settings is in the way: {saved.get('plan')}",
                where=str(work),
                fix="give its settings, or delete the folder, or choose another --out",
            )
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        first, spent = saved["step"], saved["seconds"]
    last = min(stop or plan.steps, plan.steps)
    if first >= last:
        return model, processor, spent
    loss_of = spec.losses(plan, model, processor)
    model.train()
    if compiled:
        model.model.forward = torch.compile(model.model.forward, dynamic=False)
    begun = time.perf_counter() - spent
    for step in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        loss = loss_of(step)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done = step + 1
        if done % 25 == 0 or done == last:
            progress(done, loss.item())
        if done % save_every == 0 or done == last:
            seconds = time.perf_counter() - begun
            saved = {"plan": plan.as_dict(), "step": done, "seconds": seconds}
            saved |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(saved, state.with_suffix(".tmp"))
            state.with_suffix(".tmp").replace(state)
    return model, processor, time.perf_counter() - begun


def results(
    spec: Spec[Plan], model: PreTrainedModel, processor: Any, problems: Sequence[Problem], *, sample: bool
) -> list[dict[str, Any]]:
    """Return what the task's reward says of one response to each problem (torch's generator decides the samples)."""
    score = spec.reward()
    model.eval()
    scores = []
    for start in range(0, len(problems), spec.together):
        part = problems[start : start + spec.together]
        responses = spec.respond(model, processor, [problem.prompt for problem in part], sample=sample)
        scores += [score(text, problem) for text, problem in zip(responses, part, strict=True)]
    return scores


def assess(
    spec: Spec[Plan],
    model: PreTrainedModel,
    processor: Any,
    problems: Sequence[Problem],
    *,
    samples: int = 8,
    seed: int = 0,
) -> dict[str, Any]:
    """Greedy and sampled accuracy on held-out problems.

    Returns:
        `greedy_pass@1`; of `samples` responses at temperature 1 `sampled_pass@1`, `sampled_pass@<samples>`,
        `sampled_score`, `mixed_groups` (the share of problems whose samples earn different scores, without which GRPO
        has nothing to learn) and `reasons`, the reward's verdicts.
    """
    import torch

    def mean(numbers: Iterable[float]) -> float:
        return round(statistics.fmean(numbers), 4)

    torch.manual_seed(seed)
    greedy = results(spec, model, processor, problems, sample=False)
    repeated = [problem for problem in problems for _ in range(samples)]
    sampled = results(spec, model, processor, repeated, sample=True)
    groups = [sampled[start : start + samples] for start in range(0, len(sampled), samples)]
    return {
        "problems": len(problems),
        "samples": samples,
        "greedy_pass@1": mean(each["accuracy"] for each in greedy),
        "sampled_pass@1": mean(each["accuracy"] for each in sampled),
        f"sampled_pass@{samples}": mean(any(each["accuracy"] == 1 for each in group) for group in groups),
        "sampled_score": mean(each["score"] for each in sampled),
        "mixed_groups": mean(len({each["score"] for each in group}) > 1 for group in groups),
        "reasons": dict(Counter(each["reason"] for each in sampled).most_common()),
    }


def write_model(
    spec: Spec[Plan],
    plan: Plan,
    model: PreTrainedModel,
    processor: Any,
    out: Path,
    problems: int,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """Write `out` in one move: weights in bfloat16, tokenizer, and `manifest.json`, assessed as it was saved.

    Args:
        problems: held-out problems to assess on.
        facts: for the manifest: command, commit, device, seconds.

    Returns:
        The manifest.
    """
    import torch
    import transformers

    with whole_folder(out) as folder:
        copy.deepcopy(model).to("cpu", torch.bfloat16).save_pretrained(folder)
        spec.save_processor(processor, folder)
        files = sorted(folder.iterdir())
        for path in files:
            path.chmod(0o644)  # safetensors keeps its files from others
        saved = getattr(transformers, spec.auto_model).from_pretrained(folder, dtype=torch.float32).to(model.device)
        loaded = getattr(transformers, spec.auto_processor).from_pretrained(folder)
        shown = spec.held_out(plan, problems)
        manifest = {
            "what": spec.what,
            **facts,
            "seed": plan.seed,
            "versions": {"python": platform.python_version(), **versions("torch", "transformers", "tokenizers")},
            "parameters": sum(parameter.numel() for parameter in saved.parameters()),
            "bytes": sum(path.stat().st_size for path in files),
            "sha256": {path.name: sha256(path) for path in files},
            "held_out": assess(spec, saved, loaded, shown, seed=plan.seed + 1) | spec.findings(saved, loaded, shown),
            "plan": plan.as_dict(),
            **spec.facts(),
        }
        (folder / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def run(
    spec: Spec[Plan],
    plan: Plan,
    *,
    out: Path | None = None,
    device: str = "auto",
    stop: int | None = None,
    compiled: bool = False,
    commit: str = "",
    problems: int | None = None,
) -> None:
    """Train from scratch, or go on with an interrupted training, and write the model to `out`.

    Args:
        out: a new folder; None: `artifacts/models/<task>_tiny`.
        device: cpu, cuda, or auto.
        stop, compiled: see `train`.
        commit: for the manifest, outside a checkout.
        problems: held-out problems to assess on; None: the task's own number.

    Raises:
        RecipeError: `out` exists; a finished model is never overwritten.
    """
    from rich.console import Console

    out = (out or artifacts() / "models" / f"{spec.name}_tiny").absolute()
    if out.exists():
        raise RecipeError(f"{out} exists", where="--out", fix="choose another folder, or delete this one first")
    console = Console(highlight=False)
    work = out.with_name(out.name + ".unfinished")
    device, device_name = _device(device)
    last, problems = min(stop or plan.steps, plan.steps), problems or spec.problems
    console.print(f"{last} steps of {plan.batch} demonstrations on {device_name}; unfinished work in {work}")
    model, processor, seconds = train(
        spec,
        plan,
        work,
        device=device,
        stop=stop,
        compiled=compiled,
        progress=lambda step, loss: console.print(f"step {step}/{last}  loss {loss:.4f}"),
    )
    console.print(f"Trained in {seconds:.0f} s; assessing on {problems} held-out problems")
    facts = {
        "command": f"python -m tools.tiny_models {shlex.join(sys.argv[1:])}",
        "commit": commit or git_commit(Path(__file__), Path(__file__).with_name("text_models.py"), spec.tiny.parent),
        "device": device_name,
        "trained_steps": last,
        "training_seconds": round(seconds, 1),
    }
    manifest = write_model(spec, plan, model, processor, out, problems, facts)
    shutil.rmtree(work)
    console.print(f"{out}: {manifest['parameters']:,} parameters, {manifest['bytes']:,} bytes")
    console.print(manifest["held_out"])


def _device(asked: str) -> tuple[str, str]:
    """The torch device, and its name for the manifest."""
    import torch

    device = ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked
    if device == "cuda" and torch.cuda.is_available():
        return device, torch.cuda.get_device_name()
    if device == "cpu":
        threads = torch.get_num_threads()
        return device, f"CPU, {threads} thread{'s' if threads > 1 else ''}"
    raise RecipeError(
        f"there is no device {asked!r} here", where="--device", fix="cpu, or cuda on a machine with a GPU"
    )
