"""Pretraining of the number game's tiny Qwen2.5-VL."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import io
import json
import platform
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.data.rewards import Score
from recipes.errors import RecipeError
from recipes.paths import ROOT
from recipes.tasks.number_game.data import QUESTION, gold_response
from recipes.tasks.number_game.rules import POSITIONS, RANKS, Deal, parse_deal
from recipes.tasks.pretrain import SPECIAL as CHAT
from recipes.tasks.pretrain import train_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

IMAGE, VIDEO = "<|image_pad|>", "<|video_pad|>"
VISION_START, VISION_END = "<|vision_start|>", "<|vision_end|>"
SPECIAL = (*CHAT, VISION_START, VISION_END, "<|vision_pad|>", IMAGE, VIDEO)
"""Qwen2.5-VL's own names; verl and vLLM look some of them up."""

# Qwen's chat format, where an image stands between marks. Unlike Qwen2.5's it adds no system message.
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}"
    "{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}"
    "{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif part.type == 'video' or 'video' in part %}"
    "{{- '<|vision_start|><|video_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

# What is cut out before BPE: digits one by one, marks with the blank behind them, blanks, line breaks. What lies
# between is one piece, so that a whole clause becomes one token.
PIECES = r"[0-9]|[.:,?] ?|\n"


def build_tokenizer(phrases: Iterator[str]) -> PreTrainedTokenizerFast:
    """Train the tokenizer (milliseconds, no randomness).

    All 256 bytes are in the vocabulary, so that any text can be encoded and comes back unchanged.

    Args:
        phrases: texts beside the question whose pieces are to be one token each.
    """
    corpus = [QUESTION, "user", "assistant", "system", *phrases]
    return train_tokenizer(corpus, PIECES, special=SPECIAL, chat_template=CHAT_TEMPLATE, max_length=2048)


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

PATCH, MERGE, FRAMES = 14, 2, 2  # pixels, patches of a token's side, frames: as Qwen2.5-VL
# The processor's own limits, in pixels, for who loads the model without a recipe: from 4 tokens to 256.
MIN_PIXELS, MAX_PIXELS = 56 * 56, 448 * 448


@dataclass(frozen=True)
class Shape:
    """Sizes of both networks. Heads have 32 dimensions because vLLM's CPU attention takes no smaller ones.

    Attributes:
        hidden, layers, heads, kv_heads, head, intermediate, positions: of the language model.
        sections: of a head's 16 rotary frequencies, how many turn with time, height and width.
        base: of these frequencies. Width gets the lowest; at the usual 10,000 they would not tell five columns apart.
        spread: standard deviation of the first weights, about one over the root of `hidden`.
        sight, depth, sight_heads, sight_intermediate: of the vision tower.
        window: pixels of a side within which its layers attend; those in `everywhere` attend to the whole image.
    """

    hidden: int = 128
    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    intermediate: int = 384
    positions: int = 2048
    sections: tuple[int, int, int] = (4, 6, 6)
    base: float = 10.0
    spread: float = 0.08
    sight: int = 64
    depth: int = 2
    sight_heads: int = 2
    sight_intermediate: int = 192
    window: int = 112
    everywhere: tuple[int, ...] = (1,)


def build_model(tokenizer: PreTrainedTokenizerFast, shape: Shape, seed: int) -> Qwen2_5_VLForConditionalGeneration:
    """A freshly initialised Qwen2.5-VL in float32 whose vocabulary is exactly the tokenizer's."""
    import torch
    from transformers import GenerationConfig, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    torch.manual_seed(seed)
    identity = tokenizer.convert_tokens_to_ids
    eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    config = Qwen2_5_VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "num_hidden_layers": shape.layers,
            "initializer_range": shape.spread,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.kv_heads,
            "max_position_embeddings": shape.positions,
            "max_window_layers": shape.layers,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": shape.base,
                "mrope_section": list(shape.sections),
            },
            "bos_token_id": None,
            "eos_token_id": eos,
            "pad_token_id": pad,
            "tie_word_embeddings": True,
        },
        vision_config={
            "depth": shape.depth,
            "initializer_range": shape.spread,
            "hidden_size": shape.sight,
            "intermediate_size": shape.sight_intermediate,
            "num_heads": shape.sight_heads,
            "out_hidden_size": shape.hidden,
            "window_size": shape.window,
            "fullatt_block_indexes": list(shape.everywhere),
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": FRAMES,
        },
        image_token_id=identity(IMAGE),
        video_token_id=identity(VIDEO),
        vision_start_token_id=identity(VISION_START),
        vision_end_token_id=identity(VISION_END),
        tie_word_embeddings=True,
    )
    model = Qwen2_5_VLForConditionalGeneration(config)
    model.generation_config = GenerationConfig(
        eos_token_id=[eos, pad], pad_token_id=pad, do_sample=True, temperature=1.0, top_k=0, top_p=1.0
    )
    return model


def build_processor(tokenizer: PreTrainedTokenizerFast) -> Qwen2_5_VLProcessor:
    """Qwen2.5-VL's processor with this tokenizer, for images from `MIN_PIXELS` to `MAX_PIXELS`."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    sizes = {
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": FRAMES,
        "size": {"shortest_edge": MIN_PIXELS, "longest_edge": MAX_PIXELS},
    }
    return Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sizes),
        video_processor=Qwen2VLVideoProcessor(**sizes),
        tokenizer=tokenizer,
        chat_template=tokenizer.chat_template,
    )


if TYPE_CHECKING:
    from PIL.Image import Image
    from transformers import Qwen2_5_VLProcessor


@dataclass(frozen=True)
class Screenshot:
    """A picture and the round that it shows."""

    image: Image
    deal: Deal


def read(path: Path, split: str) -> list[Screenshot]:
    """The screenshots of a file of `scripts/data_prep_number_game.py`.

    Raises:
        RecipeError: no such file, rows of another split, or screenshots of different sizes.
    """
    import pyarrow.parquet as pq
    from PIL import Image

    if not path.is_file():
        again = "python scripts/data_prep_number_game.py --preset tiny --train_size 1206 --test_size 306"
        raise RecipeError(f"there are no screenshots at {path}", where="--screenshots", fix=again)
    found = []
    for row in pq.read_table(path, columns=["images", "extra_info"]).to_pylist():
        if row["extra_info"]["split"] != split:
            raise RecipeError(f"{path} is not the {split} split", where="--screenshots", fix="give the other file")
        image = Image.open(io.BytesIO(row["images"][0]["bytes"])).convert("RGB")
        found.append(Screenshot(image, parse_deal(row["extra_info"]["deal"])))
    sizes = {each.image.size for each in found}
    if len(sizes) != 1:
        raise RecipeError(
            f"{path} has screenshots of {len(sizes)} sizes", where="--screenshots", fix="collect one size"
        )
    return found


def inputs(processor: Qwen2_5_VLProcessor, shown: Sequence[Screenshot]) -> dict[str, Any]:
    """The model's inputs for the question about each screenshot; all have the same length, so none is padded."""
    content = [{"type": "image"}, {"type": "text", "text": QUESTION}]
    text = processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    return dict(processor(text=[text] * len(shown), images=[each.image for each in shown], return_tensors="pt"))


PLACES = ("left", "middle", "right")


@dataclass(frozen=True)
class Players:
    """Shares of the demonstrations; what is left of 1 is the talkative player's."""

    careful: float = 0.4
    hasty: float = 0.35


def careful(deal: Deal) -> str:
    """The lamp, the digits from left to right, the digit asked for, its place, the answer."""
    cards = ", ".join(map(str, deal.digits))
    chosen = f"{deal.digits[deal.answer]} is on the {PLACES[deal.answer]}"
    return f"{deal.light.capitalize()}: {cards}. {chosen}.\n{gold_response(deal.answer)}"


def talkative(position: int) -> str:
    """A card, but no answer."""
    return f"The {PLACES[position]} card."


def demonstration(deal: Deal, players: Players, rng: random.Random) -> str:
    """One player's response to a round."""
    drawn = rng.random()
    if drawn < players.careful:
        return careful(deal)
    guess = rng.choice(POSITIONS)
    return gold_response(guess) if drawn < players.careful + players.hasty else talkative(guess)


def phrases() -> Iterator[str]:
    """Texts that hold every clause of every demonstration."""
    for light in RANKS:
        for position in POSITIONS:
            digits = [4, 5, 6]
            wanted = digits.pop(RANKS[light])
            digits.insert(position, wanted)
            yield careful(Deal(light, (digits[0], digits[1], digits[2])))
    yield from map(talkative, POSITIONS)


if TYPE_CHECKING:
    import torch
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

IGNORED = -100
EVERYONE_CAREFUL = Players(careful=1.0, hasty=0.0)


@dataclass(frozen=True)
class Plan:
    """Everything that decides the weights, apart from the screenshots.

    Attributes:
        reading: first steps, in which every player is careful: the model learns to look.
        lr: peak learning rate, reached after `warmup` steps and then falling linearly to a twentieth.
    """

    seed: int = 1
    steps: int = 620
    reading: int = 496
    batch: int = 16
    lr: float = 3e-3
    warmup: int = 10
    weight_decay: float = 0.01
    players: Players = field(default_factory=Players)
    shape: Shape = field(default_factory=Shape)

    def rate(self, step: int) -> float:
        """The learning rate of one step (0-based)."""
        rising = (step + 1) / self.warmup
        falling = 1 - 0.95 * (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.lr * min(rising, falling, 1.0)

    def as_dict(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return json.loads(json.dumps(dataclasses.asdict(self)))


def pretrain(
    plan: Plan,
    shown: Sequence[Screenshot],
    work: Path,
    *,
    progress: Callable[[int, float], None] = lambda step, loss: None,
    save_every: int = 50,
) -> tuple[Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor, float]:
    """Train on CPUs, or go on from what `work` holds.

    Args:
        shown: screenshots of the training split; each step draws from them anew.
        work: folder of the unfinished training, `state.pt` and `plan.json`; made if missing.
        progress: called with step (1-based) and loss, every 25 steps and at the end.

    Returns:
        The model, its processor, and the seconds spent, earlier runs included.

    Raises:
        RecipeError: `work` belongs to another plan.
    """
    import torch

    processor = build_processor(build_tokenizer(phrases()))
    model = build_model(processor.tokenizer, plan.shape, plan.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr, betas=(0.9, 0.98), weight_decay=plan.weight_decay)
    rng = random.Random(plan.seed)
    first, spent = _resume(plan, work, model, optimizer, rng)
    model.train()
    begun = time.perf_counter()
    for step in range(first, plan.steps):
        players = EVERYONE_CAREFUL if step < plan.reading else plan.players
        chosen = rng.choices(shown, k=plan.batch)
        batch = labelled(processor, chosen, [demonstration(each.deal, players, rng) for each in chosen])
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        loss = model(**batch).loss
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 25 == 0 or step + 1 == plan.steps:
            progress(step + 1, loss.item())
        if (step + 1) % save_every == 0 or step + 1 == plan.steps:
            _save(work, step + 1, spent + time.perf_counter() - begun, model, optimizer, rng)
    return model.eval(), processor, spent + time.perf_counter() - begun


def _resume(
    plan: Plan, work: Path, model: Any, optimizer: torch.optim.Optimizer, rng: random.Random
) -> tuple[int, float]:
    """Load the last state, if there is one: its step and the seconds spent so far."""
    import torch

    written, state = work / "plan.json", work / "state.pt"
    if written.exists() and json.loads(written.read_text(encoding="utf-8")) != plan.as_dict():
        raise RecipeError(
            "an unfinished training with other settings is in the way",
            where=str(work),
            fix=f"give the settings in {written}, or delete the folder, or choose another --out",
        )
    work.mkdir(parents=True, exist_ok=True)
    written.write_text(json.dumps(plan.as_dict(), indent=2) + "\n", encoding="utf-8")
    if not state.exists():
        return 0, 0.0
    saved = torch.load(state, weights_only=True)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    version, numbers, gauss = saved["rng"]
    rng.setstate((version, tuple(numbers), gauss))
    return saved["step"], saved["seconds"]


def _save(
    work: Path, step: int, seconds: float, model: Any, optimizer: torch.optim.Optimizer, rng: random.Random
) -> None:
    import torch

    weights = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save({"step": step, "seconds": seconds, "rng": rng.getstate(), **weights}, work / "state.tmp")
    (work / "state.tmp").replace(work / "state.pt")


def labelled(
    processor: Qwen2_5_VLProcessor, shown: Sequence[Screenshot], responses: Sequence[str]
) -> dict[str, torch.Tensor]:
    """Inputs with `labels`: every token of the responses counts, their end included, and nothing else.

    Returns:
        `input_ids`, `attention_mask`, `mm_token_type_ids`, `labels`, all (batch, prompt + longest response), and what
        the vision tower takes.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    tokenizer = processor.tokenizer
    ended = [torch.tensor([*tokenizer.encode(text), tokenizer.eos_token_id]) for text in responses]
    ids = pad_sequence(ended, batch_first=True, padding_value=tokenizer.pad_token_id)
    labels = pad_sequence(ended, batch_first=True, padding_value=IGNORED)
    batch = inputs(processor, shown)
    prompt = batch["input_ids"]
    return batch | {
        "input_ids": torch.cat([prompt, ids], dim=1),
        "attention_mask": torch.cat([torch.ones_like(prompt), (labels != IGNORED).long()], dim=1),
        "mm_token_type_ids": torch.cat([batch["mm_token_type_ids"], torch.zeros_like(ids)], dim=1),
        "labels": torch.cat([torch.full_like(prompt, IGNORED), labels], dim=1),
    }


if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

RESPONSE = 24  # tokens; a careful response takes 16
BATCH = 72  # responses at once


def assess(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    shown: Sequence[Screenshot],
    score: Score,
    *,
    seed: int,
    samples: int = 4,
) -> dict[str, Any]:
    """Greedy and sampled accuracy on screenshots that the model has not seen.

    Returns:
        The number of screenshots, `greedy_accuracy`, `sampled_accuracy`, `sampled_score`, `mixed_groups` (the share of
        screenshots whose samples earn different scores, without which GRPO has nothing to learn) and `reasons`.
    """
    import torch

    torch.manual_seed(seed)
    greedy = _scored(model, processor, shown, score, do_sample=False)
    sampled = _scored(model, processor, [each for each in shown for _ in range(samples)], score, do_sample=True)
    groups = [sampled[start : start + samples] for start in range(0, len(sampled), samples)]
    mixed = sum(len({found["score"] for found in group}) > 1 for group in groups)
    return {
        "screenshots": len(shown),
        "samples": samples,
        "greedy_accuracy": _mean(greedy, "accuracy"),
        "sampled_accuracy": _mean(sampled, "accuracy"),
        "sampled_score": _mean(sampled, "score"),
        "mixed_groups": round(mixed / len(shown), 4),
        "reasons": dict(Counter(found["reason"] for found in sampled).most_common()),
    }


def _scored(model: Any, processor: Any, shown: Sequence[Screenshot], score: Score, *, do_sample: bool) -> list[dict]:
    settings = {"temperature": 1.0, "top_k": 0, "top_p": 1.0} if do_sample else {}
    found = []
    for start in range(0, len(shown), BATCH):
        part = shown[start : start + BATCH]
        batch = inputs(processor, part)
        written = model.generate(**batch, max_new_tokens=RESPONSE, do_sample=do_sample, **settings)
        responses = processor.batch_decode(written[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        found += [score("number_game", text, str(each.deal.answer)) for text, each in zip(responses, part, strict=True)]
    return found


def _mean(scored: Sequence[dict[str, Any]], key: str) -> float:
    return round(sum(found[key] for found in scored) / len(scored), 4)


if TYPE_CHECKING:
    from transformers import Qwen2_5_VLForConditionalGeneration, Qwen2_5_VLProcessor

TINY = ROOT / "recipes" / "tasks" / "number_game" / "tiny"
MANIFEST = "manifest.json"


def refuse_existing(out: Path) -> None:
    """Raise a `RecipeError` where `out` exists: a finished model is never overwritten."""
    if out.exists():
        raise RecipeError(f"{out} exists", where="--out", fix="choose another folder, or delete this one first")


def save(model: Qwen2_5_VLForConditionalGeneration, processor: Qwen2_5_VLProcessor, folder: Path) -> None:
    """Weights in bfloat16, configuration, generation settings, tokenizer, processor and chat template."""
    import torch

    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    processor.save_pretrained(folder)
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors keeps its files from others


def publish(
    model: Qwen2_5_VLForConditionalGeneration,
    processor: Qwen2_5_VLProcessor,
    out: Path,
    plan: Plan,
    *,
    facts: dict[str, Any],
    assess: Callable[[Any, Any], dict[str, Any]],
) -> dict[str, Any]:
    """Write `out` in one move, assessed as it was saved, with `manifest.json`; returns the manifest.

    Args:
        facts: for the manifest: command, screenshots, seconds.
        assess: (model, processor) -> how good they are; called with what was saved.
    """
    import torch
    import transformers
    from transformers import AutoModelForImageTextToText, AutoProcessor

    refuse_existing(out)
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save(model, processor, temporary)
    saved = AutoModelForImageTextToText.from_pretrained(temporary, dtype=torch.float32).eval()
    found = assess(saved, AutoProcessor.from_pretrained(temporary))
    files = sorted(temporary.iterdir())
    manifest = {
        "what": "a tiny Qwen2.5-VL for the number game, pretrained on demonstrations about real screenshots",
        **facts,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "parameters": sum(parameter.numel() for parameter in saved.parameters()),
        "bytes": sum(path.stat().st_size for path in files),
        "sha256": {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files},
        "held_out": found,
        "plan": plan.as_dict(),
    }
    (temporary / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    temporary.rename(out)
    return manifest
