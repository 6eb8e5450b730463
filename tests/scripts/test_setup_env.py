"""The set-up script with a Python and a pip that only pretend, so that every way to fail can be tried."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import tomllib

from recipes.paths import ROOT

PYTHON = """\
#!/usr/bin/env bash
# python3.11 outside, python inside a virtual environment; what it is told to break is in $FAKE.
case "$*" in
    *"import sys, venv, ensurepip"*) exit 0 ;;
    --version) echo "Python 3.11.0" ;;
    "-m venv "*)
        mkdir -p "$3/bin" "$3/lib/python3.11/site-packages"
        cp "$0" "$3/bin/python"
        ;;
    "-m pip --version") echo "pip 23" ;;
    "-m pip install "*)
        echo "$*" >>"$FAKE/pip.calls"
        [ -e "$FAKE/slow" ] && sleep 30
        case "$*" in
            *extra-index-url*) [ -e "$FAKE/no-index" ] && { echo "ERROR: no index answers"; exit 1; } ;;
            *torch==*+cpu*) [ -e "$FAKE/no-torch" ] && { echo "ERROR: No matching distribution"; exit 1; } ;;
            *pins.txt*)
                [ -e "$FAKE/broken" ] && { echo "ERROR: verl broke"; exit 1; }
                mkdir -p "$(dirname "$0")"/../lib/python3.11/site-packages/{verl-0.9.1,math_verify-0.9.0}.dist-info
                ;;
        esac
        exit 0
        ;;
    "-m recipes.installation pins"*) printf 'torch==2.13.0\\nverl==0.9.1\\n' ;;
    "-m recipes.installation repair"*) echo "$*" >>"$FAKE/pip.calls" ;;
    "-m recipes.installation verify"*) [ -e "$FAKE/hollow" ] && { echo "verl==0.9.1"; exit 1; }; exit 0 ;;
    "-m compileall"* | "-c import sysconfig"*) exit 0 ;;
    *) exit 1 ;;
esac
"""

GPU = "#!/usr/bin/env bash\necho 'GPU 0: NVIDIA H200'\n"

ACTIVE = """\
#!/usr/bin/env bash
# python3 of an active environment that has verl.
[ "$1" = - ] && cat >/dev/null && echo /somewhere/bin/python
"""


class Checkout:
    """A copy of what the script reads, with a pretended Python on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.root, self.fake, self.bin = folder / "repo", folder / "fake", folder / "bin"
        (self.root / "scripts").mkdir(parents=True)
        for name in ("scripts/setup_env.sh", "scripts/launch.sh", "setup.py", "constraints.txt"):
            shutil.copy(ROOT / name, self.root / name)
        self.fake.mkdir()
        self.bin.mkdir()
        self.stub("python3.11", PYTHON)
        self.stub("python3", "#!/usr/bin/env bash\nexit 1\n")
        self.stub("nvidia-smi", "#!/usr/bin/env bash\nexit 9\n")
        self.environ = {"PATH": f"{self.bin}:/usr/bin:/bin", "FAKE": str(self.fake), "HOME": str(folder)}

    def stub(self, name: str, text: str) -> None:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, **variables: str) -> subprocess.Popen:
        return subprocess.Popen(
            ["bash", str(self.root / "scripts" / "setup_env.sh")],
            env={**self.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *broken: str, **variables: str) -> tuple[int, str, str]:
        for name in broken:
            (self.fake / name).touch()
        process = self.start(**variables)
        out, err = process.communicate(timeout=60)
        for name in broken:
            (self.fake / name).unlink()
        return process.returncode, out.strip(), err

    @property
    def calls(self) -> list[str]:
        file = self.fake / "pip.calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def python(self) -> str:
        return str(self.root / ".venv" / "bin" / "python")


def end_session(session: int, only: str = "") -> None:
    """SIGKILL the processes of a session that a test began."""
    for process in psutil.process_iter(["name"]):
        try:
            if os.getsid(process.pid) == session and only in (process.info["name"] or ""):
                process.kill()
        except (psutil.NoSuchProcess, ProcessLookupError):
            continue


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def test_the_first_time_installs_and_says_how_long_the_second_time_does_nothing(checkout):
    code, out, err = checkout.run()
    assert (code, out) == (0, checkout.python)
    assert re.search(r"\[set-up +\d+ s\]", err)
    assert "from what pip is configured with" in err
    assert err.strip().endswith("ready")
    assert not any("extra-index-url" in call for call in checkout.calls)
    before = checkout.calls
    began = time.monotonic()
    assert checkout.run() == (0, checkout.python, "")
    assert time.monotonic() - began < 2.0
    assert checkout.calls == before


def test_pins_are_installed_without_resolving_again(checkout):
    checkout.run()
    torch, pins, package = [call for call in checkout.calls if "pip install" in call]
    assert "--no-deps" in torch
    assert "torch==2.13.0+cpu" in torch
    assert "--no-deps -r" in pins
    assert "--no-build-isolation -e ." in package


def test_torch_comes_from_its_own_index_where_nothing_else_has_it(checkout):
    code, _, err = checkout.run("no-torch")
    assert code == 0
    assert "from https://download.pytorch.org/whl/cpu" in err
    (call,) = [call for call in checkout.calls if "extra-index-url" in call]
    assert "--timeout 20 --retries 1" in call


def test_no_source_of_torch_is_an_error_that_says_what_to_do(checkout):
    code, out, err = checkout.run("no-torch", "no-index")
    assert (code, out) == (1, "")
    assert "neither in pip's configured sources nor to be had from" in err
    assert "PIP_FIND_LINKS" in err
    assert "no index answers" in err


@pytest.mark.parametrize("failure", ["broken", "hollow"])
def test_a_failed_install_is_not_used_and_is_taken_up_again(checkout, failure):
    code, out, err = checkout.run(failure)
    assert (code, out) == (1, "")
    assert "error: " in err
    assert "setup.log" in err
    assert not (checkout.root / ".venv" / ".complete").exists()
    code, out, err = checkout.run()
    assert (code, out) == (0, checkout.python)
    assert "making .venv" not in err, "what is there is kept"
    assert any("repair" in call for call in checkout.calls), "and looked through first"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_install_ends_pip_and_is_taken_up_again(checkout, number):
    (checkout.fake / "slow").touch()
    process = checkout.start()
    deadline = time.monotonic() + 20
    while not checkout.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=10)
    assert (process.returncode, out) == (130, "")
    assert "interrupted" in err
    assert not (checkout.root / ".venv" / ".complete").exists()
    (checkout.fake / "slow").unlink()
    assert checkout.run()[:2] == (0, checkout.python)


def test_a_killed_install_is_taken_up_again(checkout):
    (checkout.fake / "slow").touch()
    process = checkout.start()
    while not checkout.calls:
        time.sleep(0.05)
    end_session(process.pid)
    process.communicate()
    (checkout.fake / "slow").unlink()
    assert checkout.run()[:2] == (0, checkout.python)


def test_two_at_once_install_once(checkout):
    (checkout.fake / "slow").touch()
    first = checkout.start()
    while not checkout.calls:
        time.sleep(0.05)
    second = checkout.start()
    time.sleep(1.0)
    assert len(checkout.calls) == 1, "the second waits"
    (checkout.fake / "slow").unlink()
    end_session(first.pid, only="sleep")
    assert first.communicate(timeout=30)[0].strip() == checkout.python
    out, err = second.communicate(timeout=30)
    assert out.strip() == checkout.python
    assert "another set-up of .venv is running" in err
    assert sum("pins.txt" in call for call in checkout.calls) == 1


@pytest.mark.parametrize("name", ["setup.py", "constraints.txt"])
def test_changed_requirements_are_installed(checkout, name):
    checkout.run()
    before = len(checkout.calls)
    with (checkout.root / name).open("a") as file:
        file.write("# changed\n")
    code, _, err = checkout.run()
    assert code == 0
    assert "making .venv" not in err
    assert len(checkout.calls) > before


def test_packages_that_something_else_removed_are_installed_again(checkout):
    checkout.run()
    site = checkout.root / ".venv" / "lib" / "python3.11" / "site-packages"
    (site / "math_verify-0.9.0.dist-info").rename(site / "math_verify-0.9.1.dist-info")
    (site / "flash_attn-2.8.3.dist-info").mkdir()
    before = checkout.calls
    assert checkout.run() == (0, checkout.python, ""), "another version, and more packages, are the user's choice"
    assert checkout.calls == before
    (site / "verl-0.9.1.dist-info").rmdir()
    code, out, err = checkout.run()
    assert (code, out) == (0, checkout.python)
    assert "(`uv sync` does that) and are installed again: 1" in err
    assert (site / "verl-0.9.1.dist-info").is_dir()


def test_uv_leaves_the_environment_alone():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    # Without a [project] table uv ignores `managed` and empties .venv.
    assert settings["tool"]["uv"]["managed"] is False
    assert settings["project"]["name"] == "grpo-recipes"


def test_an_environment_whose_python_is_gone_is_made_again(checkout):
    checkout.run()
    Path(checkout.python).unlink()
    _, out, err = checkout.run()
    assert out == checkout.python
    assert "making .venv" in err


def test_an_active_environment_with_verl_is_used_as_it_is(checkout):
    checkout.stub("python3", ACTIVE)
    assert checkout.run() == (0, "/somewhere/bin/python", "")
    assert not (checkout.root / ".venv").exists()


def test_the_other_kind_of_machine_gets_an_environment_of_its_own(checkout):
    checkout.stub("nvidia-smi", GPU)
    assert checkout.run()[1] == checkout.python
    assert any(".[gpu,dev]" in call for call in checkout.calls)
    assert checkout.run(HARDWARE="gpu")[1] == checkout.python
    assert checkout.run(HARDWARE="auto")[1] == checkout.python
    for hidden in ("", "-1"):
        assert checkout.run(CUDA_VISIBLE_DEVICES=hidden)[1] == str(checkout.root / ".venv.cpu" / "bin" / "python")
    assert checkout.run(CUDA_VISIBLE_DEVICES="0,1")[1] == checkout.python


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has GPUs")
def test_gpus_that_are_not_there_are_an_error_before_anything_is_installed(checkout):
    began = time.monotonic()
    for words in ((), ("--hardware", "gpu")):
        launch = ["bash", str(checkout.root / "scripts" / "launch.sh"), "countdown", *words]
        environ = {**checkout.environ, **({} if words else {"HARDWARE": "gpu"})}
        done = subprocess.run(launch, env=environ, capture_output=True, text=True)
        assert done.returncode == 1
        assert "HARDWARE=gpu, but this machine has no NVIDIA GPU" in done.stderr
        assert "fix: " in done.stderr
    checkout.stub("nvidia-smi", GPU)
    for hidden in ("", "-1"):
        code, out, err = checkout.run(HARDWARE="gpu", CUDA_VISIBLE_DEVICES=hidden)
        assert (code, out) == (1, "")
        assert "hides every GPU" in err
    assert time.monotonic() - began < 5
    assert not checkout.calls
    assert not list(checkout.root.glob(".venv*"))


@pytest.mark.parametrize(("extra", "told"), [("cpu", "three minutes and 3 GB"), ("gpu", "several GB")])
def test_the_first_time_tells_what_this_extra_takes(checkout, extra, told):
    checkout.stub("nvidia-smi", GPU)
    assert told in checkout.run(HARDWARE=extra)[2]


def test_another_processor_needs_an_environment_of_its_own(checkout):
    checkout.stub("uname", "#!/usr/bin/env bash\necho aarch64\n")
    code, out, err = checkout.run()
    assert (code, out) == (1, "")
    assert "for x86-64 only, and this machine is aarch64" in err
    checkout.stub("python3", ACTIVE)
    assert checkout.run() == (0, "/somewhere/bin/python", "")


def test_unknown_hardware(checkout):
    code, _, err = checkout.run(HARDWARE="tpu")
    assert code == 1
    assert "HARDWARE=tpu is neither cpu nor gpu" in err


def test_no_python_that_fits(checkout):
    checkout.stub("python3.11", "#!/usr/bin/env bash\nexit 1\n")
    environ = {"PYTHON": "python3.11"}
    code, _, err = checkout.run(**environ)
    assert code == 1
    assert "no Python 3.11 or 3.12" in err
    assert "apt-get install" in err


def test_a_full_disk(checkout):
    checkout.stub("df", "#!/usr/bin/env bash\nprintf 'h\\n/dev/x 1 1 1048576 1%% /\\n'\n")
    code, _, err = checkout.run()
    assert code == 1
    assert "only 1 GB are free" in err


@pytest.mark.parametrize("words", [["--hardware", "gpu"], ["--hardware=gpu"], ["hardware=gpu"]])
def test_the_launcher_tells_the_set_up_which_hardware_its_arguments_name(checkout, words):
    checkout.stub("nvidia-smi", GPU)
    launch = ["bash", str(checkout.root / "scripts" / "launch.sh"), "countdown", *words]
    subprocess.run(launch, env={**checkout.environ, "HARDWARE": "cpu"}, capture_output=True, text=True)
    assert (checkout.root / ".venv" / ".complete").exists()
    assert not (checkout.root / ".venv.cpu").exists()


def test_the_launcher_passes_its_arguments_on_and_stops_when_the_set_up_fails(checkout):
    checkout.stub("python3", ACTIVE.replace("/somewhere/bin/python", "/bin/echo"))
    launch = ["bash", str(checkout.root / "scripts" / "launch.sh"), "countdown", "a.b=c d"]
    said = subprocess.run(launch, env=checkout.environ, capture_output=True, text=True)
    assert said.stdout == "-m recipes.launch countdown a.b=c d\n"
    checkout.stub("python3", "#!/usr/bin/env bash\nexit 1\n")
    (checkout.fake / "broken").touch()
    said = subprocess.run(launch, env=checkout.environ, capture_output=True, text=True)
    assert said.returncode == 1
    assert "recipes.launch" not in said.stdout
