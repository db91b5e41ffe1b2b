"""What holds for every metric: labels have a limit, listeners do not count twice, and each metric is tested."""

from __future__ import annotations

import functools
import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from onefold import AsyncOnefold, Retrying
from onefold._kernel.telemetry import join
from onefold._observe import prometheus_backend
from onefold._observe.instrument_table import INSTRUMENTS, MOVES
from onefold._observe.instruments import Instrument, Labels
from onefold._observe.prometheus_backend import PrometheusBackend
from onefold._observe.recorder import HELD_MAX, OTHER, VALUES_MAX, HoldingRecorder, Record
from onefold.errors import ConfigurationError
from onefold.prometheus import prometheus_metrics
from onefold.telemetry import Claimed, Event, Reaped, Settled
from tests.observe.listing import PAGE, page_with, table
from tests.observe.measured import Measured
from tests.support.patience import PATIENCE_S

HERE = Path(__file__).parent


def test_a_label_with_too_many_values_is_counted_as_other_and_logged_once(
    measured: Measured, caplog: pytest.LogCaptureFixture
) -> None:
    tell = join(measured.listeners)
    assert tell is not None
    with caplog.at_level(logging.WARNING, "onefold.metrics"):
        for number in range(VALUES_MAX + 50):
            tell(Claimed(f"POST /{number}", "run"))
        tell(Claimed("POST /0", "run"))
    counted = measured.values("onefold_requests_total")
    assert len(counted) == VALUES_MAX + 1
    assert counted[OTHER, "run"] == 50
    assert counted["POST /0", "run"] == 2
    assert [record.getMessage() for record in caplog.records] == 2 * [  # each backend has its own
        f"metric onefold.requests has {VALUES_MAX} values of operation: further ones are counted as 'other'"
    ]


@pytest.mark.parametrize("is_hidden", [False, True])
def test_counters_and_histograms_move_the_same_where_prometheus_client_has_no_such_inside(
    is_hidden: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the values below its public methods, which requests do not pay for; and by those methods, without."""
    by_public = []
    for kind, method in ((Counter, "inc"), (Histogram, "observe")):
        public = getattr(kind, method)
        monkeypatch.setattr(kind, method, lambda *given, public=public: by_public.append(public(*given)))
    if is_hidden:
        monkeypatch.setattr(prometheus_backend, "getattr", lambda _, __, missing: missing, raising=False)
    registry = CollectorRegistry()
    listener = prometheus_metrics(registry)
    durations = (0.0, 0.001, 0.0011, 30.0, 31.0)
    for duration in durations:
        listener(Claimed("POST /a", "run"))
        listener(Settled("POST /a", 201, body_kept=True, elapsed_s=duration))
    values = functools.partial(registry.get_sample_value, labels={"operation": "POST /a", "end": "stored"})
    assert registry.get_sample_value("onefold_requests_total", {"operation": "POST /a", "outcome": "run"}) == 5
    assert values("onefold_request_duration_seconds_count") == 5
    assert values("onefold_request_duration_seconds_sum") == pytest.approx(sum(durations))
    buckets = {
        sample.labels["le"]: sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == "onefold_request_duration_seconds_bucket"
    }
    assert {le: buckets[le] for le in ("0.001", "0.0025", "10.0", "30.0", "+Inf")} == {
        "0.001": 2, "0.0025": 3, "10.0": 3, "30.0": 4, "+Inf": 5,
    }  # fmt: skip
    assert len(by_public) == (2 * len(durations) if is_hidden else 0)


def test_no_event_is_lost_or_counted_twice_while_threads_tell_and_others_ask() -> None:
    registry = CollectorRegistry()
    listener = prometheus_metrics(registry)
    each, threads = 40 * HELD_MAX + 7, 4

    def tell_all() -> None:
        for number in range(each):
            listener(Claimed("POST /a", "replay" if number % 2 else "run"))
            listener(Settled("POST /a", 201, body_kept=True, elapsed_s=0.5))

    switching_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads + 1) as pool:
            telling = [pool.submit(tell_all) for _ in range(threads)]
            asked = [generate_latest(registry)]
            while not all(thread.done() for thread in telling):
                asked.append(generate_latest(registry))
            for thread in telling:
                thread.result()
    finally:
        sys.setswitchinterval(switching_s)
    values = {(sample.name, *sorted(sample.labels.values())): sample.value
              for family in registry.collect() for sample in family.samples}  # fmt: skip
    told = threads * each
    assert values["onefold_requests_total", "POST /a", "run"] + values["onefold_duplicates_total", "http"] == told
    assert values["onefold_request_duration_seconds_count", "POST /a", "stored"] == told
    assert values["onefold_request_duration_seconds_bucket", "0.5", "POST /a", "stored"] == told
    assert values["onefold_request_duration_seconds_sum", "POST /a", "stored"] == told / 2


def test_a_drain_that_forgets_what_is_told_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def drain(self: HoldingRecorder) -> None:
        for kind, held in self._held.items():
            if events := list(held):
                self._perform(self._moves[kind], events)
                held.clear()

    monkeypatch.setattr(HoldingRecorder, "_drain", drain)
    with pytest.raises(AssertionError):
        test_no_event_is_lost_or_counted_twice_while_threads_tell_and_others_ask()


def test_events_are_held_until_the_numbers_are_asked_for_and_only_so_many() -> None:
    moved: list[tuple[float, ...]] = []

    class Numbers:
        def bind(self, instrument: Instrument, labels: Labels) -> Record:
            return lambda amounts: moved.append(tuple(amounts))

    listener = HoldingRecorder(Numbers())
    for _ in range(HELD_MAX - 1):
        listener(Claimed("POST /a", "run"))
    assert moved == []
    listener(Claimed("POST /a", "run"))
    assert moved == [(1.0,) * HELD_MAX]
    listener(Claimed("POST /a", "run"))
    listener.catch_up()
    assert moved[1:] == [(1.0,)]


def test_an_event_that_cannot_be_counted_is_logged_and_the_page_has_all_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = CollectorRegistry()
    listener = prometheus_metrics(registry)
    for duration in (None, 1.0):
        listener(Claimed("POST /a", "run"))
        listener(Settled(f"POST /{duration}", 201, body_kept=True, elapsed_s=duration))  # type: ignore[arg-type]
    assert registry.get_sample_value("onefold_requests_total", {"operation": "POST /a", "outcome": "run"}) == 2
    labels = {"operation": "POST /1.0", "end": "stored"}
    assert registry.get_sample_value("onefold_request_duration_seconds_count", labels) == 1
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("1 events were not counted in all metrics, the first is Settled(operation='POST /None'")


def test_a_page_of_one_name_and_the_first_value_of_a_metric_are_up_to_date() -> None:
    """`/metrics?name[]=...`: the registry asks only what has that name."""
    registry = CollectorRegistry()
    listener = prometheus_metrics(registry)
    listener(Claimed("POST /a", "run"))
    for told in (1, 2):
        listener(Claimed("POST /a", "replay"))
        page = generate_latest(registry.restricted_registry(["onefold_duplicates_total"])).decode()
        assert f'onefold_duplicates_total{{hop="http"}} {told}.0' in page.splitlines()
        assert "onefold_requests_total" not in page


def test_a_child_that_is_forked_while_a_thread_of_its_parent_counts_can_be_asked() -> None:
    listener = HoldingRecorder(PrometheusBackend())
    with listener._draining:
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE_S))  # one that waits for the lock ends, and is no answer
            try:
                listener(Claimed("POST /a", "run"))
                listener.catch_up()
                os._exit(0)
            finally:
                os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_listener_that_is_given_twice_is_told_once() -> None:
    registry = CollectorRegistry()
    listener = prometheus_metrics(registry)
    assert prometheus_metrics(registry) is listener
    tell = join(join(listener, print), [listener])
    assert tell is not None
    tell(Reaped(2))
    assert registry.get_sample_value("onefold_reaped_total", {"what": "records"}) == 2


def test_a_listener_that_raises_does_not_keep_the_others_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Event] = []

    def fail(event: Event) -> None:
        raise LookupError

    tell = join([fail, heard.append])
    assert tell is not None
    tell(Reaped(1))
    assert heard == [Reaped(1)]
    assert "raised on Reaped(records=1)" in caplog.text


async def test_several_listeners_are_given_as_a_list(sqlite_path: Path) -> None:
    heard: list[Event] = []
    once = AsyncOnefold(str(sqlite_path), listener=[heard.append, lambda event: heard.append(event)])
    await once.reap()
    await once.close()
    assert heard == [Reaped(0), Reaped(0)]


@pytest.mark.parametrize("listener", [3, [print, 3], "print"])
def test_what_is_no_listener_is_refused(listener: object, sqlite_path: Path) -> None:
    for make in (lambda: AsyncOnefold(str(sqlite_path), listener=listener), lambda: Retrying(listener=listener)):  # type: ignore[arg-type]
        with pytest.raises(ConfigurationError, match="a list of them"):
            make()


def test_every_metric_is_moved_by_an_action_in_these_tests() -> None:
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py") if path.name != "test_alerts.py")
    assert not [each.name for each in INSTRUMENTS if f'"{each.prometheus_name}' not in tests]


def test_the_page_shows_the_table() -> None:
    assert PAGE.read_text() == page_with(table()), "run `python -m tests.observe.listing`"


def test_the_table_has_each_instrument_once_and_an_event_that_moves_it() -> None:
    names = [each.prometheus_name for each in INSTRUMENTS]
    assert len(set(names)) == len(names)
    assert {move.instrument for moves in MOVES.values() for move in moves} == set(INSTRUMENTS)
