"""The data benchmark runs and writes its figures."""

from __future__ import annotations

import json
import subprocess
import sys

from recipes.paths import ROOT


def test_it_reports_problems_a_second(tmp_path):
    command = [sys.executable, str(ROOT / "scripts" / "bench_data.py"), "--count", "1000", "--repeats", "1"]
    done = subprocess.run([*command, "--json", str(tmp_path / "out.json")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    stages = [value for value in report.values() if isinstance(value, dict)]
    assert len(stages) == 2
    assert all(stage["per_second"] > 0 and stage["per_processor_second"] > 0 for stage in stages)
