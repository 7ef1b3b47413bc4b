"""Who lends a connection, and the policy: the clock, the default TTL, the token counter.

The one place that opens, commits, rolls back, looks at the schema, and turns drivers' errors into ours.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy import orm

from lango_store import dialect
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
        dialect.of(engine)
        self.engine = engine
        self._owned = owned
        self._migrate = migrate
        self._default_ttl = default_ttl
        self._clock = clock
        self._token_counter = token_counter
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
        if self._token_counter is None or message.tokens is not None:
            return message
        return message.model_copy(update={"tokens": self._token_counter(message)})

    # Connections

    def look(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for one read, without a transaction around it."""
        return self._lend(dialect.Dialect.look)

    def read(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for several reads that see one moment."""
        return self._lend(dialect.Dialect.snapshot)

    def once(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for one append, committed with as few round trips as the database allows."""
        return self._lend(dialect.Dialect.once)

    def write(self) -> AbstractContextManager[sa.Connection]:
        """Lend a connection for several writes that land together or not at all."""
        return self._lend(dialect.Dialect.transaction)

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
    def _lend(self, way: Callable[..., AbstractContextManager[None]]) -> Iterator[sa.Connection]:
        if self._closed:
            raise LangoStoreError("this store is closed: make a new one")
        spoken = dialect.of(self.engine) if self._lender is None else dialect.of(self._lender())
        with self._translated(spoken):
            if self._lender is not None:
                with self._lent(self._lender(), way, spoken) as connection:
                    yield connection
                return
            if self.engine not in self._fit:
                self._look_at_schema()
            with self.engine.connect() as connection:
                try:
                    with getattr(spoken, way.__name__)(connection):
                        yield connection
                except BaseException:
                    if getattr(connection.connection.dbapi_connection, "closed", False):
                        connection.invalidate()
                    raise

    @contextmanager
    def _lent(self, connection: sa.Connection, way: Any, spoken: dialect.Dialect) -> Iterator[sa.Connection]:
        if connection.engine not in self._fit:
            self._check(connection)
            self._fit.add(connection.engine)
        if way in (dialect.Dialect.look, dialect.Dialect.snapshot):
            yield connection
            return
        spoken.begun(connection)
        if way is dialect.Dialect.once:
            yield connection
            return
        with connection.begin_nested():  # a caller who catches our error and commits must not commit half of it
            yield connection

    @contextmanager
    def _translated(self, spoken: dialect.Dialect) -> Iterator[None]:
        try:
            yield
        except sa.exc.DBAPIError as error:
            raise spoken.ours(error.orig or error) from error
        except sa.exc.TimeoutError as error:
            raise DatabaseBusy(f"no connection became free in time: {error}; make the pool larger") from error
        except self.engine.dialect.loaded_dbapi.Error as error:
            raise spoken.ours(error) from error

    # Schema

    def _look_at_schema(self) -> None:
        with self._looking:
            if self.engine in self._fit:
                return
            if self._migrate:
                from lango_store import schema  # Alembic, which only who migrates should wait for

                schema.upgrade(self.engine)
            with self.engine.connect() as connection, dialect.of(connection).snapshot(connection):
                self._check(connection)
            self._fit.add(self.engine)

    @staticmethod
    def _check(connection: sa.Connection) -> None:
        if fault := dialect.of(connection).unfit(connection):
            raise LangoStoreError(fault)
        found = revision.found(connection)
        if found is None or found < SCHEMA_REVISION:
            raise SchemaOutOfDate(found, SCHEMA_REVISION)
        if found > SCHEMA_REVISION:
            logger.warning(
                "the database is at revision %s, newer than %s, which this release was made for: upgrade the package",
                found,
                SCHEMA_REVISION,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _begun(connection: sa.Connection) -> Callable[[], sa.Connection]:
    """Lend a connection whose transaction has begun: what runs on the driver's cursor begins none by itself."""

    def lend() -> sa.Connection:
        if not connection.in_transaction():
            connection.begin()
        return connection

    return lend
