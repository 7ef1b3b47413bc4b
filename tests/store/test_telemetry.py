"""Spans and metrics of OpenTelemetry."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode
from support.awaiting import awaiting
from support.databases import MakeDatabase
from support.every_method import calls_of, prepare
from support.factories import contents, message, messages, summary
from support.locks import wait_for_waiters
from support.paths import ROOT

from lango_store import (
    AsyncStore,
    CallInProgress,
    Calls,
    Conversation,
    Drafts,
    Edits,
    Inbox,
    LangoStoreError,
    Maintenance,
    Message,
    PendingCompaction,
    SessionInfo,
    SessionNotFound,
    Store,
    StoreBudgets,
    StoreCalls,
    StoreShares,
    StoreSuspensions,
    StoreTurns,
    Suspensions,
    ToolCall,
    TurnInProgress,
    Turns,
    Values,
    Versions,
    create_engine,
    schema,
)
from lango_store._connections import cancellation
from lango_store.telemetry import SEMANTIC_CONVENTIONS, instrument
from lango_store.testing import Clock

OPERATION: Final = "db.operation.name"
HANDLES: Final = {"at", "for_user", "in_turn"}
"""Methods that make no database call: what is called on the returned store has a span."""

PREFIXES: Final = {
    StoreTurns: "turns.",
    Turns: "turns.",
    StoreBudgets: "budgets.",
    StoreCalls: "calls.",
    Calls: "calls.",
    StoreShares: "shares.",
    StoreSuspensions: "suspensions.",
    Suspensions: "suspensions.",
    Maintenance: "maintenance.",
    Drafts: "drafts.",
    Inbox: "inbox.",
    Edits: "edits.",
    Versions: "versions.",
    Values: "values.",
    PendingCompaction: "compaction.",
}
"""The prefix of the names of the spans of a class."""

SEVERAL_CALLS: Final = {
    (Store, "transact"): ["touch", "transact"],
    (StoreSuspensions, "answer"): ["suspensions.create", "suspensions.answer"],
    (Calls, "finish"): ["calls.begin", "calls.finish"],
    (StoreShares, "document"): ["share", "shares.document"],
    (Edits, "update_all"): ["all_messages", "edits.update_all"],
    (Store, "work"): ["turn", "turn.take_inbox", "turn.save"],
    (Conversation, "turn"): [
        *("turn", "turn.take_inbox", "turn.append", "turn.flush", "turn.flush", "turn.append_messages", "turn.append"),
        *("turn.begin_call", "turn.end_call", "turn.flush", "turn.interrupt", "turn.save"),
    ],
}
"""The spans of calls in `every_method` that call several methods."""

ATTRIBUTES: Final = {
    *("db.system.name", OPERATION, "gen_ai.conversation.id", "db.response.returned_rows", "error.type"),
}


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

    def request(self) -> AbstractContextManager[Span]:
        """Open a span of the application."""
        return self.tracers.get_tracer("application").start_as_current_span(
            "request", attributes={OPERATION: "request"}
        )

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


@pytest.fixture(params=["sync", "async"])
def either(request: pytest.FixtureRequest, watched: Store) -> Iterator[Store]:
    """A store, or the methods of an `AsyncStore`."""
    with awaiting(AsyncStore(watched)) if request.param == "async" else nullcontext(watched) as either:
        yield either


def id_of(span: Span) -> int:
    return span.get_span_context().span_id


def parent_id(span: ReadableSpan) -> int | None:
    return span.parent and span.parent.span_id


def attribute(span: ReadableSpan, name: str) -> Any:
    return (span.attributes or {}).get(name)


@pytest.mark.slow
@pytest.mark.one_database  # calls are traced above the code that differs between databases
def test_each_method_call_has_one_span(
    watched: Store, either: Store, telemetry: Telemetry, clock: Clock, tmp_path: Path
) -> None:
    cold = tmp_path / "cold.db"
    schema.enable_search(watched.engine)
    plain = Store(watched.engine, clock=clock)
    for kind, methods in calls_of_fresh(plain, either, cold).items():
        for name in methods:
            call = calls_of_fresh(plain, either, cold)[kind][name][0]
            telemetry.spans()
            with telemetry.request() as request:
                call()
            *spans, _ = telemetry.spans()
            expected = SEVERAL_CALLS.get((kind, name), [] if name in HANDLES else [PREFIXES.get(kind, "") + name])
            assert [attribute(span, OPERATION) for span in spans] == expected, name
            outermost = spans[-1:] if name == "transact" else spans
            assert {parent_id(span) for span in outermost} <= {id_of(request)}, name
            assert {span.status.status_code for span in spans} <= {StatusCode.UNSET}, name
            assert all({*(span.attributes or {})} <= ATTRIBUTES for span in spans), name


def calls_of_fresh(plain: Store, store: Any, cold: Path) -> Any:
    """Delete all sessions, create those that the calls need, and return the calls."""
    for info in list(plain.iter_sessions(expired=None)):
        plain.delete(info.key)
    prepare(plain, cold)
    return calls_of(store, cold)


def test_span_has_the_attributes_of_the_semantic_conventions(watched: Store, telemetry: Telemetry) -> None:
    watched.create("k", messages=messages(3))
    watched.conversation("k").messages()
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


@pytest.mark.slow
def test_span_has_the_key_of_its_session(watched: Store, telemetry: Telemetry, clock: Clock, tmp_path: Path) -> None:
    watched.create("k")
    watched.conversation("k").fork("copy")
    watched.conversation("k").fork(key="another")
    clock.move(days=2)
    watched.expire(older_than=timedelta(days=1), archive=tmp_path / "cold.db")
    watched.restore("k", tmp_path / "cold.db")
    keys = [attribute(span, "gen_ai.conversation.id") for span in telemetry.spans()]
    assert keys == ["k", "k", "k", None, "k"]


def test_spans_are_children_of_the_current_span(watched: Store, telemetry: Telemetry) -> None:
    watched.create("k")

    async def ask() -> None:
        async with AsyncStore(watched) as store:
            await store.get("k")

    telemetry.spans()
    with telemetry.request() as request:
        watched.get("k")
        watched.transact(lambda tx: tx.touch("k"))
        with watched.transaction() as tx:
            tx.get("k")
        asyncio.run(ask())
    get, touch, transact, inner_get, transaction, in_asyncio, _ = telemetry.spans()
    assert [parent_id(span) for span in (get, transact, transaction, in_asyncio)] == [id_of(request)] * 4
    assert parent_id(touch) == transact.context.span_id
    assert parent_id(inner_get) == transaction.context.span_id


def test_spans_of_calls_in_the_summarizer_are_children_of_the_compact_span(either: Store, telemetry: Telemetry) -> None:
    talk = either.open("k", messages=messages(2))

    def summarize(window: list[Message]) -> Message:
        talk.info()
        return message("summary")

    telemetry.spans()
    talk.compact(summarize)
    info, compact = telemetry.spans()
    assert [attribute(span, OPERATION) for span in (info, compact)] == ["info", "compact"]
    assert parent_id(info) == compact.context.span_id


def test_span_of_an_iteration_is_not_current_while_the_consumer_runs(either: Store, telemetry: Telemetry) -> None:
    for key in "abc":
        either.create(key, messages=messages(3))
    telemetry.spans()
    for iteration, rows in (
        (either.iter_sessions(page_size=2), 3),
        (either.conversation("a").iter_messages(page_size=2), 3),
        (either.conversation("a").tail(follow=False), 1),
    ):
        with telemetry.request() as request:
            for _ in iteration:
                assert trace.get_current_span() is request
                either.conversation("a").info()
        *infos, iterated, _ = telemetry.spans()
        assert [attribute(span, OPERATION) for span in infos] == ["info"] * rows
        assert {parent_id(span) for span in (*infos, iterated)} == {id_of(request)}
        assert attribute(iterated, "db.response.returned_rows") == rows


def test_iterator_that_is_never_advanced_has_no_span(either: Store, telemetry: Telemetry) -> None:
    either.conversation("missing").tail(follow=False)
    either.conversation("missing").iter_messages()
    assert telemetry.spans() == []


def test_span_of_a_failed_iteration_records_the_error(either: Store, telemetry: Telemetry) -> None:
    talk = either.open("k", messages=messages(3))
    telemetry.spans()
    iteration = talk.iter_messages(page_size=2)
    assert [next(iteration).seq for _ in range(2)] == [1, 2]
    either.delete("k")
    with pytest.raises(SessionNotFound):
        next(iteration)
    with pytest.raises(SessionNotFound):
        list(either.conversation("k").tail(follow=False))
    _, iterated, tail = telemetry.spans()
    for span, operation, rows in ((iterated, "iter_messages", 2), (tail, "tail", 0)):
        assert (attribute(span, OPERATION), attribute(span, "db.response.returned_rows")) == (operation, rows)
        assert attribute(span, "error.type") == "SessionNotFound"
        assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)


def test_closed_iteration_ends_its_span(watched: Store, telemetry: Telemetry) -> None:
    talk = watched.open("k", messages=messages(3))
    following = talk.tail()
    next(following)

    async def take_one() -> None:
        async with AsyncStore(watched) as store:
            async with aclosing(store.conversation("k").tail()) as following:
                await anext(following)
            waiting = store.conversation("k").tail(after=3)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(waiting), 0.01)

    assert telemetry.operations() == ["open"]
    following.close()
    asyncio.run(take_one())
    for span, rows in zip(telemetry.spans(), (1, 1, 0), strict=True):
        assert (attribute(span, OPERATION), attribute(span, "db.response.returned_rows")) == ("tail", rows)
        assert span.status.status_code is StatusCode.UNSET
        assert attribute(span, "error.type") is None


def test_begin_call_and_turn_have_one_span_even_if_they_wait(either: Store, telemetry: Telemetry) -> None:
    talk = either.open("k")
    asking = talk.append_message(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
    talk.calls.begin(asking.seq, 0)
    wait = timedelta(milliseconds=50)
    with talk.turn():
        telemetry.spans()
        with pytest.raises(CallInProgress):
            talk.calls.begin(asking.seq, 0, wait=wait)
        with pytest.raises(TurnInProgress):
            talk.turn(wait=wait).__enter__()
        spans = telemetry.spans()
    assert [attribute(span, OPERATION) for span in spans] == ["calls.begin", "turn"]
    assert [attribute(span, "error.type") for span in spans] == ["CallInProgress", "TurnInProgress"]


def test_calls_of_derived_stores_have_spans(watched: Store, telemetry: Telemetry) -> None:
    watched.create("k")
    telemetry.spans()
    with watched.transaction() as tx:
        tx.append_message("k", message())
    with watched.snapshot() as view:
        view.conversation("k").info()
    with watched.engine.begin() as connection:
        watched.using(connection).get("k")
    watched.open("k").child("a").append_message(message())
    assert telemetry.operations() == [
        *("append_message", "transaction", "info", "snapshot", "get", "open", "child", "append_message")
    ]


def test_calls_of_a_store_derived_with_at_or_in_turn_have_spans(either: Store, telemetry: Telemetry) -> None:
    with either.open("k").turn() as turn:
        for derived in (either.at(either.position()), either.in_turn(getattr(turn, "awaited", turn))):
            telemetry.spans()
            derived.append_message("k", message())
            derived.conversation("k").info()
            list(derived.conversation("k").iter_messages())
            list(derived.iter_sessions())
            derived.conversation("k").compact(lambda _: message("summary"))
            assert telemetry.operations() == ["append_message", "info", "iter_messages", "iter_sessions", "compact"]


def test_deriving_a_store_with_at_or_in_turn_sends_no_statement(url: str) -> None:
    statements: list[str] = []
    with Store(url, on_statement=lambda text, _: statements.append(text)) as store:
        turn, position = store.open("k").turn(), store.position()
        statements.clear()
        store.at(position)
        store.in_turn(turn)
    assert statements == []


def test_span_of_a_failed_transaction_or_snapshot_records_the_error(watched: Store, telemetry: Telemetry) -> None:
    with pytest.raises(ZeroDivisionError), watched.transaction():
        raise ZeroDivisionError
    with pytest.raises(SessionNotFound), watched.snapshot() as view:
        view.get("missing")
    spans = telemetry.spans()
    assert [attribute(span, OPERATION) for span in spans] == ["transaction", "get", "snapshot"]
    assert [attribute(span, "error.type") for span in spans] == ["ZeroDivisionError", *["SessionNotFound"] * 2]


def test_failed_turn_has_a_span_for_its_end(either: Store, telemetry: Telemetry) -> None:
    turn = either.open("k").turn()
    with pytest.raises(ZeroDivisionError), turn:
        turn.append(message(str(1 / 0)))
    assert telemetry.operations() == ["open", "turn", "turn.abandon"]


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


@pytest.mark.slow
def test_stored_texts_are_not_recorded(watched: Store, telemetry: Telemetry, clock: Clock, tmp_path: Path) -> None:
    word = "marzipan"
    talk = watched.open("k", user_id=word, agent_id=word, title=word, metadata={word: word}, settings={word: word})
    talk.append_message(message(word, id=word, author=word, extra={word: word}))
    talk.save_turn([message(f"{word} too", name=word)], {word: 1}, id=f"{word} turn", metadata={"model": word})
    talk.values.set({word: word})
    watched.shared_values(word).set({word: 1})
    with talk.turn(f"{word} in progress") as turn:
        turn.write(word)
        turn.append(message(f"{word} answer", role="assistant"))
    talk.compact(lambda _: summary(word))
    talk.find_message(word)
    talk.edits.redact(1)
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
    watched.conversation("k").append_messages(messages(2))
    talk.save_turn(messages(3), id="turn")
    talk.save_turn(messages(3), id="turn")
    talk.inbox.put(message())
    with talk.turn() as turn:
        turn.take_inbox()
        turn.append(message())
        turn.append_messages(messages(2))
    assert watched.conversation("k").info().message_count == 10
    assert telemetry.metric("lango_store.appended_messages").value == 10


def test_metrics_count_purged_sessions(watched: Store, telemetry: Telemetry, clock: Clock) -> None:
    for _ in range(3):
        watched.create(ttl=timedelta(hours=1))
    clock.move(hours=2)
    watched.expire(dry_run=True)
    assert telemetry.metric("lango_store.purged_sessions") is None
    watched.expire()
    assert telemetry.metric("lango_store.purged_sessions").value == 3
    watched.create(ttl=timedelta(hours=1))
    clock.move(hours=2)
    watched.transact(lambda tx: tx.expire())
    assert telemetry.metric("lango_store.purged_sessions").value == 4


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


def test_metrics_include_the_time_spent_waiting_for_a_connection(url: str, telemetry: Telemetry) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        telemetry.watch(store)
        store.create("k")
        assert telemetry.metric("db.client.connection.wait_time") is None
        with ThreadPoolExecutor(1) as pool:
            with engine.connect():
                waiting = pool.submit(store.conversation("k").info)
                wait_for_waiters(engine, 1)
            waiting.result()
        point = telemetry.metric("db.client.connection.wait_time")
        assert (point.count, point.sum > 0) == (1, True)
        assert point.attributes == {"db.system.name": engine.dialect.name}
    engine.dispose()


@pytest.mark.slow
def test_opentelemetry_is_imported_only_with_lango_store_telemetry() -> None:
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
        other.open("k").turns.list()
    assert telemetry.spans() == []
    assert type(other) is Store


class Shouting(Store):
    """A store of an application that changes what it stores and returns."""

    def append_message(self, key: str, message: Message, **options: Any) -> Message:
        louder = message.model_copy(update={"content": str(message.content).upper()})
        return super().append_message(key, louder, **options)

    def append_quietly(self, key: str, text: str) -> Message:
        return self.append_message(key, Message.user(text))


def test_instrumented_subclass_keeps_its_methods(url: str, telemetry: Telemetry) -> None:
    with Shouting(url) as store:
        telemetry.watch(store)
        telemetry.watch(store)
        store.append_message("k", Message.user("a"), create=True)
        store.append_quietly("k", "b")
        with store.transaction() as transaction:
            transaction.append_message("k", Message.user("c"))
        assert [each.content for each in store.conversation("k").messages()] == ["A", "B", "C"]
        assert isinstance(store, Shouting)
        assert [span.name for span in telemetry.spans()].count("lango_store append_message") == 3


class CountingConversation(Conversation):
    """A conversation of an application that counts its appends, and returns iterators that are not generators."""

    appended = 0

    def append_message(self, message: Message, **options: Any) -> Message:
        self.appended += 1
        return super().append_message(message, **options)

    def iter_messages(self, **options: Any) -> Iterator[Message]:
        return iter([each.model_copy(update={"author": "ann"}) for each in super().iter_messages(**options)])


class CountingStore(Store):
    """A store of an application that counts its appends, and opens conversations of another class."""

    appended = 0

    def append_message(self, key: str, message: Message, **options: Any) -> Message:
        self.appended += 1
        return super().append_message(key, message, **options)

    def iter_sessions(self, **options: Any) -> Iterator[SessionInfo]:
        return iter([*super().iter_sessions(**options)])

    def conversation(self, key: str) -> CountingConversation:
        return CountingConversation(self._context, key)


def test_attributes_that_an_overridden_method_sets_are_kept(url: str, telemetry: Telemetry) -> None:
    with CountingStore(url) as store:
        telemetry.watch(store)
        conversation = store.conversation("k")
        store.append_message("k", message(), create=True)
        conversation.append_message(message())
        assert (store.appended, conversation.appended) == (1, 1)
        assert telemetry.operations() == ["append_message", "append_message"]


def test_overridden_iterations_may_return_any_iterator(url: str, telemetry: Telemetry) -> None:
    with CountingStore(url) as store:
        telemetry.watch(store)
        store.create("k", messages=messages(2))
        assert [each.key for each in store.iter_sessions()] == ["k"]
        assert [each.author for each in store.conversation("k").iter_messages()] == ["ann", "ann"]
        assert telemetry.operations() == ["create", "iter_sessions", "iter_messages"]


def test_instrumented_subclass_keeps_its_methods_in_every_derived_store(url: str, telemetry: Telemetry) -> None:
    with Shouting(url) as store:
        telemetry.watch(AsyncStore(store))
        store.create("k")
        with store.engine.begin() as connection:
            store.using(connection).append_message("k", message("using"))
        store.at(store.position()).append_message("k", message("at"))
        store.transact(lambda tx: tx.append_message("k", message("transact")))
        with store.conversation("k").turn() as turn:
            store.in_turn(turn).append_message("k", message("in turn"))
        asyncio.run(AsyncStore(store).append_message("k", message("async")))
        assert contents(store.conversation("k").messages()) == ["USING", "AT", "TRANSACT", "IN TURN", "ASYNC"]
