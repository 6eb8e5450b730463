"""Seconds of a training step, from rates that were measured on H100s and H200s (docs/PERFORMANCE.md).

A model of five numbers a phase: the arithmetic at a share of the matrix rate, the weights read for each decoded token,
and what each row and each decoded token cost in processor time. Held against measurements in docs/results/speed.json.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from recipes.memory.shape import Shape


class Card(NamedTuple):
    """A GPU that was measured."""

    name: str
    rate: float  # operations a second of a matrix product in bf16
    bandwidth: float  # bytes a second of its memory


CARDS = {"80": Card("H100 80GB", 780e12, 3.35e12), "141": Card("H200", 780e12, 4.8e12)}
"""GB in a GPU's name -> the card."""

FORWARD_SHARE, UPDATE_SHARE, RECOMPUTED_SHARE = 0.56, 0.52, 0.43
"""Shares of the matrix rate, 2 and 6 operations a weight and token; recomputation is not counted as work."""
FROZEN_OPERATIONS = 4
"""Operations a weight and token in an update that trains adapters: weights below them get no gradient."""
LAUNCH = 1.5e-3
"""Seconds of a decoding step, whatever the model."""
READ_SHARE, CACHE_SHARE = 0.8, 0.7
"""Shares of the memory's bandwidth in reading weights, and the cache."""
DECODED = 25e-6
"""Seconds of vLLM's processor time for each response and decoding step."""
ROW_FORWARD, ROW_UPDATE, ROW_DRIVER = 1e-3, 2e-3, 0.5e-3
"""Seconds a row: on its GPU's process without and with gradients, and in the driver, which is one process."""
EASYR1_PASS = 13.7e-12
"""Seconds a weight that EasyR1 takes more each time that a pass goes through the weights, forward, again or backward;
of one measured step, whose phases it fits within 4%."""
IMAGE = {"generate": 0.01, "forward": 0.001, "update": 0.01}
"""Seconds that a row with an image takes more on its GPU."""
LINK = {False: 250e9, True: 150e9}
"""Bytes a second that a GPU receives while weights are gathered, within a machine and between machines; the second was
not measured."""
HOST = 15e9
"""Bytes a second of weights on their way from the host to the GPU, in each forward and each backward pass."""
SYNC, SYNC_SHARDED, SYNC_WEIGHT = 0.4, 0.6, 0.1e-9
"""Seconds of sending weights to vLLM: each time, besides where they are sharded, and a weight."""
DRIVER = 0.5
"""Seconds a step of the driver, whatever its rows."""
LONGEST = 4
"""The longest response of a step is at most so many times the mean, and at most the limit."""


@dataclass(frozen=True)
class Work:
    """The sizes of a step."""

    shape: Shape
    rows: int  # responses of a step
    prompts: int
    prompt: float  # mean tokens of a prompt
    response: float  # mean tokens of a response
    most: int  # longest response, in tokens
    gpus: int = 1
    nodes: int = 1
    tensor: int = 1  # GPUs that share an engine of vLLM
    sequences: int = 1_024  # responses that an engine decodes at once
    update_tokens: int = 16_384  # tokens of a pass with gradients on a GPU
    forward_tokens: int = 65_536  # tokens of a pass without gradients on a GPU, where `easyr1`
    recompute: bool = False
    lora: bool = False
    on_host: bool = False  # weights stay on the host
    passes: int = 1  # passes without gradients: the reference's, and that for old log-probabilities
    images: bool = False
    easyr1: bool = False  # EasyR1's trainer


class Seconds(NamedTuple):
    """Seconds of each phase of a step."""

    generate: float
    log_probs: float
    update: float
    weights: float
    driver: float

    @property
    def step(self) -> float:
        return sum(self)


def seconds(work: Work, card: Card) -> Seconds:
    """Seconds of a step on GPUs of a kind, once everything is compiled."""
    size, rows = work.shape.parameters, work.rows / work.gpus
    tokens = rows * (work.prompt + work.response)
    image = IMAGE if work.images else dict.fromkeys(IMAGE, 0.0)
    forward = 2 * size * tokens / (FORWARD_SHARE * card.rate) + rows * (ROW_FORWARD + image["forward"])
    operations = (FROZEN_OPERATIONS if work.lora else 6) * size * tokens
    passes, through = max(1, math.ceil(tokens / work.update_tokens)), EASYR1_PASS * size * work.easyr1
    forward += through * math.ceil(tokens / work.forward_tokens)
    update = operations / ((RECOMPUTED_SHARE if work.recompute else UPDATE_SHARE) * card.rate)
    update += through * passes * (2 + work.recompute)
    moved = 2 * size / work.gpus * passes / HOST if work.on_host else 0.0
    # Beside the arithmetic of a pass its weights are gathered twice in bf16, and its gradients spread in fp32.
    gathered = (2 + 2 + (0 if work.lora else 4)) * size * (1 - 1 / work.gpus) / LINK[work.nodes > 1]
    update = max(update, gathered * passes) + 2 * moved + rows * (ROW_UPDATE + image["update"])
    return Seconds(
        generate=_generate(work, card) + rows * image["generate"],
        log_probs=work.passes * (forward + moved),
        update=update,
        weights=SYNC + SYNC_SHARDED * (work.gpus > 1) + size * SYNC_WEIGHT,
        driver=DRIVER + work.rows * ROW_DRIVER,
    )


def _generate(work: Work, card: Card) -> float:
    """Each decoding step reads the weights, each response of it its cache; the longest response decides the steps."""
    shape, engines = work.shape, max(1, work.gpus // work.tensor)
    decoded = work.rows / engines * work.response
    steps = max(min(work.most, LONGEST * work.response), decoded / work.sequences)
    weights = LAUNCH + 2 * shape.parameters / work.tensor / (READ_SHARE * card.bandwidth)
    cached = 4 * shape.layers * shape.keys / work.tensor * (work.prompt + work.response / 2)
    filling = 2 * shape.parameters * work.prompts / work.gpus * work.prompt / (FORWARD_SHARE * card.rate)
    return steps * weights + decoded * (DECODED + cached / (CACHE_SHARE * card.bandwidth)) + filling
