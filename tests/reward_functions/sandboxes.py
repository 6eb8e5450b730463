"""Whether this machine has a sandbox, for the tests that need one; without it they say loudly that they did not run."""

from __future__ import annotations

import pytest

from recipes.data.rewards import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
sandbox = dispatch.sandbox


def problem() -> str:
    """Why no program can run here; "" where one can."""
    try:
        sandbox.check()
    except sandbox.SandboxMissing as error:
        return f"THE SANDBOX IS NOT TESTED ON THIS MACHINE: {error}"
    return ""


PROBLEM = problem()
needs_sandbox = pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM)
