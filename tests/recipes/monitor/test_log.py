"""The trainer's log, read while it grows."""

from __future__ import annotations

from recipes.monitor.log import LogReader, clean, phase_of


def test_decoration_is_taken_off():
    line = clean(
        "\x1b[36m(CpuHttpServer pid=17053, ip=192.0.2.2)\x1b[0m (EngineCore pid=4) ERROR 11-21 20:10:47 [a.py:1] gone"
    )
    assert line.text == "gone"
    assert line.speaker.startswith("(CpuHttpServer pid=17053, ip=192.0.2.2)(EngineCore pid=4)")
    assert clean("plain text").speaker == ""


def test_half_lines_wait_and_carriage_returns_end_lines(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("before\n")
    reader = LogReader(log, offset=log.stat().st_size)
    with log.open("a") as file:
        file.write("one\rtw")
        file.flush()
        assert [line.text for line in reader.read()] == ["one"]
        file.write("o\n\nthree\n")
        file.flush()
        assert [line.text for line in reader.read()] == ["two", "three"]
    assert reader.read() == []


def test_a_log_that_is_not_there_yet_has_no_lines(tmp_path):
    assert LogReader(tmp_path / "train.log").read() == []


def test_bytes_that_are_no_text_do_not_stop_the_reader(tmp_path):
    (tmp_path / "train.log").write_bytes(b"\xff\xfe ok\n")
    assert [line.text[-2:] for line in LogReader(tmp_path / "train.log").read()] == ["ok"]


def test_phases_of_a_start_are_recognised():
    assert "vLLM" in phase_of(clean("(TaskRunnerV1 pid=1) INFO:2026:actor and ref model engine initialized"))
    assert phase_of(clean("warnings.warn(1)")) is None
