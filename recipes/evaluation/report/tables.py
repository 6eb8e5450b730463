"""Which figures a report lists, in which order and format: shared by the HTML page and the Markdown summary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
