"""What holds for every test: signals as in a terminal, and in CI the same examples for property tests every time."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# A shell without job control starts background jobs with SIGINT ignored, and every process below inherits that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A red run can be repeated.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")
