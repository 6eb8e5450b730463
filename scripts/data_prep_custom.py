"""Convert a JSON, JSONL, CSV or parquet file of prompts and answers to the rows that verl and EasyR1 read."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from recipes.interpreter import ensure

ensure()

import typer

from recipes.data.custom import Conversion, convert, converted
from recipes.data.lengths import count_split
from recipes.data.prepare import print_splits
from recipes.data.readers import Columns
from recipes.errors import RecipeError, reported_errors
from recipes.paths import command_line


def main(
    data: Annotated[list[Path], typer.Argument(help="Training files: .json, .jsonl, .csv, .tsv or .parquet.")],
    val_data: Annotated[
        list[Path] | None, typer.Option("--val_data", help="Validation file; may be given more than once.")
    ] = None,
    val_share: Annotated[
        float, typer.Option("--val_share", help="Share of each source's prompts that validates without --val_data.")
    ] = 0.05,
    data_source: Annotated[
        str | None, typer.Option("--data_source", help="Data source of records that name none.")
    ] = None,
    prompt_key: Annotated[str, typer.Option("--prompt_key", help="The files' column of the prompt.")] = "",
    answer_key: Annotated[str, typer.Option("--answer_key", help="The files' column of the gold answer.")] = "",
    image_key: Annotated[str, typer.Option("--image_key", help="The files' column of the images.")] = "",
    system_prompt: Annotated[
        Path | None, typer.Option("--system_prompt", help="Text file with the system message.")
    ] = None,
    template: Annotated[Path | None, typer.Option("--template", help="Jinja file around {{ content }}.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the validation share.")] = 1,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="Count prompts in tokens of this model: a folder or a name.")
    ] = None,
    max_prompt_length: Annotated[int, typer.Option("--max_prompt_length", help="For what it would drop.")] = 1024,
    output_dir: Annotated[
        Path | None, typer.Option("--output_dir", help="Default: artifacts/data/custom/NAME-DIGEST, by content.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Convert although the rows are there.")] = False,
) -> None:
    """Write train.parquet and test.parquet with their manifests. The launcher does this by itself."""
    with reported_errors():
        if not 0 < val_share < 1:
            raise RecipeError(f"a share of {val_share}", where="--val_share", fix="between 0 and 1, such as 0.05")
        ours = Columns()
        conversion = Conversion(
            tuple(path.absolute() for path in data),
            tuple(path.absolute() for path in val_data or ()),
            system_prompt and system_prompt.absolute(),
            template and template.absolute(),
            Columns(prompt_key or ours.prompt, answer_key or ours.ground_truth, image_key or ours.images, data_source),
            val_share=val_share,
            seed=seed,
        )
        folder = output_dir or conversion.folder
        begin = time.perf_counter()
        # Only the default folder is named after the content of the files.
        status, splits = "there already", None if output_dir or force else converted(folder)
        if splits is None:
            status, splits = "written", convert(conversion, folder, command_line(), force=force or not output_dir)
        print_splits(folder, splits, status, time.perf_counter() - begin)
        for manifest in splits:
            sources = ", ".join(f"{name} {rows:,}" for name, rows in manifest.counts["data_sources"].items())
            typer.echo(f"{manifest.split}: {sources}")
        if tokenizer:
            for name in ("train", "test"):
                lengths = count_split(folder / f"{name}.parquet", tokenizer)
                typer.echo(f"{name}: {lengths.described(max_prompt_length)}")


if __name__ == "__main__":
    typer.run(main)
