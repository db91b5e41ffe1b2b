"""A principal that is a header as it came: a caller who writes it gets the answers of the account that it names.

Theory of operation. A function that reads its request and does nothing else with it (by the names in its code: no
function, no table, no verification) is called once with a request whose headers have a value of ours. What comes back
with that value in it was not authenticated by anything here. Functions that use anything else are not called: looking
must have no effect.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from onefold._http.authentication import RequestFunction
from onefold._http.request import Request

#: Set on a function whose header only a gateway can write, because the application says so.
TRUSTED: Final = "__onefold_trusted__"

#: What a function may use that only reads: of requests, and of texts.
_READING: Final = frozenset(
    {"header", "headers", "get", "request", "flask", "strip", "lower", "upper", "removeprefix", "partition", "split"}
)

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")

_WRITTEN: Final = "onefold-was-here"


def find_bare_header(callee: RequestFunction) -> str | None:
    """The header that a function takes as it came; None if it does not, or does more than can be looked at."""
    function = callee.function
    while isinstance(function, functools.partial) and not function.args and not function.keywords:
        function = function.func
    if not isinstance(function, FunctionType) or getattr(function, TRUSTED, False) or not _only_reads(function):
        return None
    for name in _texts(function):
        if _NAME.fullmatch(name) and _WRITTEN in _call_with_header(callee, name):
            return name
    return None


def _only_reads(function: FunctionType) -> bool:
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    return (
        set(code.co_names) <= _READING
        and all(isinstance(each, str) for each in cells)
        and not any(isinstance(each, CodeType) for each in code.co_consts)
    )


def _texts(function: FunctionType) -> Iterator[str]:
    """What may be the name of a header."""
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    yield from (each for each in (*function.__code__.co_consts, *cells) if isinstance(each, str))


def _call_with_header(callee: RequestFunction, name: str) -> str:
    """What the function returns for a request with this header."""
    try:
        match callee.form:
            case "nothing":
                found = _inside_flask(callee.function, name)
            case "werkzeug":
                found = callee.call(Request("POST", "/"), _environ(name), b"")
            case _:
                headers = ((name.lower().encode("latin-1"), _WRITTEN.encode()),)
                scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": [*headers]}
                found = callee.call(Request("POST", "/", b"", headers, scope), scope, b"")
        if inspect.iscoroutine(found):
            found = _result(found)
        return str(found or "")
    except Exception:  # it needs more of a request than this one has: unknown
        return ""


def _result(coroutine: Any) -> object:
    """Of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    finally:
        coroutine.close()
    return None


def _environ(name: str) -> dict[str, Any]:
    return {"REQUEST_METHOD": "POST", "PATH_INFO": "/", f"HTTP_{name.upper().replace('-', '_')}": _WRITTEN}


def _inside_flask(function: Callable[..., Any], name: str) -> object:
    """Where a function without a parameter looks for its request. Only where Flask is there already."""
    flask = sys.modules.get("flask")
    if flask is None:
        return None
    with flask.Flask("onefold").test_request_context(method="POST", headers={name: _WRITTEN}):
        return function()
