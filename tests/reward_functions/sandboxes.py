"""Whether this machine has a sandbox; without one, the tests that need it say loudly that they did not run."""

from __future__ import annotations

import pytest

from recipes.data.rewards import load_reward

dispatch = load_reward("reward_functions/dispatch.py")
sandbox = dispatch.sandbox
try:
    sandbox.check()
    PROBLEM = ""
except sandbox.SandboxMissing as error:
    PROBLEM = f"THE SANDBOX IS NOT TESTED ON THIS MACHINE: {error}"
needs_sandbox = pytest.mark.skipif(bool(PROBLEM), reason=PROBLEM)
