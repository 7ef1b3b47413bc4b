"""OpenTelemetry: a span for each call of a store, and metrics of appends, retries, pool waits and purges.

Nothing is recorded before `instrument` is called. Spans and metrics never have contents of messages.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from opentelemetry import metrics, trace
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

from lango_store._engine.fair_pool import FairPool
from lango_store._values.model import Message, Turn
from lango_store._values.reports import ExpiryReport
from lango_store._values.session import Session
from lango_store.aio import AsyncStore
from lango_store.conversation import Conversation
from lango_store.running_turn import RunningTurn
from lango_store.store import Store

SEMANTIC_CONVENTIONS: Final = "https://opentelemetry.io/schemas/1.43.0"
"""The version of OpenTelemetry's semantic conventions that the attributes follow."""

_NAME: Final = "lango_store"
_HANDLES: Final = {"conversation", "using", "at", "in_turn", "turn", "tail", "iter_messages", "iter_sessions"}
"""Methods that use the database later, or not at all: they have no span, but return traced objects."""

_BLOCKS: Final = {"transaction", "snapshot"}
_OF_TURN: Final = ("append", "append_messages", "inbox", "flush", "interrupt", "save", "abandon")
_APPENDS: Final = {
    *("append_message", "append_messages", "save_turn"),
    *("turn.append", "turn.append_messages", "turn.inbox", "turn.interrupt"),
}


def instrument(
    store: Store | AsyncStore,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Record a span for each call of a store, of its conversations and of their turns, and metrics.

    A span has `db.system.name`, `db.operation.name` (the method), `gen_ai.conversation.id` (the session key),
    `db.response.returned_rows` and, after an error, `error.type`. The metrics are `lango_store.appended_messages`,
    `lango_store.retries`, `lango_store.purged_sessions` and `db.client.connection.wait_time`.

    Args:
        store: The store. For an `AsyncStore`, its synchronous store is instrumented.
        tracer_provider: Where spans go. Defaults to the global provider.
        meter_provider: Where metrics go. Defaults to the global provider.
    """
    wrapped = store.store if isinstance(store, AsyncStore) else store
    context = wrapped.context
    tracer = trace.get_tracer(_NAME, tracer_provider=tracer_provider, schema_url=SEMANTIC_CONVENTIONS)
    meter = metrics.get_meter(_NAME, meter_provider=meter_provider, schema_url=SEMANTIC_CONVENTIONS)
    retries = meter.create_counter("lango_store.retries", unit="{retry}", description="Repeated calls.")
    waits = meter.create_histogram("db.client.connection.wait_time", unit="s", description="Waits for a connection.")
    system = {"db.system.name": wrapped.engine.dialect.name}
    context.telemetry = _Telemetry(
        tracer,
        meter.create_counter("lango_store.appended_messages", unit="{message}", description="Appended messages."),
        meter.create_counter("lango_store.purged_sessions", unit="{session}", description="Purged sessions."),
        system,
    )
    context.on_retry = lambda: retries.add(1, system)
    if isinstance(wrapped.engine.pool, FairPool):
        wrapped.engine.pool.on_wait = lambda seconds: waits.record(seconds, system)
    wrapped.__class__ = _TracedStore


class _Telemetry:
    """Records the calls of one store."""

    def __init__(self, tracer: trace.Tracer, appended: Any, purged: Any, system: dict[str, str]) -> None:
        self._tracer, self._appended, self._purged, self._system = tracer, appended, purged, system

    def call(self, name: str, key: str | None, method: Callable[[], Any]) -> Any:
        """Run a method in a span."""
        attributes = {**self._system, "db.operation.name": name}
        if key is not None:
            attributes["gen_ai.conversation.id"] = key
        with self._tracer.start_as_current_span(
            f"{_NAME} {name}",
            kind=SpanKind.CLIENT,
            attributes=attributes,
            record_exception=False,  # the text of an exception may quote what was given
            set_status_on_exception=False,
        ) as span:
            try:
                result = method()
            except Exception as error:
                span.set_attribute("error.type", type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR))
                raise
            rows = _messages_in(result)
            if rows is not None:
                span.set_attribute("db.response.returned_rows", len(rows))
        if name in _APPENDS and rows and not (isinstance(result, Turn) and result.replayed):
            self._appended.add(sum(not each.replayed for each in rows), self._system)
        if isinstance(result, ExpiryReport) and not result.dry_run:
            self._purged.add(result.sessions, self._system)
        return result


def _messages_in(result: Any) -> Sequence[Any] | None:
    if isinstance(result, Message):
        return [result]
    if isinstance(result, Session | Turn):
        return result.messages
    return result if isinstance(result, list) and (not result or isinstance(result[0], Message)) else None


def _traced(name: str, method: Callable[..., Any], plain: type) -> Callable[..., Any]:
    """Return a method that runs the method of a plain copy of its object, so that calls within it have no spans."""
    parameters = list(inspect.signature(method).parameters)[1:]
    has_key = parameters[:1] == ["key"]

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        key = getattr(self, "key", None)
        if has_key:
            key = arguments[0] if arguments else options.get("key")
        inner = copy.copy(self)
        inner.__class__ = plain
        if name in _HANDLES:
            return _trace(method(inner, *arguments, **options))
        if name == "transact":
            function = options.pop("function", None) or arguments[0]
            arguments = (lambda tx: function(_trace(tx)), *arguments[1:])
        run = functools.partial(method, inner, *arguments, **options)
        telemetry = self._context.telemetry
        result = telemetry.call(name, key if isinstance(key, str) else None, run)
        return _tracing(result) if name in _BLOCKS else _trace(result)

    return call


@contextmanager
def _tracing(block: AbstractContextManager[Store]) -> Iterator[Store]:
    with block as store:
        yield _trace(store)


def _trace(result: Any) -> Any:
    """Make a store or a conversation that a call returned a traced one."""
    if type(result) is Store:
        result.__class__ = _TracedStore
    elif type(result) is Conversation:
        result.__class__ = _TracedConversation
    elif type(result) is RunningTurn:
        result.__class__ = _TracedTurn
    return result


def _traced_in_turn(name: str) -> Callable[..., Any]:
    """Return a method of a turn. A turn has a state, so calls within it have no spans because its class is changed."""
    method = getattr(RunningTurn, name)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        run = functools.partial(method, self, *arguments, **options)
        self.__class__ = RunningTurn
        try:
            return self._context.telemetry.call(f"turn.{name}", self.key, run)
        finally:
            self.__class__ = _TracedTurn

    return call


def _traced_class(plain: type) -> type:
    methods = {
        name: _traced(name, method, plain)
        for name, method in vars(plain).items()
        if inspect.isfunction(method) and not name.startswith("_") and name != "close"
    }
    return type(f"Traced{plain.__name__}", (plain,), {"__slots__": (), "__doc__": plain.__doc__, **methods})


_TracedStore: Final = _traced_class(Store)
_TracedConversation: Final = _traced_class(Conversation)
_TracedTurn: Final = type("TracedTurn", (RunningTurn,), {name: _traced_in_turn(name) for name in _OF_TURN})
