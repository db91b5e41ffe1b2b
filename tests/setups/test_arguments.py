"""Calls that do not fit are refused in words: which argument, its value, what is allowed. No bare TypeError."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from flask import Flask

import onefold
from onefold import AsyncOnefold, Onefold, RetryPolicy
from onefold._kernel.arguments import named_arguments
from onefold.clients import Backoff, BreakerConfig, BudgetConfig, fallback, options
from onefold.errors import ConfigurationError, IntentInvalid, MessageInvalid, OnefoldError
from onefold.policies import Quota
from onefold.shedding import Shedding


def refused(call: Callable[..., object], *args: Any, **kwargs: Any) -> str:
    with pytest.raises(OnefoldError) as found:
        call(*args, **kwargs)
    assert isinstance(found.value, ConfigurationError | MessageInvalid)
    assert "Face" not in str(found.value)
    assert found.value.__context__ is None or found.value.__suppress_context__ or found.value.__cause__
    return str(found.value)


@pytest.mark.parametrize(
    ("made", "args", "settings", "words"),
    [
        (Quota, (10,), {}, ("Quota", "10", "in_flight=...")),
        (Quota, (), {"inflight": 1}, ("'inflight'", "Quota", "did you mean 'in_flight'?")),
        (Quota, (), {"in_flight": "10"}, ("in_flight='10'", "whole number")),
        (RetryPolicy, (3,), {}, ("RetryPolicy", "3", "attempts_max=...")),
        (RetryPolicy, (), {"attempts": 3}, ("'attempts'", "RetryPolicy", "did you mean 'attempts_max'?")),
        (RetryPolicy, (), {"attempts_max": "3"}, ("attempts_max='3'", "whole number", "1 to 100")),
        (RetryPolicy, (), {"attempts_max": 2.5}, ("attempts_max=2.5", "whole number")),
        (RetryPolicy, (), {"attempts_max": True}, ("attempts_max=True", "whole number")),
        (RetryPolicy, (), {"deadline_s": None}, ("deadline_s=None", "number")),
        (RetryPolicy, (), {"statuses": 503}, ("statuses=503", "collection")),
        (RetryPolicy, (), {"statuses": "503"}, ("statuses='503'", "collection")),
        (RetryPolicy, (), {"statuses": {"503"}}, ("statuses='503'", "whole number")),
        (RetryPolicy, (), {"backoff": 3}, ("backoff=3", "Backoff")),
        (RetryPolicy, (), {"budget": 3}, ("budget=3", "BudgetConfig")),
        (RetryPolicy, (), {"breaker": True}, ("breaker=True", "BreakerConfig")),
        (Backoff, (1,), {}, ("Backoff", "1", "cap_s=...")),
        (Backoff, (), {"cap_s": "20"}, ("cap_s='20'", "number")),
        (BudgetConfig, (), {"ration": 1}, ("'ration'", "did you mean 'ratio'?")),
        (BreakerConfig, (), {"probes": 1.5}, ("probes=1.5", "whole number")),
        (Shedding, (100,), {}, ("Shedding", "100", "limit=...")),
        (Shedding, (), {"limit": "100"}, ("limit='100'", "whole number")),
        (onefold.Retrying, ("3",), {}, ("policy='3'", "RetryPolicy")),
        (onefold.Retrying, (), {"attempts_max": 3}, ("'attempts_max'", "Retrying")),
        (onefold.Retrying, (), {"journl": "a.db"}, ("'journl'", "did you mean 'journal'?")),
        (onefold.Retrying, (), {"journal": 3}, ("journal=3", "postgresql://")),
        (onefold.Retrying, (), {"journal": "intents"}, ("'intents'", ".db")),
        (onefold.Retrying, (), {"retention_s": "1d"}, ("retention_s='1d'", "number")),
        (onefold.Retrying, (), {"retention_s": -1}, ("retention_s=-1", "out of range")),
        (onefold.Retrying, (), {"quoted": "no"}, ("quoted='no'", "True or False")),
        (onefold.Retrying, (), {"hosts": ["a"]}, ("hosts=['a']", "RetryPolicy")),
        (onefold.Retrying, (), {"hosts": {1: RetryPolicy()}}, ("1", "not a host")),
        (onefold.Retrying, (), {"listener": 1}, ("listener=1", "function")),
        (onefold.Retrying, (), {"draw": 1}, ("draw=1", "function")),
        (onefold.Retrying().calls, (), {}, ("Retrying.calls", "missing to and on")),
        (onefold.Retrying().calls, ("ledger",), {}, ("Retrying.calls", "missing on")),
        (onefold.Retrying().calls, (3,), {"on": OSError}, ("to=3", "'ledger'")),
        (onefold.Retrying().attempts, ("ledger", OSError), {}, ("Retrying.attempts", "OSError", "on=...")),
        (onefold.retrying, (), {}, ("onefold.retrying", "missing inner")),
        (onefold.retrying, (object(),), {"retries": 3}, ("'retries'", "Retrying")),
        (Onefold, (), {}, ("Onefold(...)", "missing database", "'app.db'")),
        (AsyncOnefold, (), {}, ("AsyncOnefold(...)", "missing database", "'app.db'")),
        (Onefold, ("a.db", "orders"), {}, ("Onefold(...)", "'orders'", "source=...")),
        (Onefold, ("a.db", "postgresql://u:hunter2@h/x"), {}, ("'postgresql://h/x'",)),
        (AsyncOnefold, ("",), {}, ("''", "names no database")),
        (AsyncOnefold, ("payments",), {}, ("'payments'", "sqlite:///payments")),
        (AsyncOnefold, ("host=h password=hunter2",), {}, ("'...'", "names no database")),
    ],
)
def test_a_call_that_does_not_fit_names_the_argument_and_the_way_out(
    made: Callable[..., object], args: tuple[Any, ...], settings: dict[str, Any], words: tuple[str, ...]
) -> None:
    said = refused(made, *args, **settings)
    assert all(word in said for word in words), said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": 3}, ("source=3", "'orders'")),
        ({"listener": 3}, ("listener=3", "function")),
        ({"pages": 3}, ("pages=3", "'/'")),
        ({"development": "no"}, ("development='no'", "True or False")),
        ({"earlier_records": "no"}, ("earlier_records='no'", "True or False")),
        ({"unsealed_answers": 0}, ("unsealed_answers=0", "True or False")),
        ({"event_bytes_max": "1"}, ("event_bytes_max='1'", "whole number")),
        ({"shedding": True}, ("shedding=True", "Shedding")),
        ({"sealer": "secret"}, ("sealer of type str", "Keyring")),
    ],
)
@pytest.mark.parametrize("kind", [Onefold, AsyncOnefold])
def test_a_setting_of_the_wrong_type_is_refused_where_it_is_written(
    kind: type[Any], settings: dict[str, Any], words: tuple[str, ...], sqlite_path: Path
) -> None:
    said = refused(kind, sqlite_path, **settings)
    assert all(word in said for word in words), said
    assert "secret" not in said


def _missing_topic(once: Any) -> object:
    return once.consumer("ship")


def _without_parentheses(once: Any) -> object:
    return once.consumer(lambda message: None)


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (_missing_topic, ("once.consumer", "missing topic")),
        (_without_parentheses, ("once.consumer", "missing topic", "once.consumer(name, topic=...)")),
        (lambda once: once.consumer("ship", topic=3)(print), ("'ship'", "3", "order.placed")),
        (lambda once: once.consumer("ship", topic=[3])(print), ("'ship'", "3", "order.placed")),
        (lambda once: once.consumer(3, topic="placed")(print), ("consumer name 3",)),
        (lambda once: once.consumer("ship", topic="placed", batch="5")(print), ("'ship'", "batch='5'")),
        (lambda once: once.relaying(batch=3), ("'batch'", "a relay", "did you mean 'batch_max'?")),
        (lambda once: once.consuming(only="ship"), ("only='ship'", "['ship']")),
    ],
)
@pytest.mark.parametrize("kind", [Onefold, AsyncOnefold])
def test_a_wrong_consumer_or_relay_is_refused_where_it_is_written(
    kind: type[Any], mistake: Callable[[Any], object], words: tuple[str, ...], sqlite_path: Path
) -> None:
    said = refused(mistake, kind(sqlite_path))
    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("args", "settings", "words"),
    [
        ((), {}, ("tx.publish(...)", "missing topic and data")),
        (("placed",), {}, ("tx.publish(...)", "missing data", "tx.publish(topic, data)")),
        (({"order": 1},), {}, ("tx.publish(...)", "missing data")),
        (("placed", {}, "ord-42"), {}, ("'ord-42'", "key=...")),
        (("placed", {}), {"delay": 3}, ("'delay'", "tx.publish")),
        ((3, {}), {}, ("topic 3", "'order.placed'")),
        ((None, {}), {}, ("topic None",)),
        (("placed", {}), {"headers": ["x"]}, ("headers=['x']", "'placed'")),
        (("placed", {}), {"headers": {1: "x"}}, ("header 1", "'placed'")),
        (("placed", {}), {"content_type": 3}, ("content_type=3", "'placed'")),
        (("placed", {}), {"not_before": 3}, ("not_before=3", "datetime")),
    ],
)
def test_what_cannot_be_published_is_refused_by_name(
    args: tuple[Any, ...], settings: dict[str, Any], words: tuple[str, ...], sqlite_path: Path
) -> None:
    once = Onefold(sqlite_path, source="shop")
    with once.transaction() as tx:
        said = refused(tx.publish, *args, **settings)
    once.close()
    assert all(word in said for word in words), said


def test_a_type_error_of_the_function_itself_stays_one() -> None:
    @named_arguments("divide")
    def divide(number: Any) -> Any:
        return len(number) / 2

    assert divide([1, 2]) == 1
    with pytest.raises(TypeError, match="has no len"):
        divide(3)


BLOCKS = ("transaction", "handling", "reaping", "relaying", "consuming")


def _block(once: Any, name: str) -> Any:
    once.consumer("ship", topic="placed")(lambda message: None)
    return getattr(once, name)(*(("ship", "m-1") if name == "handling" else ()))


@pytest.mark.parametrize("name", BLOCKS)
def test_with_on_async_onefold_says_async_with(name: str, sqlite_path: Path) -> None:
    block = _block(AsyncOnefold(sqlite_path), name)
    with pytest.raises(ConfigurationError, match=rf"`async with once\.{name}\(") as found, block:
        pass
    assert "use Onefold" in str(found.value)


@pytest.mark.parametrize("name", BLOCKS)
def test_async_with_on_onefold_says_with(name: str, sqlite_path: Path) -> None:
    async def enter() -> None:
        async with _block(Onefold(sqlite_path), name):
            pass

    with pytest.raises(ConfigurationError, match=rf"`with once\.{name}\(") as found:
        asyncio.run(enter())
    assert "use AsyncOnefold" in str(found.value)


def _entered(block: Any) -> object:
    return block.__enter__()


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda: onefold.intent(), ("onefold.intent(...)", "missing name")),  # type: ignore[call-arg]
        (lambda: options(3), ("onefold.clients.options(...)", "3", "deadline_s=...")),  # type: ignore[call-arg]
        (lambda: options(deadline=3), ("'deadline'", "did you mean 'deadline_s'?")),  # type: ignore[call-arg]
        (lambda: _entered(options(deadline_s="3")), ("deadline_s='3'", "not a number")),  # type: ignore[arg-type]
        (lambda: onefold.deadline(), ("onefold.deadline(...)", "missing seconds")),  # type: ignore[call-arg]
        (lambda: _entered(onefold.deadline("2")), ("deadline('2')", "0 to")),  # type: ignore[arg-type]
        (lambda: fallback(print), ("onefold.clients.fallback(...)", "missing on")),  # type: ignore[call-arg]
        (lambda: onefold.Keyring(), ("Keyring(...)", "missing keys and write")),  # type: ignore[call-arg]
        (lambda: onefold.Keyring({"a": "s3cret" * 8}, write="a"), ("'a' is a str", "32 bytes")),  # type: ignore[dict-item]
    ],
)
def test_the_small_functions_refuse_what_does_not_fit(mistake: Callable[[], object], words: tuple[str, ...]) -> None:
    said = refused(mistake)
    assert all(word in said for word in words), said
    assert "s3cret" not in said


def test_an_intent_that_is_no_text_is_refused_where_its_block_begins() -> None:
    with pytest.raises(IntentInvalid, match="not int: 3"), onefold.intent(3):  # type: ignore[arg-type]
        pass


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (lambda once: once.handling("ship"), ("once.handling(...)", "missing message_id")),
        (lambda once: _entered(once.handling("ship", 4)), ("'ship'", "message_id=4")),
        (lambda once: _entered(once.reaping(every_s="5")), ("every_s='5'", "not a number")),
        (lambda once: once.reap(limit="5"), ("limit='5'", "whole number")),
        (lambda once: once.install(FastAPI), ("the class fastapi", "give the application")),
        (lambda once: once.install(Flask), ("the class flask", "give the application")),
        (lambda once: once.asgi(FastAPI(), ["POST /a"]), ("routes=['POST /a']", "once.policy")),
        (lambda once: once.asgi(FastAPI(), {"POST /a": True}), ("True for 'POST /a'", "once.policy")),
    ],
)
def test_the_methods_refuse_what_does_not_fit(
    mistake: Callable[[Any], object], words: tuple[str, ...], sqlite_path: Path
) -> None:
    said = refused(mistake, Onefold(sqlite_path))
    assert all(word in said for word in words), said


def test_a_missing_broker_client_is_named_once(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onefold.brokers.nats", None)
    once = Onefold(sqlite_path, source="shop", broker="nats://localhost")
    with pytest.raises(ConfigurationError, match="a broker at nats://") as found, once.relaying():
        pass
    assert found.value.__suppress_context__


@pytest.mark.parametrize("block", ["relaying", "consuming", "transaction", "reaping"])
async def test_a_block_that_is_awaited_says_how_it_is_entered(sqlite_path: Path, block: str) -> None:
    asynchronous, threaded = AsyncOnefold(sqlite_path), Onefold(sqlite_path)
    for once, entered in ((asynchronous, "`async with once."), (threaded, "`with once.")):
        once.consumer("shipping", topic="order.placed")(lambda message: None)
        with pytest.raises(ConfigurationError) as caught:
            await getattr(once, block)()
        assert f"once.{block}()" in str(caught.value)
        assert entered in str(caught.value)
    await asynchronous.close()
    threaded.close()
