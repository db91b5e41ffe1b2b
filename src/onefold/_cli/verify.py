"""`onefold verify`: tests an HTTP API, or a consumer, against the contract of idempotent requests, from the outside."""

from __future__ import annotations

import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import onefold
from onefold._cli.options import YES, confirm
from onefold._cli.output import echo_stderr
from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold._kernel.readable import harmless
from onefold._kernel.redaction import redact
from onefold._verify.catalogue import ProbeCheck, choose
from onefold._verify.commands import GroundTruth
from onefold._verify.credentials import Secrets
from onefold._verify.findings import ProbeReport
from onefold._verify.http_port import HeaderLines, HttpPort
from onefold._verify.httpx_port import is_loopback, open_port, require_httpx, require_url
from onefold._verify.operation_request import OperationRequest, read_operation
from onefold._verify.payloads import Payloads
from onefold._verify.probing import KEY_HEADER, Probe, Surroundings, Target
from onefold._verify.profiles import PROFILES
from onefold._verify.reports.html_report import html_page
from onefold._verify.reports.json_report import json_document
from onefold._verify.reports.junit_report import junit
from onefold._verify.reports.metrics_report import metrics
from onefold._verify.reports.text_report import text, verdict_line
from onefold._verify.running import requests_max, run
from onefold.errors import ConfigurationError

_URL = typer.Argument(metavar="[URL]", help="The address of the route; with --openapi, of the server.")
_METHOD = typer.Option(help="POST, PUT, PATCH or DELETE.")
_BODY = typer.Option(help="The payload, a JSON template with {{n}}, {{unique}}, {{run}}; or @FILE.")
_OTHER_BODY = typer.Option(help="Another payload for the same key, to be refused; by default one is made from --body.")
_HEADER = typer.Option(help="'Name: value', e.g. credentials; may be repeated. Its value is never shown.")
_OTHER_HEADER = typer.Option(help="The credentials of another principal; may be repeated.")
_OTHER_URL = typer.Option(help="Another route that takes the same payload.")
_OPENAPI = typer.Option(help="An OpenAPI document in JSON, a file, to take the request from.")
_OPERATION = typer.Option(help="With --openapi: an operationId, or 'POST /orders'.")
_PROFILE = typer.Option(help="ietf or stripe.")
_COUNT = typer.Option(help="A command that prints how often the effect has happened: the ground truth.")
_COUNT_SHELL = typer.Option("--count-shell", help="Run --count and --publish by a shell.")
_COUNT_DELAY = typer.Option(
    min=0, max=600, help="Seconds to wait before --count, where the effect comes after the answer."
)
_PUBLISH = typer.Option(help="A command that publishes a message with the id {{id}}; for consumers.")
_DELIVERIES = typer.Option(min=2, max=100, help="How often each message is published.")
_DUPLICATES = typer.Option(min=2, max=64, help="Requests sent at the same time under one key.")
_EXPIRY = typer.Option(
    min=0.1,
    max=86_400,
    help="Seconds the API remembers a key. Given, the run waits this long to see what a retry gets then.",
)
_TIMEOUT = typer.Option(min=0.1, max=600, help="Time limit in seconds of each request and command.")
_KEY_OPTIONAL = typer.Option("--key-optional", help="The route takes requests without a key.")
_ONLY = typer.Option(help="Only this check; may be repeated.")
_SKIP = typer.Option(help="Not this check; may be repeated.")
_CANARY = typer.Option("--canary", help="For cron: few requests, one line unless something fails.")
_DRY_RUN = typer.Option("--dry-run", help="Print what would be sent, and stop.")
_OWN = typer.Option("--i-own-this", help="The target is another machine, and may be tested.")
_JSON_FILE = typer.Option("--json", help="Write a report in JSON.")
_JUNIT_FILE = typer.Option("--junit", help="Write a report in JUnit's XML.")
_HTML_FILE = typer.Option("--html", help="Write a page.")
_METRICS_FILE = typer.Option("--metrics", help="Write metrics for node_exporter's textfile collector (*.prom).")

_METHODS = ("POST", "PUT", "PATCH", "DELETE")


def command(
    url: Annotated[str | None, _URL] = None,
    method: Annotated[str, _METHOD] = "POST",
    body: Annotated[str | None, _BODY] = None,
    other_body: Annotated[str | None, _OTHER_BODY] = None,
    header: Annotated[list[str] | None, _HEADER] = None,
    other_header: Annotated[list[str] | None, _OTHER_HEADER] = None,
    other_url: Annotated[str | None, _OTHER_URL] = None,
    openapi: Annotated[Path | None, _OPENAPI] = None,
    operation: Annotated[str | None, _OPERATION] = None,
    profile: Annotated[str, _PROFILE] = "ietf",
    count: Annotated[str | None, _COUNT] = None,
    count_shell: Annotated[bool, _COUNT_SHELL] = False,
    publish: Annotated[str | None, _PUBLISH] = None,
    deliveries: Annotated[int, _DELIVERIES] = 3,
    duplicates: Annotated[int, _DUPLICATES] = 8,
    expiry: Annotated[float | None, _EXPIRY] = None,
    timeout: Annotated[float, _TIMEOUT] = 30.0,
    count_delay: Annotated[float, _COUNT_DELAY] = 0.0,
    key_optional: Annotated[bool, _KEY_OPTIONAL] = False,
    only: Annotated[list[str] | None, _ONLY] = None,
    skip: Annotated[list[str] | None, _SKIP] = None,
    canary: Annotated[bool, _CANARY] = False,
    dry_run: Annotated[bool, _DRY_RUN] = False,
    own: Annotated[bool, _OWN] = False,
    yes: Annotated[bool, YES] = False,
    json_file: Annotated[Path | None, _JSON_FILE] = None,
    junit_file: Annotated[Path | None, _JUNIT_FILE] = None,
    html_file: Annotated[Path | None, _HTML_FILE] = None,
    metrics_file: Annotated[Path | None, _METRICS_FILE] = None,
) -> None:
    """Test an HTTP API, or a consumer, against the contract. Exit code 0: all checks passed; 1: one failed; 2: wrong
    options, or the target cannot be tested, or its answers do not tell (give --count)."""
    files = {json_document: json_file, junit: junit_file, html_page: html_file, metrics: metrics_file}
    try:
        require_httpx()
        _check_files(files.values())
        described = _operation(openapi, operation)
        base = _target(url, described, method, profile, _headers(header), _headers(other_header), other_url)
        target = replace(base, duplicates=duplicates, deliveries=deliveries, key_optional=key_optional)
        target = replace(target, expiry_s=expiry, count_delay_s=count_delay)
        _require_owned([target.url, target.other_url], own=own)
        template = _read_text(body) if body is not None or described is None else described.template
        credentials = _credentials(target, [count, publish])
        truth = _Truth(count, publish, credentials, shell=count_shell, timeout_s=timeout)
        checks = choose(target.profile, only=only or (), skip=skip or (), canary=canary, http=bool(target.url))
        run_id = f"v{secrets.token_hex(5)}"
        payloads = Payloads(template, run=run_id, other=_read_text(other_body))
        plan = _Plan(run_id, target, payloads, truth, *checks, timeout_s=timeout)
        if _announce(plan, dry_run=dry_run, confirms=not (yes or canary)):
            report = credentials.hide(_probe(plan))
            for write, file in files.items():
                _write(file, write(report))
            _print_report(report, canary=canary)
    except ConfigurationError as error:
        echo_stderr(harmless(str(error)))
        raise typer.Exit(2) from None


class _Truth:
    """The commands of --count and --publish."""

    def __init__(
        self, count: str | None, publish: str | None, secrets: Secrets, *, shell: bool, timeout_s: float
    ) -> None:
        if publish is not None and count is None:
            raise ConfigurationError("--publish needs --count: how often was the message handled?")
        self.options = {name: text for name, text in (("--count", count), ("--publish", publish)) if text is not None}
        self._secrets = secrets
        self._commands = {
            name: GroundTruth(text, name, shell=shell, timeout_s=timeout_s, hide=secrets.hide_in)
            for name, text in self.options.items()
        }

    def surround(self, port: HttpPort, run_id: str) -> Surroundings:
        """The I/O that the checks need: port, keys, waiting, and the commands."""
        count, publish = self._commands.get("--count"), self._commands.get("--publish")
        return Surroundings(
            port=port,
            # UUIDv7, because a route that refuses late retries takes no other keys.
            new_key=lambda: new_id(wall_ms()),
            wait=time.sleep,
            count=None if count is None else partial(count.count, {"run": run_id}),
            publish=None if publish is None else (lambda name: _publish(publish, run_id, name)),
            hide=self._secrets.hide_in,
        )


def _publish(publish: GroundTruth, run_id: str, name: str) -> None:
    publish.run({"run": run_id, "id": name})


@dataclass(frozen=True, slots=True)
class _Plan:
    """All that the run will do: target, payloads, commands and checks."""

    run_id: str
    target: Target
    payloads: Payloads
    truth: _Truth
    checks: Sequence[ProbeCheck]
    left_out: Sequence[tuple[ProbeCheck, str]]
    timeout_s: float

    @property
    def shown(self) -> str:
        return redact(self.target.url, with_path=True) if self.target.url else "the consumer"

    @property
    def requests_max(self) -> int:
        return requests_max(self.checks, self.target.duplicates)


def _target(
    url: str | None,
    described: OperationRequest | None,
    method: str,
    profile: str,
    headers: HeaderLines,
    other_headers: HeaderLines,
    other_url: str | None,
) -> Target:
    if profile not in PROFILES:
        raise ConfigurationError(f"--profile {profile!r} is unknown; there are: {', '.join(PROFILES)}")
    if described is not None:
        method = described.method
        own_names = {name.lower() for name, _ in headers}
        headers = (*(line for line in described.headers if line[0].lower() not in own_names), *headers)
    if method.upper() not in _METHODS:
        raise ConfigurationError(f"--method {method!r} takes no key; give one of {', '.join(_METHODS)}")
    address = "" if url is None else require_url(url)
    if described is not None:
        if not address:
            raise ConfigurationError("give the address of the server, too: onefold verify URL --openapi ...")
        address = address.rstrip("/") + described.path
    return Target(
        url=address,
        method=method.upper(),
        profile=PROFILES[profile],
        headers=headers,
        other_headers=other_headers,
        other_url=None if other_url is None else require_url(other_url),
    )


def _headers(header_options: Sequence[str] | None) -> HeaderLines:
    lines = []
    for line in header_options or ():
        name, colon, value = line.partition(":")
        if (
            not colon
            or not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name)
            or not re.fullmatch(r"[ -~]*", value.strip())
        ):
            # Not the line itself: it may be a credential.
            raise ConfigurationError("a header is written 'Name: value', in ASCII; one that was given is not")
        if name.lower() == KEY_HEADER.lower():
            raise ConfigurationError(f"{KEY_HEADER} is what is tested: it cannot be given")
        lines.append((name, value.strip().encode()))
    return tuple(lines)


def _require_owned(urls: Sequence[str | None], *, own: bool) -> None:
    for url in urls:
        if url and not own and not is_loopback(url):
            raise ConfigurationError(
                f"{redact(url)} is another machine: duplicates, broken headers and hostile keys are sent there, and "
                "each request may take effect. Where you may do that, say so with --i-own-this"
            )


def _operation(openapi: Path | None, operation: str | None) -> OperationRequest | None:
    if (openapi is None) != (operation is None):
        raise ConfigurationError("--openapi and --operation belong together: give both")
    if openapi is None or operation is None:
        return None
    return read_operation(_read_file(openapi), operation)


def _read_text(value: str | None) -> str | None:
    return _read_file(Path(value[1:])) if value is not None and value.startswith("@") else value


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error


def _check_files(files: Iterable[Path | None]) -> None:
    """Check before anything is sent that the reports can be written, and not when all is done."""
    for file in files:
        if file is not None and not file.absolute().parent.is_dir():
            raise ConfigurationError(f"{file} cannot be written: there is no directory {file.parent}")


def _announce(plan: _Plan, *, dry_run: bool, confirms: bool) -> bool:
    """Print what will be sent, and ask for confirmation; whether to go on."""
    target = plan.target
    if not target.url and not plan.truth.options:
        raise ConfigurationError("give the URL of a route, or --publish and --count for a consumer")
    sending = f"at most {plan.requests_max} requests ({target.method}), up to {target.duplicates} at once"
    if not plan.requests_max:
        sending = f"no requests; {target.deliveries + 1} messages"
    names = ", ".join(check.name for check, _ in plan.left_out)
    skipped = f", at least {len(plan.left_out)} of them skipped ({names})" if plan.left_out else ""
    commands = "".join(f"; runs the command of {option}" for option in plan.truth.options)
    line = (
        f"{plan.shown}: {len(plan.checks) + len(plan.left_out)} checks of the profile {target.profile.name}{skipped}; "
        f"sends {sending}, each with keys of its own, and each may take effect{commands}; run {plan.run_id}"
    )
    if dry_run:
        typer.echo(harmless(line))
        for check in plan.checks:
            typer.echo(f"{check.name}: {check.promise}")
        return False
    echo_stderr(harmless(line))
    if confirms and sys.stdin.isatty():
        try:
            confirm("Send them?", yes=False)
        except typer.Abort:  # its exit code says that a check has failed
            raise ConfigurationError("nothing was sent") from None
    return True


def _probe(plan: _Plan) -> ProbeReport:
    target = plan.target
    agent = f"onefold-verify/{onefold.__version__}"
    with open_port(timeout_s=plan.timeout_s, local=is_loopback(target.url), agent=agent) as port:
        return run(
            Probe(target, plan.payloads, plan.truth.surround(port, plan.run_id)),
            plan.checks,
            left_out=plan.left_out,
            shown=plan.shown,
            run_id=plan.run_id,
            now=time.time,
            on_check=_progress(),
        )


def _credentials(target: Target, commands: Sequence[str | None]) -> Secrets:
    return Secrets(
        [target.headers, target.other_headers],
        urls=filter(None, [target.url, target.other_url]),
        commands=filter(None, commands),
    )


def _progress() -> Callable[[str], None]:
    """A line per check, on a terminal: some wait."""
    if not sys.stderr.isatty():
        return lambda name: None
    return lambda name: echo_stderr(f"checking {name}")


def _write(file: Path | None, content: str) -> None:
    """Write a report by renaming a finished file: a collector never reads half of it."""
    if file is None:
        return
    partial_file = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        partial_file.write_text(content, encoding="utf-8")
        partial_file.replace(file)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error


def _print_report(report: ProbeReport, *, canary: bool) -> None:
    brief = canary and report.verdict == "passed"
    typer.echo(harmless(verdict_line(report) if brief else text(report).rstrip("\n")))
    code = {"passed": 0, "failed": 1, "unusable": 2, "untold": 2}[report.verdict]
    if code:
        raise typer.Exit(code)
