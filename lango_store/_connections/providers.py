"""Each operation gets its connection from a provider: `Pooled` takes one of the pool, `Callers` uses the caller's.

A provider also translates driver errors, checks the schema and reports statements to the observer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Final, Protocol

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import PoolProxiedConnection

from lango_store._connections.group_commit import GroupedWrite, WriteQueue
from lango_store._connections.schema_gate import SchemaGate, reject_translated
from lango_store._dialect import DETECTED, AnyConnection, Dialect, dialect_of
from lango_store._dialect.driver_errors import of_driver, translate, translated_errors
from lango_store._dialect.statement import OBSERVER, SINGLE_OPERATION, Observer
from lango_store._engine import checkpoints, pool
from lango_store.errors import InvalidState


class Connections(Protocol):
    """Opens a connection for each operation."""

    def single(self, *, writes: bool, allow_replica: bool = False) -> AbstractContextManager[AnyConnection]:
        """Open a connection for reads without a snapshot, or for one write, with as few round trips as possible.

        With `allow_replica`, reads may use a replica.
        """

    def snapshot(self, *, allow_replica: bool = False) -> AbstractContextManager[sa.Connection]:
        """Open a connection for several reads of one snapshot; `allow_replica` permits a replica."""

    def at(self, position: int) -> Connections:
        """Return a provider with the same engines for reads that must include all writes up to a position."""

    def transaction(self, *, synced: bool = True) -> AbstractContextManager[sa.Connection]:
        """Open a connection for a transaction; with `synced`, the commit waits for the disk."""


class Pooled:
    """Opens connections of an engine's pool and commits their transactions."""

    def __init__(self, engine: sa.Engine, gate: SchemaGate, on_statement: Observer | None = None) -> None:
        self.engine = engine
        dialect_of(engine)  # raises an error for an unsupported database or driver
        self.gate = gate
        self.on_statement = on_statement
        self.readers: Collection[str] = ()
        """The keys of the sessions that have readers, which wait for `after_write`."""
        self.after_write: Callable[[], None] = lambda: None
        self.queue: WriteQueue | None = None
        """Commits the short writes of several threads together; None if each write has its own commit."""

    @property
    def dialect(self) -> Dialect:
        """The dialect detected for the engine."""
        return dialect_of(self.engine)

    def single(self, *, writes: bool, allow_replica: bool = False) -> AbstractContextManager[AnyConnection]:
        """Open a driver connection, or a SQLAlchemy connection if the application listens to events of the engine."""
        if pool.is_listened_to(self.engine):
            return self._open(self.dialect.transaction, writes=writes)
        single = _Single(self, writes)
        return single if self.queue is None or not writes else GroupedWrite(self.queue, single)

    def snapshot(
        self, *, allow_replica: bool = False, before: Callable[[sa.Connection], None] | None = None
    ) -> AbstractContextManager[sa.Connection]:
        """Open a connection for several reads of one snapshot; before it, call `before` with the connection."""
        if before is None:
            return self._open(self.dialect.snapshot)

        @contextmanager
        def around(connection: sa.Connection) -> Iterator[None]:
            before(connection)
            with self.dialect.snapshot(connection):
                yield

        return self._open(around)

    def at(self, position: int) -> Pooled:
        """Return this provider: the primary is always up to date."""
        return self

    def transaction(self, *, synced: bool = True) -> AbstractContextManager[sa.Connection]:
        """Open a connection for a transaction; with `synced`, the commit waits for the disk."""
        opened = self._open(self.dialect.transaction if synced else self.dialect.unsynced_transaction, writes=True)
        return opened if self.queue is None else self._alone(self.queue, opened)

    @contextmanager
    def _alone(self, queue: WriteQueue, opened: AbstractContextManager[sa.Connection]) -> Iterator[sa.Connection]:
        with queue.alone(), opened as connection:
            yield connection

    @contextmanager
    def _open(
        self, around: Callable[[sa.Connection], AbstractContextManager[None]], *, writes: bool = False
    ) -> Iterator[sa.Connection]:
        file = self.gate.check_engine(self.engine)
        with (
            translated_errors(self.engine),
            self.engine.connect() as connection,
            _handling_connection_errors(connection, self.gate),
            around(connection),
            observed(connection, self.on_statement),
            self.dialect.bytes_for_bad_text(connection),
            _invalidating_interrupted(connection),
        ):
            if file is not None:
                file.look()
            yield connection
        if writes and self.readers:
            self.after_write()

    def options(self) -> Mapping[str, Any]:
        """Return the execution options of a connection with an observer."""
        return {**_SINGLE_OPERATION, OBSERVER: observer_of(self.engine, self.on_statement)}


class Callers:
    """Uses the caller's connection, in the caller's transaction."""

    def __init__(
        self,
        get_connection: Callable[[], sa.Connection],
        gate: SchemaGate,
        on_statement: Observer | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._connection = get_connection
        self._read_only = read_only
        self._gate = gate
        self._on_statement = on_statement

    def single(self, *, writes: bool, allow_replica: bool = False) -> AbstractContextManager[sa.Connection]:
        """Use the caller's connection, with a savepoint if an append takes several statements."""
        if writes:
            self._reject_snapshot()
        return self._open(_append_savepoint if writes else nullcontext)

    def at(self, position: int) -> Callers:
        """Return this provider: the caller chose the connection."""
        return self

    def snapshot(self, *, allow_replica: bool = False) -> AbstractContextManager[sa.Connection]:
        """Use the caller's connection unchanged: the caller chose its isolation level."""
        return self._open(nullcontext)

    def transaction(self, *, synced: bool = True) -> AbstractContextManager[sa.Connection]:
        """Use the caller's connection, with a savepoint; `synced` has no effect, because the caller commits."""
        self._reject_snapshot()
        # A caller who catches our error and commits must not commit half of an operation.
        return self._open(sa.Connection.begin_nested)

    def _reject_snapshot(self) -> None:
        if self._read_only:
            raise InvalidState("a snapshot is for reads: write with the store itself, or in store.transaction()")

    @contextmanager
    def _open(self, within: Callable[[sa.Connection], AbstractContextManager[Any]]) -> Iterator[sa.Connection]:
        connection = self._connection()
        reject_translated(connection)
        with translated_errors(connection.engine):
            if not connection.in_transaction():  # statements on the driver's cursor do not begin a transaction
                connection.begin()
            dialect_of(connection).join(connection)
            self._gate.check_connection(connection)
            with (
                observed(connection, self._on_statement),
                _handling_connection_errors(connection, self._gate),
                within(connection),
                dialect_of(connection).bytes_for_bad_text(connection),
                _invalidating_interrupted(connection),
            ):
                yield connection


def _append_savepoint(connection: sa.Connection) -> AbstractContextManager[None]:
    return dialect_of(connection).append_savepoint(connection)


_SINGLE_OPERATION: Final[Mapping[str, Any]] = {SINGLE_OPERATION: True}


class _Single:
    """A driver connection from the pool, without the cost of a SQLAlchemy transaction."""

    __slots__ = ("_dialect", "_driver", "_pooled", "_proxy", "_started", "_writes", "connection", "dialect", "options")

    connection: Any
    options: Mapping[str, Any]
    _driver: Any

    def __init__(self, pooled: Pooled, writes: bool) -> None:
        self._pooled = pooled
        self._writes = writes
        self.dialect = pooled.engine.dialect

    def get_execution_options(self) -> Mapping[str, Any]:
        """Return the options that our statements read."""
        return self.options

    def __enter__(self) -> AnyConnection:
        pooled = self._pooled
        file = pooled.gate.check_engine(pooled.engine)
        if file is not None and not self._writes:
            file.check()
        try:
            # After an interruption here, the connection returns to the pool when the proxy is garbage collected.
            self._proxy = proxy = pool.take(pooled.engine)
            self.connection = self._driver = proxy.dbapi_connection
            try:
                is_observed = pooled.on_statement is not None or pooled.engine.logger.isEnabledFor(logging.INFO)
                self.options = pooled.options() if is_observed else _SINGLE_OPERATION
                self._dialect = vars(self.dialect)[DETECTED]  # the gate has detected it
                if self._writes and file is not None:
                    checkpoints.make_if_due(self._driver, proxy.info)
                self._started = self._dialect.start(self._driver, writes=self._writes)
                if self._started and file is not None:
                    file.look()
            except BaseException as error:
                self._return_to_pool(error)
                raise
        except Exception as error:
            translate(error, pooled.engine)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            try:
                self._dialect.finish(self._driver, self._started, failed=error is not None)
            except BaseException as ending:
                self._return_to_pool(ending)
                raise
            if error is None:
                self._proxy.close()
                if self._writes and self._pooled.readers:
                    self._pooled.after_write()
            else:
                self._return_to_pool(error)
        except Exception as ending:
            if error is None:  # otherwise the error of the block is raised
                translate(ending, self._pooled.engine)
                raise
        if error is not None:
            translate(error, self._pooled.engine)

    def savepoint(self) -> None:
        """Begin a savepoint."""
        self._driver.execute("SAVEPOINT lango_write")

    def end_savepoint(self, error: BaseException | None) -> bool:
        """Keep what was written since the savepoint, or undo it after an error; return False if neither is possible."""
        driver = self._driver
        if not driver.in_transaction or (error and self._dialect.is_connection_unusable(driver, of_driver(error))):
            return False
        if error is not None:
            driver.execute("ROLLBACK TO lango_write")
        driver.execute("RELEASE lango_write")
        return True

    def translate(self, error: BaseException) -> None:
        """Raise the store's error for an error of the driver; return for any other error."""
        translate(error, self._pooled.engine)

    def _return_to_pool(self, error: BaseException) -> None:
        driver, pooled = self._driver, self._pooled
        _handle_connection_error(error, driver, self._proxy, pooled.gate, pooled.engine)
        interrupted = not isinstance(error, Exception) or dialect_of(self).has_unread_answer(driver)
        if interrupted or getattr(driver, "closed", False):
            self._proxy.invalidate()
        self._proxy.close()


@contextmanager
def _invalidating_interrupted(connection: sa.Connection) -> Iterator[None]:
    """Invalidate a connection after an interrupted statement: a rollback would fail and hide the interruption."""
    driver = connection.connection.driver_connection
    try:
        yield
    except BaseException:
        if dialect_of(connection).has_unread_answer(driver):
            connection.invalidate()
        raise


@contextmanager
def _handling_connection_errors(connection: sa.Connection, gate: SchemaGate) -> Iterator[None]:
    proxy = connection.connection
    driver = proxy.dbapi_connection
    try:
        yield
    except Exception as error:
        _handle_connection_error(of_driver(error), driver, proxy, gate, connection.engine)
        raise


def _handle_connection_error(
    error: BaseException, driver: Any, proxy: PoolProxiedConnection, gate: SchemaGate, engine: Any
) -> None:
    """Retire the pool's connections if this one is unusable, and check the schema again if it may have changed."""
    dialect = dialect_of(engine)
    if dialect.is_connection_unusable(driver, error):
        pool.retire(engine, proxy)
    if dialect.needs_new_dialect(error):
        gate.reset(engine)


# Observers


def observer_of(engine: sa.Engine, on_statement: Observer | None) -> Observer | None:
    """Return the function to call after each statement: the store's observer, the engine's log, or both."""
    if not engine.logger.isEnabledFor(logging.INFO):
        return on_statement

    def log(text: str, seconds: float) -> None:
        engine.logger.info("%s [%.6f s]", text, seconds)
        if on_statement is not None:
            on_statement(text, seconds)

    return log


@contextmanager
def observed(connection: sa.Connection, on_statement: Observer | None) -> Iterator[None]:
    """Report each statement on a connection to the observer, including those on our own driver cursors."""
    observer = observer_of(connection.engine, on_statement)
    if observer is None:
        yield
        return
    started: list[float] = []

    def before(*_: Any) -> None:
        started.append(perf_counter())

    def after(_: Any, __: Any, text: str, *___: Any) -> None:
        assert on_statement is not None
        on_statement(text, perf_counter() - started.pop())

    listeners = {} if on_statement is None else {"before_cursor_execute": before, "after_cursor_execute": after}
    connection.execution_options(**{OBSERVER: observer})
    for name, listener in listeners.items():
        event.listen(connection, name, listener)
    try:
        yield
    finally:
        for name, listener in listeners.items():
            event.remove(connection, name, listener)
        connection.execution_options(**{OBSERVER: None})
