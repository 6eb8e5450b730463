"""Screenshots from a parquet file as the tiny model takes them: pixels, prompts, and what each one shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recipes.errors import RecipeError
from recipes.tasks.number_game.prompt import QUESTION
from recipes.tasks.number_game.rules import Deal, parse_deal

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
