"""Flask: views, blueprints, hooks around them, and the answer that leaves only after the commit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from flask import Blueprint, Flask, Response, abort, jsonify, make_response, request, stream_with_context
from flask.testing import FlaskClient
from flask.views import MethodView
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client as WerkzeugClient
from werkzeug.test import TestResponse

from onefold import Onefold
from onefold._http.flask_views import current_transaction
from onefold.errors import ConfigurationError, ProgrammerError
from tests.http.stages import Orders, account_of


class Shop:
    """A Flask application over a SQLite file, with onefold installed."""

    def __init__(self, orders: Orders, **options: Any) -> None:
        self.orders = orders
        self.once = Onefold(orders.path, principal=account_of, development=True)
        self.app = Flask("shop", **options)
        self.once.install(self.app)

    @property
    def client(self) -> FlaskClient:
        return self.app.test_client()

    def post(self, path: str, item: str = "book", *, key: str | None = '"k"', **more: Any) -> TestResponse:
        headers = {"x-account": "acme"} | ({} if key is None else {"idempotency-key": key})
        return self.client.open(path, method=more.pop("method", "POST"), json={"item": item}, headers=headers, **more)


@pytest.fixture
def shop(orders: Orders) -> Iterator[Shop]:
    found = Shop(orders)
    yield found
    found.once.close()


def buy(**_: object) -> tuple[Response, int]:
    """The view of most of these tests."""
    item = request.get_json()["item"]
    current_transaction().connection.execute("INSERT INTO orders (item) VALUES (?)", (item,))
    if item == "gold":
        abort(409)
    return jsonify(bought=item), 201


def replayed(response: TestResponse) -> bool:
    return response.headers.get("idempotent-replayed") == "true"


def problem(response: TestResponse) -> str:
    if response.content_type != "application/problem+json":
        return ""
    return str(response.get_json()["type"]).removeprefix("urn:onefold:problem:")


def happens_once(shop: Shop, path: str, item: str, **more: Any) -> bool:
    first, retry = shop.post(path, item, **more), shop.post(path, item, **more)
    return (first.status_code, retry.status_code, replayed(first), replayed(retry)) == (201, 201, False, True)


def test_a_view_runs_once_and_its_answer_is_replayed(shop: Shop) -> None:
    shop.app.post("/orders")(shop.once.idempotent(required=True)(buy))
    first, retry = shop.post("/orders"), shop.post("/orders")
    assert (first.status_code, first.get_json(), replayed(first)) == (201, {"bought": "book"}, False)
    assert (retry.status_code, retry.data, retry.content_type) == (201, first.data, first.content_type)
    assert replayed(retry)
    assert shop.orders.items == ["book"]
    assert problem(shop.post("/orders", key=None)) == "key-missing"
    assert problem(shop.post("/orders", "pen")) == "key-reused"


def test_an_abort_of_the_view_is_stored_without_its_rows(shop: Shop) -> None:
    shop.app.post("/orders")(shop.once.idempotent()(buy))
    refused, again = shop.post("/orders", "gold"), shop.post("/orders", "gold")
    assert (refused.status_code, again.status_code, replayed(again)) == (409, 409, True)
    assert shop.orders.items == []


def test_an_exception_leaves_nothing_and_the_retry_runs(shop: Shop) -> None:
    calls: list[None] = []

    @shop.app.post("/orders")
    @shop.once.idempotent()
    def view() -> tuple[Response, int]:
        calls.append(None)
        answer = buy()
        if len(calls) == 1:
            raise LookupError("not today")
        return answer

    assert shop.post("/orders").status_code == 500
    assert (shop.orders.items, shop.orders.records) == ([], 0)
    assert shop.post("/orders").status_code == 201
    assert shop.orders.items == ["book"]


def test_half_a_view_does_not_stay_when_an_error_handler_forgets_its_status(shop: Shop) -> None:
    @shop.app.errorhandler(500)
    def apologise(error: Exception) -> str:
        return "sorry"

    @shop.app.post("/orders")
    @shop.once.idempotent()
    def fail() -> str:
        buy()
        raise LookupError

    for key in ('"k"', '"k"', None):
        answer = shop.post("/orders", key=key)
        assert (answer.status_code, replayed(answer), shop.orders.items) == (200, False, [])
    assert shop.orders.records == 0


def test_c15b_what_a_hook_refuses_before_the_view_is_not_stored(shop: Shop) -> None:
    admitted: list[bool] = []

    @shop.app.before_request
    def admitting() -> tuple[str, int] | None:
        return None if admitted else ("who are you?", 400)

    shop.app.post("/orders")(shop.once.idempotent()(buy))
    assert shop.post("/orders").status_code == 400
    admitted.append(True)
    assert (shop.post("/orders").status_code, shop.orders.items) == (201, ["book"])


def test_blueprints_prefixes_and_typed_parameters_are_followed(shop: Shop) -> None:
    blueprint = Blueprint("shop", __name__, url_prefix="/v1")

    @blueprint.post("/orders/<int:number>")
    def unmarked(number: int) -> tuple[str, int]:
        return "a number", 201

    blueprint.post("/orders/<name>")(shop.once.idempotent()(buy))
    shop.app.register_blueprint(blueprint, url_prefix="/api/v1")
    assert happens_once(shop, "/api/v1/orders/seven", "book")
    assert not happens_once(shop, "/api/v1/orders/7", "book")
    page = shop.client.get("/onefold/specification").text
    assert "POST /api/v1/orders/&lt;name&gt;" in page


def test_a_class_of_views_is_marked_as_a_whole_or_by_method(shop: Shop) -> None:
    class Whole(MethodView):
        decorators: ClassVar[list[Any]] = [shop.once.idempotent()]

        def post(self) -> tuple[Response, int]:
            return buy()

    class ByMethod(MethodView):
        @shop.once.idempotent()
        def put(self) -> tuple[Response, int]:
            return buy()

        def post(self) -> tuple[str, int]:
            return "not marked", 201

    shop.app.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    shop.app.add_url_rule("/parts", view_func=ByMethod.as_view("parts"))
    assert happens_once(shop, "/whole", "book")
    assert happens_once(shop, "/parts", "pen", method="PUT")
    assert not happens_once(shop, "/parts", "ink")
    assert shop.orders.items == ["book", "pen"]
    page = shop.client.get("/onefold/specification").text
    assert ("PUT /parts" in page, "POST /parts" in page) == (True, False)


def test_views_below_a_subdomain_are_found(orders: Orders) -> None:
    shop = Shop(orders, subdomain_matching=True)
    shop.app.config["SERVER_NAME"] = "shop.test"
    shop.app.post("/orders", subdomain="api")(shop.once.idempotent()(buy))
    assert happens_once(shop, "/orders", "book", base_url="http://api.shop.test")
    assert shop.post("/orders", base_url="http://shop.test").status_code == 404
    shop.once.close()


def test_an_application_below_a_prefix_links_to_its_own_specification(shop: Shop) -> None:
    shop.app.post("/orders")(shop.once.idempotent(required=True)(buy))
    dispatcher = DispatcherMiddleware(Flask("outer"), {"/shop": shop.app})
    client = WerkzeugClient(dispatcher)
    missing = client.post("/shop/orders", json={"item": "book"})
    assert missing.headers["link"] == '</shop/onefold/specification>; rel="describedby"'
    assert client.get("/shop/onefold/specification").status_code == 200
    headers = {"x-account": "acme", "idempotency-key": '"k"'}
    answers = [client.post("/shop/orders", json={"item": "book"}, headers=headers) for _ in range(2)]
    assert [(answer.status_code, replayed(answer)) for answer in answers] == [(201, False), (201, True)]


def test_cookies_and_hooks_after_the_view_reach_the_first_client_only(shop: Shop) -> None:
    @shop.app.post("/orders")
    @shop.once.idempotent()
    def view() -> Response:
        answer = make_response(buy())
        answer.set_cookie("session", "secret")
        return answer

    @shop.app.after_request
    def tag(response: Response) -> Response:
        response.headers["x-request-id"] = "1"
        response.headers["etag"] = '"v1"'
        return response

    first, retry = shop.post("/orders"), shop.post("/orders")
    assert "secret" in first.headers["set-cookie"]
    assert ("set-cookie" in retry.headers, "x-request-id" in retry.headers) == (False, False)
    assert retry.headers["etag"] == '"v1"'


def test_a_streamed_answer_is_kept_whole_and_may_use_the_transaction_while_it_is_made(shop: Shop) -> None:
    @shop.app.post("/orders")
    @shop.once.idempotent()
    def view() -> Response:
        connection = current_transaction().connection

        def lines() -> Iterator[str]:
            for number in range(3):
                connection.execute("INSERT INTO orders (item) VALUES (?)", (f"item {number}",))
                yield f"{number}\n"

        return Response(stream_with_context(lines()), status=201, content_type="text/csv")

    assert happens_once(shop, "/orders", "many")
    assert shop.orders.items == ["item 0", "item 1", "item 2"]


def test_what_runs_when_the_answer_is_closed_runs_after_the_commit(shop: Shop) -> None:
    seen: list[object] = []

    @shop.app.post("/orders")
    @shop.once.idempotent()
    def view() -> Response:
        tx = current_transaction()
        answer = make_response(buy())

        @answer.call_on_close
        def later() -> None:
            seen.append(shop.orders.items)
            try:
                seen.append(tx.connection)
            except ProgrammerError as error:
                seen.append(str(error))

        return answer

    shop.post("/orders").close()
    assert seen[0] == ["book"]
    assert "the transaction is over" in str(seen[1])


def test_without_a_key_an_optional_view_still_commits_before_it_answers(shop: Shop) -> None:
    shop.app.post("/orders")(shop.once.idempotent()(buy))
    assert shop.post("/orders", key=None).status_code == 201
    assert shop.post("/orders", "gold", key=None).status_code == 409
    assert (shop.orders.items, shop.orders.records) == (["book"], 0)


def test_an_unmarked_view_is_not_touched_and_has_no_transaction(shop: Shop) -> None:
    shop.app.post("/orders")(buy)
    shop.app.testing = True
    with pytest.raises(ProgrammerError, match=r"mark the view with @once\.idempotent"):
        shop.post("/orders")


def test_an_idempotent_call_inside_another_is_refused(shop: Shop) -> None:
    inner: list[TestResponse] = []
    shop.app.post("/orders")(shop.once.idempotent()(buy))

    @shop.app.post("/baskets")
    @shop.once.idempotent()
    def view() -> tuple[str, int]:
        current_transaction().connection.execute("INSERT INTO orders (item) VALUES ('basket')")
        inner.append(shop.post("/orders", key='"inner"'))
        return "done", 201

    assert shop.post("/baskets").status_code == 201
    assert (inner[0].status_code, problem(inner[0])) == (500, "handler-broken")
    assert shop.orders.items == ["basket"]


def test_a_view_that_goes_around_its_transaction_is_refused_in_development(shop: Shop) -> None:
    @shop.app.post("/orders")
    @shop.once.idempotent()
    def view() -> str:
        shop.orders.sql("INSERT INTO orders (item) VALUES ('around')")
        return "done"

    refused = shop.post("/orders")
    assert (refused.status_code, problem(refused)) == (500, "handler-broken")
    assert "without using its transaction" in refused.get_json()["detail"]


def test_an_async_onefold_cannot_be_installed_into_flask(orders: Orders) -> None:
    from onefold import AsyncOnefold

    once = AsyncOnefold(orders.path, principal=account_of)
    with pytest.raises(ConfigurationError, match=r"cannot install into flask\.app\.Flask"):
        once.install(Flask("shop"))
    with pytest.raises(ConfigurationError, match="use Onefold"):
        once.wsgi(lambda environ, start_response: (), {})
