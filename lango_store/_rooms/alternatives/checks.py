"""The checks of `doctor` for alternatives."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations.binds import MESSAGE, SESSION, of_session
from lango_store._operations.session_tables import ASIDE
from lango_store._parts.checks import Check, Fault, lock, shown
from lango_store._rooms.alternatives.tables import ALTERNATIVE, ALTERNATIVE_MESSAGE
from lango_store._values.model import MessageRole

_REMEDY: Final = "restore a backup, or delete them: doctor does not repair this"


def _links(connection: sa.Connection) -> Iterator[Fault]:
    faults: list[tuple[Any, int, int, str]] = []
    rows = sa.select(ALTERNATIVE.c.session_key, ALTERNATIVE.c.first_seq, ALTERNATIVE.c.within)
    rows = rows.order_by(ALTERNATIVE.c.session_key).execution_options(yield_per=1_000)
    for key, of_key in groupby(connection.execute(rows), itemgetter(0)):
        if lost := _unreachable({first: within for _, first, within in of_key}):
            faults.append((key, len(lost), min(lost), "alternatives that do not lead to the log"))
    message = ALTERNATIVE_MESSAGE
    for name in ("first_seq", "last_seq"):
        at = ALTERNATIVE.c[name]
        end = sa.exists().where(of_session(message, ALTERNATIVE.c.session_key), message.c.seq == at)
        is_missing = ~end.where(message.c.alternative == ALTERNATIVE.c.first_seq)
        faults += _count(connection, at, is_missing, "alternatives without their first or last message")
    for table in ASIDE.values():
        of_row = sa.and_(of_session(ALTERNATIVE, table.c.session_key), ALTERNATIVE.c.first_seq == table.c.alternative)
        fact = f"rows of {table.name} without their alternative"
        faults += _count(connection, table.c.alternative, ~sa.exists().where(of_row), fact)
    in_log = sa.exists().where(of_session(MESSAGE, message.c.session_key), MESSAGE.c.seq == message.c.seq)
    faults += _count(connection, message.c.seq, in_log, "messages that are in the log and set aside")
    for key, number, example, fact in faults:
        yield shown(key), f"session {key!r}: {fact}: {number}, such as {example}", _REMEDY


def _unreachable(alternatives: dict[int, int | None]) -> set[int]:
    """Return the alternatives from which `within` leads to a missing one, or in a circle."""
    lost = set(alternatives)
    children: dict[int | None, list[int]] = {}
    for first, within in alternatives.items():
        children.setdefault(within, []).append(first)
    reached = children.get(None, [])
    for each in reached:  # grows while it is read
        lost.discard(each)
        reached += children.get(each, ())
    return lost


def _count(connection: sa.Connection, example: sa.Column[int], condition: Any, fact: str) -> list[tuple[Any, ...]]:
    key = example.table.c.session_key
    query = sa.select(key, sa.func.count(), sa.func.min(example), sa.literal(fact)).where(condition)
    return [tuple(row) for row in connection.execute(query.group_by(key))]


LINKS: Final = Check("link of alternative", _links)

_number: Final = sa.select(sa.func.count()).where(of_session(ALTERNATIVE, SESSION.c.key)).scalar_subquery()
_NUMBER: Final = sa.func.nullif(_number, 0)
_stored: Final = sa.select(sa.func.count()).where(
    of_session(ALTERNATIVE_MESSAGE, ALTERNATIVE.c.session_key),
    ALTERNATIVE_MESSAGE.c.alternative == ALTERNATIVE.c.first_seq,
    ALTERNATIVE_MESSAGE.c.role != MessageRole.RECORD,
)
_STORED: Final = _stored.scalar_subquery()
_COUNTS: Final = (
    (SESSION.c.key, SESSION.c.alternatives, _NUMBER),
    (ALTERNATIVE.c.session_key, ALTERNATIVE.c.message_count, _STORED),
)


def _counts(connection: sa.Connection) -> Iterator[Fault]:
    for key, column, counted in _COUNTS:
        query = sa.select(key, column, counted).where(column.is_distinct_from(counted)).order_by(key)
        for owner, rows in groupby(connection.execute(query), itemgetter(0)):
            _, stored, number = next(rows)
            detail = f"session {owner!r}: {column} is {stored}, its rows say {number}"
            yield shown(owner), detail, "doctor --repair counts again"


def _count_again(connection: sa.Connection, owner: str) -> None:
    lock(connection, owner)
    for key, column, counted in _COUNTS:
        connection.execute(sa.update(column.table).where(key == owner).values({column: counted}))


COUNTS: Final = Check("count of alternatives", _counts, _count_again)
