"""Records that the previous release made, and that release beside this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine

from onefold import Keyring, Onefold
from onefold._http.route_policy import Settings
from onefold._idempotency.fingerprint import RequestContent, canonical_json, earlier_fingerprint
from onefold._idempotency.model import Scope, key_lock, lock_id
from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import uuid7
from onefold.policies import raw_bytes, selected_fields
from tests.upgrade.places import dialect_of, restore, rows
from tests.upgrade.scenes import BOUNDARY, FORM, KEYS, SCENES, Scene

ROUTES: dict[str, Settings] = {
    "POST /orders": {},
    "POST /orders/{id}/refunds": {},
    "POST /raw": {"fingerprint": raw_bytes},
    "POST /fields": {"fingerprint": selected_fields("item")},
}
REFUND = next(scene for scene in SCENES if scene.key == "refund")

Post = Callable[[Scene], tuple[int, bytes, bool]]


class Stage:
    """Today's release over a database, and what its handler did."""

    def __init__(self, address: Any, stack: ExitStack) -> None:
        self.address = address
        self._stack = stack
        self.runs = 0
        #: Requests that are made while the next handler runs, and what was answered to them.
        self.meanwhile: list[Callable[[], tuple[int, bytes, bool]]] = []
        self.seen: list[tuple[int, bytes, bool]] = []

    def serve(
        self, routes: dict[str, Settings] = ROUTES, *, sealed: bool = False, migrating: bool = True, **options: Any
    ) -> Post:
        sealer = Keyring(KEYS, write="ring") if sealed else None
        once = Onefold(self.address, principal=lambda request: "acme", sealer=sealer, **options)
        if migrating:
            once.migrate()
        self._stack.callback(once.close)
        app = once.wsgi(self._handle, {name: once.policy(**given) for name, given in routes.items()})

        def post(scene: Scene) -> tuple[int, bytes, bool]:
            environ = {
                "REQUEST_METHOD": "POST",
                "PATH_INFO": scene.path,
                "QUERY_STRING": scene.query,
                "CONTENT_TYPE": scene.media_type,
                "CONTENT_LENGTH": str(len(scene.body)),
                "HTTP_IDEMPOTENCY_KEY": f'"{scene.key}"',
                "wsgi.input": BytesIO(scene.body),
            }
            said: list[Any] = []

            def start_response(status: str, headers: Any, exc_info: Any = None) -> Callable[[bytes], object]:
                said.append((int(status[:3]), "Idempotent-Replayed" in dict(headers)))
                return said.append

            body = b"".join(app(environ, start_response))
            return said[0][0], body, said[0][1]

        return post

    def _handle(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        self.runs += 1
        content, self.meanwhile = self.meanwhile, []
        with ThreadPoolExecutor(1) as elsewhere:
            self.seen = [elsewhere.submit(each).result() for each in content]
        start_response("201 Created", [])
        return [b"ran"]


@pytest.fixture(params=["postgres", "sqlite"])
def stage(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Stage]:
    address = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))
    with ExitStack() as stack:
        yield Stage(address, stack)


@pytest.mark.parametrize("scene", SCENES, ids=[scene.key for scene in SCENES])
def test_a_record_of_the_previous_release_replays_and_another_payload_is_a_mismatch(stage: Stage, scene: Scene) -> None:
    restore(stage.address)
    post = stage.serve(sealed=scene.sealed)
    assert post(scene) == (201, b"first answer to %d bytes" % len(scene.body), True)
    other = scene._replace(
        body=scene.body.replace(b"book", b"pen").replace(b"cents", b"c").replace(b"1.5,", b"1,") + b" x"
    )
    assert post(other)[0] == 422
    assert stage.runs == 0


def test_a_record_of_the_previous_release_outlives_changes_of_its_route(stage: Stage) -> None:
    restore(stage.address)
    swapped: dict[str, Settings] = {"POST /orders": {"fingerprint": raw_bytes}, "POST /raw": {"operation": "raw"}}
    post = stage.serve(swapped)
    assert post(SCENES[0])[2]
    assert post(SCENES[0]._replace(body=b'{"cents":5,"item":"book"}'))[2], "it was compared by value"
    assert post(next(scene for scene in SCENES if scene.key == "raw"))[2]
    assert stage.runs == 0


RENAMED: dict[str, Settings] = {"POST /orders/{order_id}/refunds": {"operation": "/orders/{id}/refunds"}}


def test_a_parameter_is_renamed_by_an_operation_with_the_name_that_the_previous_release_had(stage: Stage) -> None:
    restore(stage.address)
    post = stage.serve(RENAMED)
    assert post(REFUND)[::2] == (201, True)
    assert post(REFUND._replace(body=b"{}"))[0] == 422
    assert stage.runs == 0
    new = REFUND._replace(key="new")
    assert post(new)[:2] == (201, b"ran")
    assert stored(stage, earlier_digest(new)) == [(2,)], "the signpost is where the previous release looks"


def test_a_route_that_moved_does_not_run_again_what_the_previous_release_has_done(stage: Stage) -> None:
    restore(stage.address)
    post = stage.serve({"POST /v2/refunds/{order}": {"operation": "/orders/{id}/refunds"}})
    # It compared whole paths: no path but the old one is the same request.
    assert post(REFUND._replace(path="/v2/refunds/17"))[0] == 422
    assert stage.runs == 0


def test_a_form_of_the_previous_release_is_still_compared_by_its_bytes(stage: Stage) -> None:
    restore(stage.address)
    scene = next(scene for scene in SCENES if scene.key == "form")
    other = scene._replace(
        body=FORM.replace(BOUNDARY.encode(), b"other"), media_type="multipart/form-data; boundary=other"
    )
    post = stage.serve()
    assert [post(found)[0] for found in (scene, other)] == [201, 422]


def test_a_dated_key_of_a_route_with_parameters_replays_and_a_late_one_is_gone(stage: Stage) -> None:
    post = stage.serve({"POST /orders/{id}/refunds": {"expiry": "refuse"}})
    dated = REFUND._replace(key=str(uuid7(wall_ms(), bytes(10))))
    assert [post(dated)[::2] for _ in range(2)] == [(201, False), (201, True)]
    assert post(REFUND._replace(key=str(uuid7(1, bytes(10)))))[0] == 410
    assert stage.runs == 1


def test_records_are_found_through_sqlalchemy_too(postgres_dsn: str) -> None:
    restore(postgres_dsn)
    engine = create_engine(postgres_dsn.replace("postgresql://", "postgresql+psycopg://"))
    with ExitStack() as stack:
        stack.callback(engine.dispose)
        stage = Stage(engine, stack)
        post = stage.serve()
        assert post(REFUND)[2]
        assert [post(REFUND._replace(key="new"))[::2] for _ in range(2)] == [(201, False), (201, True)]


# --- the previous release beside this one -------------------------------------------------------------------------


def earlier_digest(scene: Scene, operation: str = "POST /orders/{id}/refunds") -> bytes:
    """As the previous release computes it: pinned by the recorded dump, which it is found in."""
    return Scope("acme", operation).digest(scene.key)


def stored(stage: Stage, digest: bytes) -> list[tuple[Any, ...]]:
    literal = f"'\\x{digest.hex()}'::bytea" if dialect_of(stage.address) == "postgres" else f"x'{digest.hex()}'"
    return rows(stage.address, f"SELECT schema_version FROM onefold_record WHERE digest = {literal}")


def test_the_previous_release_finds_what_this_one_stored_and_does_not_run_it(stage: Stage) -> None:
    restore(stage.address)
    assert stored(stage, earlier_digest(REFUND)) == [(1,)], "the control: this is where it looks"
    post = stage.serve()
    new = REFUND._replace(key="new")
    assert post(new)[:2] == (201, b"ran")
    # It refuses versions it does not know with 503, retryable, and runs nothing.
    assert stored(stage, earlier_digest(new)) == [(2,)]
    plain = Scene("new-plain", "/orders", b"{}")
    post(plain)
    assert stored(stage, earlier_digest(plain, "POST /orders")) == [(2,)]
    assert post(new)[2], "and this one is not irritated by the signpost"
    assert stage.runs == 2


def test_without_earlier_records_nothing_is_kept_for_the_previous_release(stage: Stage) -> None:
    post = stage.serve(earlier_records=False)
    post(REFUND)
    assert rows(stage.address, "SELECT count(*) FROM onefold_record") == [(1,)]
    assert post(REFUND)[2]


def test_an_expired_record_of_the_previous_release_makes_room_for_the_signpost(stage: Stage) -> None:
    restore(stage.address)
    expired = "expires_at = 'epoch'" if dialect_of(stage.address) == "postgres" else "expires_at_ms = 1"
    rows(stage.address, f"UPDATE onefold_record SET {expired}")
    post = stage.serve()
    assert post(REFUND)[:2] == (201, b"ran")
    assert post(REFUND)[2]
    assert stored(stage, earlier_digest(REFUND)) == [(2,)]


#: Whether the processes of the deploy before, and of the one after it, look for what the previous release has left: two
#: processes need not have found out the same.
KNOWN = [(None, None), (None, True), (True, None), (True, True)]


@pytest.mark.parametrize("known", KNOWN, ids=str)
@pytest.mark.parametrize("given", ["refund", "/refunds/{order}"])
def test_a_deploy_that_gives_an_operation_and_the_one_before_it_know_of_each_other(
    stage: Stage, known: tuple[bool | None, bool | None], given: str
) -> None:
    named: dict[str, Settings] = {"POST /orders/{id}/refunds": {"operation": given}}
    before, after = stage.serve(earlier_records=known[0]), stage.serve(named, earlier_records=known[1])
    assert after(REFUND)[:2] == (201, b"ran")
    assert before(REFUND)[0] == 409, "not run again; only the new deploy has the answer"
    other = REFUND._replace(key="other")
    assert before(other)[:2] == (201, b"ran")
    assert after(other)[2]
    assert stage.runs == 2


@pytest.mark.parametrize("known", KNOWN, ids=str)
@pytest.mark.parametrize("template", ["/refunds", "/orders/{id}/refunds"])
def test_what_either_of_these_deploys_has_in_flight_is_in_flight_for_the_other(
    stage: Stage, known: tuple[bool | None, bool | None], template: str
) -> None:
    given: Settings = {"operation": "/orders/{order}/returns"}
    deploys = (
        stage.serve({f"POST {template}": {}}, earlier_records=known[0]),
        stage.serve({f"POST {template}": given}, earlier_records=known[1]),
    )
    scene = REFUND._replace(path=template.replace("{id}", "17"))
    for number, (runs, waits) in enumerate((deploys, deploys[::-1])):
        content = scene._replace(key=f"key-{number}")
        stage.meanwhile = [partial(waits, content), partial(waits, content._replace(body=b"{}"))]
        assert runs(content)[0] == 201
        assert [status for status, _, _ in stage.seen] == [409, 422]


def left_empty(dsn: str) -> None:
    """As the previous release has made the database, with no record in it."""
    restore(dsn)
    rows(dsn, "DELETE FROM onefold_record")


@contextmanager
def previous_release_runs(dsn: str, scene: Scene, operation: str) -> Iterator[None]:
    """Holds what the previous release holds while it works on a request, in its order."""
    digest = earlier_digest(scene, operation)
    content = RequestContent(scene.path, scene.query.encode(), scene.media_type, scene.body)
    printed = earlier_fingerprint(content, canonical_json, key=digest)
    with closing(psycopg.connect(dsn)) as connection:
        for number in (lock_id(printed), key_lock(digest)):
            assert connection.execute("SELECT pg_try_advisory_xact_lock(%s)", (number,)).fetchone() == (True,)
        yield
        connection.rollback()  # waited for: a connection that is closed frees its locks a little later


@pytest.mark.parametrize(
    ("scene", "operation"),
    [(REFUND, "POST /orders/{id}/refunds"), (SCENES[0], "POST /orders")],
    ids=["with parameters", "without"],
)
def test_what_the_previous_release_has_in_flight_is_in_flight(postgres_dsn: str, scene: Scene, operation: str) -> None:
    with ExitStack() as stack:
        stage = Stage(postgres_dsn, stack)
        left_empty(postgres_dsn)
        post = stage.serve()
        with previous_release_runs(postgres_dsn, scene, operation):
            assert post(scene)[0] == 409
            assert post(scene._replace(body=b"{}"))[0] == 422
        assert post(scene)[0] == 201


def test_what_the_previous_release_has_in_flight_is_so_under_the_name_it_had(postgres_dsn: str) -> None:
    with ExitStack() as stack:
        stage = Stage(postgres_dsn, stack)
        left_empty(postgres_dsn)
        post = stage.serve(RENAMED)
        with previous_release_runs(postgres_dsn, REFUND, "POST /orders/{id}/refunds"):
            assert post(REFUND)[0] == 409
            assert post(REFUND._replace(body=b"{}"))[0] == 422
        assert post(REFUND)[0] == 201


def test_what_cannot_be_told_apart_in_flight_is_a_conflict_and_never_a_mismatch(postgres_dsn: str) -> None:
    large = next(scene for scene in SCENES if scene.key == "large")
    with ExitStack() as stack:
        stage = Stage(postgres_dsn, stack)
        left_empty(postgres_dsn)
        post = stage.serve()
        with previous_release_runs(postgres_dsn, large, "POST /orders"):
            assert post(large)[0] == 409
