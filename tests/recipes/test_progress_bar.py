"""Progress through a pipe: lines while something goes on, none for what is over."""

from __future__ import annotations

import time

from recipes import progress_bar


def test_a_long_task_speaks_where_there_is_no_terminal(monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "SILENCE", 0.05)
    with progress_bar.progress_bar() as progress:
        assert list(progress.track(range(3), description="quick")) == [0, 1, 2]
        progress.add_task("one long call", total=7)
        printed, deadline = "", time.monotonic() + 60
        while printed.count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
            printed += capsys.readouterr().err
    lines = printed.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("one long call: 0 of 7, 0 s") for line in lines)
