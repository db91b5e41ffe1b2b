"""The processes of the shop: started, killed with -9, started again, and in the end all of them ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Protocol, Self, TypeAlias

PR_SET_PDEATHSIG = 1
START_S_MAX = 180.0


class Running(Protocol):
    """A process that was started, by what the shop needs of `subprocess.Popen`."""

    @property
    def returncode(self) -> int | None: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float = ...) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


#: A command, its environment, and where its output and its errors go.
Start: TypeAlias = Callable[[Sequence[str], Mapping[str, str], IO[bytes]], Running]


def start_process(command: Sequence[str], environment: Mapping[str, str], log: IO[bytes]) -> Running:
    """An interpreter of its own."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,  # Ctrl-C is for the demo, which then ends the others in order.
        preexec_fn=_die_with_parent,
    )


class Process:
    """One process, which can be killed and started again with the same command. `ready` is what it says when it is."""

    def __init__(
        self, name: str, command: Sequence[str], *, ready: str, environment: Mapping[str, str], log: Path, start: Start
    ) -> None:
        self.name = name
        self.kills = 0
        self._log = log
        self._command = command
        self._ready = ready
        self._starts = 0
        self._environment = {**os.environ, **environment}
        self._start = start
        self._running: Running | None = None

    def start(self) -> None:
        self._starts += 1
        with self._log.open("ab") as log:
            self._running = self._start(self._command, self._environment, log)

    def kill(self) -> None:
        """kill -9, at whatever it is doing."""
        assert self._running is not None
        self._running.kill()
        self._running.wait()
        self.kills += 1

    @property
    def is_up(self) -> bool:
        """Whether its log says so once more since its last start."""
        return self._read_log().count(self._ready) >= self._starts

    def ask_to_stop(self) -> None:
        if self._running is not None:
            self._running.terminate()

    def end(self, patience_s: float) -> None:
        if self._running is None:
            return
        try:
            self._running.wait(patience_s)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()

    def ended_by_itself(self) -> str | None:
        """How it ended, with the end of its log; None: it runs. Only the demo ends a process of the shop."""
        if self._running is None or self._running.poll() is None:
            return None
        last = self._read_log().splitlines()[-10:]
        return "\n".join([f"the process {self.name!r} ended with code {self._running.returncode}:", *last])

    def _read_log(self) -> str:
        return self._log.read_text(errors="replace")


class Processes:
    """All of them: `with Processes(...) as processes:` leaves none behind, however the block ends."""

    def __init__(self, directory: Path, environment: Mapping[str, str], start: Start = start_process) -> None:
        self._directory = directory
        self._environment = environment
        self._start_one = start
        self.all: list[Process] = []

    def start_api(self, name: str, application: str, url: str) -> Process:
        """An ASGI application, at this address."""
        host, _, port = url.removeprefix("http://").partition(":")
        options = ["--host", host, "--port", port, "--no-access-log"]
        return self._start(name, sys.executable, "-m", "uvicorn", application, *options, ready="Uvicorn running")

    def start_onefold(self, name: str, *arguments: str, ready: str = "ing from ") -> Process:
        """`onefold relay ...`, `onefold consume ...` or `onefold console ...`."""
        return self._start(name, str(Path(sys.executable).with_name("onefold")), *arguments, ready=ready)

    def _start(self, name: str, *command: str, ready: str) -> Process:
        log = self._directory / f"{name.replace(' ', '-')}.log"
        process = Process(name, command, ready=ready, environment=self._environment, log=log, start=self._start_one)
        self.all.append(process)
        process.start()
        return process

    def run(self, *command: str) -> None:
        """Run to its end; what it says is shown if it fails."""
        path = self._directory / "command.log"
        with path.open("wb") as log:
            ended = self._start_one(command, {**os.environ, **self._environment}, log)
            code = ended.wait(START_S_MAX)
        if code != 0:
            raise SystemExit(f"{' '.join(command)} ended with code {code}:\n{path.read_text(errors='replace')}")

    def failures(self) -> list[str]:
        return [failure for process in self.all if (failure := process.ended_by_itself())]

    async def wait_until_up(self) -> None:
        """Wait until all are up. A process that ended instead is reported at the end."""
        give_up_at = time.monotonic() + START_S_MAX
        while not all(process.is_up for process in self.all) and not self.failures():
            if time.monotonic() > give_up_at:
                missing = [process.name for process in self.all if not process.is_up]
                raise SystemExit(f"not up after {START_S_MAX:.0f} s: {', '.join(missing)}")
            await asyncio.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self.all:
            process.ask_to_stop()
        give_up_at = time.monotonic() + 5.0
        for process in self.all:
            process.end(max(0.0, give_up_at - time.monotonic()))


def free_url() -> str:
    """An address on this machine with no listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def _die_with_parent() -> None:
    """Should the demo itself be killed, the kernel ends what it started."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
