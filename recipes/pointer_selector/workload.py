"""The embedded workload: which of 32 handwritten digits should a frozen classifier be shown, to read another one right?

Real images (scikit-learn's 1,797 digits of 8 x 8 pixels, shipped with that package), no download. The policy sees
pixels; the frozen classifier has features and an opinion of its own. 15% of the shown labels are wrong, so that even
the right choice by image can mislead. Splits are by image: no image is a query in two of them, and the images that the
classifier was trained on appear nowhere else. Pools are drawn from the training images, as demonstrations are in use.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recipes.errors import RecipeError
from recipes.files import sha256, write_json, write_whole
from recipes.pointer_selector.config import WorkloadConfig
from recipes.pointer_selector.dataset import PointerData, pool_rows

LABELS = 10
MAX_SHOTS, TEST_POOLS = 4, 2
BEAM, SAMPLED, RANDOM, RETRIEVER_TEMPERATURE = 5, 7, 4, 0.1
"""Candidates of a group by method, and the temperature of the retriever's softmax over cosine similarity."""
FROZEN_FEATURES, PRIOR_WEIGHT, BANDWIDTH = 32, 0.6, 0.3
FILES = {"candidates": "candidates.jsonl", "embeddings": "embeddings.safetensors", "frozen_model": "frozen_model.npz"}
ARRAYS = ("prior", "query_features", "truth", "example_features", "example_labels")


@dataclass(frozen=True)
class Outcome:
    """Scores of sequences by the frozen model; tensors of the shape of the picks' leading dimensions."""

    correct: Tensor
    probability: Tensor  # of the right answer
    accuracy: Tensor  # 1 / rank of the right answer, a soft score between 0 and 1


@dataclass(frozen=True)
class FrozenModel:
    """The frozen in-context classifier; it stands where a vision-language model stands in real use.

    It has a weak opinion of its own about a query and is shown S examples with their (possibly wrong) labels:

        p(label | query, examples)  ~  w prior(label | query) + sum_i k(query, example_i) [label_i = label]

    with k = exp((cos(f(query), f(example)) - 1) / bandwidth) in a feature space f that the policy never sees. Rows of
    `prior`, `query_features` and `truth` are those of the query table, the others' rows those of the example table.
    """

    prior: Tensor
    query_features: Tensor
    truth: Tensor
    example_features: Tensor
    example_labels: Tensor

    def votes(self, queries: Tensor, examples: Tensor) -> Tensor:
        """Return each example's addition to each label: query rows [B], example rows [B, K] -> [B, K, labels]."""
        cosine = (self.example_features[examples] * self.query_features[queries][:, None]).sum(-1)
        kernel = ((cosine - 1) / BANDWIDTH).exp()
        return kernel[..., None] * functional.one_hot(self.example_labels[examples], self.prior.shape[1])

    def from_votes(self, queries: Tensor, total: Tensor) -> Outcome:
        """Return outcomes from summed votes: query rows [B], total [B, ..., labels] -> [B, ...]."""
        between = [1] * (total.ndim - 2)
        mass = total + PRIOR_WEIGHT * self.prior[queries].view(len(queries), *between, -1)
        probability = mass / mass.sum(-1, keepdim=True)
        truth = self.truth[queries].view(len(queries), *between, 1).expand(*total.shape[:-1], 1)
        of_truth = probability.gather(-1, truth)
        rank = 1 + (probability > of_truth).sum(-1)
        return Outcome(probability.argmax(-1) == truth.squeeze(-1), of_truth.squeeze(-1), 1 / rank)

    def outcome(self, data: PointerData, queries: np.ndarray, picks: Tensor) -> Outcome:
        """Return outcomes on sequences of slots: queries [B] of `data`, picks [B, ..., S] -> [B, ...]; S may be 0."""
        rows, examples = torch.from_numpy(data.query_rows[queries]), torch.tensor(pool_rows(data, queries))
        votes = self.votes(rows, examples)
        flat = picks.reshape(len(queries), -1)
        total = votes.gather(1, flat[..., None].expand(-1, -1, votes.shape[-1]))
        return self.from_votes(rows, total.view(*picks.shape, votes.shape[-1]).sum(-2))

    def oracle(self, data: PointerData, queries: np.ndarray, shots: int, limit: int) -> Outcome | None:
        """Return the best of all sets of `shots` examples, by probability; None where there are more than `limit`.

        The order of examples does not matter to this model, so sets are enough.
        """
        sizes = data.pool_sizes(queries)
        slots = int(sizes.max())
        if sizes.min() != slots or comb(slots, shots) > limit:
            return None
        sets = torch.tensor(list(combinations(range(slots), shots)), dtype=torch.long).view(-1, shots)
        rows, examples = torch.from_numpy(data.query_rows[queries]), torch.tensor(pool_rows(data, queries))
        best = []
        for row, votes in zip(rows, self.votes(rows, examples), strict=True):
            outcome = self.from_votes(row[None], votes[sets].sum(1)[None])
            maxima = (outcome.correct.any(), outcome.probability.max(), outcome.accuracy.max())
            best.append([value.item() for value in maxima])
        correct, probability, accuracy = torch.tensor(best).unbind(-1)
        return Outcome(correct.bool(), probability, accuracy)

    def save(self, path: Path) -> None:
        """Write the arrays as npz, without pickles."""
        np.savez_compressed(path, **{name: getattr(self, name).numpy() for name in ARRAYS})

    @classmethod
    def load(cls, path: Path) -> FrozenModel:
        """Read what `save` wrote."""
        with np.load(path, allow_pickle=False) as file:
            return cls(**{name: torch.from_numpy(file[name]) for name in ARRAYS})


@dataclass(frozen=True)
class Digits:
    """Shuffled images [n, 64] in 0 to 1, labels [n], and the image numbers of each part."""

    images: np.ndarray
    labels: np.ndarray
    parts: dict[str, np.ndarray]

    @property
    def pixels(self) -> Tensor:
        """Return the images as unit vectors [n, 64], centred on those of the frozen classifier."""
        centred = self.images - self.images[self.parts["frozen"]].mean(0)
        return functional.normalize(torch.from_numpy(centred).float(), dim=-1)


def digits(config: WorkloadConfig) -> Digits:
    """Load scikit-learn's digits, shuffled by the seed, in four disjoint parts: frozen, validation, test, train."""
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


def frozen_classifier(data: Digits, item_images: np.ndarray, item_labels: np.ndarray, seed: int) -> FrozenModel:
    """Return the frozen model: a logistic regression on a few images, and random ReLU features for its kernel."""
    from sklearn.linear_model import LogisticRegression

    few = data.parts["frozen"]
    opinion = LogisticRegression(C=0.03, max_iter=1000).fit(data.images[few], data.labels[few])
    prior = np.zeros((len(data.images), LABELS))
    prior[:, opinion.classes_] = opinion.predict_proba(data.images)
    rng = np.random.default_rng([seed, 1])
    weight = 2 * rng.normal(size=(data.images.shape[1], FROZEN_FEATURES))
    bias = 0.5 * rng.normal(size=FROZEN_FEATURES)
    features = np.maximum((data.images - data.images[few].mean(0)) @ weight + bias, 0)
    unit = functional.normalize(torch.from_numpy(features).float(), dim=-1)
    labels = torch.from_numpy(item_labels)
    return FrozenModel(torch.from_numpy(prior).float(), unit, torch.from_numpy(data.labels), unit[item_images], labels)


@dataclass(frozen=True)
class Draws:
    """One line a query: its image, its pool as images and shown labels [Q, K], its split and its name."""

    query: np.ndarray
    pool: np.ndarray
    shown: np.ndarray
    split: list[str]
    name: list[str]


def draw_pools(data: Digits, config: WorkloadConfig) -> Draws:
    """Draw `pool_size` training images for every query, without the query's own image; labels get noise."""
    rng = np.random.default_rng([config.seed, 2])
    rows = []
    train = data.parts["train"]
    repeats = {"train": 1, "validation": TEST_POOLS, "test": TEST_POOLS}
    for part, count in repeats.items():
        for repeat in range(count):
            for image in data.parts[part]:
                chosen = rng.choice(train[train != image], config.pool_size, replace=False)
                labels = data.labels[chosen].copy()
                wrong = rng.random(config.pool_size) < config.label_noise
                labels[wrong] = (labels[wrong] + rng.integers(1, LABELS, wrong.sum())) % LABELS
                rows.append((image, chosen, labels, part, f"{image}-{repeat}"))
    query, pool, shown, split, name = zip(*rows, strict=True)
    return Draws(np.array(query), np.stack(pool), np.stack(shown), list(split), list(name))


def propose(similarity: Tensor, shots: int, generator: torch.Generator) -> list[tuple[str, Tensor]]:
    """Propose candidate sequences by method, [Q, n, shots] each; samples at one and at two times the temperature."""
    scores = similarity / RETRIEVER_TEMPERATURE
    cool = SAMPLED - SAMPLED // 2
    return [
        ("beam", beam(scores, shots, BEAM)),
        ("sample", draw(scores, shots, cool, generator)),
        ("sample", draw(scores / 2, shots, SAMPLED - cool, generator)),
        ("random", draw(torch.zeros_like(scores), shots, RANDOM, generator)),
    ]


def prepare(folder: Path, config: WorkloadConfig) -> tuple[tuple[Path, Path, Path], FrozenModel]:
    """Return the candidates, both tables and the frozen model in `folder`; what is not there is made.

    Raises:
        RecipeError: what is there was made with other settings.
    """
    files = {role: folder / name for role, name in FILES.items()}
    manifest = folder / "manifest.json"
    if not all(file.is_file() for file in (*files.values(), manifest)):
        build(folder, config)
    if json.loads(manifest.read_text(encoding="utf-8"))["workload"] != config.model_dump():
        raise RecipeError(
            "the workload there was made with other settings",
            where=str(folder),
            fix="remove the folder, set ARTIFACTS_DIR, or take the keys under workload back",
        )
    table = files["embeddings"]
    return (files["candidates"], table, table), FrozenModel.load(files["frozen_model"])


def build(folder: Path, config: WorkloadConfig) -> None:
    """Make the workload's three files and, last, a manifest in `folder`. Some 15 s on one core."""
    data = digits(config)
    draws = draw_pools(data, config)
    items, slots = np.unique(draws.pool * LABELS + draws.shown, return_inverse=True)
    slots = slots.reshape(draws.pool.shape)
    model = frozen_classifier(data, items // LABELS, items % LABELS, config.seed)
    folder.mkdir(parents=True, exist_ok=True)
    _save_embeddings(folder / FILES["embeddings"], data.pixels, items)
    model.save(folder / FILES["frozen_model"])
    _write_candidates(folder / FILES["candidates"], model, draws, items, slots, data.pixels, config.seed)
    hashes = {name: sha256(folder / name) for name in FILES.values()}
    manifest = {"source": "sklearn.datasets.load_digits", "workload": config.model_dump(), "sha256": hashes}
    write_json(folder / "manifest.json", manifest)


def _save_embeddings(path: Path, pixels: Tensor, items: np.ndarray) -> None:
    from safetensors.torch import save_file

    tensors = {
        "query_embeddings": pixels.contiguous(),
        "query_ids": torch.arange(len(pixels)),
        "candidate_embeddings": pixels[items // LABELS].contiguous(),
        "candidate_ids": torch.from_numpy(items),
    }
    save_file(tensors, path)  # no metadata: its order in the file is not the same from one write to the next


def _write_candidates(
    path: Path,
    model: FrozenModel,
    draws: Draws,
    items: np.ndarray,
    slots: np.ndarray,
    pixels: Tensor,
    seed: int,
) -> None:
    """Propose candidates for every query, ask the frozen model about each, and write them.

    `items` [I] are the ids of the example table, `slots` [Q, K] the rows of each query's pool in it.
    """
    generator = torch.Generator().manual_seed(seed)
    rows = torch.from_numpy(draws.query)
    similarity = (pixels[torch.from_numpy(draws.pool)] @ pixels[rows][..., None]).squeeze(-1)
    votes = model.votes(rows, torch.from_numpy(slots))
    pools = items[slots].tolist()
    entries: list[dict[tuple[int, ...], dict[str, Any]]] = [{} for _ in pools]  # by slots, so that none is repeated
    for shots in range(1, MAX_SHOTS + 1):
        for method, pointers in propose(similarity, shots, generator):
            chosen = votes.gather(1, pointers.flatten(1)[..., None].expand(-1, -1, LABELS))
            outcome = model.from_votes(rows, chosen.view(*pointers.shape, LABELS).sum(-2))
            total = log_prob(similarity / RETRIEVER_TEMPERATURE, pointers)
            columns = (pointers, total, outcome.correct, outcome.accuracy, outcome.probability)
            for pool, known, *lines in zip(pools, entries, *(column.tolist() for column in columns), strict=True):
                for picks, log_probability, correct, accuracy, probability in zip(*lines, strict=True):
                    entry = {
                        "pointer": [pool[pick] for pick in picks],
                        "gen_method": method,
                        "beam_score": round(log_probability / shots, 5),
                        "vqa_correct": int(correct),
                        "vqa_acc_score": round(accuracy, 5),
                        "vqa_gt_prob": round(probability, 6),
                    }
                    known.setdefault(tuple(picks), entry)
    lines = []
    for image, split, pool, name, known in zip(draws.query, draws.split, pools, draws.name, entries, strict=True):
        record = {"query_id": name, "embedding_id": str(image), "split": split, "pool": pool}
        lines.append(json.dumps({**record, "pointer_candidates": list(known.values())}))
    write_whole(path, "\n".join(lines) + "\n")


# The retriever that proposes the logged candidates. It draws examples without replacement from
# softmax(cosine / temperature), so the log-probability of a sequence is that of Plackett and Luce. It is the behaviour
# policy of the offline data.


def log_prob(scores: Tensor, pointers: Tensor) -> Tensor:
    """Return Plackett-Luce log-probability: scores [B, K] (cosine / temperature), pointers [B, N, S] -> [B, N]."""
    free = torch.ones(*pointers.shape[:2], scores.shape[1], dtype=torch.bool)
    total = torch.zeros(pointers.shape[:2])
    for step in range(pointers.shape[2]):
        pick = pointers[:, :, step, None]
        log_probs = scores[:, None].expand_as(free).masked_fill(~free, float("-inf")).log_softmax(-1)
        total = total + log_probs.gather(-1, pick).squeeze(-1)
        free = free.scatter(-1, pick, False)
    return total


def beam(scores: Tensor, shots: int, width: int) -> Tensor:
    """Return the `width` most likely sequences that a beam finds, no two of them the same set: [B, width, S].

    The beam is wider than that, since its members are mostly orders of the same examples.
    """
    batch, slots = scores.shape
    wide = width * (6 if shots > 1 else 1)
    picks = torch.zeros(batch, 1, 0, dtype=torch.long)
    free = torch.ones(batch, 1, slots, dtype=torch.bool)
    total = torch.zeros(batch, 1)
    for _ in range(shots):
        step = scores[:, None].expand_as(free).masked_fill(~free, float("-inf")).log_softmax(-1)
        total, index = (total[..., None] + step).flatten(1).topk(min(wide, free.shape[1] * slots), dim=-1)
        parent, slot = index // slots, index % slots
        picks = torch.cat([picks.gather(1, parent[..., None].expand(-1, -1, picks.shape[-1])), slot[..., None]], -1)
        free = free.gather(1, parent[..., None].expand(-1, -1, slots)).scatter(-1, slot[..., None], False)
    return torch.stack(
        [_distinct_sets(row, total_of_row, width) for row, total_of_row in zip(picks, total, strict=True)]
    )


def _distinct_sets(sequences: Tensor, total: Tensor, width: int) -> Tensor:
    """Return the first `width` sequences that are different sets; repeats fill up where there are fewer."""
    seen: dict[tuple[int, ...], int] = {}
    for number, sequence in enumerate(sequences.sort(-1).values.tolist()):
        if torch.isfinite(total[number]):
            seen.setdefault(tuple(sequence), number)
    kept = list(seen.values())[:width]
    return sequences[kept + [kept[0]] * (width - len(kept))]


def draw(scores: Tensor, shots: int, count: int, generator: torch.Generator) -> Tensor:
    """Sample `count` sequences without replacement from softmax(scores), through Gumbel noise: [B, count, S]."""
    uniform = torch.rand(scores.shape[0], count, scores.shape[1], generator=generator).clamp(min=1e-20)
    return (scores[:, None] - (-uniform.log()).log()).topk(shots, dim=-1).indices
