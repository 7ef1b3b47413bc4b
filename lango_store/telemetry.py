"""OpenTelemetry spans of calls, and metrics of appends, retries, waits and purges.

Call `instrument` to record them. Spans and metrics do not contain texts of messages.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, closing, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, Final, TypeVar

from lango_store._connections.context import Telemetry
from lango_store._engine.fair_pool import FairPool
from lango_store._parts.groups import SessionPart, StorePart
from lango_store._parts.turns import PendingCompaction
from lango_store._parts.values import Values
from lango_store._values.model import Message, Turn
from lango_store._values.session import Session
from lango_store.aio import AsyncStore
from lango_store.conversation import Conversation, RunningTurn, Turns
from lango_store.errors import needs_extra
from lango_store.store import Maintenance, Store

with needs_extra("otel"):
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider

R = TypeVar("R")

SEMANTIC_CONVENTIONS: Final = "https://opentelemetry.io/schemas/1.43.0"
"""The version of OpenTelemetry's semantic conventions that the attributes follow."""

_NAME: Final = "lango_store"
_ITERATORS: Final = {"tail", "iter_messages", "iter_sessions"}
_HANDLES: Final = {"conversation", "shared_values", "turn"}
_UNTRACED: Final = {
    *("close", "using", "at", "for_user", "in_turn"),  # make no database call
    "work",  # runs as long as the process
    *("turn.begin", "turn.write", "turn.call"),  # call other methods
    *("transact", "transaction", "snapshot"),  # record their own spans
}
_PARTS: Final = {"_begin_call", "_end_call"}
"""Private methods that have spans, because a public one, `turn.call`, runs code of the application between them."""
_APPENDS: Final = {
    *("append_message", "append_messages", "save_turn"),
    *("turn.append", "turn.append_messages", "turn.take_inbox", "turn.interrupt"),
}
_TRACED: Final[dict[type, str]] = {
    Store: "",
    Conversation: "",
    Maintenance: "maintenance.",
    RunningTurn: "turn.",
    Turns: "turns.",
    PendingCompaction: "compaction.",
    Values: "values.",
    **{
        kind: f"{kind.__name__.removeprefix('Store').lower()}."
        for kind in (*SessionPart.__subclasses__(), *StorePart.__subclasses__())
        if kind is not Conversation
    },
}
"""The classes whose calls are recorded, with the prefix of the names of their spans."""


def instrument(
    store: Store | AsyncStore,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
) -> None:
    """Record spans and metrics of a store, of its conversations and of their turns.

    Call this function before you open conversations: those that exist already are not recorded. Each call of a method
    that uses the database is a span.

    A span has `db.system.name`, `db.operation.name` (the method), `gen_ai.conversation.id` (the session key),
    `db.response.returned_rows` and, after an error, `error.type`. The metrics are `lango_store.appended_messages`,
    `lango_store.retries`, `lango_store.purged_sessions` and `db.client.connection.wait_time` (only for the pool of
    `lango_store.create_engine`).

    Args:
        store: The store. For an `AsyncStore`, its synchronous store is instrumented.
        tracer_provider: The provider that gets the spans. Defaults to the global provider.
        meter_provider: The provider that gets the metrics. Defaults to the global provider.
    """
    wrapped = store.store if isinstance(store, AsyncStore) else store
    context = wrapped._context
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
    plain: Any = getattr(wrapped, "_untraced", type(wrapped))
    wrapped.__class__ = _traced_class(plain)


class _Telemetry(Telemetry):
    """Records the calls of one store."""

    def __init__(self, tracer: trace.Tracer, appended: Any, purged: Any, system: dict[str, str]) -> None:
        self._tracer, self._appended, self._purged, self._system = tracer, appended, purged, system

    @contextmanager
    def span(self, name: str, key: Any, *, is_current: bool = True) -> Iterator[Any]:
        """Record a block as one span; yield an object whose `rows` takes the number of returned rows."""
        attributes = self._system | {"db.operation.name": name}
        if isinstance(key, str):
            attributes["gen_ai.conversation.id"] = key
        span = self._tracer.start_span(f"{_NAME} {name}", kind=SpanKind.CLIENT, attributes=attributes)
        # No text of an exception is recorded: it may quote arguments.
        current = trace.use_span(span, record_exception=False, set_status_on_exception=False)
        recorded = SimpleNamespace(rows=None)
        try:
            with current if is_current else nullcontext():
                yield recorded
        except Exception as error:
            span.set_attribute("error.type", type(error).__qualname__)
            span.set_status(Status(StatusCode.ERROR))
            raise
        finally:
            if recorded.rows is not None:
                span.set_attribute("db.response.returned_rows", recorded.rows)
            span.end()

    def each(self, name: str, key: Any, items: Any) -> Generator[Any, None, None]:
        """Record an iteration as one span, which is not the parent of spans that the caller starts in the loop."""
        # An override in a subclass may return an iterator without `close`, such as a `map`.
        closed = closing(items) if hasattr(items, "close") else nullcontext()
        with self.span(name, key, is_current=False) as recorded, closed:
            recorded.rows = 0
            for item in items:
                recorded.rows += 1
                yield item

    async def each_async(self, name: str, key: Any, items: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
        """Record an asynchronous iteration as `each` does."""
        with self.span(name, key, is_current=False) as recorded:
            recorded.rows = 0
            async with aclosing(items):
                async for item in items:
                    recorded.rows += 1
                    yield item

    def call(self, name: str, key: Any, method: Callable[[], Any]) -> Any:
        """Run a method in a span."""
        with self.span(name, key) as recorded:
            result = method()
            items = result.messages if isinstance(result, Session | Turn) else result
            items = [items] if isinstance(items, Message) else items
            recorded.rows = len(items) if isinstance(items, list) else None
        if name in _APPENDS and items and not (isinstance(result, Turn) and result.replayed):
            self._appended.add(sum(not each.replayed for each in items), self._system)
        if name == "expire" and not result.dry_run:
            self._purged.add(result.sessions, self._system)
        return result


def _traced(name: str, method: Callable[..., Any], plain: type) -> Callable[..., Any]:
    """Return a method that has a span and runs on an untraced copy of the object, so that inner calls have no spans."""
    operation = _TRACED[_base(plain)] + name.removeprefix("_")
    signature = inspect.signature(method)

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        key = getattr(self, "key", None) or signature.bind_partial(self, *arguments, **options).arguments.get("key")
        inner = copy.copy(self)
        inner.__class__ = plain
        if hasattr(self, "__dict__"):  # the copy shares the attributes, which the method may set
            inner.__dict__ = self.__dict__
        run = functools.partial(method, inner, *arguments, **options)
        telemetry = self._context.telemetry
        if name in _HANDLES:
            return _trace(run())
        if name in _ITERATORS:
            return telemetry.each(name, key, run())
        return _trace(telemetry.call(operation, key, run))

    return call


def _trace(result: Any) -> Any:
    """Trace the calls of a conversation, turn or group that a call returned; return any other result unchanged."""
    if isinstance(result, tuple(_TRACED)) and not isinstance(result, Store) and not hasattr(result, "_untraced"):
        plain: Any = type(result)
        result.__class__ = _traced_class(plain)
    return result


def _base(plain: type) -> type:
    return next(each for each in _TRACED if issubclass(plain, each))


def _traced_group(group: property) -> property:
    get: Any = group.fget
    return property(lambda self: _trace(get(self)), doc=group.__doc__)


@functools.cache
def _traced_class(plain: type) -> type:
    """Return a subclass that traces the methods of the package, also where the application overrides them."""
    base = _base(plain)
    members = {name: each for kind in reversed(base.__mro__[:-1]) for name, each in vars(kind).items()}
    methods: dict[str, Any] = {
        name: _traced(name, getattr(plain, name), plain)
        for name, method in members.items()
        if inspect.isfunction(method) and (name in _PARTS or not name.startswith("_"))
        if _TRACED[base] + name not in _UNTRACED
    }
    methods |= {name: _traced_group(each) for name, each in members.items() if isinstance(each, property)}
    attributes = {"__slots__": (), "__doc__": plain.__doc__, "_untraced": plain}
    return type(f"Traced{plain.__name__}", (plain,), attributes | methods)
