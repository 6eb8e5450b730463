"""The trainer's log: lines, phases, and the error that ended it."""

from __future__ import annotations

import pytest

from recipes.monitor.log import LogReader, clean, first_error, is_alarming, phase_of


def test_decoration_is_taken_off():
    line = clean(
        "\x1b[36m(CpuHttpServer pid=17053, ip=192.0.2.2)\x1b[0m (EngineCore pid=4) ERROR 11-21 20:10:47 [a.py:1] gone"
    )
    assert line.text == "gone"
    assert line.speaker.startswith("(CpuHttpServer pid=17053, ip=192.0.2.2)(EngineCore pid=4)")
    assert clean("plain text").speaker == ""


def test_half_lines_wait_carriage_returns_end_lines_and_bytes_that_are_no_text_pass(tmp_path):
    log = tmp_path / "train.log"
    assert LogReader(log).read() == []
    log.write_text("before\n")
    reader = LogReader(log, offset=log.stat().st_size)
    with log.open("ab", buffering=0) as file:
        file.write(b"one\rtw")
        assert [line.text for line in reader.read()] == ["one"]
        file.write(b"o\n\n\xff\xfe three\n")
        assert [line.text[-5:] for line in reader.read()] == ["two", "three"]
    assert reader.read() == []


RAY_CHAIN = """\
\x1b[36m(TaskRunnerV1 pid=16491)\x1b[0m INFO:2026-11-21 20:09:50,257:Platform override from VERL_PLATFORM: cpu
Error executing job with overrides: ['a=1']
Traceback (most recent call last):
  File "/env/bin/main_ppo.py", line 100, in main
    run_ppo(config)
  File "/env/site-packages/ray/_private/worker.py", line 990, in get_objects
    raise value.as_instanceof_cause()
ray.exceptions.RayTaskError(KeyError): \x1b[36mray::TaskRunnerV1.run()\x1b[39m (pid=16491, ip=192.0.2.2)
  File "/env/site-packages/verl/trainer/main_ppo.py", line 50, in run
    trainer.fit()
  File "/opt/mine/reward.py", line 7, in compute_score
    return table[key]
KeyError: 'target'
"""

INTERLEAVED = """\
(WorkerDict pid=1) Traceback (most recent call last):
(RewardLoopWorker pid=2) Traceback (most recent call last):
(WorkerDict pid=1)   File "a.py", line 1, in forward
(RewardLoopWorker pid=2)   File "b.py", line 2, in judge
(WorkerDict pid=1) torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB
(RewardLoopWorker pid=2) ZeroDivisionError: division by zero
"""

VLLM = """\
(CpuHttpServer pid=3) (EngineCore pid=4) ERROR 11-21 20:10:47 [core.py:900] EngineCore encountered a fatal error.
(CpuHttpServer pid=3) (EngineCore pid=4) ERROR 11-21 20:10:47 [core.py:900] Traceback (most recent call last):
(CpuHttpServer pid=3) (EngineCore pid=4) ERROR 11-21 20:10:47 [core.py:900]   File "w.py", line 9, in sync
(CpuHttpServer pid=3) (EngineCore pid=4) ERROR 11-21 20:10:47 [core.py:900] AttributeError: no weight
(TaskRunnerV1 pid=1) Traceback (most recent call last):
(TaskRunnerV1 pid=1)   File "client.py", line 2, in get
(TaskRunnerV1 pid=1) vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)
"""

SURVIVED = """\
(TaskRunnerV1 pid=1) Traceback (most recent call last):
(TaskRunnerV1 pid=1)   File "tracking.py", line 5, in login
(TaskRunnerV1 pid=1) ConnectionError: no network, going on offline
(WorkerDict pid=2) Traceback (most recent call last):
(WorkerDict pid=2)   File "actor.py", line 9, in update
(WorkerDict pid=2) ValueError: batch of 7
Traceback (most recent call last):
  File "/env/bin/main_ppo.py", line 100, in main
    run_ppo(config)
ray.exceptions.RayTaskError(ValueError): ray::TaskRunnerV1.run() (pid=1, ip=192.0.2.2)
  File "actor.py", line 9, in update
ValueError: batch of 7
"""

CAUSED = """\
Traceback (most recent call last):
  File "inner.py", line 3, in read
OSError: [Errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "outer.py", line 8, in save
RuntimeError: could not save
"""


# vLLM's server was killed while it generated; verl's driver then finds that no response of the step is usable.
DEAD_SERVER = """\
(AgentLoopWorkerTQ pid=1323) ERROR:2026-11-22 08:23:42,414:Error in _run_prompt for uid=73a5275f
(AgentLoopWorkerTQ pid=1323) Traceback (most recent call last):
(AgentLoopWorkerTQ pid=1323)   File "llm_server.py", line 80, in generate
(AgentLoopWorkerTQ pid=1323) ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
(AgentLoopWorkerTQ pid=1323) \tclass_name: CpuHttpServer
(AgentLoopWorkerTQ pid=1323) \tpid: 1143
(AgentLoopWorkerTQ pid=1323) The actor is dead because its worker process has died.
Traceback (most recent call last):
  File "replay_buffer.py", line 510, in sample
RuntimeError: Sync replay buffer selected terminal groups with no materializable trajectories.
"""
DEAD_SERVER_AT_SYNC = """\
Traceback (most recent call last):
  File "worker.py", line 1053, in get_objects
ray.exceptions.RayTaskError(ActorDiedError): ray::WorkerDict.actor_rollout_ref_update_weights() (pid=1291)
  File "utils.py", line 90, in inner
ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.
\tclass_name: CpuHttpServer
"""
DEAD_RAYLET = """\
(raylet) Raylet is terminated. Termination is unexpected. Possible reasons include: (1) SIGKILL by the user
    [2026-11-22 10:16:00,839 I 4114 4126] (raylet) object_store.cc:37: Object store current usage 8e-09 / 0.26 GB.
"""
DEAD_GCS = """\
Error executing job with overrides: ['a=1']
[10:21:25,486 E 16084 16377] rpc_client.h:204: Failed to connect to GCS within 30 seconds. GCS may have been killed.
"""
DIED = "ActorDiedError: The actor died unexpectedly before finishing this task."


def lines(text):
    return [clean(line) for line in text.splitlines()]


ODD = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: odd\n'
WARNING = "a.py:32: UserWarning: engine is not available: ModuleNotFoundError('x')\n  warnings.warn(1)\n"


@pytest.mark.parametrize(
    ("text", "error", "frame"),
    [
        (RAY_CHAIN, "KeyError: 'target'", "/opt/mine/reward.py:7 in compute_score"),
        (INTERLEAVED, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "a.py:1 in forward"),
        (VLLM, "AttributeError: no weight", "w.py:9 in sync"),
        (SURVIVED, "ValueError: batch of 7", "actor.py:9 in update"),
        (DEAD_SERVER, f"the process of CpuHttpServer died ({DIED})", "llm_server.py:80 in generate"),
        (DEAD_SERVER_AT_SYNC, f"the process of CpuHttpServer died ({DIED})", "utils.py:90 in inner"),
        (DEAD_RAYLET, "Ray's raylet was killed or crashed", ""),
        (DEAD_GCS, "Ray's GCS was killed or crashed", ""),
        (CAUSED, "OSError: [Errno 28] No space left on device", "inner.py:3 in read"),
        (ODD.replace("ValueError", "some other print: here\nValueError"), "ValueError: odd", "a.py:1 in f"),
        ("fine\nError: port in use\nbye", "Error: port in use", ""),
        ("all is well\nstill", "", ""),
        (WARNING, "", ""),
    ],
)
def test_the_first_real_exception_and_where_it_was_raised(text, error, frame):
    found = first_error(lines(text))
    assert (found.error, found.frame) == (error, frame)


@pytest.mark.parametrize(
    ("before", "error", "advice"),
    [
        ("", "torch.OutOfMemoryError: CUDA out of memory.", "MICRO_BATCH_SIZE"),
        ("", "RuntimeError: unable to write to file </dev/shm/torch_1>: No space left on device (28)", "--shm-size"),
        ("", "OSError: [Errno 28] No space left on device", "the disk is full"),
        ("(raylet) A worker died or was killed while executing a task", "RuntimeError: no trajectories", "dmesg"),
    ],
)
def test_known_errors_come_with_advice(before, error, advice):
    """The rest of the log advises where the error does not."""
    found = first_error(lines(f"{before}\n{ODD.replace('ValueError: odd', error)}"))
    assert found.error == error
    assert advice in found.hint


def test_phases_are_recognised_and_exceptions_alarm():
    assert "vLLM" in phase_of(clean("(TaskRunnerV1 pid=1) INFO:2026:actor and ref model engine initialized"))
    assert phase_of(clean("warnings.warn(1)")) is None
    assert is_alarming(clean("(W pid=1) Traceback (most recent call last):"))
    assert not is_alarming(clean("(W pid=1) UserWarning: x"))
    assert (first_error(lines(INTERLEAVED)).speaker, first_error(lines(ODD)).hint) == ("(WorkerDict pid=1)", "")
