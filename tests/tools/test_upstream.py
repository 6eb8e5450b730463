"""Cited lines of verl, vLLM, Ray and others say what they are cited for, and the names used from inside are there."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from tools.pages import upstream

EASYR1 = Path(os.environ["EASYR1_HOME"]) if os.environ.get("EASYR1_HOME") else None


def test_every_cited_line_has_the_code_that_it_is_cited_for():
    cited = upstream.citations()
    assert {each.package for each in cited} >= {"verl", "vllm", "ray"}
    assert [wrong for each in cited if (wrong := upstream.stale_citation(each, EASYR1))] == []


def test_every_name_used_from_inside_another_package_is_there():
    used = upstream.names()
    assert {"_ROLLOUT_REGISTRY", "ActorClassID", "_unpad_input"} <= {each.name for each in used}
    lost = []
    for each in used:
        file = upstream.defined_in(each.origin)
        if file is None or not re.search(rf"\b{each.name}\b", file.read_text(encoding="utf-8")):
            lost.append(f"{each.module} uses {each.origin}.{each.name}")
    assert lost == []


def test_a_moved_line_is_found_and_its_new_place_named():
    known = next(each for each in upstream.citations() if each.package == "verl" and each.owner)
    assert upstream.stale_citation(known) is None
    moved = upstream.stale_citation(replace(known, line=known.line + 1))
    for part in (
        f"{known.module} ({known.owner})",
        f"{known.path}:{known.line + 1}",
        repr(known.code),
        str(known.line),
    ):
        assert part in moved
    assert "without the code" in str(upstream.stale_citation(replace(known, code="")))
    assert upstream.stale_citation(replace(known, package="verl-0.0.1", line=9)) is None, "a line of another version"
