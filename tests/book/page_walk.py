"""A page that is walked from its top to its bottom: its files are written, and its commands print what it shows.

A block of Python whose first line names a file writes that file. In a console block each line with `$` is a command;
the lines below it must be in what it prints, in this order. Commands that end with `&` run on, as jobs, until they are
killed by their name. Only what a page needs is understood: a command that is not known here is an error.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.cli.commands import MAIN, command_line
from tests.support.fork_server import Child, ForkServer, fork_server
from tests.support.patience import PATIENCE_S

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Pages of docs/ whose steps build on each other. The programs of all others stand for themselves.
WALKED = ("tutorial.md", "multi-tenant.md", "alembic.md", "production.md", "drivers.md")

#: What a reader does once, and the tests have done already.
_DONE = ("pip ", "mkdir ", "cd ", "python3 -m venv ")

#: Looks and changes nothing: asked again until it says what the page says, for what happens in the background.
_LOOKS = ("python show.py", "onefold outbox")


@dataclass(slots=True)
class Walk:
    """One page in one folder. `given`: variables whose values the page cannot know."""

    folder: Path
    given: Mapping[str, str]
    port: int = field(default_factory=lambda: _free_port())
    environment: dict[str, str] = field(default_factory=dict)
    jobs: dict[str, Child] = field(default_factory=dict)

    def walk(self, page: str) -> None:
        for language, text in _BLOCK.findall(page):
            if language == "python":
                name = re.match(r"# ([\w/]+\.py)\n", text)
                assert name is not None, f"a program without a name:\n{text}"
                (self.folder / name[1]).write_text(self._localise(text))
            elif language == "console":
                for command, printed in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
                    self._try(command, printed)

    def _localise(self, text: str) -> str:
        # A page has its own ports; a test takes what is free.
        free = re.sub(r"--health-port \d+", "--health-port 0", text)
        return free.replace("localhost:8000", f"127.0.0.1:{self.port}")

    def _try(self, command: str, printed: str) -> None:
        if command.startswith(_DONE):
            return
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            said = self._run(command)
            if _has_lines(said, printed):
                return
            looks = command.startswith(_LOOKS) and time.monotonic() < give_up_at
            assert looks, f"$ {command}\nshould print\n{printed}\nand printed\n{said}"
            time.sleep(0.1)

    def _run(self, command: str) -> str:
        words = shlex.split(os.path.expandvars(_expand(self._localise(command), self.environment)))
        background = words[-1] == "&"
        match words:
            case ["export", setting]:
                name, _, value = setting.partition("=")
                self.environment[name] = self.given.get(name, value)
            case ["touch", name]:
                (self.folder / name).touch()
            case ["kill", *names]:
                number = signal.SIGKILL if names[0] == "-9" else signal.SIGTERM
                for name in names:
                    if name.startswith("%"):
                        self._end(name.strip("%?"), number)
            case ["curl", *_]:
                return subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
            case ["uvicorn", *arguments]:
                assert background
                self._start("uvicorn", fork_server(), "-m", "uvicorn", *arguments[:-1], "--port", str(self.port))
                self._wait_for_port()
            case ["onefold", *arguments] if background:
                self._start(arguments[0], command_line(), *MAIN, *arguments[:-1])
            case ["onefold", *arguments]:
                return self._run_python(
                    command_line(), *MAIN, *arguments, ends=(0, 1) if arguments[0] == "doctor" else (0,)
                )
            case ["alembic", *arguments]:
                return self._run_python(fork_server(), "-m", "alembic", *arguments)
            case ["python", *arguments]:
                return self._run_python(fork_server(), *arguments)
            case _:
                raise AssertionError(f"the walk does not know the command {command!r}")
        return ""

    def _run_python(self, server: ForkServer, *words: str, ends: Sequence[int] = (0,)) -> str:
        """`ends`: the exit codes of a command that has done its work."""
        ran = server.run(
            *words, cwd=self.folder, environment=self._surroundings(), one_stream=True, within_s=PATIENCE_S
        )
        assert ran.returncode in ends, f"{words}: {ran.stdout}"
        return ran.stdout

    def _surroundings(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ONEFOLD_")}
        return kept | {"PYTHONUNBUFFERED": "1", "TERM": "dumb", "COLUMNS": "200"} | self.environment

    def _start(self, name: str, server: ForkServer, *words: str) -> None:
        # A second one of the name takes the place of one that has died.
        with tempfile.TemporaryFile() as nothing, (self.folder / f"{name}.log").open("ab") as log:
            streams = (nothing, log, log)
            self.jobs[name] = server.start(*words, cwd=self.folder, environment=self._surroundings(), streams=streams)

    def _end(self, name: str, number: signal.Signals) -> None:
        self.jobs[name].send_signal(number)
        self.jobs[name].wait(PATIENCE_S)

    def _wait_for_port(self) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            log = (self.folder / "uvicorn.log").read_text()
            assert self.jobs["uvicorn"].poll() is None, log
            assert time.monotonic() < give_up_at, log
            time.sleep(0.05)


@contextlib.contextmanager
def walking(folder: Path, **given: str) -> Iterator[Walk]:
    walk = Walk(folder, given)
    try:
        yield walk
    finally:
        for job in walk.jobs.values():
            job.close()


def _has_lines(said: str, printed: str) -> bool:
    """Whether each line that the page shows is in what was said, in this order."""
    position = 0
    for line in filter(None, map(str.strip, printed.splitlines())):
        position = said.find(line, position)
        if position < 0:
            return False
        position += len(line)
    return True


def _expand(text: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: environment.get(found[1], found[0]), text)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
