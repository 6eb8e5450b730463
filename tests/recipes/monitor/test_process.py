"""Shared memory that a stopped run left is given back; what anyone still uses is not touched."""

from __future__ import annotations

import mmap

from recipes.monitor.process import shared_memory_cleared


def test_what_the_run_left_goes_and_everything_else_stays(tmp_path):
    (tmp_path / "verl_weights_before").write_bytes(b"x")
    with shared_memory_cleared(tmp_path):
        for name in ("verl_weights_left", "psm_of_another_container"):
            (tmp_path / name).write_bytes(b"x" * 4096)
        opened = (tmp_path / "verl_weights_open").open("wb")
        (tmp_path / "verl_weights_mapped").write_bytes(b"x" * 4096)
        with (tmp_path / "verl_weights_mapped").open("r+b") as file:
            mapped = mmap.mmap(file.fileno(), 4096)
    assert {path.name for path in tmp_path.iterdir()} == {
        "verl_weights_before",
        "psm_of_another_container",
        "verl_weights_open",
        "verl_weights_mapped",
    }
    opened.close()
    mapped.close()


def test_it_is_given_back_after_an_error_too(tmp_path):
    try:
        with shared_memory_cleared(tmp_path):
            (tmp_path / "verl_weights_left").write_bytes(b"x")
            raise KeyError
    except KeyError:
        pass
    assert list(tmp_path.iterdir()) == []
