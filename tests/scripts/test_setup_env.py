"""The set-up script with a Python and a pip that only pretend, so that every way to fail can be tried."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

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
        while [ -e "$FAKE/slow" ]; do sleep 0.05; done
        case "$*" in
            *pins.txt*)
                [ -e "$FAKE/broken" ] && { echo "ERROR: verl broke"; exit 1; }
                mkdir -p "$(dirname "$0")"/../lib/python3.11/site-packages/verl-0.9.1.dist-info
                ;;
        esac
        exit 0
        ;;
    "-m recipes.installation pins"*) printf 'torch==2.13.0\\ntorchvision==0.28.0\\nverl==0.9.1\\n' ;;
    "-m recipes.installation sources") echo "--find-links=/a b" ;;
    "-m recipes.installation repair"*) echo "$*" >>"$FAKE/pip.calls" ;;
    "-m recipes.installation verify"* | "-m compileall"* | "-c import sysconfig"*) exit 0 ;;
    *) exit 1 ;;
esac
"""

GPU = "#!/usr/bin/env bash\necho 'GPU 0: NVIDIA H200'\n"


class Checkout:
    """A copy of what the script reads, with a pretended Python on the PATH."""

    def __init__(self, folder: Path) -> None:
        self.root, self.fake, self.bin = folder / "repo", folder / "fake", folder / "bin"
        (self.root / "scripts").mkdir(parents=True)
        for name in (
            "scripts/setup_env.sh",
            "scripts/launch.sh",
            "scripts/start.sh",
            "pyproject.toml",
            "constraints.txt",
        ):
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
        command, environ = ["bash", str(self.root / "scripts" / "setup_env.sh")], {**self.environ, **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, env=environ, text=True, start_new_session=True, **pipes)

    def run(self, **variables: str) -> tuple[int, str, str]:
        process = self.start(**variables)
        out, err = process.communicate(timeout=50)
        return process.returncode, out.strip(), err

    def launch(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        command = ["bash", str(self.root / "scripts" / "launch.sh"), "countdown", *words]
        return subprocess.run(command, env={**self.environ, **variables}, capture_output=True, text=True)

    @property
    def calls(self) -> list[str]:
        file = self.fake / "pip.calls"
        return file.read_text().splitlines() if file.exists() else []

    @property
    def python(self) -> str:
        return str(self.root / ".venv" / "bin" / "python")


@pytest.fixture
def checkout(tmp_path):
    return Checkout(tmp_path)


def wait_for_pip(checkout: Checkout) -> None:
    deadline = time.monotonic() + 30
    while not checkout.calls and time.monotonic() < deadline:
        time.sleep(0.05)
    assert checkout.calls


def test_the_first_time_installs_the_second_does_nothing_and_what_changed_is_installed_again(checkout):
    code, out, err = checkout.run()
    assert (code, out) == (0, checkout.python)
    assert err.strip().endswith("ready")
    fresh, torch, torchvision, pins, package = [call for call in checkout.calls if "pip install" in call]
    assert fresh.endswith("--upgrade pip")
    assert "--no-deps" in torch and "torch==2.13.0+cpu" in torch  # noqa: PT018
    assert "torchvision==0.28.0+cpu" in torchvision
    assert "--no-deps -r" in pins, "the pins are not resolved again"
    assert "--no-build-isolation -e ." in package
    before = checkout.calls
    assert checkout.run() == (0, checkout.python, "")
    assert checkout.calls == before
    site = checkout.root / ".venv" / "lib" / "python3.11" / "site-packages"
    (site / "verl-0.9.1.dist-info").rmdir()
    assert "packages were removed" in checkout.run()[2]
    assert (site / "verl-0.9.1.dist-info").is_dir()
    before = len(checkout.calls)
    with (checkout.root / "constraints.txt").open("a") as file:
        file.write("# changed\n")
    assert checkout.run()[0] == 0
    assert len(checkout.calls) > before


def test_uv_installs_where_it_is_from_what_pip_is_configured_with(checkout):
    checkout.stub("uv", '#!/usr/bin/env bash\nexec "$4" -m pip install "$@"\n')
    assert checkout.run()[:2] == (0, checkout.python)
    called = [call for call in checkout.calls if "pip install" in call]
    chosen = (
        f"-m pip install pip install --python {checkout.python} --index-strategy unsafe-best-match --find-links=/a b "
    )
    assert len(called) == 4
    assert all(call.startswith(chosen) for call in called)


@pytest.mark.parametrize("failure", [None, signal.SIGINT, signal.SIGKILL])
def test_an_install_that_did_not_end_is_not_used_and_is_taken_up_again(checkout, failure):
    broken = checkout.fake / ("slow" if failure else "broken")
    broken.touch()
    process = checkout.start()
    if failure:
        wait_for_pip(checkout)
        (os.killpg if failure == signal.SIGKILL else os.kill)(process.pid, failure)
        broken.unlink()
    out, err = process.communicate(timeout=50)
    assert (out, "interrupted" in err, "error: " in err) == ("", failure == signal.SIGINT, failure is None)
    broken.unlink(missing_ok=True)
    assert not (checkout.root / ".venv" / ".complete").exists()
    code, out, err = checkout.run()
    assert (code, out, "making .venv" in err) == (0, checkout.python, False), "what is there is kept"
    assert any("repair" in call for call in checkout.calls), "and looked through first"


def test_two_at_once_install_once(checkout):
    (checkout.fake / "slow").touch()
    first = checkout.start()
    wait_for_pip(checkout)
    second = checkout.start()
    line = second.stderr.readline()
    assert "another set-up of .venv is running" in line
    (checkout.fake / "slow").unlink()
    assert [each.communicate(timeout=50)[0].strip() for each in (first, second)] == [checkout.python] * 2
    assert sum("pins.txt" in call for call in checkout.calls) == 1


def test_the_other_kind_of_machine_gets_an_environment_of_its_own(checkout):
    """Also where the launcher's arguments name the hardware."""
    checkout.stub("nvidia-smi", GPU)
    _, out, err = checkout.run()
    assert (out, "several GB" in err) == (checkout.python, True)
    assert any(".[gpu,dev]" in call for call in checkout.calls)
    assert checkout.run(HARDWARE="gpu")[1] == checkout.run(CUDA_VISIBLE_DEVICES="0,1")[1] == checkout.python
    checkout.launch("--hardware", "gpu", HARDWARE="cpu")
    assert not (checkout.root / ".venv.cpu").exists()
    assert checkout.run(CUDA_VISIBLE_DEVICES="")[1] == str(checkout.root / ".venv.cpu" / "bin" / "python")


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has GPUs")
def test_gpus_that_are_not_there_are_an_error_before_anything_is_installed(checkout):
    switched_off = checkout.launch(HARDWARE="gpu", DRY_RUN="False")
    for done in (checkout.launch(HARDWARE="gpu"), checkout.launch("--hardware", "gpu"), switched_off):
        assert done.returncode == 1
        assert "HARDWARE=gpu, but this machine has no NVIDIA GPU" in done.stderr
        assert "fix: " in done.stderr
    checkout.stub("nvidia-smi", GPU)
    code, out, err = checkout.run(HARDWARE="gpu", CUDA_VISIBLE_DEVICES="-1")
    assert (code, out, "hides every GPU" in err) == (1, "", True)
    assert not checkout.calls
    assert not list(checkout.root.glob(".venv*"))


def test_an_image_gets_its_environment_in_a_folder_for_a_machine_that_is_not_this_one(checkout):
    folder = checkout.root.parent / "environment"
    command = ["bash", str(checkout.root / "scripts" / "setup_env.sh"), "into", str(folder)]
    environ = {**checkout.environ, "HARDWARE": "gpu"}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (0, f"{folder}/bin/python\n"), done.stderr
    assert any(".[gpu,dev]" in call for call in checkout.calls)
    assert not list(checkout.root.glob(".venv*"))


@pytest.mark.parametrize(
    ("name", "stub", "named"),
    [
        ("uname", "echo aarch64", "aarch64"),
        ("python3.11", "exit 1", "Python 3.11"),
        ("df", "printf 'h\\n/dev/x 1 1 1048576 1%% /\\n'", "1 GB"),
    ],
)
def test_machines_that_do_not_fit(checkout, name, stub, named):
    checkout.stub(name, f"#!/usr/bin/env bash\n{stub}\n")
    code, out, err = checkout.run(PYTHON="python3.11")
    assert (code, out, named in err) == (1, "", True)
