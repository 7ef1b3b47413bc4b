"""Who lends a connection, and the policy: the clock, the default TTL, the token counter.

The one place that opens, commits, rolls back, looks at the schema, and turns drivers' errors into ours.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.pool import ConnectionPoolEntry

from lango_store import dialect
from lango_store.dialect import Lent
from lango_store.engine import LendingPool
from lango_store.errors import DatabaseBusy, LangoStoreError, SchemaOutOfDate
from lango_store.model import UNSET, Message, Unset
from lango_store.operations import revision
from lango_store.tables import SCHEMA_REVISION

logger = logging.getLogger("lango_store")

Clock = Callable[[], datetime]
DefaultTTL = timedelta | None | Callable[[str], timedelta | None]
TokenCounter = Callable[[Message], int]


def utc_now() -> datetime:
    """Give the time, aware, in UTC."""
    return datetime.now(UTC)


class Access:
    """Lends connections of an engine, or, after `using`, the caller's own inside the caller's transaction."""

    def __init__(
        self,
        engine: sa.Engine,
        *,
        owned: bool,
        migrate: bool = False,
        default_ttl: DefaultTTL = None,
        clock: Clock = utc_now,
        token_counter: TokenCounter | None = None,
    ) -> None:
        self._spoken = dialect.of(engine)
        self.engine = engine
        self._owned = owned
        self._migrate = migrate
        self._default_ttl = default_ttl
        self._clock = clock
        self.token_counter = token_counter
        self._lender: Callable[[], sa.Connection] | None = None
        self._closed = False
        self._fit: weakref.WeakSet[sa.Engine] = weakref.WeakSet()
        self._looking = threading.Lock()

    # Policy

    def now(self) -> datetime:
        """Tell the time by the store's clock."""
        moment = self._clock()
        if moment.tzinfo is None:
            raise ValueError("the store's clock gave a time without a time zone: use datetime.now(UTC)")
        return moment.astimezone(UTC)

    def ttl(self, key: str, ttl: timedelta | None | Unset) -> timedelta | None:
        """Decide the TTL of a new session: the caller's, else the store's default."""
        if ttl is not UNSET:
            return ttl
        return self._default_ttl(key) if callable(self._default_ttl) else self._default_ttl

    def counted(self, message: Message) -> Message:
        """Count a message's tokens if it carries no count and there is a counter."""
        if self.token_counter is None or not isinstance(message, Message) or message.tokens is not None:
            return message  # what is no message is refused where it is encoded
        return message.model_copy(update={"tokens": self.token_counter(message)})

    # Connections

    def look(self) -> AbstractContextManager[Lent]:
        """Lend a connection for single reads, without a transaction around them."""
        return _Direct(self, writes=False) if self._lender is None else self._lend_callers(savepoint=False)

    def once(self) -> AbstractContextManager[Lent]:
        """Lend a connection for one append, committed with as few round trips as the database allows."""
        return _Direct(self, writes=True) if self._lender is None else self._lend_callers(savepoint=False)

    def read(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for several reads that see one moment."""
        return self._lend("snapshot") if self._lender is None else self._lend_callers(savepoint=False)

    def write(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for several writes that land together or not at all."""
        return self._lend("transaction") if self._lender is None else self._lend_callers(savepoint=True)

    def using(self, lender: sa.Connection | orm.Session) -> Access:
        """Give the same access on the caller's own connection; what it writes, the caller commits."""
        if isinstance(lender, orm.Session):
            lend: Callable[[], sa.Connection] = lambda: lender.connection()  # noqa: E731
        elif isinstance(lender, sa.Connection):
            lend = _begun(lender)
        else:
            raise TypeError(
                f"using() takes a Connection or a Session, not {type(lender).__name__}; in async code write "
                "`await session.run_sync(lambda s: store.using(s).append_message(key, message))`"
            )
        access = copy.copy(self)
        access._lender = lend
        access._owned = False
        return access

    def close(self) -> None:
        """Close the engine, if it is ours."""
        if self._lender is None:
            self._closed = True
        if self._owned:
            self.engine.dispose()

    @contextmanager
    def _lend(self, way: Literal["snapshot", "transaction"]) -> Iterator[sa.Connection]:
        spoken = self.ready()
        try:
            with self.engine.connect() as connection:
                try:
                    with getattr(spoken, way)(connection):
                        yield connection
                except BaseException:
                    if getattr(connection.connection.dbapi_connection, "closed", False):
                        connection.invalidate()
                    raise
        except Exception as error:
            self.raise_ours(error, spoken)
            raise

    @contextmanager
    def _lend_callers(self, *, savepoint: bool) -> Iterator[sa.Connection]:
        assert self._lender is not None
        self._refuse_closed()
        connection = self._lender()
        spoken = dialect.of(connection)
        try:
            if connection.engine not in self._fit:
                self._check(connection)
                self._fit.add(connection.engine)
            spoken.begun(connection)
            # A caller who catches our error and commits must not commit half of an operation.
            with connection.begin_nested() if savepoint else nullcontext():
                yield connection
        except Exception as error:
            self.raise_ours(error, spoken)
            raise

    def ready(self) -> dialect.Dialect:
        """Look at the schema, the first time, and tell which dialect the engine speaks."""
        self._refuse_closed()
        if self.engine not in self._fit:
            self._look_at_schema()
        return self._spoken

    def raise_ours(self, error: BaseException, spoken: dialect.Dialect) -> None:
        """Raise a driver's error as one of ours; return if it is none."""
        if isinstance(error, sa.exc.DBAPIError):
            raise spoken.ours(error.orig or error) from error
        if isinstance(error, sa.exc.TimeoutError):
            raise DatabaseBusy(f"no connection became free in time: {error}; make the pool larger") from error
        if isinstance(error, self.engine.dialect.loaded_dbapi.Error):
            raise spoken.ours(error) from error

    def _refuse_closed(self) -> None:
        if self._closed:
            raise LangoStoreError("this store is closed: make a new one")

    # Schema

    def _look_at_schema(self) -> None:
        with self._looking:
            if self.engine in self._fit:
                return
            try:
                with self.engine.connect() as connection, self._spoken.snapshot(connection):
                    self._refuse_unfit(connection)
                if self._migrate:
                    from lango_store import schema  # Alembic, which only who migrates should wait for

                    schema.upgrade(self.engine)
                with self.engine.connect() as connection, self._spoken.snapshot(connection):
                    self._check(connection)
            except Exception as error:
                self.raise_ours(error, self._spoken)
                raise
            self._fit.add(self.engine)

    @staticmethod
    def _refuse_unfit(connection: sa.Connection) -> None:
        if fault := dialect.of(connection).unfit(connection):
            raise LangoStoreError(fault)

    @staticmethod
    def _check(connection: sa.Connection) -> None:
        Access._refuse_unfit(connection)
        found = revision.found(connection)
        if found is None or found < SCHEMA_REVISION:
            raise SchemaOutOfDate(found, SCHEMA_REVISION)
        if found > SCHEMA_REVISION:
            logger.warning(
                "the database is at revision %s, newer than %s, which this release was made for: upgrade the package",
                found,
                SCHEMA_REVISION,
            )


class _Direct:
    """A driver's connection from the pool, where it lends one without all that SQLAlchemy puts around it."""

    __slots__ = ("_access", "_driver", "_entry", "_pool", "_spoken", "_was", "_writes", "connection", "dialect")

    connection: Any
    _driver: Any
    _pool: LendingPool | None
    _entry: ConnectionPoolEntry

    def __init__(self, access: Access, *, writes: bool) -> None:
        self._access = access
        self._writes = writes
        self.dialect = access.engine.dialect

    def __enter__(self) -> Lent:
        self._spoken = self._access.ready()
        try:
            self._take()
            try:
                self._was = self._spoken.start(self._driver, writes=self._writes)
            except BaseException:
                self._give_back(broken=False)
                raise
        except Exception as error:
            self._access.raise_ours(error, self._spoken)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        driver = self._driver
        try:
            try:
                self._spoken.finish(driver, self._was, writes=self._writes, failed=kind is not None)
            finally:
                interrupted = kind is not None and not issubclass(kind, Exception)
                self._give_back(broken=interrupted or getattr(driver, "closed", False))
        except Exception as ending:
            self._access.raise_ours(error or ending, self._spoken)
            raise
        if error is not None:
            self._access.raise_ours(error, self._spoken)

    def _take(self) -> None:
        pool = self._access.engine.pool
        if isinstance(pool, LendingPool) and pool.lends:
            self._pool, self._entry = pool, pool.lend()
            self.connection = self._driver = self._entry.dbapi_connection
        else:
            self._pool = None
            self.connection = proxy = self._access.engine.raw_connection()
            self._driver = proxy.dbapi_connection

    def _give_back(self, *, broken: bool) -> None:
        if self._pool is not None:
            self._pool.take_back(self._entry, broken=broken)
        else:
            if broken:
                self.connection.invalidate()
            self.connection.close()


def _begun(connection: sa.Connection) -> Callable[[], sa.Connection]:
    """Lend a connection whose transaction has begun: what runs on the driver's cursor begins none by itself."""

    def lend() -> sa.Connection:
        if not connection.in_transaction():
            connection.begin()
        return connection

    return lend
