"""The embedded workload: which of 32 handwritten digits should a frozen classifier be shown, to read another one right?

Real images (scikit-learn's 1,797 digits of 8 x 8 pixels), no download. The policy sees pixels; the frozen classifier
has features and a prior of its own. 15% of the shown labels are wrong, so that even the most similar image can mislead.
No image is a query in two splits, those that the classifier was trained on appear nowhere else, and pools hold training
images only, as demonstrations come from training data in real use.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from recipes.errors import RecipeError
from recipes.files import whole_folder

LABELS, LABEL_NOISE, MAX_SHOTS = 10, 0.15, 4
FROZEN_FEATURES, PRIOR_WEIGHT, BANDWIDTH = 32, 0.6, 0.3
RETRIEVER_TEMPERATURE = 0.1
"""The retriever, the behaviour policy of the offline data, draws examples without replacement from a softmax of their
cosine similarity over this temperature: a Plackett-Luce model of sequences."""
FILES = "candidates.jsonl", "embeddings.safetensors", "frozen_model.safetensors"


SIZES = {"frozen": 40, "validation": 257, "test": 600, "train": 900}
"""Images by part: `frozen` ones train the frozen classifier, `validation` and `test` ones are queries with two pools
each, `train` ones are queries and fill all pools."""
POOL = 32
"""Examples in a query's pool."""


@dataclass(frozen=True)
class FrozenModel:
    """The frozen in-context classifier; in real use a vision-language model takes its place.

    It has a weak prior of its own about a query and is shown S examples with their (possibly wrong) labels:

        p(label | query, examples) = (w prior(label | query) + sum_i k(query, example_i) [label_i = label]) / Z

    with w = PRIOR_WEIGHT, k = exp((cos(f(query), f(example)) - 1) / BANDWIDTH) in a feature space f that the policy
    never sees, and Z the sum over the labels. The rows of `prior`, `query_features` and `truth` match the query table,
    those of the other tensors the example table.
    """

    prior: Tensor
    query_features: Tensor
    truth: Tensor
    example_features: Tensor
    example_labels: Tensor

    def votes(self, queries: Tensor, examples: Tensor) -> Tensor:
        """Each example's addition to each label: query rows [B], example rows [B, K] -> [B, K, labels]."""
        cosine = (self.example_features[examples] * self.query_features[queries][:, None]).sum(-1)
        kernel = ((cosine - 1) / BANDWIDTH).exp()
        return kernel[..., None] * functional.one_hot(self.example_labels[examples], LABELS)

    def answer(self, queries: Tensor, votes: Tensor, picks: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Correctness of each answer, probability of the right one, and 1 / its rank, a soft score from 0 to 1.

        Query rows [B], votes [B, K, labels] of their pools, picks [B, ..., S] -> three times [B, ...]; S may be 0.
        """
        chosen = votes.gather(1, picks.reshape(len(queries), -1, 1).expand(-1, -1, LABELS))
        total = chosen.view(*picks.shape, LABELS).sum(-2)
        between = [1] * (total.ndim - 2)
        mass = total + PRIOR_WEIGHT * self.prior[queries].view(len(queries), *between, LABELS)
        probability = mass / mass.sum(-1, keepdim=True)
        truth = self.truth[queries].view(len(queries), *between, 1).expand(*total.shape[:-1], 1)
        of_truth = probability.gather(-1, truth)
        rank = 1 + (probability > of_truth).sum(-1)
        return probability.argmax(-1) == truth.squeeze(-1), of_truth.squeeze(-1), 1 / rank


def prepare(folder: Path) -> tuple[Path, Path, FrozenModel]:
    """Return the candidates, the embeddings and the frozen model in `folder`, which is made if it is not there."""
    from safetensors.torch import load_file

    if not folder.is_dir():
        with whole_folder(folder) as draft:
            build(draft)
    candidates, embeddings, model = (folder / name for name in FILES)
    return candidates, embeddings, FrozenModel(**load_file(model))


def build(folder: Path) -> None:
    """Make the workload's three files in a folder. Some 15 s on one core."""
    from safetensors.torch import save_file

    images, labels, parts = _digits()
    queries, pools, splits, names = zip(*_queries(labels, parts), strict=True)
    items, slots = np.unique(np.stack(pools), return_inverse=True)
    slots = slots.reshape(len(pools), POOL)
    model = _frozen_model(images, labels, parts["frozen"], items)
    pixels = _unit(images - images[parts["frozen"]].mean(0))
    candidates, embeddings, frozen_model = (folder / name for name in FILES)
    tables = {
        "query_embeddings": pixels,
        "query_ids": torch.arange(len(pixels)),
        "candidate_embeddings": pixels[items // LABELS],
        "candidate_ids": torch.from_numpy(items),
    }
    save_file(tables, embeddings)  # no metadata: its order in the file is not the same from one write to the next
    save_file(vars(model), frozen_model)
    logged = _candidates(model, pixels, np.array(queries), items, slots)
    lines = []
    for image, split, name, pool, candidates_of in zip(queries, splits, names, items[slots], logged, strict=True):
        record = {"query_id": name, "embedding_id": str(image), "split": split, "pool": pool.tolist()}
        lines.append(json.dumps({**record, "pointer_candidates": candidates_of}))
    candidates.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _digits() -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Shuffled images [n, 64] in 0 to 1, labels [n], and the image numbers of each part."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        what = "the embedded workload is made of scikit-learn's digits, and scikit-learn is not installed"
        fix = "pip install scikit-learn, or give data.candidates and data.query_embeddings of your own"
        raise RecipeError(what, where="data.candidates", fix=fix) from error

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng([0, 0]).permutation(len(images))
    numbers = np.split(np.arange(len(images)), np.cumsum(list(SIZES.values())))
    parts = dict(zip(SIZES, numbers, strict=False))
    return images[order] / 16.0, labels[order], parts


def _queries(labels: np.ndarray, parts: dict[str, np.ndarray]) -> Iterator[tuple[int, np.ndarray, str, str]]:
    """Yield each query's image, its pool, its split and its name.

    A pool has training images other than the query's own; an example's id is 10 * its image number + the label shown.
    """
    rng = np.random.default_rng([0, 2])
    train = parts["train"]
    for split, number in (("train", 0), ("validation", 0), ("validation", 1), ("test", 0), ("test", 1)):
        for image in parts[split]:
            chosen = rng.choice(train[train != image], POOL, replace=False)
            shown = labels[chosen].copy()
            wrong = rng.random(POOL) < LABEL_NOISE
            shown[wrong] = (shown[wrong] + rng.integers(1, LABELS, wrong.sum())) % LABELS
            yield image, chosen * LABELS + shown, split, f"{image}-{number}"


def _frozen_model(images: np.ndarray, labels: np.ndarray, few: np.ndarray, items: np.ndarray) -> FrozenModel:
    """A logistic regression on a few images as prior, and random ReLU features for the kernel."""
    from sklearn.linear_model import LogisticRegression

    opinion = LogisticRegression(C=0.03, max_iter=1000).fit(images[few], labels[few])
    prior = np.zeros((len(images), LABELS), np.float32)
    prior[:, opinion.classes_] = opinion.predict_proba(images)
    rng = np.random.default_rng([0, 1])
    weight = 2 * rng.normal(size=(images.shape[1], FROZEN_FEATURES))
    bias = 0.5 * rng.normal(size=FROZEN_FEATURES)
    features = _unit(np.maximum((images - images[few].mean(0)) @ weight + bias, 0))
    shown = torch.from_numpy(items % LABELS)
    return FrozenModel(torch.from_numpy(prior), features, torch.from_numpy(labels), features[items // LABELS], shown)


def _unit(rows: np.ndarray) -> Tensor:
    return functional.normalize(torch.from_numpy(rows).float(), dim=-1)


def _candidates(
    model: FrozenModel, pixels: Tensor, images: np.ndarray, items: np.ndarray, slots: np.ndarray
) -> list[list[dict[str, Any]]]:
    """Propose candidates for every query and ask the frozen model about each.

    `images` [Q] are the queries' image numbers, `items` [I] the ids of the examples, and `slots` [Q, K] each pool's
    rows in the example table. For each number of shots 5 candidates come from beam search, 7 are sampled (3 of them at
    twice the temperature), and 4 are random; a sequence is logged once.
    """
    generator = torch.Generator().manual_seed(0)
    rows = torch.from_numpy(images)
    pools = items[slots]
    scores = (pixels[torch.from_numpy(pools // LABELS)] @ pixels[rows][..., None]).squeeze(-1) / RETRIEVER_TEMPERATURE
    votes = model.votes(rows, torch.from_numpy(slots))
    logged: list[dict[tuple[int, ...], dict[str, Any]]] = [{} for _ in pools]
    for shots in range(1, MAX_SHOTS + 1):
        for method, pointers in (
            ("beam", _beam(scores, shots, 5)),
            ("sample", _draw(scores, shots, 4, generator)),
            ("sample", _draw(scores / 2, shots, 3, generator)),
            ("random", _draw(torch.zeros_like(scores), shots, 4, generator)),
        ):
            columns = (pointers, _log_prob(scores, pointers), *model.answer(rows, votes, pointers))
            for pool, known, *of_query in zip(pools, logged, *(column.tolist() for column in columns), strict=True):
                for picks, log_probability, correct, probability, accuracy in zip(*of_query, strict=True):
                    candidate = {
                        "pointer": pool[picks].tolist(),
                        "gen_method": method,
                        "beam_score": round(log_probability / shots, 5),
                        "vqa_correct": int(correct),
                        "vqa_acc_score": round(accuracy, 5),
                        "vqa_gt_prob": round(probability, 6),
                    }
                    known.setdefault(tuple(picks), candidate)
    return [list(known.values()) for known in logged]


def _log_prob(scores: Tensor, pointers: Tensor) -> Tensor:
    """The retriever's log-probability of sequences: scores [B, K], pointers [B, N, S] -> [B, N]."""
    free = torch.ones(*pointers.shape[:2], scores.shape[1], dtype=torch.bool)
    total = torch.zeros(pointers.shape[:2])
    for pick in pointers.split(1, dim=-1):
        log_probs = scores[:, None].expand_as(free).masked_fill(~free, float("-inf")).log_softmax(-1)
        total = total + log_probs.gather(-1, pick).squeeze(-1)
        free = free.scatter(-1, pick, False)
    return total


def _beam(scores: Tensor, shots: int, width: int) -> Tensor:
    """The `width` most likely sequences that a beam finds, no two of them the same set: [B, width, S].

    The beam is wider than `width`, since many of its members are permutations of the same examples. Where it holds
    fewer sets, the first one is repeated.
    """
    batch, slots = scores.shape
    wide = 6 * width
    picks = torch.zeros(batch, 1, 0, dtype=torch.long)
    free = torch.ones(batch, 1, slots, dtype=torch.bool)
    total = torch.zeros(batch, 1)
    for _ in range(shots):
        step = scores[:, None].expand_as(free).masked_fill(~free, float("-inf")).log_softmax(-1)
        total, index = (total[..., None] + step).flatten(1).topk(min(wide, free.shape[1] * slots), dim=-1)
        parent, slot = index // slots, index % slots
        picks = torch.cat([picks.gather(1, parent[..., None].expand(-1, -1, picks.shape[-1])), slot[..., None]], -1)
        free = free.gather(1, parent[..., None].expand(-1, -1, slots)).scatter(-1, slot[..., None], False)
    kept = []
    for sequences in picks:
        first: dict[tuple[int, ...], int] = {}
        for number, chosen in enumerate(sequences.sort(-1).values.tolist()):
            first.setdefault(tuple(chosen), number)
        numbers = list(first.values())[:width]
        kept.append(sequences[numbers + [numbers[0]] * (width - len(numbers))])
    return torch.stack(kept)


def _draw(scores: Tensor, shots: int, count: int, generator: torch.Generator) -> Tensor:
    """Sample `count` sequences without replacement from softmax(scores), through Gumbel noise: [B, count, S]."""
    uniform = torch.rand(scores.shape[0], count, scores.shape[1], generator=generator).clamp(min=1e-20)
    return (scores[:, None] - (-uniform.log()).log()).topk(shots, dim=-1).indices
