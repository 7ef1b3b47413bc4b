"""Statements are built once and run with bound values; this module holds their tables, parameters and conditions."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa

from lango_store._dialect import Dialect, Now, NowTogether
from lango_store._rows.columns import TEXT, TimeColumn
from lango_store._values.model import MessageRole
from lango_store.tables import Base, live_at

SESSION: Final = Base.metadata.tables["lango_session"]
MESSAGE: Final = Base.metadata.tables["lango_message"]
TURN: Final = Base.metadata.tables["lango_turn"]
PAYLOAD: Final = Base.metadata.tables["lango_payload"]
CHANGE: Final = Base.metadata.tables["lango_change"]
VALUE: Final = Base.metadata.tables["lango_value"]
SHARED_VALUE: Final = Base.metadata.tables["lango_shared_value"]

_now: Final = sa.bindparam("now", type_=TimeColumn(), required=True)
NOW: Final = Now(_now)
NOW_TOGETHER: Final = NowTogether(_now)


def number(name: str) -> sa.BindParameter[int]:
    """Create a parameter for an integer."""
    return sa.bindparam(name, type_=sa.BigInteger(), required=True)


def text(name: str) -> sa.BindParameter[str]:
    """Create a parameter for a text."""
    return sa.bindparam(name, type_=TEXT, required=True)


def time(name: str) -> sa.BindParameter[datetime]:
    """Create a parameter for a time, in the form that `Dialect.time` returns."""
    return sa.bindparam(name, type_=TimeColumn(), required=True)


def column(of: sa.Column[Any], name: str | None = None) -> sa.BindParameter[Any]:
    """Create a parameter with the type of a column, by default with its name too."""
    return sa.bindparam(name or of.name, type_=of.type, required=True)


def session_key(name: str) -> sa.BindParameter[str]:
    """Create a parameter for a session key."""
    return column(SESSION.c.key, name)


KEY: Final = session_key("key")


def arrays_of(rows: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, list[Any]]:
    """Return the columns of rows as arrays, which the statement passes to one `unnest()`.

    A column of NULLs becomes an empty array, which `unnest()` fills up with NULLs: psycopg would send the text
    `{NULL,NULL}`, which a server with `array_nulls = off` reads as words.
    """
    arrays = {name: [row[name] for row in rows] for name in names}
    return {name: [] if array.count(None) == len(array) else array for name, array in arrays.items()}


# Rows of a session


def key_column(rows: sa.FromClause) -> sa.ColumnElement[str]:
    """Return the column of a table or subquery that contains the session key or the scope."""
    return next(rows.c[name] for name in ("session_key", "key", "scope") if name in rows.c)


def of_session(rows: sa.FromClause, key: str | sa.ColumnElement[str] = KEY) -> sa.ColumnElement[bool]:
    """Match the rows of the session with this key, by default the key bound as `key`."""
    return key_column(rows) == key


def of_sessions(rows: sa.FromClause, keys: Sequence[str]) -> sa.ColumnElement[bool]:
    """Match the rows of the sessions with these keys."""
    return key_column(rows).in_(keys)


def numbered_insert(rows: sa.Table, *names: str) -> sa.Insert:
    """Build an insert that binds these columns and gives the row the session's next `n`. The session must be locked."""
    last = sa.func.coalesce(sa.func.max(rows.c.n), sa.literal_column("0", sa.BigInteger()))
    number = sa.select(last + sa.literal_column("1")).where(of_session(rows)).scalar_subquery()
    values: dict[str, Any] = {"session_key": KEY, "n": number} | {name: column(rows.c[name]) for name in names}
    return sa.insert(rows).from_select(list(values), sa.select(*values.values()))


def numbers_of_list(dialect: Dialect, name: str) -> sa.Select[tuple[int]]:
    """Return a query of the numbers in the JSON list that is bound with this name."""
    listed = dialect.texts_of_list(text(name)).subquery()
    return sa.select(sa.cast(listed.c[0], sa.BigInteger))


OF_ITS_TURN: Final = sa.and_(of_session(TURN, MESSAGE.c.session_key), TURN.c.turn_no == MESSAGE.c.turn_no)
"""Joins a message to its turn."""

IS_COMPACTION: Final = TURN.c.kind == "compaction"
"""Matches turns that are compactions; their messages are summaries."""

IS_STORED_TURN: Final = sa.exists().where(of_session(TURN), TURN.c.id == text("turn_id"))
"""True if the session has a turn with the bound `turn_id`."""

IN_SUMMARY: Final = sa.exists().where(OF_ITS_TURN, IS_COMPACTION)
"""Matches messages that belong to a summary."""

RECORD: Final = sa.literal_column(f"'{MessageRole.RECORD.value}'", sa.Text())
"""The role of a record as a literal, because the planner estimates row counts better for a literal."""

IS_RECORD: Final = MESSAGE.c.role == RECORD
"""Matches records: entries of the log that are in no window and are counted in `record_count`."""


LIVE: Final = live_at(NOW)
"""Matches live sessions."""

LIVE_SESSION: Final = sa.and_(of_session(SESSION), LIVE)
"""Matches the row of the session with the bound key if it is live."""

BEFORE_ANY_EXPIRY: Final = datetime.min.replace(tzinfo=UTC)
"""A time before any expiry, to treat every session as live."""
