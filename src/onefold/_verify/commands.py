"""Runs the commands for ground truth beside the API: one counts effects, one publishes a message.

A command is split into arguments and started without a shell. `{{run}}` in it is the id of the run, as in payloads, and
`{{id}}` the id of the message.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from typing import Final

from onefold._verify.answers import cut
from onefold._verify.findings import UnusableTarget
from onefold.errors import ConfigurationError

_NUMBER: Final = re.compile(r"^\s*(\d+)\s*$", re.MULTILINE)


class GroundTruth:
    """A command that was given as `option`, e.g. --count."""

    def __init__(
        self, command: str, option: str, *, shell: bool, timeout_s: float, hide: Callable[[str], str] = str
    ) -> None:
        self._option, self._shell, self._timeout_s, self._hide = option, shell, timeout_s, hide
        try:
            self._arguments = [command] if shell else shlex.split(command)
        except ValueError as error:
            raise ConfigurationError(f"{option} cannot be split into words: {error}") from error
        if not command.strip():
            raise ConfigurationError(f"{option} is empty: give a command")

    def count(self, marks: Mapping[str, str]) -> int:
        """The one number that the command prints on a line of its own. Raises UnusableTarget."""
        output = self.run(marks)
        numbers = _NUMBER.findall(output)
        if len(numbers) != 1:
            raise UnusableTarget(
                f"{self._option} must print one number on a line of its own, and printed {len(numbers)}: "
                f"{cut(self._hide(output.strip()))!r}"
            )
        return int(numbers[0])

    def run(self, marks: Mapping[str, str]) -> str:
        """What the command prints. Raises UnusableTarget where it fails."""
        arguments = [_fill(argument, marks) for argument in self._arguments]
        try:
            completed = subprocess.run(
                arguments[0] if self._shell else arguments,
                shell=self._shell,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                check=False,
            )
        except OSError as error:
            raise UnusableTarget(f"{self._option} cannot be started: {error.strerror}") from error
        except subprocess.TimeoutExpired as error:
            raise UnusableTarget(
                f"{self._option} did not end within {self._timeout_s:g} s; --timeout gives it more"
            ) from error
        if completed.returncode:
            message = cut(self._hide(" ".join((completed.stderr or completed.stdout).split())))
            raise UnusableTarget(f"{self._option} failed with code {completed.returncode}: {message}")
        return completed.stdout


def _fill(word: str, marks: Mapping[str, str]) -> str:
    for name, value in marks.items():
        word = word.replace(f"{{{{{name}}}}}", value)
    return word
