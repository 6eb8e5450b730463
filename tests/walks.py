"""Print the files that a value passes, each once: `python tests/walks.py [rollout_n | completion | users_file]`.

A walk begins where a user's value enters and ends where it has its last form. Python's profiler sees every call. A file
of the repository is on the walk when one of its functions receives, returns or yields the value, alone or in an object
that holds it: `+` marks files that pass it on (a function returns or yields it), `-` files that only receive it,
as checks do. The environment of the process does not count as such an object, since every function has it.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
OURS = (f"{ROOT}/recipes/", f"{ROOT}/reward_functions/")
MARK = "1012"
"""The value that is followed, as a number or as part of a text; nothing else in a walk has it."""


def holds(thing: Any, seen: dict[int, Any]) -> bool:
    """Return whether the mark is in a value, a container, or an object of the repository's own classes."""
    if isinstance(thing, str | bytes):
        return (MARK if isinstance(thing, str) else MARK.encode()) in thing
    if isinstance(thing, int | float):
        return thing == int(MARK)
    if thing is os.environ or id(thing) in seen or isinstance(thing, type):
        return False
    seen[id(thing)] = thing  # kept alive, so that no other object gets its id
    if isinstance(thing, dict):
        return any(holds(each, seen) for pair in list(thing.items()) for each in pair)
    if isinstance(thing, list | tuple | set | frozenset):
        return any(holds(each, seen) for each in list(thing))
    if not type(thing).__module__.startswith("recipes."):
        return False
    slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return holds([getattr(thing, name, None) for name in slots] + list(getattr(thing, "__dict__", {}).values()), seen)


class Walk:
    """The files that have the value, in the order in which they first have it, each with its functions.

    `end` is the last function of the walk, as `file:function`.
    """

    def __init__(self, end: str) -> None:
        self.end, self.ended, self._busy = end, False, False
        self.files: dict[str, list[str]] = {}
        self.pass_on: set[str] = set()

    def record(self, frame: FrameType, event: str, result: Any) -> None:
        """Note a call or a return, as `sys.setprofile` tells it. Raises SystemExit at the walk's end."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(OURS):
            return
        if self._busy or self.ended:
            return
        file, function = code.co_filename.removeprefix(f"{ROOT}/"), code.co_name
        if function == "<module>":
            return
        self._busy = True
        if holds(list(frame.f_locals.values()) if event == "call" else result, {}):
            functions = self.files.setdefault(file, [])
            functions += [] if function in functions else [function]
            self.pass_on |= {file} if event == "return" else set()
        self._busy, self.ended = False, event == "return" and self.end == f"{file}:{function}"
        if self.ended:
            raise SystemExit

    def follow(self, main: Callable[[], Any]) -> Walk:
        """Call `main`, and record the files that have the value meanwhile."""
        threading.setprofile(self.record)
        sys.setprofile(self.record)
        try:
            with suppress(SystemExit):
                main()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)  # type: ignore[arg-type]  # typeshed does not know that None removes it
        return self


def rollout_n(folder: Path) -> Walk:
    """ROLLOUT_N, from the start of the launchers' Python to verl's argument."""
    os.environ["ROLLOUT_N"] = MARK
    sys.argv = ["launch.py", "countdown"]
    from recipes import launch

    return Walk("recipes/engines/verl.py:command").follow(launch.cli)


def users_file(folder: Path) -> Walk:
    """The records of a user's JSONL, from the file to the finished parquet file."""
    rows = [{"prompt": f"{MARK} + {i}?", "ground_truth": str(i), "data_source": "gsm8k"} for i in range(6)]
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sys.argv = ["launch.py", "custom", "--data", str(folder / "data.jsonl")]
    from recipes import launch

    return Walk("recipes/data/rows.py:put_in_place").follow(launch.cli)


class Model(BaseHTTPRequestHandler):
    """A server of chat completions; every completion is the mark."""

    def do_GET(self) -> None:
        self._send({"data": []})

    def do_POST(self) -> None:
        n = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["n"]
        answer = {"finish_reason": "stop", "message": {"role": "assistant", "content": MARK}}
        self._send({"choices": [{"index": i, **answer} for i in range(n)]})

    def _send(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())


def completion(folder: Path) -> Walk:
    """A completion, from the server's response to its row in the report."""
    from recipes.data.rows import make_row, write_split
    from recipes.evaluation import cli

    facts = {"data_source": "gsm8k", "ability": "math", "extra_info": {"split": "test", "index": 0}}
    rows = [make_row(prompt=f"{i}?", ground_truth=str(i), **facts) for i in range(4)]
    write_split(folder / "test.parquet", rows)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url, data = f"http://127.0.0.1:{server.server_address[1]}/v1", str(folder / "test.parquet")
    words = ["gsm8k", "--model_path", "m", "--api_base", url, "--data_path", data, "--rollout_n", "4"]
    return Walk("recipes/evaluation/report/page.py:write_report").follow(lambda: cli.make_app()(words))


def main(name: str) -> None:
    """Record one walk and print it."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(printed), redirect_stderr(printed):
        os.environ.update(ARTIFACTS_DIR=f"{folder}/artifacts", DRY_RUN="1", HARDWARE="cpu")
        walk = globals()[name](Path(folder))
    if not walk.ended:
        sys.exit(f"{name} never came to {walk.end}:\n{printed.getvalue()[-2000:]}")
    print(f"{name}: {len(walk.pass_on)} files pass it on, {len(walk.files) - len(walk.pass_on)} only receive it")
    for file, functions in walk.files.items():
        print(f"  {'+' if file in walk.pass_on else '-'} {file}: {', '.join(functions)}")


if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # in place of tests/, whose folder recipes is another
    for each in sys.argv[1:] or ("rollout_n", "completion", "users_file"):
        main(each)
