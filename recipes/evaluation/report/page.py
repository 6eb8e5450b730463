"""The report's page: tables, samples, HTML and Markdown."""

from __future__ import annotations

import base64
import hashlib
import heapq
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from recipes.evaluation.generation import Scored
from recipes.evaluation.probe import SCALES
from recipes.evaluation.questions import Question
from recipes.evaluation.report.figures import Figure
from recipes.evaluation.suspicious import RULES

FORMATS: dict[str, Callable[[Any], str]] = {
    "percent": lambda value: f"{100 * value:.1f}%",
    "points": lambda value: f"{100 * value:+.1f} points",
    "bare_points": lambda value: f"{100 * value:+.1f}",
    "signed": lambda value: f"{value:+.3f}",
    "decimal": lambda value: f"{value:.3f}",
    "tokens": lambda value: f"{value:.1f}",
    "signed_tokens": lambda value: f"{value:+.1f}",
    "count": lambda value: f"{value:,}",
    "rounded": lambda value: f"{value:.0f}",
    "p_value": lambda value: f"{value:.2g}",
    "seconds": lambda value: f"{value:.1f} s",
}
# The style of an interval's ends beside a value of some style.
INTERVAL_STYLES = {"points": "bare_points"}
ABSENT = "–"


def lookup(report: Any, pointer: str) -> Any:
    """The value at a pointer such as `/models/base/hash`; None where any part is None or missing."""
    value = report
    for part in pointer.split("/")[1:]:
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    return value


def show(report: Any, pointer: str, style: str) -> str:
    """The formatted value at a pointer; a dash where there is none."""
    value = lookup(report, pointer)
    return ABSENT if value is None else FORMATS[style](value)


PER_KIND = 60
# What changed sides between two models is what a comparison is read for.
CHANGED = ("won", "lost")
PER_CHANGED_KIND = 300


class Picker:
    """`offer` every question with its outcome and reasons, then take `rows`; holds row numbers only."""

    def __init__(self) -> None:
        self._heaps: dict[Hashable, list[tuple[int, int]]] = {}

    def offer(self, row: int, outcome: str, reasons: tuple[str, ...]) -> None:
        """One question; rare kinds are kept whole, common ones by lot."""
        lot = int.from_bytes(hashlib.sha256(str(row).encode()).digest()[:6], "big")
        heap = self._heaps.setdefault((outcome, reasons), [])
        heapq.heappush(heap, (-lot, row))
        if len(heap) > (PER_CHANGED_KIND if outcome in CHANGED else PER_KIND):
            heapq.heappop(heap)

    def rows(self, most: int) -> list[int]:
        """At most `most` rows, in the file's order: those that changed sides first, then of every kind in turn."""
        kinds = {kind: [row for _, row in sorted(heap, reverse=True)] for kind, heap in self._heaps.items()}
        changed = [rows for (outcome, _), rows in kinds.items() if outcome in CHANGED]
        others = [rows for (outcome, _), rows in kinds.items() if outcome not in CHANGED]
        turns = chain(_in_turn(changed), _in_turn(others))
        return sorted(row for row, _ in zip(turns, range(most), strict=False))


def _in_turn(kinds: list[list[int]]) -> list[int]:
    return [row for turn in zip_longest(*kinds) for row in turn if row is not None]


MOST_ANSWERS = 4
LONGEST_TEXT = 20_000


def outcome_of(kind: str, scored: Mapping[str, Scored]) -> tuple[str, tuple[str, ...]]:
    """What a question is filtered by: its outcome and its reason codes.

    The outcome is "all right", "mixed" or "all wrong" for the signal probe; "right" or "wrong" under greedy decoding
    for one model; "won", "lost", "both right" or "both wrong" under greedy decoding for two.
    """
    if kind == "analyse":
        stats = scored["model_sampled"].stats
        return stats.outcome, tuple(sorted(stats.reasons))
    if kind == "evaluation":
        score = scored["model_greedy"].scores[0]
        return ("right" if score.full else "wrong"), (score.reason,)
    base, trained = scored["base_greedy"].scores[0], scored["trained_greedy"].scores[0]
    if base.full == trained.full:
        outcome = "both right" if base.full else "both wrong"
    else:
        outcome = "won" if trained.full else "lost"
    return outcome, (base.reason, trained.reason)


def sample_entry(kind: str, question: Question, scored: Mapping[str, Scored]) -> dict[str, Any]:
    """One question as the report's table shows it; texts are raw, and escaped where they are rendered."""
    outcome, _ = outcome_of(kind, scored)
    if kind == "analyse":
        answers = _varied("", scored["model_sampled"], MOST_ANSWERS)
    elif kind == "evaluation":
        answers = _varied("greedy", scored["model_greedy"], 1) + _varied("sampled", scored["model_sampled"], 2)
    else:
        answers = _varied("base", scored["base_greedy"], 1) + _varied("trained", scored["trained_greedy"], 1)
    return {
        "row": question.row,
        "outcome": outcome,
        "reasons": sorted({answer["reason"] for answer in answers}),
        "flags": sorted({flag for answer in answers for flag in answer["flags"]}),
        "prompt": question.text,
        "ground_truth": question.ground_truth,
        "groups": [_group_line(key, one) for key, one in scored.items() if one.stats.n > 1],
        "answers": answers,
    }


def _group_line(key: str, scored: Scored) -> dict[str, Any]:
    stats = scored.stats
    label = key.removesuffix("_sampled").removeprefix("model")
    return {"who": label, "right": stats.full_marks, "n": stats.n, "score": stats.mean_score}


def _varied(who: str, scored: Scored, most: int) -> list[dict[str, Any]]:
    """The first answer of each reason, then the first ones of all, `most` together, in the order of sampling."""
    first_of_reason: dict[str, int] = {}
    for number, score in enumerate(scored.scores):
        first_of_reason.setdefault(score.reason, number)
    order = [*first_of_reason.values(), *(n for n in range(len(scored.scores)) if n not in first_of_reason.values())]
    return [_answer(who, scored, number) for number in sorted(order[:most])]


def _answer(who: str, scored: Scored, number: int) -> dict[str, Any]:
    response, score = scored.group.responses[number], scored.scores[number]
    cut = len(response.text) - LONGEST_TEXT
    return {
        "who": who or f"answer {number + 1}",
        "text": response.text[:LONGEST_TEXT] + (f"\n[... {cut} more characters]" if cut > 0 else ""),
        "score": score.value,
        "full": score.full,
        "reason": score.reason,
        "tokens": response.tokens,
        "truncated": response.truncated,
        "flags": scored.flags[number],
    }


# Name in the summary, words, format of a value, format of a difference.
Metric = tuple[str, str, str, str]
SAMPLED: list[Metric] = [
    ("accuracy", "Mean accuracy", "percent", "points"),
    ("mean_score", "Mean score", "decimal", "signed"),
    ("score_variance", "Variance within a group", "decimal", "signed"),
    ("group_entropy_bits", "Entropy of a group's mean accuracy (bits)", "decimal", "signed"),
    ("score_entropy_bits", "Entropy of a group's mean score (bits)", "decimal", "signed"),
    ("token_entropy_nats", "Token entropy (nats)", "decimal", "signed"),
    ("mean_tokens", "Response length (tokens)", "tokens", "signed_tokens"),
    ("truncated", "Truncated responses", "percent", "points"),
]
VERDICTS = {
    "accuracy": ("Mean accuracy", "percent"),
    "score_variance": ("Variance within a group", "decimal"),
    "group_entropy_bits": ("Entropy of a group's mean accuracy (bits)", "decimal"),
}
GREEDY: list[Metric] = [
    ("accuracy", "Mean accuracy, greedy", "percent", "points"),
    ("mean_tokens", "Response length, greedy (tokens)", "tokens", "signed_tokens"),
    ("truncated", "Truncated responses, greedy", "percent", "points"),
]


@dataclass(frozen=True)
class Line:
    """One line of the table: pointers to its values, one per model, and to the difference if there are two models."""

    label: str
    style: str
    values: tuple[str, ...]
    difference: str | None
    difference_style: str


def lines(report: dict[str, Any]) -> list[Line]:
    """The lines of a report's main table; values without interval and value are left out."""
    models = list(report["models"])
    first = report["models"][models[0]]["passes"]
    found = []
    if "greedy" in first:
        found.append(_line(models, "greedy", ("pass_at/1", "pass@1 (full marks, greedy)", "percent", "points")))
    for metric in SAMPLED[:2]:
        found.append(_line(models, "sampled", metric))
    for k in first["sampled"]["pass_at"]:
        found.append(_line(models, "sampled", (f"pass_at/{k}", f"pass@{k} (full marks, sampled)", "percent", "points")))
    for metric in SAMPLED[2:]:
        if metric[0] in first["sampled"]:
            found.append(_line(models, "sampled", metric))
    if "greedy" in first:
        found += [_line(models, "greedy", metric) for metric in GREEDY]
    return found


def _line(models: list[str], decoding: str, metric: Metric) -> Line:
    name, label, style, difference_style = metric
    values = tuple(f"/models/{model}/passes/{decoding}/{name}" for model in models)
    column = name.replace("pass_at/", "pass_at_")
    difference = f"/comparison/{decoding}/{column}" if len(models) == 2 else None
    return Line(label, style, values, difference, difference_style)


@dataclass(frozen=True)
class Tile:
    """One large figure at the top."""

    label: str
    pointer: str
    style: str
    note: str
    level: str = "plain"


def tiles(report: dict[str, Any]) -> list[Tile]:
    """The six figures that a reader wants first."""
    if report["kind"] == "comparison":
        return _comparison_tiles(report)
    sampled = "/models/model/passes/sampled"
    n = report["models"]["model"]["passes"]["sampled"]["n"]
    common = [
        Tile(f"pass@{n}", f"{sampled}/pass_at/{n}/value", "percent", f"at least one of {n} answers right"),
        Tile("Token entropy", f"{sampled}/token_entropy_nats/value", "decimal", "nats per token"),
        Tile("Truncated", f"{sampled}/truncated/value", "percent", "cut off at the limit"),
    ]
    if report["kind"] == "evaluation":
        greedy = "/models/model/passes/greedy"
        return [
            Tile("pass@1, greedy", f"{greedy}/pass_at/1/value", "percent", "full marks at temperature 0"),
            Tile("Accuracy", f"{sampled}/accuracy/value", "percent", f"mean over {n} sampled answers"),
            common[0],
            Tile("Length", f"{sampled}/mean_tokens/value", "tokens", "tokens per response"),
            *common[1:],
        ]
    levels = {verdict["metric"]: verdict["level"] for verdict in report["probe"]["verdicts"]}
    prompts = report["probe"]["effective_batch"]["prompts"]
    kept = (
        Tile("Batch left", "/probe/effective_batch/kept", "rounded", f"of {prompts} prompts a step carry a signal")
        if prompts
        else Tile("Groups without variance", "/probe/effective_batch/zero_variance_share", "percent", "carry no signal")
    )
    return [
        Tile("Accuracy", f"{sampled}/accuracy/value", "percent", f"mean over {n} answers", levels["accuracy"]),
        Tile("Variance", f"{sampled}/score_variance/value", "decimal", "within a group", levels["score_variance"]),
        Tile("Group entropy", f"{sampled}/group_entropy_bits/value", "decimal", "bits", levels["group_entropy_bits"]),
        kept,
        common[0],
        common[2],
    ]


def _comparison_tiles(report: dict[str, Any]) -> list[Tile]:
    comparison = report["comparison"]
    n = report["models"]["trained"]["passes"]["sampled"]["n"]
    return [
        _delta("Accuracy", "sampled", "accuracy", comparison),
        _delta("pass@1, greedy", "greedy", "pass_at_1", comparison),
        _delta(f"pass@{n}", "sampled", f"pass_at_{n}", comparison),
        Tile("Won", "/comparison/changes/mcnemar/won", "count", "questions only the trained model solves"),
        Tile("Lost", "/comparison/changes/mcnemar/lost", "count", "questions only the base model solves"),
        Tile("McNemar p", "/comparison/changes/mcnemar/p_value", "p_value", "chance of so uneven a split"),
    ]


def _delta(label: str, decoding: str, name: str, comparison: Any) -> Tile:
    interval = comparison[decoding][name]
    sure = interval["low"] is not None and not interval["low"] <= 0.0 <= interval["high"]
    level = "plain" if not sure else "good" if interval["value"] > 0 else "bad"
    note = "points; the interval excludes 0" if sure else "points; the interval holds 0"
    return Tile(label, f"/comparison/{decoding}/{name}/value", "bare_points", note, level)


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
