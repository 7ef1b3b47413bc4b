"""A `Context` is what every operation needs of a store: its settings, its connections and its retries.

`using`, `at` and similar methods return a copy of the context that reads or writes on other connections.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy import orm

from lango_store._connections import cancellation
from lango_store._connections.group_commit import WriteQueue
from lango_store._connections.providers import Callers, Connections, Pooled
from lango_store._connections.replicas import Replicated, position_of, text_of
from lango_store._connections.retry import Retry
from lango_store._connections.schema_gate import SchemaGate
from lango_store._dialect import DETECTED, AnyConnection, Moment, dialect_of
from lango_store._dialect.postgresql import write_position
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import busy_timeout, database_file
from lango_store._operations.binds import BEFORE_ANY_EXPIRY
from lango_store._operations.log.appends import Batch
from lango_store._operations.log.changes import Recorder, recording
from lango_store._operations.log.removals import Cut, cut
from lango_store._operations.session import sessions
from lango_store._operations.session.guards import Guard
from lango_store._operations.session.lists import Filter
from lango_store._operations.session.sessions import ANYTHING, Expected
from lango_store._rows.encoding import aware
from lango_store._rows.payloads import threshold_of
from lango_store._values.model import UNSET, Message, MessageRole, SessionInfo, Unset, new_key
from lango_store.errors import DamagedMessage, DatabaseBusy, DatabaseUnavailable, LangoStoreError, SessionExists, quoted

logger = logging.getLogger("lango_store")

P = ParamSpec("P")
R = TypeVar("R")

IN_ASYNC_SESSIONS: Final = (
    "inside an async session (SQLAlchemy's, which needs greenlet: pip install 'lango-store[asyncio]') write "
    "`await session.run_sync(lambda s: store.using(s).append_message(key, message))`"
)

EVERY: Final = ""
"""Stands for the session key when a connection is opened by code that checks or narrows each session itself."""

TimeSource = Callable[[], datetime]
DefaultTTL = timedelta | None | Callable[[str], timedelta | None]
TokenCounter = Callable[[Message], int]


utc_now = functools.partial(datetime.now, UTC)
"""Returns the current time in UTC as an aware datetime."""


@functools.cache
def _warn_once(text: str) -> None:
    logger.warning(text)


def _check_function(name: str, function: object) -> None:
    if function is not None and (not callable(function) or inspect.iscoroutinefunction(function)):
        raise TypeError(f"{name}={quoted(function)}: give a function that is not a coroutine function, or None")


class Followers(Protocol):
    """The followed sessions of a store, whose readers learn of writes."""

    @property
    def channels(self) -> Mapping[str, Any]:
        """The channels by session key; a write notifies only if there are any."""

    def notify(self) -> None:
        """Note that this process has committed a write."""

    def interrupt(self) -> None:
        """Wake all readers, so that each notices if it has to end."""

    def close(self) -> None:
        """End the waits of all readers."""


class Telemetry:
    """The interface to record calls of several steps. It records nothing until `telemetry.instrument` replaces it."""

    def span(self, name: str, key: str | None, *, is_current: bool = True) -> AbstractContextManager[Any]:
        """Record the block as one span; if `is_current`, it is the parent of the spans that the block opens."""
        return nullcontext()

    def each_async(self, name: str, key: str | None, items: AsyncGenerator[R, None]) -> AsyncGenerator[R, None]:
        """Record an iteration as one call."""
        return items


class Context:
    """Runs operations on connections of an engine or, after `using`, on the caller's connection."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        owned: bool,
        migrate: bool = False,
        default_ttl: DefaultTTL = None,
        clock: TimeSource | None = None,
        token_counter: TokenCounter | None = None,
        on_statement: Observer | None = None,
        retry: timedelta | None = None,
        replica: sa.Engine | None = None,
        payload_threshold: int | None | Unset = None,
        recorder: Recorder | None = None,
        set_aside: Cut = cut,
        watch: Callable[[Context], Followers] | None = None,
    ) -> None:
        if type(migrate) is not bool:
            raise TypeError(f"migrate is {type(migrate).__name__}: give True or False")
        if callable(default_ttl):
            _check_function("default_ttl", default_ttl)
        else:
            sessions.seconds(default_ttl, "default_ttl")
        _check_function("clock", clock)
        _check_function("token_counter", token_counter)
        _check_function("on_statement", on_statement)
        if retry is not None and not (isinstance(retry, timedelta) and retry >= timedelta(0)):
            raise ValueError(f"retry={quoted(retry)}: give a timedelta of 0 or more, or None")
        if payload_threshold not in (None, UNSET) and not (type(payload_threshold) is int and payload_threshold > 0):
            raise ValueError(f"payload_threshold={quoted(payload_threshold)}: give a length of 1 or more, or None")
        self.engine = engine
        self.recorder = recorder
        """Records what changes remove; None if nothing does."""
        self.set_aside = set_aside
        """Removes the end of the log as an alternative, with `keep=True`."""
        self.payload_threshold = threshold_of(payload_threshold)
        """The lengths from which strings become payloads; None if no string does."""
        self._owned = owned
        self._default_ttl = default_ttl
        self._clock = clock
        self.token_counter = token_counter
        self._gate = SchemaGate(migrate=migrate)
        self._gates = [self._gate]
        self._replica = replica
        self._on_statement = on_statement
        pooled = Pooled(engine, self._gate, on_statement)
        if owned and database_file(engine.url) is not None:
            pooled.queue = WriteQueue(busy_timeout(engine.url))
        self._connections: Connections = pooled
        if replica is not None:
            if not all(dialect_of(each).has_replicas for each in (engine, replica)):
                raise ValueError("replica: SQLite has no replicas: use PostgreSQL URLs for store and replica")
            self._gates.append(SchemaGate(migrate=False))
            self._connections = Replicated(pooled, Pooled(replica, self._gates[1], on_statement))
        self.watcher = None if watch is None else watch(self)
        """Shares the events of followed sessions with their readers."""
        if self.watcher is not None:
            pooled.readers, pooled.after_write = self.watcher.channels, self.watcher.notify
        self._retry = Retry(engine, 0 if retry is None else retry.total_seconds())
        self._allow_replica = True
        self._is_bound = False
        self.owner: str | None = None
        """The user whose sessions alone can be reached; None for all sessions."""
        self._guard: tuple[str, Guard] | None = None
        self.after_transact: set[Callable[[], None]] = set()
        """Functions that are called after transactions of this store."""
        self.telemetry = Telemetry()
        """Records calls if `telemetry.instrument` has set it up."""
        self.in_callers_transaction = False
        """True if connection and transaction belong to the caller."""
        self.gives_ids = self._retry.is_on
        """True if messages and turns without an id get one, so that a retry does not store them twice."""
        self.stores_unchanged = token_counter is None and not self.gives_ids
        """True if the store adds neither an id nor a token count to messages."""

    def __copy__(self) -> Context:
        copied = object.__new__(type(self))
        copied.__dict__.update(self.__dict__)
        return copied

    def __reduce__(self) -> Any:
        raise TypeError(
            "a store and its conversations cannot be pickled or deep-copied: pass the URL and the key, and open a "
            "Store in the other process"
        )

    # Policy

    @property
    def on_retry(self) -> Callable[[], None] | None:
        """A function that is called before each retry."""
        return self._retry.on_retry

    @on_retry.setter
    def on_retry(self, function: Callable[[], None] | None) -> None:
        self._retry.on_retry = function

    def moment(self, connection: AnyConnection) -> Moment:
        """Return the current time for one statement; None if the statement uses the database's clock."""
        if self._clock is not None:
            return self.clock_time()
        dialect = vars(connection.dialect).get(DETECTED) or dialect_of(connection)  # a call costs more
        if not dialect.tells_time:
            return utc_now()
        return sessions.server_time(connection) if dialect.asks_time else None

    def now(self, connection: AnyConnection) -> datetime:
        """Return one time for several statements: from `clock` if set, else PostgreSQL or, on SQLite, this machine."""
        moment = self.moment(connection)
        return sessions.server_time(connection) if moment is None else moment

    def clock_time(self) -> datetime:
        """Return the time of the store's `clock`, by default of this machine's clock."""
        if self._clock is None:
            return utc_now()
        return aware(self._clock(), "clock()")

    def ttl(self, key: str, ttl: timedelta | None | Unset) -> timedelta | None:
        """Return the TTL of a new session: the `ttl` argument or, if it is not set, the store's default."""
        if ttl is not UNSET:
            return ttl
        if not callable(self._default_ttl):
            return self._default_ttl
        default = self._default_ttl(key)
        sessions.seconds(default, "the result of default_ttl")
        return default

    def counted(self, message: Message) -> Message:
        """Add a token count to a message that has none. Records get none, because models do not read them."""
        if self.token_counter is None or not isinstance(message, Message) or message.tokens is not None:
            return message  # a value that is not a Message is refused later, by the encoding
        if message.role is MessageRole.RECORD:
            return message
        return message.model_copy(update={"tokens": self.token_counter(message)})

    def batch(self, messages: Iterable[Message]) -> Batch:
        """Add missing token counts, and encode messages; raise `InvalidMessage` if one cannot be stored."""
        return Batch([self.counted(message) for message in messages], self.payload_threshold)

    def with_id(self, message: Message) -> Message:
        """Add an id to a message without one if the store retries calls, so that no retry stores the message twice."""
        if not self.gives_ids or not isinstance(message, Message) or message.id is not None:
            return message
        return message.model_copy(update={"id": self.new_id()})

    def new_id(self) -> str:
        """Create a unique id for a session, a turn or a message: a UUIDv7 with the store's time."""
        return new_key(self.clock_time())

    # Retries

    def trying(self, call: Callable[[], R], *, if_lost: bool = True, detects_repeats: bool = False) -> R:
        """Call a function, and retry it after a transient error; see `Retry.retry_after`."""
        try:
            return call()
        except (DatabaseBusy, DatabaseUnavailable) as error:
            failed = error
        return self.retry_after(call, failed, if_lost=if_lost, detects_repeats=detects_repeats)

    def retry_after(
        self, call: Callable[[], R], error: LangoStoreError, *, if_lost: bool, detects_repeats: bool = False
    ) -> R:
        """Retry a call that failed with a transient error; raise any other error."""
        # The error may have ended the caller's transaction, and only the caller can repeat the whole transaction.
        if self.in_callers_transaction:
            raise error
        return self._retry.retry_after(call, error, if_lost=if_lost, detects_repeats=detects_repeats)

    # Operations: each one opens a connection and is retried after transient errors

    def read(
        self, operation: Callable[Concatenate[AnyConnection, Moment, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run a read that needs no snapshot; a replica may answer it."""
        return self.trying(functools.partial(self.read_once, self.single_read, operation, *args, **options))

    def read_together(
        self, operation: Callable[Concatenate[sa.Connection, Moment, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run several reads in one snapshot; a replica may answer them."""
        return self.trying(functools.partial(self.read_once, self.snapshot, operation, *args, **options))

    def read_once(
        self,
        opened: Callable[..., AbstractContextManager[Any]],
        operation: Callable[Concatenate[Any, Moment, P], R],
        *args: P.args,
        **options: P.kwargs,
    ) -> R:
        """Run a read without retries after transient errors; `opened` is `single_read` or `snapshot`.

        After `DamagedMessage`, repeat the read in a snapshot: a payload may have been deleted
        between two statements.
        """
        try:
            with opened(allow_replica=self._allow_replica) as connection:
                return operation(connection, self.moment(connection), *args, **options)
        except DamagedMessage:  # perhaps a payload was deleted between two statements, which a snapshot rules out
            with self.snapshot(allow_replica=self._allow_replica) as connection:
                return operation(connection, self.moment(connection), *args, **options)

    def write(
        self, operation: Callable[Concatenate[AnyConnection, Moment, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run a single write with few round trips, and retry it after transient errors."""
        try:
            return self._write(operation, *args, **options)
        except (DatabaseBusy, DatabaseUnavailable) as error:
            failed = error
        return self.retry_after(functools.partial(self._write, operation, *args, **options), failed, if_lost=True)

    def _write(
        self, operation: Callable[Concatenate[AnyConnection, Moment, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        cancellation.begin_write()
        opened = self._connections.single(writes=True) if self._guard is None else self.transaction()
        with opened as connection:
            return operation(connection, self.moment(connection), *args, **options)

    def transact(
        self, operation: Callable[Concatenate[sa.Connection, datetime, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run an operation in a transaction, and retry it after transient errors."""
        return self.trying(functools.partial(self._transact, operation, *args, **options))

    def transact_once(
        self, operation: Callable[Concatenate[sa.Connection, datetime, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        """Run an operation in a transaction, and do not retry it if its outcome is unknown.

        A second run could, for example, remove rows that were written after the first one.
        """
        return self.trying(functools.partial(self._transact, operation, *args, **options), if_lost=False)

    def _transact(
        self, operation: Callable[Concatenate[sa.Connection, datetime, P], R], *args: P.args, **options: P.kwargs
    ) -> R:
        with self.transaction() as connection, recording(connection, self.recorder):
            result = operation(connection, self.now(connection), *args, **options)
        for call in (*self.after_transact,):
            call()
        return result

    # Connections

    # `key` names the session, or is `EVERY`; only a store for one user needs it. With `creates`, it may be missing.

    def single_read(
        self, key: str | None = None, *, allow_replica: bool = False
    ) -> AbstractContextManager[AnyConnection]:
        """Open a connection for reads that need no snapshot; `allow_replica` permits a replica."""
        return self._connections.single(writes=False, allow_replica=allow_replica)

    def single_write(
        self, expected: Expected = ANYTHING, key: str | None = None, *, creates: bool = False
    ) -> AbstractContextManager[AnyConnection]:
        """Open a connection for one write, committed with as few round trips as the database allows.

        If the write itself has a guard, `expected` names it.
        """
        if self._guard is not None and expected.guard is None:
            return self.transaction()
        cancellation.begin_write()
        return self._connections.single(writes=True)

    def snapshot(self, key: str | None = None, *, allow_replica: bool = False) -> AbstractContextManager[sa.Connection]:
        """Open a connection for several reads of one snapshot; `allow_replica` permits a replica."""
        return self._connections.snapshot(allow_replica=allow_replica)

    def transaction(
        self, key: str | None = None, *, synced: bool = True, creates: bool = False
    ) -> AbstractContextManager[sa.Connection]:
        """Open a connection for a transaction; with `synced`, the commit waits for the disk."""
        cancellation.begin_write()
        opened = self._connections.transaction(synced=synced)
        return opened if self._guard is None else self._guarded(opened, *self._guard)

    @contextmanager
    def _guarded(
        self, opened: AbstractContextManager[sa.Connection], key: str, guard: Guard
    ) -> Iterator[sa.Connection]:
        """Check a guard at the beginning of a transaction; its session stays locked until the end."""
        with opened as connection:
            guard.renew(connection, self.moment(connection), key)
            yield connection

    def ping(self) -> None:
        """Check that the database answers, and check its schema and tables again."""
        with self.snapshot(EVERY) as connection:
            self._gate.check_again(connection)
            if slow := dialect_of(connection).slow_driver():
                _warn_once(": ".join(slow))

    def position(self) -> str | None:
        """Return the current write position of the database; None on SQLite, which has no replicas."""
        if not dialect_of(self.engine).has_replicas:
            return None
        with self.single_read(EVERY) as connection:
            return text_of(write_position(connection))

    def at(self, position: str | None) -> Context:
        """Return a copy of this context for reads that must include all writes up to a position."""
        context = copy.copy(self)
        context._connections = self._connections.at(0 if position is None else position_of(position))
        context._is_bound = True
        return context

    def using(self, source: sa.Connection | orm.Session | orm.scoped_session[Any]) -> Context:
        """Return a copy of this context on the caller's connection; the caller commits the writes."""
        if isinstance(source, orm.Session | orm.scoped_session):
            get_connection: Callable[[], sa.Connection] = lambda: source.connection()  # noqa: E731
        elif isinstance(source, sa.Connection):
            get_connection = lambda: source  # noqa: E731
        else:
            raise TypeError(
                f"using() takes a Connection or a Session, not {type(source).__name__}; {IN_ASYNC_SESSIONS}"
            )
        return self.bound(get_connection)

    def bound(self, get_connection: Callable[[], sa.Connection], *, read_only: bool = False) -> Context:
        """Return a copy of this context on a connection whose transaction the caller begins and ends."""
        context = copy.copy(self)
        context._connections = Callers(get_connection, self._gate, self._on_statement, read_only=read_only)
        context._is_bound = context.in_callers_transaction = True
        context.gives_ids = False
        context.stores_unchanged = self.token_counter is None
        return context

    def on_primary(self) -> Context:
        """Return a copy of this context for reads that only the primary may answer."""
        context = copy.copy(self)
        context._allow_replica = False
        return context

    def guarded(self, key: str, guard: Guard) -> Context:
        """Return a copy of this context whose writes all have the guard of a session."""
        context = copy.copy(self)
        context._guard = key, guard
        return context

    def unguarded(self) -> Context:
        """Return this context, or a copy of it, whose writes have no guard."""
        if self._guard is None:
            return self
        context = copy.copy(self)
        context._guard = None
        return context

    # Overridden by a store for one user

    def owns(self, connection: AnyConnection, key: str) -> bool:
        """Return True if a session may be reached."""
        return True

    def narrowed(self, chosen: Filter) -> Filter:
        """Return a filter that selects only sessions that may be reached."""
        return chosen

    def taken(self, error: SessionExists) -> LangoStoreError:
        """Return the error for a key that a session has: `error`, unless the session may not be reached."""
        return error

    def bind(self, other: Context) -> Context:
        """Return a context of another database, with the same user."""
        return other

    def own_fields(self, fields: Any, *, creates: bool = False) -> Any:
        """Return fields to change or, with `creates`, of a new session; raise ValueError for another user."""
        return fields

    def expected(
        self, key: str, last_seq: int | None, revision: int | None, intact_since: SessionInfo | None = None
    ) -> Expected:
        """Return what an append expects of its session, with the guard of this context if it is of the session."""
        guard = self._guard[1] if self._guard is not None and self._guard[0] == key else None
        accepts_anything = last_seq is None and revision is None and guard is None and intact_since is None
        return ANYTHING if accepts_anything else Expected(last_seq, revision, guard, intact_since)

    def ignoring_expiry(self) -> Context:
        """Return a copy of this context for reads that also find expired sessions."""
        context = copy.copy(self)
        context._clock = lambda: BEFORE_ANY_EXPIRY
        return context

    def close(self) -> None:
        """Refuse further calls, and close the engines that the store created; on a bound context, do nothing."""
        if self._is_bound:
            return
        for gate in self._gates:
            gate.close()
        if self.watcher is not None:
            self.watcher.close()
        if self._owned:
            self.engine.dispose()
        if self._replica is not None:
            self._replica.dispose()
