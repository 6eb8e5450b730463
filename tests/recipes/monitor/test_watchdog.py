"""When a run is given up, and when not."""

from __future__ import annotations

from recipes.monitor.process import Limits, Watchdog

LIMITS = Limits(idle_s=600, silent_s=2400, alarmed_s=60)


def watched(cpu_per_second, seconds, alarming=False, start=0.0):
    """A watchdog after so many seconds without output, with a constant use of CPU."""
    watchdog = Watchdog(LIMITS, start)
    watchdog.saw_output(start, alarming)
    for second in range(0, seconds + 1, 2):
        watchdog.saw_cpu(start + second, cpu_per_second * second)
    return watchdog.verdict(start + seconds)


def test_a_busy_silent_run_may_go_on():
    assert watched(1.0, 700) is None
    assert watched(1.0, 120, alarming=True) is None


def test_an_idle_silent_run_is_given_up():
    assert watched(0.05, 590) is None
    assert "no work" in watched(0.05, 601)


def test_a_run_that_spins_in_silence_is_given_up_later():
    assert watched(1.0, 2390) is None
    assert "no output for 40 minutes" in watched(1.0, 2401)


def test_silence_after_an_exception_is_given_up_soon():
    assert watched(0.05, 58, alarming=True) is None
    assert "exception" in watched(0.05, 61, alarming=True)


def test_a_step_after_an_exception_clears_the_alarm():
    watchdog = Watchdog(LIMITS, 0.0)
    watchdog.saw_output(0.0, alarming=True)
    watchdog.saw_step(10.0)
    for second in range(0, 101, 2):
        watchdog.saw_cpu(second, 0.0)
    assert watchdog.verdict(100.0) is None


def test_output_is_a_sign_of_life():
    watchdog = Watchdog(LIMITS, 0.0)
    for second in range(0, 1000, 2):
        watchdog.saw_cpu(second, 0.0)
    watchdog.saw_output(500.0, alarming=False)
    assert watchdog.verdict(999.0) is None
    assert watchdog.verdict(1101.0) is not None


def test_without_a_measure_of_cpu_nothing_counts_as_idle():
    watchdog = Watchdog(LIMITS, 0.0)
    assert watchdog.verdict(700.0) is None


def test_minutes():
    assert Limits.from_minutes(10) == Limits(idle_s=600, silent_s=2400)


def test_a_step_that_is_read_together_with_an_exception_does_not_clear_it():
    watchdog = Watchdog(LIMITS, 0.0)
    watchdog.saw_output(0.0, alarming=True)
    watchdog.saw_step(0.0)
    for second in range(0, 101, 2):
        watchdog.saw_cpu(second, 0.0)
    assert "exception" in watchdog.verdict(61.0)
