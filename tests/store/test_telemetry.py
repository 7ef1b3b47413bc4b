"""Spans and metrics of OpenTelemetry."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.awaiting import awaiting
from support.databases import MakeDatabase
from support.every_verb import calls_of, prepare
from support.factories import message, messages, summary
from support.locks import wait_for_waiters
from support.paths import ROOT

from lango_store import AsyncStore, Conversation, LangoStoreError, SessionNotFound, Store, create_engine
from lango_store._connections import cancellation
from lango_store.telemetry import SEMANTIC_CONVENTIONS, instrument
from lango_store.testing import Clock

OPERATION: Final = "db.operation.name"
WITHOUT_SPAN: Final = {"at", "in_turn", "tail", "iter_sessions", "iter_messages"}
OTHER_SPANS: Final = {
    (Store, "transact"): ["touch", "transact"],
    (Store, "resume"): ["suspend", "resume"],
    (Conversation, "finish_call"): ["begin_call", "finish_call"],
    (Conversation, "turn"): [
        *("turn.inbox", "turn.append", "turn.flush", "turn.flush", "turn.append_messages", "turn.append"),
        *("turn.flush", "turn.interrupt", "turn.save"),
    ],
}
"""The spans of calls in `every_verb` that call several methods."""


class Telemetry:
    """Collects the spans and metrics of stores in memory."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._reader = InMemoryMetricReader()
        self._meters = MeterProvider([self._reader])

    def watch(self, store: Store | AsyncStore) -> None:
        instrument(store, tracer_provider=self.tracers, meter_provider=self._meters)

    def spans(self) -> list[ReadableSpan]:
        """Return the spans that ended since the last call."""
        spans = self._exporter.get_finished_spans()
        self._exporter.clear()
        return [*spans]

    def operations(self) -> list[str]:
        """Return the operations of the spans that ended since the last call."""
        return [str((span.attributes or {})[OPERATION]) for span in self.spans()]

    def metric(self, name: str) -> Any:
        """Return the only data point of a metric; None without one."""
        data = self._reader.get_metrics_data()
        found = [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]
        assert len(found) < 2
        return found[0] if found else None

    def everything(self) -> str:
        """Return all that was recorded, as text."""
        data = self._reader.get_metrics_data()
        return "".join(span.to_json() for span in self.spans()) + (data.to_json() if data else "")


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    telemetry = Telemetry()
    yield telemetry
    telemetry.tracers.shutdown()


@pytest.fixture
def watched(store: Store, telemetry: Telemetry) -> Store:
    telemetry.watch(store)
    return store


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_each_method_has_one_span(url: str, tmp_path: Path, telemetry: Telemetry, is_async: bool) -> None:
    cold = tmp_path / "cold.db"
    expected: dict[tuple[type, str], list[str]] = {**OTHER_SPANS}
    if is_async:  # the summary is written outside of a thread
        expected[Conversation, "compact"] = ["begin_compaction", "finish_compaction"]
    with Store(url) as plain, Store(plain.engine) as traced:
        telemetry.watch(traced)
        with awaiting(AsyncStore(traced)) if is_async else nullcontext(traced) as store:
            for kind, verbs in calls_of_fresh(plain, store, cold).items():
                for name in verbs.keys() - {"search"}:  # which has a test
                    for number in range(len(verbs[name])):
                        call = calls_of_fresh(plain, store, cold)[kind][name][number]
                        telemetry.spans()
                        call()
                        one = [] if name in WITHOUT_SPAN else [name]
                        assert telemetry.operations() == expected.get((kind, name), one), name


def calls_of_fresh(plain: Store, store: Any, cold: Path) -> Any:
    """Delete all sessions, create those that the calls need, and return the calls."""
    for info in list(plain.iter_sessions(expired=None)):
        plain.delete(info.key)
    cold.unlink(missing_ok=True)
    prepare(plain, cold)
    return calls_of(store, cold)


def test_span_has_the_conventional_attributes(watched: Store, telemetry: Telemetry) -> None:
    watched.create("k", messages=messages(3))
    watched.messages("k")
    watched.conversation("k").messages(last=2)
    watched.count()
    _, *spans = telemetry.spans()
    name = watched.engine.dialect.name
    read = {"db.system.name": name, OPERATION: "messages", "gen_ai.conversation.id": "k"}
    assert [dict(span.attributes or {}) for span in spans] == [
        read | {"db.response.returned_rows": 3},
        read | {"db.response.returned_rows": 2},
        {"db.system.name": name, OPERATION: "count"},
    ]
    assert {span.name for span in spans} == {"lango_store messages", "lango_store count"}
    assert {span.kind for span in spans} == {SpanKind.CLIENT}
    assert {span.status.status_code for span in spans} == {StatusCode.UNSET}
    assert {span.instrumentation_scope and span.instrumentation_scope.schema_url for span in spans} == {
        SEMANTIC_CONVENTIONS
    }


def test_spans_are_children_of_the_current_span(watched: Store, telemetry: Telemetry) -> None:
    watched.create("k")

    async def ask() -> None:
        async with AsyncStore(watched) as store:
            await store.get("k")

    telemetry.spans()
    with telemetry.tracers.get_tracer("application").start_as_current_span("request") as request:
        watched.get("k")
        watched.transact(lambda tx: tx.touch("k"))
        asyncio.run(ask())
    get, touch, transact, in_asyncio, _ = telemetry.spans()
    for span in (get, transact, in_asyncio):
        assert span.parent is not None
        assert span.parent.span_id == request.get_span_context().span_id
    assert touch.parent is not None
    assert touch.parent.span_id == transact.context.span_id


def test_derived_stores_have_spans(watched: Store, telemetry: Telemetry) -> None:
    watched.create("k")
    telemetry.spans()
    with watched.transaction() as tx:
        tx.append_message("k", message())
    with watched.snapshot() as view:
        view.conversation("k").info()
    with watched.engine.begin() as connection:
        watched.using(connection).get("k")
    watched.at(None).exists("k")
    watched.open("k").child("a").append_message(message())
    assert telemetry.operations() == [
        *("transaction", "append_message", "snapshot", "info", "get", "exists", "open", "child", "append_message")
    ]


def test_failed_turn_has_a_span_for_its_end(watched: Store, telemetry: Telemetry) -> None:
    turn = watched.open("k").turn()
    with pytest.raises(ZeroDivisionError), turn:
        turn.append(message(str(1 / 0)))
    assert telemetry.operations() == ["open", "turn.abandon"]


def test_error_is_recorded_without_its_text(watched: Store, telemetry: Telemetry) -> None:
    with pytest.raises(SessionNotFound, match="secret"):
        watched.get("secret")
    (span,) = telemetry.spans()
    assert (span.attributes or {})["error.type"] == "SessionNotFound"
    assert span.status.status_code is StatusCode.ERROR
    assert (span.status.description, span.events) == (None, ())
    watched.create("k")
    with pytest.raises(LangoStoreError):
        watched.append_message("k", message("\ud800 marzipan", extra={"marzipan": {1: 2}}))
    assert "marzipan" not in telemetry.everything()


def test_stored_texts_are_not_recorded(watched: Store, telemetry: Telemetry, clock: Clock, tmp_path: Path) -> None:
    word = "marzipan"
    talk = watched.open("k", user_id=word, agent_id=word, title=word, metadata={word: word}, settings={word: word})
    talk.append_message(message(word, id=word, author=word, extra={word: word}))
    talk.save_turn([message(f"{word} too", name=word)], {word: 1}, id=f"{word} turn", metadata={"model": word})
    talk.set_values({word: word})
    watched.set_shared_values(word, {word: 1})
    with talk.turn(f"{word} in progress") as turn:
        turn.write(word)
        turn.append(message(f"{word} answer", role="assistant"))
    talk.compact(lambda _: summary(word))
    talk.find_message(word)
    talk.redact_message(1)
    watched.list_sessions(user_id=word)
    watched.usage(["user_id", "model"])
    with pytest.raises(LangoStoreError):
        watched.search(word)
    with pytest.raises(SessionNotFound):
        watched.conversation("missing").append_message(message(word))
    clock.move(days=2)
    watched.expire(older_than=timedelta(days=1), user_id=word, archive=tmp_path / f"{word}.db")
    text = telemetry.everything()
    assert word not in text
    assert "lango_store.purged_sessions" in text


def test_metrics_count_appended_messages(watched: Store, telemetry: Telemetry) -> None:
    talk = watched.open("k")
    talk.append_message(message(id="one"))
    talk.append_message(message(id="one"))
    watched.append_messages("k", messages(2))
    talk.save_turn(messages(3), id="turn")
    talk.save_turn(messages(3), id="turn")
    talk.enqueue(message())
    with talk.turn() as turn:
        turn.inbox()
        turn.append(message())
        turn.append_messages(messages(2))
    assert watched.info("k").message_count == 10
    assert telemetry.metric("lango_store.appended_messages").value == 10


def test_metrics_count_purged_sessions(watched: Store, telemetry: Telemetry, clock: Clock) -> None:
    for _ in range(3):
        watched.create(ttl=timedelta(hours=1))
    clock.move(hours=2)
    watched.expire(dry_run=True)
    assert telemetry.metric("lango_store.purged_sessions") is None
    watched.expire()
    assert telemetry.metric("lango_store.purged_sessions").value == 3


def test_metrics_count_retries(
    make_sqlite: MakeDatabase, telemetry: Telemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{make_sqlite()}?timeout=0"
    other = create_engine(url)
    with Store(url, retry=timedelta(seconds=30)) as store, other.connect() as connection:

        def unlock(seconds: float) -> bool:
            connection.rollback()
            return True

        telemetry.watch(store)
        connection.exec_driver_sql("DELETE FROM lango_turn WHERE false")  # locks the file
        monkeypatch.setattr(cancellation, "pause", unlock)
        store.create("k")
        assert telemetry.metric("lango_store.retries").value == 1
        assert telemetry.operations() == ["create"]


def test_metrics_measure_waits_for_a_connection(url: str, telemetry: Telemetry) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        telemetry.watch(store)
        store.create("k")
        assert telemetry.metric("db.client.connection.wait_time") is None
        with ThreadPoolExecutor(1) as pool:
            with engine.connect():
                waiting = pool.submit(store.info, "k")
                wait_for_waiters(engine, 1)
            waiting.result()
        point = telemetry.metric("db.client.connection.wait_time")
        assert (point.count, point.sum > 0) == (1, True)
        assert point.attributes == {"db.system.name": engine.dialect.name}
    engine.dispose()


def test_modules_of_opentelemetry_are_imported_only_for_telemetry() -> None:
    program = (
        "import json, sys\n"
        "import lango_store, lango_store.aio, lango_store.cli, lango_store.interchange\n"
        "before = [name for name in sys.modules if name.startswith('opentelemetry')]\n"
        "import lango_store.telemetry\n"
        "print(json.dumps([before, 'opentelemetry' in sys.modules]))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert json.loads(done.stdout) == [[], True], done.stderr


def test_store_that_is_not_instrumented_has_no_spans(watched: Store, telemetry: Telemetry) -> None:
    with Store(watched.engine) as other:
        other.create("k")
        other.open("k").turns()
    assert telemetry.spans() == []
    assert type(other) is Store
