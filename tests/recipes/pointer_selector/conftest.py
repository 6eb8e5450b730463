"""One thread, a small policy, small data, and the folder's own helpers on the path (tests are no package)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from pointer_testing import make_policy, write_data

from recipes.pointer_selector.candidates import read_data


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def policy():
    """An untied policy in float64 whose residual branches are not zero, as after some training."""
    return make_policy()


@pytest.fixture
def data(tmp_path):
    """Twelve queries with two groups of four candidates each."""
    path, table = write_data(tmp_path)
    return read_data(path, table, table)
