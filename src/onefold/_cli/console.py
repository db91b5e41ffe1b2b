"""`onefold console`: the console alone, over a database or the Onefold of an application."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import secrets
import socket
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final
from urllib.parse import urlencode

import typer

from onefold._app import AsyncOnefold
from onefold._app.migrations import MIGRATIONS
from onefold._cli.options import DATABASE, require_database
from onefold._cli.output import LOG_FORMAT, LogFormat, echo_stderr, log_to_stderr
from onefold._cli.saga import open_engine
from onefold._cli.session import run_on_database
from onefold._cli.signals import stop_on_signals
from onefold._cli.targets import close_onefold, load_target, open_target
from onefold._kernel.extras import missing_extra
from onefold.db._drivers import dialect_of
from onefold.db._migrations import missing
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._console.app import Console

_VIEW: Final = "ONEFOLD_CONSOLE_VIEW_TOKEN"
_ACT: Final = "ONEFOLD_CONSOLE_ACT_TOKEN"

#: Streams of live pages do not end by themselves.
_STOP_S: Final = 2


def command(
    database: Annotated[str, DATABASE] = "",
    target: Annotated[
        str, typer.Option("--app", metavar="TARGET", help="module:attribute of a Onefold, instead of --database.")
    ] = "",
    sagas: Annotated[
        str, typer.Option("--sagas", metavar="TARGET", help="module:attribute of the engine whose sagas are shown.")
    ] = "",
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="The port to listen on; 0: a free one.")] = 8787,
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help=f"The token for role act; or set {_ACT}.")
    ] = "",
    view_token_file: Annotated[
        str, typer.Option("--view-token-file", metavar="FILE", help=f"The token for role view; or set {_VIEW}.")
    ] = "",
    root_path: Annotated[
        str,
        typer.Option("--root-path", metavar="PATH", help="The path prefix that a proxy serves it under and strips."),
    ] = "",
    log_format: Annotated[LogFormat, LOG_FORMAT] = LogFormat.TEXT,
) -> None:
    """Serve the console until SIGTERM or SIGINT: what happened to a key, what is stuck, what was absorbed. Without a
    token it makes one for this run, and listens on this machine only."""
    view_token, act_token = _read_token(view_token_file, _VIEW), _read_token(token_file, _ACT)
    is_token_made = view_token is None and act_token is None
    if is_token_made:
        act_token = _make_token(host)
    log_to_stderr(log_format)
    if not (target or database):
        raise typer.BadParameter("give --database (or set ONEFOLD_DATABASE), or --app module:attribute")
    value = load_target(target) if target else _require_tables(require_database(database))
    root_path = f"/{root_path.strip('/')}" if root_path.strip("/") else ""
    sagas_value = load_target(sagas) if sagas else None
    _require_libraries()

    async def serve() -> None:
        from onefold._console.app import Console

        once = await open_target(target, value) if target else AsyncOnefold(value)
        try:
            async with AsyncExitStack() as stack:
                engines = []
                if sagas:
                    engine = await open_engine(sagas, sagas_value)
                    engines.append(await stack.enter_async_context(engine.as_operator()))
                app = Console(
                    once,
                    view_token=view_token,
                    act_token=act_token,
                    sagas=engines,
                    knows_application=bool(target),
                )
                title = repr(once) if target else once._description
                await _serve(app, title, host, port, root_path, made_token=act_token if is_token_made else None)
        finally:
            await close_onefold(once)

    asyncio.run(serve())


def _require_tables(database: str) -> str:
    """Opening a SQLite file by its path migrates it. A console must not: the path may be a wrong one, or the
    application may still run an older onefold."""
    if dialect_of(database) == "sqlite" and (lacking := run_on_database(database, _list_missing)):
        raise ConfigurationError(
            f"{database!r} lacks onefold's migrations {', '.join(map(str, lacking))}: run `onefold migrate`, if it is "
            "the database of the application"
        )
    return database


async def _list_missing(dialect: str) -> list[int]:
    return await missing(dialect, MIGRATIONS[dialect])


async def _serve(app: Console, title: str, host: str, port: int, root_path: str, *, made_token: str | None) -> None:
    from uvicorn import Config, Server

    config = Config(
        app,
        root_path=root_path,
        access_log=False,  # the address of a sign-in may have the token
        log_level="warning",
        lifespan="off",
        timeout_graceful_shutdown=_STOP_S,
    )
    with _listen(host, port) as listening, stop_on_signals():
        address = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}{root_path}"
        echo_stderr(f"console of {title} at {address}/")
        if made_token is not None:
            echo_stderr(f"sign in at {address}/login?{urlencode({'token': made_token})}")
        if not _is_loopback(host):
            echo_stderr(
                "this is plain HTTP: put a proxy with TLS in front, or tokens and sessions can be read on the way"
            )
        await Server(config).serve([listening])


def _make_token(host: str) -> str:
    """A token for one run, only for a console that no other machine reaches."""
    if not _is_loopback(host):
        raise typer.BadParameter(
            f"--host {host} is open to the network, and there is no token: give --token-file FILE, or set {_ACT} "
            f"(may act) or {_VIEW} (may look)"
        )
    return secrets.token_urlsafe()


def _require_libraries() -> None:
    try:
        import_module("onefold._console.app")
        import_module("uvicorn")
    except ModuleNotFoundError as error:
        raise ConfigurationError(str(missing_extra(error, "console"))) from error


def _listen(host: str, port: int) -> socket.socket:
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(100)  # before the address is printed: an early connection waits, and is not refused
    except OSError as error:
        listening.close()
        raise ConfigurationError(
            f"the console cannot listen on {host} port {port}: {error.strerror or error}; choose another --port"
        ) from error
    return listening


def _read_token(file: str, variable: str) -> str | None:
    """A token from a file, or else from the environment; never from an argument, which `ps` shows."""
    if not file:
        return os.environ.get(variable) or None
    try:
        token = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"the token file {file!r} cannot be read: {error}") from error
    if not token:
        raise ConfigurationError(f"the token file {file!r} is empty")
    return token


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
