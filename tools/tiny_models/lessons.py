"""Losses of each stage of the number game's pretraining, on batches of one image size.

From scratch, next-token prediction on screenshots alone learns the lamp within minutes and no digit within an hour: the
vision tower gets no signal before the language model looks at the right place, and the other way round. So the tower
first learns to name digits, in the language model's own vocabulary: an image token on a card should be close to the
embedding of the card's digit. Copying it into a response is then easy to learn.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from recipes.tasks.number_game.rules import LIGHTS, cells
from tools.tiny_models.demonstrations import (
    RESPONSE,
    GamePlan,
    Players,
    Screenshot,
    by_size,
    demonstration,
    inputs,
)
from tools.tiny_models.pretrain import IGNORED

if TYPE_CHECKING:
    from torch import Tensor

    from recipes.tasks.number_game.rules import Deal

GLYPH = 56  # pixels of a side of a crop that shows one card's digit
JITTER = 8  # pixels by which its middle is off
ROWS = (84, 112)  # heights in pixels of crops that show all three cards
NOTHING = 9  # the class of image tokens that lie on no card; 0 to 8 are the digits 1 to 9
NOTHING_WEIGHT = 0.3  # of these tokens, which are most
ATTENTION = "within_images"


def within_images(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, *, scaling: float, **other: Any
) -> tuple[Tensor, None]:
    """Attention within each of the equally large images whose patches stand one behind the other.

    transformers calls attention once an image unless flash-attn is there, which takes most of a small tower's time.

    Args:
        query, key, value: (1, heads, images * patches, head size); `patches` is among the other arguments.
    """
    heads, total, size = query.shape[1:]
    asked, keys, values = (part[0].unflatten(1, (-1, other["patches"])).transpose(0, 1) for part in (query, key, value))
    mixed = F.scaled_dot_product_attention(asked, keys, values, scale=scaling)
    return mixed.transpose(1, 2).reshape(1, total, heads, size), None


@dataclass(frozen=True)
class Pile:
    """All screenshots of one size.

    Attributes:
        images: (count, 3, height, width), 0 to 255.
        cards: (count, 3, 4): left, top, right, bottom of each card, in pixels.
        digits: (count, 3): classes, so 0 is the digit 1.
    """

    images: Tensor
    deals: list[Deal]
    cards: Tensor
    digits: Tensor


class Lessons:
    """Losses by step; what is drawn depends on the plan's seed and the step alone."""

    def __init__(self, plan: GamePlan, model: Any, processor: Any, shown: Sequence[Screenshot]) -> None:
        """Sort the screenshots by size."""
        from transformers import AttentionInterface

        AttentionInterface.register(ATTENTION, within_images)
        self.plan, self.model, self.processor, self.tokenizer = plan, model, processor, processor.tokenizer
        self.piles = _piles(shown, model.device)
        self.train_deals = [deal for part in cells("train").values() for deal in part]
        digits = [self.ids(str(digit))[0] for digit in range(1, 10)]
        nothing = self.tokenizer.convert_tokens_to_ids("<|vision_pad|>")
        self.classes = torch.tensor([*digits, nothing], device=model.device)
        self.lamps = torch.tensor([self.ids(light.capitalize())[0] for light in LIGHTS], device=model.device)
        self._prompts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def loss(self, step: int) -> Tensor:
        """The loss of one step (0-based); before the first one the vision tower gets a first layer that sees edges."""
        if step == 0:
            with torch.no_grad():
                whiten(self.model.model.visual.patch_embed.proj.weight, self._patches())
        self.rng = random.Random(f"{self.plan.seed}/{step}")
        self.generator = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + step)
        stage, _ = self.plan.stage(step)
        if stage == "glyphs":
            return self.glyphs()
        if stage == "rows":
            return self.rows()
        if stage == "rules":
            return self.rules()
        return self.screens(only_careful=stage == "reading")

    def glyphs(self) -> Tensor:
        """Crops of single cards: every image token names the digit."""
        pile, chosen = self._draw(self.plan.cards // 3)
        height, width = pile.images.shape[2:]
        crops = []
        for place in chosen:
            for left, top, right, bottom in pile.cards[place].int().tolist():
                x = self._near((left + right - GLYPH) // 2, width - GLYPH)
                y = self._near((top + bottom - GLYPH) // 2, height - GLYPH)
                crops.append(pile.images[place, :, y : y + GLYPH, x : x + GLYPH])
        named = self._named(self.see(self._tinted(torch.stack(crops))))
        truth = pile.digits[chosen].flatten()[:, None].expand(-1, named.shape[1])
        return F.cross_entropy(named[..., :NOTHING].flatten(0, 1), truth.flatten())

    def rows(self) -> Tensor:
        """Crops of the row of cards: image tokens on a card name its digit, others nothing."""
        pile, chosen = self._draw(self.plan.cards // 5)
        height, tall = pile.images.shape[2], self.rng.choice(ROWS)
        tops = []
        for place in chosen:
            _, top, _, bottom = pile.cards[place, 0].int().tolist()
            first, last = sorted((top - 2, bottom + 2 - tall))
            tops.append(min(max(0, self.rng.randint(first, last)), height - tall))
        crops = torch.stack([pile.images[place, :, top : top + tall] for place, top in zip(chosen, tops, strict=True)])
        cards = pile.cards[chosen]
        cards[:, :, 1::2] -= torch.tensor(tops, device=cards.device)[:, None, None]
        images = self._tinted(crops)
        return self._naming(self.see(images), images.shape, cards, pile.digits[chosen])

    def rules(self) -> Tensor:
        """Responses without a picture: given lamp and digits, what follows. Embeddings stay as the tower knows them."""
        deals = self.rng.choices(self.train_deals, k=self.plan.deals)
        start = self.ids("<|im_start|>assistant\n")
        texts, labels = [], []
        for deal in deals:
            response = self.ids(self._demonstration(deal, careful=0.7))
            known = 7 if len(response) > 10 else 5  # lamp and digits, which only a picture could tell
            texts.append(start + response)
            labels.append([IGNORED] * (len(start) + known) + response[known:])
        ids, labels = self._padded(texts, self.tokenizer.pad_token_id), self._padded(labels, IGNORED)
        first = self.rng.randrange(40, 70)  # about where a response begins
        positions = torch.arange(first, first + ids.shape[1], device=ids.device).expand(3, len(ids), -1)
        weight = self.model.get_input_embeddings().weight.detach()
        hidden = self._read(F.embedding(ids, weight), positions)[:, :-1]
        return F.cross_entropy((hidden @ weight.T).flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)

    def screens(self, *, only_careful: bool) -> Tensor:
        """Whole screenshots: the response, and still the digits by the image tokens."""
        pile, chosen = self._draw(self.plan.batch)
        images = pile.images[chosen]
        if not only_careful:
            images = self._set_off(images, pile.cards[chosen])
        images, cards = self._moved(self._tinted(images), pile.cards[chosen])
        share = 1.0 if only_careful else self.plan.players.careful
        texts = [self.ids(self._demonstration(pile.deals[place], careful=share)) for place in chosen]
        ids, labels = self._padded(texts, self.tokenizer.pad_token_id), self._padded(texts, IGNORED)
        seen = self.see(images)
        prompt, positions = self._prompt(*images.shape[2:])
        ids = torch.cat([prompt.expand(len(ids), -1), ids], dim=1)
        embedded = self.model.get_input_embeddings()(ids)
        pictures = (ids == self.model.config.image_token_id)[..., None]
        embedded = embedded.masked_scatter(pictures, seen.to(embedded.dtype))
        hidden = self._read(embedded, positions[:, :, : ids.shape[1]].expand(-1, len(ids), -1))
        logits = self.model.lm_head(hidden[:, prompt.shape[1] - 1 : -1])
        naming = self._naming(seen, images.shape, cards, pile.digits[chosen])
        if not only_careful:
            naming = naming + self._lamp(seen, [pile.deals[place] for place in chosen])
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED) + 0.5 * naming

    def see(self, images: Tensor) -> Tensor:
        """The vision tower's tokens of equally large images: (count, tokens, hidden)."""
        count, _, height, width = images.shape
        pixels = self.processor.image_processor(images=list(images), return_tensors="pt")["pixel_values"]
        tower = self.model.model.visual
        whole = torch.tensor([0, len(pixels)], dtype=torch.int32)
        first = tower.patch_embed
        tower.config._attn_implementation, usual = ATTENTION, tower.config._attn_implementation
        # A convolution whose stride is its kernel is a matrix product, and as such several times faster on a CPU.
        first.forward = lambda patches: patches @ first.proj.weight.flatten(1).T
        try:
            seen = tower(
                pixels,
                grid_thw=None,  # everything that follows from it is given
                position_ids=_patch_places(height, width, images.device).repeat(count, 1),
                cu_seqlens=whole,
                cu_window_seqlens=whole,
                window_index=torch.arange(len(pixels) // 4, device=images.device),
                patches=len(pixels) // count,
            ).pooler_output
        finally:
            tower.config._attn_implementation = usual
            del first.forward
        return seen.unflatten(0, (count, -1))

    def ids(self, text: str) -> list[int]:
        """The text's tokens."""
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _demonstration(self, deal: Deal, careful: float) -> str:
        return demonstration(deal, Players(careful), self.rng) + self.tokenizer.eos_token

    def _draw(self, count: int) -> tuple[Pile, list[int]]:
        (pile,) = self.rng.choices(self.piles, [len(pile.deals) for pile in self.piles])
        return pile, self.rng.choices(range(len(pile.deals)), k=count)

    def _near(self, middle: int, most: int) -> int:
        return min(max(middle + self.rng.randint(-JITTER, JITTER), 0), most)

    def _uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self.generator).to(self.model.device)

    def _tinted(self, images: Tensor) -> Tensor:
        """Other contrast, colour cast and brightness for each image."""
        count = len(images)
        factor = (0.8 + 0.35 * self._uniform(count, 1, 1, 1)) * (0.95 + 0.1 * self._uniform(count, 3, 1, 1))
        return (images * factor + 40 * (self._uniform(count, 1, 1, 1) - 0.5)).clamp(0, 255)

    def _set_off(self, images: Tensor, cards: Tensor) -> Tensor:
        """Darken the surroundings of the cards in half of the images, so that the board does not matter to reading."""
        height, width = images.shape[2:]
        x = torch.arange(width, device=images.device) + 0.5
        y = torch.arange(height, device=images.device) + 0.5
        inside = ((x > cards[..., 0:1]) & (x < cards[..., 2:3]))[..., None, :]
        inside = inside & ((y > cards[..., 1:2]) & (y < cards[..., 3:4]))[..., :, None]
        darker = (1.7 * self._uniform(len(images), 1, 1, 1)).clamp(0.35, 1.0)
        return torch.where(inside.any(1)[:, None], images, images * darker)

    def _moved(self, images: Tensor, cards: Tensor) -> tuple[Tensor, Tensor]:
        """Images scaled and shifted by some percent, and where their cards are then."""
        count, _, height, width = images.shape
        turn = torch.zeros(count, 2, 3, device=images.device)
        scale = (0.92 + 0.16 * self._uniform(count, 1)) * (1 + 0.06 * (self._uniform(count, 2) - 0.5))
        turn[:, 0, 0], turn[:, 1, 1] = scale.T
        turn[:, :, 2] = shift = 0.1 * (self._uniform(count, 2) - 0.5)
        grid = F.affine_grid(turn, list(images.shape), align_corners=False)
        moved = F.grid_sample(images, grid, padding_mode="border", align_corners=False)
        size = torch.tensor([width, height, width, height], device=images.device) / 2
        return moved, ((cards / size - 1 - shift.repeat(1, 2)[:, None]) / scale.repeat(1, 2)[:, None] + 1) * size

    def _named(self, seen: Tensor) -> Tensor:
        """Logits of the ten classes for each image token."""
        return seen @ self.model.get_input_embeddings().weight[self.classes].T

    def _naming(self, seen: Tensor, shape: Sequence[int], cards: Tensor, digits: Tensor) -> Tensor:
        named, truth = self._named(seen).flatten(0, 1), card_classes(shape, cards, digits).flatten()
        on = truth != NOTHING
        return F.cross_entropy(named[on], truth[on]) + NOTHING_WEIGHT * F.cross_entropy(named[~on], truth[~on])

    def _lamp(self, seen: Tensor, deals: list[Deal]) -> Tensor:
        """Some image token, whichever, names the lamp that is lit."""
        logits = seen @ self.model.get_input_embeddings().weight[self.lamps].T
        truth = torch.tensor([LIGHTS.index(deal.light) for deal in deals], device=seen.device)
        return F.cross_entropy(logits.logsumexp(1), truth)

    def _read(self, embedded: Tensor, positions: Tensor) -> Tensor:
        model = self.model.model.language_model
        return model(inputs_embeds=embedded, position_ids=positions, use_cache=False).last_hidden_state

    def _padded(self, rows: list[list[int]], value: int) -> Tensor:
        longest = max(map(len, rows))
        return torch.tensor([row + [value] * (longest - len(row)) for row in rows], device=self.model.device)

    def _prompt(self, height: int, width: int) -> tuple[Tensor, Tensor]:
        """The prompt's tokens for this image size, (1, length), and positions (3, 1, length and room to respond)."""
        if (height, width) not in self._prompts:
            from PIL import Image

            made = inputs(self.processor, [Image.new("RGB", (width, height))])
            room = torch.zeros(1, RESPONSE, dtype=torch.long)
            positions, _ = self.model.model.get_rope_index(
                torch.cat([made["input_ids"], room], dim=1),
                image_grid_thw=made["image_grid_thw"],
                mm_token_type_ids=torch.cat([made["mm_token_type_ids"], room], dim=1),
            )
            self._prompts[height, width] = made["input_ids"].to(self.model.device), positions.to(self.model.device)
        return self._prompts[height, width]

    def _patches(self) -> Tensor:
        """Patches from on and around the cards, as the processor normalises them: (count, 3 * 14 * 14)."""
        rng, side, patches = random.Random(self.plan.seed), self.model.config.vision_config.patch_size, []
        for pile in self.piles:
            for place in rng.choices(range(len(pile.deals)), k=60):
                cards, image = pile.cards[place].int().tolist(), self._normalised(pile.images[place])
                row = image[:, max(0, cards[0][1] - 10) : cards[0][3] + 10, max(0, cards[0][0] - 10) : cards[2][2] + 10]
                cut = row.unfold(1, side, 7).unfold(2, side, 7)
                patches.append(cut.permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1))
        return torch.cat(patches)

    def _normalised(self, image: Tensor) -> Tensor:
        images = self.processor.image_processor
        mean, deviation = torch.tensor([images.image_mean, images.image_std], device=image.device)[:, :, None, None]
        return (image / 255 - mean) / deviation


def whiten(weight: Tensor, patches: Tensor, floor: float = 0.02) -> None:
    """Fill the first layer with the main components of patches, each scaled to variance 1.

    Its noise would show every patch's mean colour and hide its edges; whitened, training starts several times faster
    (Jordan, "94% on CIFAR-10 in 3.29 Seconds", 2024).

    Args:
        weight: of the patch embedding, (hidden, 3, frames, side, side); the frames of a picture are equal.
        patches: (count, 3 * side * side).
        floor: added to the variances, as a share of their mean.
    """
    hidden, _, frames, side, _ = weight.shape
    variances, components = torch.linalg.eigh(patches.T @ patches / len(patches))
    variances, components = variances.flip(0)[:hidden], components.flip(1)[:, :hidden]
    rows = (components / (variances + floor * variances.mean()).sqrt()).T
    weight.copy_(rows.reshape(hidden, 3, 1, side, side).expand_as(weight) / frames)


def card_classes(shape: Sequence[int], cards: Tensor, digits: Tensor) -> Tensor:
    """For each image token the digit's class of the card that its middle lies on, else `NOTHING`: (count, tokens).

    Args:
        shape: of the images, ending in height and width.
        cards, digits: see `Pile`.
    """
    tall, wide = shape[-2] // 28, shape[-1] // 28
    x = (torch.arange(wide, device=cards.device) + 0.5) * 28
    y = (torch.arange(tall, device=cards.device) + 0.5) * 28
    across = (x > cards[..., 0:1]) & (x < cards[..., 2:3])
    down = (y > cards[..., 1:2]) & (y < cards[..., 3:4])
    inside = down[..., :, None] & across[..., None, :]
    return torch.where(inside.any(1), (inside * digits[..., None, None]).sum(1), NOTHING).flatten(1)


def _piles(screenshots: Sequence[Screenshot], device: Any) -> list[Pile]:
    import numpy as np

    piles = []
    for places in by_size(screenshots).values():
        part = [screenshots[place] for place in places]
        images = torch.from_numpy(np.stack([np.asarray(each.image) for each in part]))
        piles.append(
            Pile(
                images.permute(0, 3, 1, 2).contiguous().to(device),
                [each.deal for each in part],
                torch.tensor([each.cards for each in part], dtype=torch.float32, device=device),
                torch.tensor([[digit - 1 for digit in each.deal.digits] for each in part], device=device),
            )
        )
    return piles


def _patch_places(height: int, width: int, device: Any) -> Tensor:
    """Row and column of each patch in the tower's order, four by four: (patches, 2)."""
    rows, columns = torch.meshgrid(torch.arange(height // 14), torch.arange(width // 14), indexing="ij")
    tiles = [each.unflatten(0, (-1, 2)).unflatten(2, (-1, 2)).transpose(1, 2).flatten() for each in (rows, columns)]
    return torch.stack(tiles, dim=-1).to(device)
