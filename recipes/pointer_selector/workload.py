"""The embedded workload: which of 32 handwritten digits should a frozen classifier be shown, to read another one right?

Real images (scikit-learn's 1,797 digits of 8 x 8 pixels, shipped with that package), no download. The policy sees
pixels; the frozen classifier has features and an opinion of its own. 15% of the shown labels are wrong, so that even
the right choice by image can mislead. Splits are by image: no image is a query in two of them, and the images that the
classifier was trained on appear nowhere else. Pools are drawn from the training images, as demonstrations are in use.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from recipes.errors import RecipeError
from recipes.pointer_selector import retriever
from recipes.pointer_selector.config import WorkloadConfig
from recipes.pointer_selector.frozen_model import FrozenModel

LABELS = 10
FROZEN_FEATURES, PRIOR_WEIGHT, BANDWIDTH = 32, 0.6, 0.3
FILES = {"candidates": "candidates.json", "embeddings": "embeddings.safetensors", "frozen_model": "frozen_model.npz"}


@dataclass(frozen=True)
class Digits:
    """Shuffled images [n, 64] in 0 to 1, labels [n], and the image numbers of each part."""

    images: np.ndarray
    labels: np.ndarray
    parts: dict[str, np.ndarray]


def digits(config: WorkloadConfig) -> Digits:
    """scikit-learn's digits, shuffled by the seed, in four disjoint parts: frozen, validation, test, train."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise RecipeError(
            "the embedded workload is made of scikit-learn's digits, and scikit-learn is not installed",
            where="workload",
            fix="pip install scikit-learn, or give data.candidates and data.query_embeddings of your own",
        ) from error

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng([config.seed, 0]).permutation(len(images))
    sizes = [config.frozen_images, config.validation_images, config.test_images, config.train_images]
    if sum(sizes) > len(images):
        raise RecipeError(f"{sum(sizes)} images were asked for, and there are {len(images)}", where="workload")
    names = ("frozen", "validation", "test", "train", "unused")
    parts = dict(zip(names, np.split(np.arange(len(images)), np.cumsum(sizes)), strict=True))
    return Digits(images[order] / 16.0, labels[order], parts)


def frozen_classifier(
    data: Digits, item_images: np.ndarray, item_labels: np.ndarray, config: WorkloadConfig
) -> FrozenModel:
    """The frozen model: a logistic regression on a few images for its opinion, random ReLU features for its kernel."""
    from sklearn.linear_model import LogisticRegression

    few = data.parts["frozen"]
    opinion = LogisticRegression(C=0.03, max_iter=1000).fit(data.images[few], data.labels[few])
    prior = np.zeros((len(data.images), LABELS))
    prior[:, opinion.classes_] = opinion.predict_proba(data.images)
    rng = np.random.default_rng([config.seed, 1])
    weight = 2 * rng.normal(size=(data.images.shape[1], FROZEN_FEATURES))
    bias = 0.5 * rng.normal(size=FROZEN_FEATURES)
    features = np.maximum((data.images - data.images[few].mean(0)) @ weight + bias, 0)
    unit = functional.normalize(torch.from_numpy(features).float(), dim=-1)
    return FrozenModel(
        prior=torch.from_numpy(prior).float(),
        query_features=unit,
        truth=torch.from_numpy(data.labels),
        example_features=unit[torch.from_numpy(item_images)],
        example_labels=torch.from_numpy(item_labels),
        prior_weight=PRIOR_WEIGHT,
        bandwidth=BANDWIDTH,
    )


@dataclass(frozen=True)
class Draws:
    """One line a query: its image, its pool as images and shown labels [Q, K], its split and its name."""

    query: np.ndarray
    pool: np.ndarray
    shown: np.ndarray
    split: list[str]
    name: list[str]


def draw_pools(data: Digits, config: WorkloadConfig) -> Draws:
    """Pools of `pool_size` training images for every query, without the query's own image; labels get noise."""
    rng = np.random.default_rng([config.seed, 2])
    query, pool, shown, split, name = [], [], [], [], []
    for part in ("train", "validation", "test"):
        for repeat in range(config.train_pools if part == "train" else config.test_pools):
            for image in data.parts[part]:
                chosen = rng.choice(data.parts["train"][data.parts["train"] != image], config.pool_size, replace=False)
                labels = data.labels[chosen].copy()
                wrong = rng.random(config.pool_size) < config.label_noise
                labels[wrong] = (labels[wrong] + rng.integers(1, LABELS, wrong.sum())) % LABELS
                query.append(image)
                pool.append(chosen)
                shown.append(labels)
                split.append(part)
                name.append(f"{image}-{repeat}")
    return Draws(np.array(query), np.stack(pool), np.stack(shown), split, name)


def propose(
    similarity: torch.Tensor, shots: int, config: WorkloadConfig, generator: torch.Generator
) -> list[tuple[str, torch.Tensor]]:
    """Candidate sequences by method, [Q, n, shots] each; samples are drawn at one and at two times the temperature."""
    scores = similarity / config.retriever_temperature
    cool = config.sampled - config.sampled // 2
    found = [("beam", retriever.beam(scores, shots, config.beam))]
    if config.sampled:
        found.append(("sample", retriever.draw(scores, shots, cool, generator)))
        found.append(("sample", retriever.draw(scores / 2, shots, config.sampled - cool, generator)))
    if config.random:
        found.append(("random", retriever.draw(torch.zeros_like(scores), shots, config.random, generator)))
    return [(method, pointers) for method, pointers in found if pointers.shape[1]]


def build(folder: Path, config: WorkloadConfig) -> dict:
    """Make the workload's three files and a manifest in `folder`; returns the manifest. Some 15 s on one core."""
    data = digits(config)
    draws = draw_pools(data, config)
    items, slots = np.unique(draws.pool * LABELS + draws.shown, return_inverse=True)
    item_images, item_labels = items // LABELS, items % LABELS
    slots = slots.reshape(draws.pool.shape)
    model = frozen_classifier(data, item_images, item_labels, config)

    folder.mkdir(parents=True, exist_ok=True)
    _save_embeddings(folder / FILES["embeddings"], data, items, item_images, item_labels, config)
    model.save(folder / FILES["frozen_model"])
    counts = _write_candidates(folder / FILES["candidates"], model, draws, items, slots, config, data)
    manifest = {
        "source": "sklearn.datasets.load_digits",
        "workload": config.model_dump(),
        "queries": {part: draws.split.count(part) for part in ("train", "validation", "test")},
        "images": {part: len(images) for part, images in data.parts.items()},
        "candidates": counts,
        "zero_shot_accuracy": float((model.prior.argmax(-1) == model.truth)[data.parts["test"]].float().mean()),
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES.values()},
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    return manifest


def manifest(folder: Path) -> dict | None:
    """The manifest of a workload that was made in `folder` and is whole, or None."""
    path = folder / "manifest.json"
    if not path.is_file() or not all((folder / name).is_file() for name in FILES.values()):
        return None
    return json.loads(path.read_text(encoding="utf-8"))


def _pixels(data: Digits) -> torch.Tensor:
    centred = data.images - data.images[data.parts["frozen"]].mean(0)
    return functional.normalize(torch.from_numpy(centred).float(), dim=-1)


def _save_embeddings(path, data, items, item_images, item_labels, config) -> None:
    from safetensors.torch import save_file

    pixels = _pixels(data)
    examples, queries = pixels[torch.from_numpy(item_images)], pixels
    if config.embed_labels:
        shown = functional.one_hot(torch.from_numpy(item_labels), LABELS).float()
        examples = torch.cat([examples, shown], -1)
        queries = torch.cat([queries, torch.zeros(len(queries), LABELS)], -1)
    tensors = {
        "query_embeddings": queries.contiguous(),
        "query_ids": torch.arange(len(queries)),
        "candidate_embeddings": examples.contiguous(),
        "candidate_ids": torch.from_numpy(items),
    }
    save_file(tensors, path)  # no metadata: its order in the file is not the same from one write to the next


def _write_candidates(path, model, draws, items, slots, config, data) -> dict[str, int]:
    generator = torch.Generator().manual_seed(config.seed)
    pixels = _pixels(data)
    rows = torch.from_numpy(draws.query)
    similarity = (pixels[torch.from_numpy(draws.pool)] @ pixels[rows][..., None]).squeeze(-1)
    votes = model.votes(rows, torch.from_numpy(slots))
    entries: list[list[dict]] = [[] for _ in draws.query]
    counts = {"beam": 0, "sample": 0, "random": 0}
    for shots in range(1, config.max_shots + 1):
        seen: list[set[tuple[int, ...]]] = [set() for _ in draws.query]
        for method, pointers in propose(similarity, shots, config, generator):
            flat = pointers.flatten(1)[..., None].expand(-1, -1, LABELS)
            verdict = model.judge(rows, votes.gather(1, flat).view(*pointers.shape, LABELS).sum(-2))
            log_probs = retriever.log_prob(similarity / config.retriever_temperature, pointers)
            columns = [
                x.tolist()
                for x in (pointers, log_probs, verdict.correct, verdict.accuracy, verdict.probability, verdict.answer)
            ]
            for query, lines in enumerate(zip(*columns, strict=True)):
                for picks, log_prob, correct, accuracy, probability, answer in zip(*lines, strict=True):
                    if tuple(picks) in seen[query]:
                        continue
                    seen[query].add(tuple(picks))
                    counts[method] += 1
                    entries[query].append(
                        {
                            "pointer": [int(items[slots[query, pick]]) for pick in picks],
                            "gen_method": method,
                            "beam_score": round(log_prob / shots, 5),
                            "logprob_score": round(log_prob, 5),
                            "vqa_correct": int(correct),
                            "vqa_acc_score": round(accuracy, 5),
                            "vqa_gt_prob": round(probability, 6),
                            "vqa_pred_answer": str(answer),
                        }
                    )
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write('{"_meta": ' + json.dumps({"workload": config.model_dump()}))
        for query, candidates in enumerate(entries):
            record = {
                "embedding_id": str(draws.query[query]),
                "split": draws.split[query],
                "pool": [int(item) for item in items[slots[query]]],
                "pointer_candidates": candidates,
            }
            file.write(",\n" + json.dumps(draws.name[query]) + ": " + json.dumps(record))
        file.write("}\n")
    os.replace(partial, path)
    return counts
