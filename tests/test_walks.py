"""The walks that tests/walks.py counts do not grow unseen."""

from __future__ import annotations

import subprocess
import sys

import pytest

from recipes.paths import ROOT


@pytest.mark.parametrize(
    ("walk", "pass_on", "receive"),
    [("rollout_n", 7, 13), ("completion", 10, 5), ("users_file", 6, 0)],
)
def test_a_value_passes_no_more_files_than_before(walk, pass_on, receive):
    """Raise a number only with a reason: whoever looks for where a value changes has to read one file more."""
    done = subprocess.run(
        [sys.executable, "tests/walks.py", walk], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    marks = [line[2] for line in done.stdout.splitlines() if line.startswith("  ")]
    assert marks.count("+") <= pass_on, done.stdout
    assert len(marks) <= pass_on + receive, done.stdout
