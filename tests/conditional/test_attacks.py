"""What once made a conditional route write against its condition, answer for another resource, or fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI, Response
from flask import Blueprint, Flask
from flask.views import MethodView
from pydantic import BaseModel
from sqlalchemy import create_engine, select
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse, JSONResponse
from starlette.routing import Route

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._http.conditional import tag_of
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.fastapi import Condition, Tx
from onefold.flask import current_condition, current_transaction
from onefold.policies import content_tag
from tests.conditional.stages import is_problem
from tests.http.stages import calling
from tests.natural.stages import Order, address_for, look

ORDERS = "CREATE TABLE orders (id TEXT PRIMARY KEY, version INTEGER)"
ROWS = "INSERT INTO orders VALUES ('o1', 1), ('o2', 1)"


@pytest.fixture
async def once(sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(sqlite_path, principal=single_principal)
    await found.migrate()
    async with found.transaction() as tx:
        await tx.connection.execute(ORDERS)
        await tx.connection.execute(ROWS)
    yield found
    await found.close()


@pytest.fixture
def threads(sqlite_path: Path) -> Iterator[Onefold]:
    found = Onefold(sqlite_path, principal=single_principal)
    found.migrate()
    with found.transaction() as tx:
        tx.connection.execute(ORDERS)
        tx.connection.execute(ROWS)
    yield found
    found.close()


# --- writes against the condition ---------------------------------------------------------------------------------


async def test_a_condition_that_was_judged_in_a_part_that_is_undone_does_not_count(
    request: pytest.FixtureRequest,
) -> None:
    """The rollback to a savepoint gives its locks back: another one writes, and is overwritten."""
    address = address_for(request, "asyncpg")
    look(address, "INSERT INTO orders (id, version) VALUES ('o1', 1)")
    once, app = AsyncOnefold(address, principal=single_principal), FastAPI()
    await once.migrate()
    locked = "SELECT * FROM orders WHERE id = $1 FOR UPDATE"

    @app.put("/orders/{id_}")
    @once.conditional(etag="version")
    async def put(id_: str, asks_again: bool, tx: Tx[Any], condition: Condition) -> dict[str, int]:
        try:
            async with tx.savepoint():
                condition.check(await tx.connection.fetchrow(locked, id_))
                raise LookupError
        except LookupError:
            look(address, "UPDATE orders SET version = version")
        if asks_again:
            condition.check(await tx.connection.fetchrow(locked, id_))
        await tx.connection.execute("UPDATE orders SET version = 2")
        return {"version": 2}

    once.install(app)
    async with calling(app) as client:
        answer = await client.post("/orders/o1?asks_again=false", method="PUT", headers={"if-match": '"1"'})
        with is_problem(answer, 500, "handler-broken") as problem:
            assert "savepoint" in problem["detail"]
        assert look(address, "SELECT version FROM orders") == [(1,)]
        answer = await client.post("/orders/o1?asks_again=true", method="PUT", headers={"if-match": '"1"'})
        assert (answer.status_code, answer.headers["etag"]) == (200, '"2"')
    await once.close()


def test_what_a_session_loaded_before_is_not_the_state_that_is_judged(request: pytest.FixtureRequest) -> None:
    """SELECT … FOR UPDATE of a mapped class answers with the instance that the session has, as it was."""
    address = address_for(request, "psycopg")
    look(address, "INSERT INTO orders (id, version) VALUES ('o1', 1)")
    engine = create_engine(f"postgresql+psycopg://{address.partition('://')[2]}")
    once, app = Onefold(engine, principal=single_principal), Flask(__name__)
    once.migrate()
    found = select(Order).where(Order.key == "o1").with_for_update()

    @app.put("/orders/o1/<way>")
    @once.conditional(etag="version")
    def put(way: str) -> Any:
        session, condition = current_transaction().session(), current_condition()
        loaded = session.get(Order, "o1")
        look(address, "UPDATE orders SET version = version + 1")
        if way == "instance":
            condition.check(session.scalars(found).one())
        elif way == "lock":
            condition.lock(Order, where={"key": "o1"})
        else:
            condition.check(session.execute(found.with_only_columns(Order.version)).one())
        loaded.version += 1
        return {"version": loaded.version}

    once.install(app)
    for version, (way, status) in enumerate([("instance", 500), ("lock", 412), ("columns", 412)], 1):
        answer = app.test_client().put(f"/orders/o1/{way}", headers={"If-Match": f'"{version}"'})
        assert (way, answer.status_code) == (way, status)
        assert look(address, "SELECT version FROM orders") == [(version + 1,)]
    once.close()
    engine.dispose()


def test_a_tag_changes_with_all_that_it_is_made_of() -> None:
    class Money:
        def __str__(self) -> str:
            return "some"

    with pytest.raises(Exception, match="content_tag cannot read"):
        content_tag({"price": Money()})
    assert content_tag({"key": memoryview(b"a")}) != content_tag({"key": memoryview(b"b")})
    assert content_tag({"tags": {"a", "b", "c"}}) == content_tag({"tags": {"c", "b", "a"}})


# --- answers for another resource ---------------------------------------------------------------------------------


async def test_a_handler_that_another_one_calls_is_not_what_is_answered(once: AsyncOnefold) -> None:
    app = FastAPI()

    @app.get("/orders/{id_}")
    @once.conditional(etag="version")
    async def one(id_: str) -> dict[str, Any]:
        return {"id": id_, "version": 1}

    @app.get("/orders")
    async def many() -> list[Any]:
        return [await one("o1"), await one("o2")]

    @app.get("/all")
    @once.conditional(etag=content_tag)
    async def every() -> tuple[Any, ...]:
        return tuple(await many())

    class Whole(HTTPEndpoint):
        @once.conditional(etag="version")
        async def get(self, request: Any) -> Any:
            await one("o1")
            request.scope["onefold.condition"].tag({"version": 9})
            return JSONResponse({})

    app.router.routes.append(Route("/whole", Whole))
    once.install(app)
    async with calling(app) as client:
        unmarked = await client.post("/orders", method="GET", headers={"if-none-match": '"1"'})
        assert unmarked.status_code == 200
        assert "etag" not in unmarked.headers
        # Of all its rows, also where they are in a tuple.
        expected = content_tag([{"id": "o1", "version": 1}, {"id": "o2", "version": 1}])
        assert (await client.get("/all")).headers["etag"] == f'"{expected}"'
        assert (await client.get("/whole")).headers["etag"] == '"9"'
        assert (await client.get("/orders/o1")).headers["etag"] == '"1"'


def test_views_of_flask_are_known_by_their_methods(threads: Onefold) -> None:
    app = Flask(__name__)

    class View(MethodView):
        @threads.conditional(etag="version")
        def get(self) -> Any:
            return {"version": 3}

    @app.get("/list")
    def many() -> Any:
        return [View().get()]

    app.add_url_rule("/view", view_func=View.as_view("view"))
    threads.install(app)
    client = app.test_client()
    assert client.get("/view").headers["etag"] == client.head("/view").headers["etag"] == '"3"'
    assert "etag" not in client.get("/list").headers


async def test_authorize_of_a_read_would_never_be_asked(once: AsyncOnefold) -> None:
    app = FastAPI()

    async def may(_: Any) -> None: ...

    @app.get("/orders/{id_}")
    @once.conditional(etag="version", authorize=may)
    async def read(id_: str) -> dict[str, int]:
        return {"version": 1}

    with pytest.raises(ConfigurationError, match="never for a read"):
        once.install(app)


async def test_a_response_with_a_tag_of_its_own_is_judged_by_that(once: AsyncOnefold) -> None:
    app = FastAPI()

    @app.get("/orders/o1/file")
    @once.conditional(etag="version")
    async def read(condition: Condition) -> FileResponse:
        condition.tag({"version": 1})
        return FileResponse(__file__)

    once.install(app)
    async with calling(app) as client:
        own = (await client.get("/orders/o1/file")).headers["etag"]
        for headers, status in (({"if-match": own}, 200), ({"if-none-match": own}, 304), ({"if-match": '"1"'}, 412)):
            answer = await client.post("/orders/o1/file", method="GET", headers=headers)
            assert (answer.status_code, answer.headers["etag"]) == (status, own)


async def test_a_replay_that_is_decoded_for_its_caller_has_the_tag_that_if_match_takes(once: AsyncOnefold) -> None:
    """The tag is of the state, not of the bytes: a weak one would satisfy no If-Match."""
    app = FastAPI()
    app.add_middleware(GZipMiddleware, minimum_size=10)  # inside: the stored answer is the encoded one

    @app.put("/orders/{id_}")
    @once.conditional(etag="version")
    async def put(id_: str, tx: Tx[Any], condition: Condition) -> dict[str, Any]:
        row = await condition.lock("orders", where={"id": id_})
        await tx.connection.execute("UPDATE orders SET version = version + 1 WHERE id = ?", (id_,))
        return {"id": id_, "version": row["version"] + 1, "padding": "x" * 1000}

    once.install(app)
    async with calling(app) as client:
        named = {"if-match": '"1"', "idempotency-key": "k1"}
        first = await client.post("/orders/o1", method="PUT", headers={**named, "accept-encoding": "gzip"})
        again = await client.post("/orders/o1", method="PUT", headers={**named, "accept-encoding": "identity"})
        assert (first.headers["content-encoding"], again.headers.get("content-encoding")) == ("gzip", None)
        assert (again.headers["idempotent-replayed"], again.headers["etag"]) == ("true", '"2"')
        tag = again.headers["etag"]
        later = await client.post("/orders/o1", method="PUT", headers={"if-match": tag})
        assert later.status_code == 200, later.text


async def test_a_function_finds_the_version_of_a_row_and_of_a_model_alike(once: AsyncOnefold) -> None:
    """What is locked is a dict, what is returned a model: `order.version` is said of both."""
    app = FastAPI()

    @app.put("/orders/{id_}")
    @once.conditional(etag=lambda order: order.version)
    async def put(id_: str, tx: Tx[Any], condition: Condition) -> Webhook:
        assert type(await condition.lock("orders", where={"id": id_})) is dict
        await tx.connection.execute("UPDATE orders SET version = 3 WHERE id = ?", (id_,))
        return Webhook()

    once.install(app)
    async with calling(app) as client:
        for tag, status in (('"1"', 200), ('"1"', 412), ('"3"', 200)):
            answer = await client.post("/orders/o1", method="PUT", headers={"if-match": tag})
            assert (answer.status_code, answer.headers.get("etag")) == (status, '"3"'), answer.text


# --- errors where there is an answer ------------------------------------------------------------------------------


def test_the_body_of_a_refusal_is_no_row(threads: Onefold) -> None:
    app = Flask(__name__)

    @app.get("/orders/<id_>")
    @threads.conditional(etag="version")
    def read(id_: str) -> Any:
        return ({"error": "unknown"}, 404) if id_ == "o9" else {"error": "no version"}

    @app.put("/orders/<id_>")
    @threads.conditional(etag="version")
    def put(id_: str) -> Any:
        current_condition().lock("orders", where={"id": id_})
        return ({"error": "closed"}, 409) if id_ == "o1" else {"error": "no version"}

    threads.install(app)
    client = app.test_client()
    assert client.get("/orders/o9").status_code == 404
    for _ in range(2):
        assert client.put("/orders/o1", headers={"If-Match": '"1"', "Idempotency-Key": "k"}).status_code == 409
    # A success has a tag, or says why not.
    for answer in (client.get("/orders/o1"), client.put("/orders/o2", headers={"If-Match": '"1"'})):
        assert answer.status_code == 500
        assert "return the row" in answer.get_json()["detail"]


class Opaque:
    def __repr__(self) -> str:
        return "planted"


@pytest.mark.parametrize(
    ("etag", "says"),
    [
        ("version", "cannot be found in a dict (KeyError)"),
        (lambda row: row[row["secret"]], "cannot be found in a dict (KeyError)"),
        ("quoted", "a version of type str cannot be an ETag"),
        (lambda row: content_tag(Opaque()), "content_tag cannot read an object of type Opaque"),
    ],
    ids=["no name", "no value", "no tag", "no content"],
)
def test_a_row_without_a_tag_is_not_shown_by_the_answer_that_says_so(threads: Onefold, etag: Any, says: str) -> None:
    app = Flask(__name__)

    @app.get("/orders/<id_>")
    @threads.conditional(etag=etag)
    def read(id_: str) -> Any:
        return {"secret": "planted", "quoted": '"planted"'}

    threads.install(app)
    answer = app.test_client().get("/orders/o1")
    assert (answer.status_code, "planted" in answer.text) == (500, False)
    assert says in answer.get_json()["detail"]


def test_what_is_no_row_is_called_by_its_type() -> None:
    with pytest.raises(ProgrammerError, match="cannot be found in an int "):
        tag_of("version", 7, "GET /orders")


async def test_the_body_of_a_refusal_is_no_row_in_fastapi(once: AsyncOnefold) -> None:
    app = FastAPI()

    @app.get("/orders/{id_}")
    @once.conditional(etag="version")
    async def read(id_: str, response: Response) -> dict[str, str]:
        response.status_code = 404
        return {"error": "unknown"}

    once.install(app)
    async with calling(app) as client:
        assert (await client.get("/orders/o9")).status_code == 404


class Row(NamedTuple):
    id: str
    version: int


class Webhook(BaseModel):
    """What a response has, too."""

    headers: dict[str, str] = {}
    status: str = "sent"
    version: int = 3


async def test_rows_of_any_kind_have_a_tag(once: AsyncOnefold) -> None:
    app = FastAPI()
    kinds = {"tuple": Row("o1", 3), "model": Webhook()}

    @app.get("/orders/{kind}")
    @once.conditional(etag="version")
    async def read(kind: str) -> Any:
        return kinds[kind]

    once.install(app)
    async with calling(app) as client:
        assert {(await client.get(f"/orders/{kind}")).headers.get("etag") for kind in kinds} == {'"3"'}


async def test_a_refusal_is_a_412_below_a_mount_and_in_a_group(once: AsyncOnefold) -> None:
    app, mounted = FastAPI(), FastAPI()

    @mounted.put("/orders/{id_}")
    @once.conditional(etag="version")
    async def put(id_: str, condition: Condition) -> dict[str, int]:
        await condition.lock("orders", where={"id": id_})
        return {"version": 1}

    @app.put("/grouped/{id_}")
    @once.conditional(etag="version")
    async def put_in_group(id_: str, condition: Condition) -> dict[str, int]:
        async def lock() -> None:
            await condition.lock("orders", where={"id": id_})

        async with asyncio.TaskGroup() as group:
            group.create_task(lock())
        return {"version": 1}

    app.mount("/mounted", mounted)
    once.install(app)
    async with calling(app) as client:
        for path in ("/mounted/orders/o1", "/grouped/o1"):
            for tags in ('"7"', '"1"'):  # the second is a replay: the first is stored
                headers = {"if-match": tags, "idempotency-key": path[:8]}
                answer = await client.post(path, method="PUT", headers=headers)
                with is_problem(answer, 412, "condition-failed"):
                    assert answer.headers["etag"] == '"1"'


def test_a_refusal_is_a_412_where_a_blueprint_answers_every_error(threads: Onefold) -> None:
    app, blueprint = Flask(__name__), Blueprint("orders", __name__)

    @blueprint.errorhandler(Exception)
    def answer_any(_: Exception) -> Any:
        return {"error": "internal"}, 500

    @blueprint.put("/orders/<id_>")
    @threads.conditional(etag="version")
    def put(id_: str) -> Any:
        current_condition().lock("orders", where={"id": id_})
        return {"version": 1}

    app.register_blueprint(blueprint)
    threads.install(app)
    answer = app.test_client().put("/orders/o1", headers={"If-Match": '"7"'})
    assert (answer.status_code, answer.headers["etag"]) == (412, '"1"')


def test_middleware_of_wsgi_may_be_a_generator(threads: Onefold) -> None:
    app = Flask(__name__)
    inner = app.wsgi_app

    @app.get("/orders/<id_>")
    @threads.conditional(etag="version")
    def read(id_: str) -> Any:
        return {"version": 1}

    def generate(environ: Any, start_response: Any) -> Iterator[bytes]:
        yield from inner(environ, start_response)

    vars(app)["wsgi_app"] = generate
    threads.install(app)
    client = app.test_client()
    whole = client.get("/orders/o1")
    assert (whole.headers["etag"], whole.get_json()) == ('"1"', {"version": 1})
    unchanged = client.get("/orders/o1", headers={"If-None-Match": '"1"'})
    assert (unchanged.status_code, unchanged.data) == (304, b"")


async def test_the_description_of_a_read_has_all_of_its_answers(once: AsyncOnefold) -> None:
    app = FastAPI()

    @app.get("/orders/{id_}")
    @once.conditional(etag="version")
    async def read(id_: str) -> dict[str, int]:
        return {"version": 1}

    once.install(app)
    document = app.openapi()
    assert {"200", "304", "400", "412"} <= set(document["paths"]["/orders/{id_}"]["get"]["responses"])
    assert "IdempotencyProblem" in document["components"]["schemas"]
    async with calling(app) as client:
        for headers, status in (({"if-match": '"7"'}, 412), ({"if-none-match": "7"}, 400)):
            assert (await client.post("/orders/o1", method="GET", headers=headers)).status_code == status
