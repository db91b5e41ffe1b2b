"""Requests without a key, on routes that allow them: the limits that hold for keyed ones, before anything is begun."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.backends import Backend
from tests.contract.counting import counted
from tests.contract.plans import Plan, RequestGuard
from tests.contract.rows import ASGI, POSTGRES
from tests.contract.wire import NO_ANSWER

REFUSED: dict[str, tuple[dict[str, Any], tuple[int, str]]] = {
    "too large": ({"body": b'"' + b"x" * 99 + b'"'}, (413, "body-too-large")),
    "too large, in pieces": ({"body": b'"' + b"x" * 99 + b'"', "arrival": "in pieces"}, (413, "body-too-large")),
    "stalled": ({"arrival": "stalls"}, (408, "body-too-slow")),
    "of no account": ({"account": ""}, (401, "principal-missing")),
}


@pytest.mark.contract("C27")
@pytest.mark.parametrize("how", REFUSED)
def test_c27_a_request_without_a_key_has_the_limits_of_a_keyed_one_before_it_gets_a_connection(
    backend: Backend, how: str
) -> None:
    asked, expected = REFUSED[how]
    database = counted(backend)
    backend.serve(database=database, settings={"body_timeout_s": 0.05, "body_bytes_max": 50})
    for key in (None, '"k"'):
        refused = backend.post(key=key, **asked)
        assert (refused.status, refused.problem) == expected
    assert (database.acquired, backend.calls) == (0, [])
    # The control: what keeps to the limits does reach the database, so the counter would have seen it.
    assert backend.post().status == 201
    assert (database.acquired, backend.rows()) == (1, ["book"])


@pytest.mark.contract("C27")
def test_c27_a_client_that_is_gone_in_the_middle_of_its_body_gets_no_connection_without_a_key_either(
    backend: Backend,
) -> None:
    database = counted(backend)
    backend.serve(database=database)
    refused = backend.post(arrival="breaks off")
    assert refused.status == (NO_ANSWER if backend.name in ASGI else 400)
    assert (database.acquired, backend.calls) == (0, [])


@pytest.mark.contract("C29", backends=POSTGRES)
def test_c29_a_handler_without_a_key_holds_its_connection_for_its_lease_at_most(backend: Backend) -> None:
    backend.serve(settings={"lease_s": 0.2})
    guard = RequestGuard()
    stuck = backend.start(plan=Plan(guard=guard))
    guard.await_arrival()
    # Granted when the server has ended the stuck transaction, which has written to the table.
    backend.sql("SET lock_timeout = '10s'; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
    guard.open()
    assert stuck.answer().status == 503
    assert backend.post().status == 201
    assert backend.rows() == ["book"]
