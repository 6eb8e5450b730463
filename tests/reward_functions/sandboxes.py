"""The sandbox of code rewards, and a mark that skips tests where this machine has none."""

import pytest

from recipes.rewards.loading import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
sandbox = dispatch.sandbox
try:
    sandbox.check()
    PROBLEM = ""
except RuntimeError as error:
    PROBLEM = f"the sandbox of code rewards: {error}"
needs_sandbox = pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM)
