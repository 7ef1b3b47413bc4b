"""Archives: store databases that hold purged sessions.

An archived session has no TTL, so it does not expire in the archive. It keeps its incarnation, by which a later purge
recognizes the earlier copy of the same session and replaces it. If another session has the same key, that session and
its older descendants get a new key, so that the key always belongs to the session that was archived last.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from lango_store._connections.context import EVERY, Context
from lango_store._dialect import dialect_of
from lango_store._dialect.driver_errors import translated_errors
from lango_store._engine.engine import create_engine, database_file
from lango_store._operations import revision
from lango_store._operations.binds import SESSION, of_session, of_sessions
from lango_store._operations.log import messages
from lango_store._operations.paging import chunks
from lango_store._operations.session import levels, sessions
from lango_store._operations.session.lists import Filter
from lango_store._rooms.expiry.batches import MAX_BATCH
from lango_store._rows.encoding import MAX_KEY_LENGTH, checked_key
from lango_store._values.session import Session
from lango_store.errors import (
    DatabaseUnavailable,
    InvalidFile,
    SchemaOutOfDate,
    SessionExists,
    SessionNotFound,
    quoted,
)
from lango_store.rows import transfer
from lango_store.rows.portable import RowEncoder
from lango_store.tables import SCHEMA_REVISION

_NO_TTL: Final = {"ttl_seconds": None, "expires_at": None}
_INCARNATIONS: Final = sa.select(SESSION.c.key, SESSION.c.incarnation)

Parts = Iterable[tuple[sa.Table, list[transfer.Row]]]


# Open an archive


@contextmanager
def opened(context: Context, archive: str | Path, *, create: bool = False) -> Iterator[Context]:
    """Open an archive by its URL or by the path of a SQLite file.

    The schema of a SQLite file is upgraded if it is older. With `create`, a missing file is created.
    """
    text = str(archive)
    engine = create_engine(text if "://" in text else sa.URL.create("sqlite", database=text))
    try:
        if _identity(engine) == _identity(context.engine):
            raise ValueError(f"archive {_identity(engine)} is the database of the store: give another one")
        yield _connected(context, engine, create=create)
    finally:
        engine.dispose()


def _connected(context: Context, engine: sa.Engine, *, create: bool) -> Context:
    """Return the context of an archive whose schema was checked."""
    try:
        file = database_file(engine.url)
        migrate = file is not None and _needs_migration(engine, file, create=create)
        archive = Context(engine, owned=False, migrate=migrate, clock=context.clock_time)
        archive.ping()
    except SchemaOutOfDate as error:
        remedy = f"run `lango-store db upgrade --url {engine.url}`"
        raise SchemaOutOfDate(error.found, error.needed, error.schema, remedy=remedy) from None
    except DatabaseUnavailable as error:
        error.args = (f"archive {_identity(engine)}: {error}",)
        raise
    return context.bind(archive)


def _identity(engine: sa.Engine) -> Path | sa.URL:
    file = database_file(engine.url)
    return engine.url if file is None else file.resolve()


def _needs_migration(engine: sa.Engine, file: Path, *, create: bool) -> bool:
    """Return True if a SQLite file has no tables or an older schema; raise `InvalidFile` if it is not an archive."""
    if not create and not file.exists():
        raise InvalidFile(file, "does not exist: check the path of the archive")
    with translated_errors(engine), engine.connect() as connection, dialect_of(engine).snapshot(connection):
        stored = revision.found(connection)
        if stored is None and not (create and not sa.inspect(connection).get_table_names()):
            raise InvalidFile(file, "is not a database of lango_store: give an archive, or the path of a new file")
    return stored is None or stored < SCHEMA_REVISION


# Archive


@contextmanager
def keep(archive: Context, connection: sa.Connection, keys: Sequence[str]) -> Iterator[None]:
    """Copy sessions to an archive. Leaving the block commits the copies; an error in the block undoes them."""
    with archive.transaction(EVERY) as writing:
        for part in chunks(sorted(keys), MAX_BATCH):  # a session comes before its descendants
            incarnations = transfer.incarnations(connection, part)
            for key in part:
                _keep(connection, writing, key, incarnations[key], key)
        yield


def _keep(reading: sa.Connection, writing: sa.Connection, key: str, incarnation: int, new: str) -> None:
    """Copy a session to the key `new` of an archive."""
    parts = transfer.whole_session(reading, key)
    head = next(parts)
    _free_key(writing, new, incarnation, head[1][0]["created_at"])
    _insert(writing, chain([head], parts), key=new, incarnation=incarnation, **_NO_TTL)


def _free_key(connection: sa.Connection, key: str, incarnation: int, created_at: datetime) -> None:
    """Delete the earlier copy of a session; give any other session with its key, and older descendants, a new key."""
    # Without NOWAIT, a purge would wait for itself if the archive is the database of the store under another URL.
    query = _INCARNATIONS.where(of_session(SESSION, key)).with_for_update(nowait=True)
    existing = connection.execute(query).first()
    connection.execute(sa.delete(SESSION).where(is_copy(key, incarnation)))
    if existing is None or existing.incarnation == incarnation:
        return
    older = _INCARNATIONS.where(of_session(SESSION, key) | (SESSION.c.created_at < created_at))
    family = {row.key: row.incarnation for row in levels.families(connection, older, [key])}
    new_key = earlier_key(key, existing.incarnation)
    for old, own in family.items():
        new = new_key + old.removeprefix(key)
        _keep(connection, connection, old, own, new if len(new) <= MAX_KEY_LENGTH else earlier_key(old, own))
        connection.execute(sa.delete(SESSION).where(of_session(SESSION, old)))


def is_copy(key: str, incarnation: int) -> sa.ColumnElement[bool]:
    """Match the archived copy of a session."""
    return of_sessions(SESSION, [key, earlier_key(key, incarnation)]) & (SESSION.c.incarnation == incarnation)


def earlier_key(key: str, incarnation: int) -> str:
    """Return the key that an archive gives to an earlier session with this key."""
    suffix = f"~{incarnation}"
    return key[: MAX_KEY_LENGTH - len(suffix)] + suffix


def _insert(connection: sa.Connection, parts: Parts, *, key: str, **changes: Any) -> None:
    """Insert the rows of a session under a key, and change columns of the session; raise `SessionExists`."""
    for table, rows in parts:
        if table is not SESSION:
            transfer.insert(connection, table, [row | {"session_key": key} for row in rows])
        elif not transfer.insert_sessions(connection, [row | {"key": key} | changes for row in rows]):
            raise SessionExists(key)


# Restore


def restore(context: Context, key: str, archive: str | Path, ttl: timedelta | None, *, descendants: bool) -> Session:
    """Restore a session from an archive; with `descendants`, also restore its descendants."""
    checked_key(key)
    seconds = sessions.seconds(ttl)
    with opened(context, archive) as cold:

        def copy_back(connection: sa.Connection, now: datetime, chosen: Filter) -> Session:
            expiry = {"ttl_seconds": seconds, "expires_at": None if ttl is None else now + ttl}
            with cold.snapshot(EVERY) as reading:
                query = chosen.apply(_INCARNATIONS, dialect_of(reading))
                own = query.where(of_session(SESSION, key))
                rows = levels.families(reading, query, [key]) if descendants else reading.execute(own).all()
                incarnations = {row.key: row.incarnation for row in rows}
                if key not in incarnations:
                    name = quoted(key)
                    raise SessionNotFound(key, f"the archive {_identity(cold.engine)} has no session {name}")
                for each, incarnation in incarnations.items():
                    parts = _checked(transfer.whole_session(reading, each))
                    _insert(connection, parts, key=each, incarnation=incarnation, updated_at=now, **expiry)
            return messages.load(connection, now, key)

        try:
            return context.transact(copy_back, Filter(expired=None))
        except SessionExists as error:
            raise context.taken(error) from None


def _checked(parts: Parts) -> Parts:
    """Yield the rows of a session; raise `DamagedMessage` if an import would refuse one."""
    encoder = RowEncoder()
    for table, rows in parts:
        yield table, [encoder.encode_stored(table, row)[0] for row in rows]
    encoder.check_stored()
