"""The look of the reports: one palette, matplotlib's style, figures inside the page, and the page's style sheet."""

import html
import io
import re
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from recipes.statistics import Interval

STYLE_SHEET = Path(__file__).with_suffix(".css")

# Colours that figures are drawn in, and the page's CSS variable that each one becomes, so that dark mode works.
PALETTE = {
    "#1c2430": "--ink",
    "#66707f": "--muted",
    "#d9dee6": "--line",
    "#2a62d4": "--blue",
    "#8b97a8": "--slate",
    "#128a63": "--good",
    "#c9a227": "--weak",
    "#c4472f": "--bad",
    "#fdfdfe": "--card",
}
INK, MUTED, LINE, BLUE, SLATE, GOOD, WEAK, BAD, CARD = PALETTE

STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.labelsize": 8.8,
    "axes.edgecolor": LINE,
    "axes.linewidth": 1.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.4,
    "ytick.labelsize": 8.4,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8.6,
    "figure.constrained_layout.use": True,
}
_COLOUR = re.compile("|".join(PALETTE), re.IGNORECASE)
_ID = re.compile(r'(\bid="|url\(#|href="#)')


def inline(figure: Any, name: str, description: str) -> str:
    """A matplotlib figure as an `<svg>` element; `name` prefixes its ids, and screen readers read `description`."""
    buffer = io.StringIO()
    with warnings.catch_warnings():  # of characters that matplotlib's font lacks, which the browser's has
        warnings.filterwarnings("ignore", "Glyph")
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = _COLOUR.sub(lambda match: f"var({PALETTE[match.group().lower()]})", text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--sans)", text)
    text = _ID.sub(rf"\g<1>{name}-", text)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(description, quote=True)}"', 1)


def templates(folder: Path, html: bool = True) -> Environment:
    """The Jinja templates of a folder, which know the `style` sheet; HTML is escaped, a missing value is an error."""
    loader = FileSystemLoader(folder)
    made = Environment(loader=loader, autoescape=html, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.globals["style"] = STYLE_SHEET.read_text(encoding="utf-8")
    return made


def draw_means(axes: Any, curve: Mapping[int, Interval], colour: str, label: str) -> None:
    """Draw a curve of means by step with their 95% intervals."""
    values = [interval.value for interval in curve.values()]
    errors = np.abs(np.array(interval_ends(curve)) - values)
    axes.errorbar(list(curve), values, yerr=errors, color=colour, marker="o", capsize=3, label=label)


def interval_ends(curve: Mapping[int, Interval]) -> tuple[list[float], list[float]]:
    """The intervals' ends; the value itself where there is no interval."""
    low = [each.value if each.low is None else each.low for each in curve.values()]
    high = [each.value if each.high is None else each.high for each in curve.values()]
    return low, high


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars in the cells are escaped."""
    names = list(header)
    lines = ([cell.replace("|", "\\|") for cell in line] for line in (names, ["---"] * len(names), *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
