"""Opening the database that a caller names by a URL, an engine or a connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import sqlalchemy as sa
from alembic.util import CommandError

from lango_store._dialect import dialect_of
from lango_store._engine.engine import create_engine
from lango_store.errors import LangoStoreError
from lango_store.tables import SCHEMA_REVISION

Database = str | sa.URL | sa.Engine | sa.Connection


@dataclass(frozen=True)
class Opened:
    """A database to connect to, and whether the connection is the caller's, and the transaction too."""

    database: sa.Engine | sa.Connection
    connect: Callable[[], AbstractContextManager[sa.Connection]]
    callers: bool = False


@contextmanager
def opened(database: Database) -> Iterator[Opened]:
    """Open a database for a block, and raise the driver's and Alembic's errors in it as the store's own."""
    target = _target(database)
    try:
        yield target
    except sa.exc.DBAPIError as error:
        raise dialect_of(target.database).translate_error(error.orig or error) from error
    except CommandError as error:
        raise LangoStoreError(f"{error}; this release knows revisions up to {SCHEMA_REVISION}") from error
    finally:
        if isinstance(target.database, sa.Engine) and target.database is not database:
            target.database.dispose()


@contextmanager
def connected(database: Database) -> Iterator[sa.Connection]:
    """Connect to a database for reading; on a connection of its own all is read at one moment."""
    with opened(database) as target:
        at_one_moment = nullcontext if target.callers else dialect_of(target.database).snapshot
        with target.connect() as connection, at_one_moment(connection):
            yield connection


def _target(database: Database) -> Opened:
    if isinstance(database, sa.Connection):
        return Opened(database, lambda: nullcontext(database), callers=True)
    engine = database if isinstance(database, sa.Engine) else create_engine(database)
    return Opened(engine, engine.connect)
