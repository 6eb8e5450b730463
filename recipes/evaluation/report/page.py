"""The HTML page and the Markdown summary, from the report's JSON. Everything a model wrote is escaped."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

from recipes.evaluation.probe import SCALES
from recipes.evaluation.report.figures import Figure
from recipes.evaluation.report.numbers import ABSENT, INTERVAL_STYLES, lookup, show
from recipes.evaluation.report.tables import VERDICTS, lines, tiles
from recipes.evaluation.suspicious import RULES

HERE = Path(__file__).parent
TITLES = {"analyse": "Signal probe", "evaluation": "Evaluation", "comparison": "Base against trained"}
NEUTRAL = ("both right", "both wrong", "mixed")
# Control characters are no HTML, and those that turn the direction of writing can disguise text.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_ROWS_IN_MARKDOWN = 50


def html_page(report: dict[str, Any], samples: list[dict[str, Any]], figures: list[Figure]) -> str:
    """One HTML document without any outside resource; its policy lets no script run but its own."""
    from markupsafe import Markup

    script = (HERE / "page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment(autoescape=True)
        .get_template("page.html.j2")
        .render(
            **_common(report),
            samples=samples,
            outcomes=_options(samples, "outcome"),
            reasons=_options(samples, "reasons"),
            flags=_options(samples, "flags"),
            figures=[(figure.name, figure.title, figure.caption, Markup(figure.svg)) for figure in figures],
            style=Markup((HERE / "page.css").read_text(encoding="utf-8")),
            script=Markup(script),
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'",
        )
    )


def markdown_page(report: dict[str, Any]) -> str:
    """The summary: headline, the table of figures with the JSON pointer of each, and what made it."""
    text = (
        _environment(autoescape=False).get_template("summary.md.j2").render(**_common(report), most=_ROWS_IN_MARKDOWN)
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def printable(text: Any) -> str:
    """`text` with characters that a browser would hide or obey shown as their code."""
    return _UNPRINTABLE.sub(lambda match: f"[U+{ord(match.group()):04X}]", str(text))


def _environment(*, autoescape: bool) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=autoescape,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["printable"] = printable
    environment.filters["cell"] = lambda text: printable(text).replace("|", "\\|").replace("\n", " ")
    return environment


def _common(report: dict[str, Any]) -> dict[str, Any]:
    def text(pointer: str, style: str) -> str:
        return show(report, pointer, style)

    def span(pointer: str, style: str) -> str:
        low, high, style = f"{pointer}/low", f"{pointer}/high", INTERVAL_STYLES.get(style, style)
        return (
            f"{show(report, low, style)} to {show(report, high, style)}" if lookup(report, low) is not None else ABSENT
        )

    return {
        "report": report,
        "title": TITLES[report["kind"]],
        "name": " against ".join(model["name"] for model in reversed(report["models"].values())),
        "show": text,
        "span": span,
        "interval_style": lambda style: INTERVAL_STYLES.get(style, style),
        "lookup": lambda pointer: lookup(report, pointer),
        "lines": lines(report),
        "tiles": tiles(report),
        "rules": RULES,
        "same_answers": [
            (f"{label} {name}", found)
            for label, model in report["models"].items()
            for name, one in model["passes"].items()
            for found in one["completions"]["same_answer"]
        ],
        "scales": SCALES,
        "verdicts": VERDICTS,
        "neutral": NEUTRAL,
        "facts": _facts(report),
    }


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    """What made the report, as pairs of a name and a text."""
    identity, made = report["identity"], report["made_by"]
    facts = [("Command", made["command"]), ("Commit", made["commit"]), ("Time", made["time"])]
    for label, model in report["models"].items():
        shown = f"{model['name']} ({model['source']}, sha256 {model['hash'][:16]}, by {model['generator']})"
        facts.append((label.capitalize(), shown))
        if model["note"]:
            facts.append((f"{label.capitalize()}, note", model["note"]))
    data = identity["data"]
    chosen = "the first rows" if identity["sample_seed"] is None else f"rows drawn with seed {identity['sample_seed']}"
    which = chosen if identity["limit"] else "all rows"
    facts.append(("Data", f"{data['path']}, {data['questions']} questions ({which}), sha256 {data['sha256'][:16]}"))
    facts.append(("Reward", f"{identity['reward']['path']}, sha256 {identity['reward']['sha256'][:16]}"))
    for name in ("greedy", "sampled"):
        if identity[name]:
            facts.append((f"Sampling, {name}", ", ".join(f"{key} {value}" for key, value in identity[name].items())))
    facts.append(("Versions", ", ".join(f"{name} {version}" for name, version in made["versions"].items())))
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in report["seconds"].items())
    generated = sum(report["generated"].values())
    facts.append(("Time spent", f"{seconds}; {generated} groups generated, the others from the cache"))
    return facts


def _options(samples: list[dict[str, Any]], key: str) -> list[str]:
    values: set[str] = set()
    for sample in samples:
        values.update([sample[key]] if isinstance(sample[key], str) else sample[key])
    return sorted(values)
