"""Whether what is stored agrees with itself, and mending what can be mended without guessing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import sqlalchemy as sa

from lango_store import dialect
from lango_store.columns import as_kept
from lango_store.errors import DamagedMessage
from lango_store.model import Finding, SessionInfo
from lango_store.operations import messages
from lango_store.operations.sessions import FIELDS, MESSAGE, SESSION, TURN, decoded, valued
from lango_store.tables import Base

_PAGE = 1_000


def checks() -> list[Callable[[sa.Connection], Iterator[Finding]]]:
    """Give the checks, to be run one by one: what one stumbles over keeps no other from being run."""
    return [_settings, _indexes, _counters, _orphans, _sessions, _messages]


def missing_tables(connection: sa.Connection) -> list[str]:
    """Name the tables that are not there."""
    return [table.name for table in Base.metadata.sorted_tables if not sa.inspect(connection).has_table(table.name)]


def _settings(connection: sa.Connection) -> Iterator[Finding]:
    for detail, remedy in dialect.of(connection).worries(connection):
        yield Finding(name="settings", subject=connection.dialect.name, detail=detail, remedy=remedy)


def _indexes(connection: sa.Connection) -> Iterator[Finding]:
    for name in missing_indexes(connection):
        detail = f"index {name} is not there"
        yield Finding(name="missing index", subject=name, detail=detail, remedy="doctor --repair makes it")


def _counters(connection: sa.Connection) -> Iterator[Finding]:
    for key, detail in wrong_counters(connection):
        yield Finding(name="wrong counters", subject=key, detail=detail, remedy="doctor --repair counts again")


def _orphans(connection: sa.Connection) -> Iterator[Finding]:
    for table in (MESSAGE, TURN):
        number = connection.execute(sa.select(sa.func.count()).select_from(table).where(_orphaned(table))).scalar_one()
        if number:
            detail = f"{number} rows of {table.name} belong to no session"
            yield Finding(name="orphans", subject=table.name, detail=detail, remedy="doctor --repair deletes them")


def _sessions(connection: sa.Connection) -> Iterator[Finding]:
    key = ""
    columns = [as_kept(SESSION.c[name]) for name in FIELDS]
    while True:
        query = sa.select(*columns).where(SESSION.c.key > key).order_by(SESSION.c.key).limit(_PAGE)
        rows = connection.execute(query).all()
        for row in rows:
            try:
                valued(SessionInfo, decoded(row))
            except DamagedMessage as error:
                remedy = "update the session with a new value, or delete it"
                yield Finding(
                    name="unreadable session", subject=row[0], detail=f"{error.field}: {error}", remedy=remedy
                )
        if len(rows) < _PAGE:
            return
        key = rows[-1][0]


def _messages(connection: sa.Connection) -> Iterator[Finding]:
    for error in _damaged(connection):
        remedy = f"`lango-store sessions show` shows the rest; mend or delete seq {error.seq} of {error.key!r} by hand"
        yield Finding(name="unreadable message", subject=error.key, detail=str(error).split(";")[0], remedy=remedy)


def repair(connection: sa.Connection, finding: Finding) -> bool:
    """Mend what a finding found, and tell whether that was possible."""
    if finding.name == "missing index":
        for table in Base.metadata.sorted_tables:
            for index in table.indexes:
                if index.name == finding.subject:
                    index.create(connection)
    elif finding.name == "wrong counters":
        _count_again(connection, finding.subject)
    elif finding.name == "orphans":
        table = Base.metadata.tables[finding.subject]
        connection.execute(sa.delete(table).where(_orphaned(table)))
    else:
        return False
    return True


def missing_indexes(connection: sa.Connection) -> list[str]:
    """Name the indexes that are not there."""
    missing: list[str] = []
    for table in Base.metadata.sorted_tables:
        there = {index["name"] for index in sa.inspect(connection).get_indexes(table.name)}
        missing += [str(index.name) for index in table.indexes if index.name not in there]
    return sorted(missing)


def _counted() -> sa.Subquery:
    return (
        sa.select(
            MESSAGE.c.session_key,
            sa.func.count().label("message_count"),
            sa.func.coalesce(sa.func.sum(MESSAGE.c.tokens), 0).label("token_count"),
            sa.func.max(MESSAGE.c.seq).label("last_seq"),
        )
        .group_by(MESSAGE.c.session_key)
        .subquery("counted")
    )


def wrong_counters(connection: sa.Connection) -> list[tuple[str, str]]:
    """Compare the sessions' counters with their messages; gives keys and what is wrong."""
    counted = _counted()
    there = {name: sa.func.coalesce(counted.c[name], 0) for name in ("message_count", "token_count", "last_seq")}
    query = (
        sa.select(
            SESSION.c.key,
            SESSION.c.message_count,
            there["message_count"],
            SESSION.c.token_count,
            there["token_count"],
            SESSION.c.last_seq,
            there["last_seq"],
            SESSION.c.last_consolidated,
        )
        .select_from(SESSION.outerjoin(counted, counted.c.session_key == SESSION.c.key))
        .where(
            sa.or_(
                SESSION.c.message_count != there["message_count"],
                SESSION.c.token_count != there["token_count"],
                SESSION.c.last_seq < there["last_seq"],
                SESSION.c.last_consolidated > there["message_count"],
            )
        )
    )
    wrong: list[tuple[str, str]] = []
    for key, messages_said, found, tokens_said, tokens, last_said, last, consolidated in connection.execute(query):
        faults = []
        if messages_said != found:
            faults.append(f"message_count is {messages_said}, there are {found}")
        if tokens_said != tokens:
            faults.append(f"token_count is {tokens_said}, the messages have {tokens}")
        if last_said < last:
            faults.append(f"last_seq is {last_said}, a message has {last}")
        if consolidated > found:
            faults.append(f"last_consolidated is {consolidated}, above {found}")
        wrong.append((key, f"session {key!r}: {'; '.join(faults)}"))
    return wrong


def _count_again(connection: sa.Connection, key: str) -> None:
    connection.execute(sa.select(SESSION.c.key).where(SESSION.c.key == key).with_for_update())
    mine = MESSAGE.c.session_key == key
    count, tokens, last = connection.execute(
        sa.select(
            sa.func.count(),
            sa.func.coalesce(sa.func.sum(MESSAGE.c.tokens), 0),
            sa.func.coalesce(sa.func.max(MESSAGE.c.seq), 0),
        ).where(mine)
    ).one()
    connection.execute(
        sa.update(SESSION)
        .where(SESSION.c.key == key)
        .values(
            message_count=count,
            token_count=int(tokens),
            last_seq=sa.case((SESSION.c.last_seq < last, last), else_=SESSION.c.last_seq),
            last_consolidated=sa.case((SESSION.c.last_consolidated > count, count), else_=SESSION.c.last_consolidated),
        )
    )


def _orphaned(table: sa.Table) -> sa.ColumnElement[bool]:
    return ~sa.exists().where(SESSION.c.key == table.c.session_key)


def _damaged(connection: sa.Connection) -> Iterator[DamagedMessage]:
    key, seq = "", 0
    while True:
        query = (
            sa.select(MESSAGE.c.session_key, *messages.COLUMNS)
            .where(
                sa.tuple_(MESSAGE.c.session_key, MESSAGE.c.seq)
                > sa.tuple_(sa.literal(key, MESSAGE.c.session_key.type), seq)
            )
            .order_by(MESSAGE.c.session_key, MESSAGE.c.seq)
            .limit(_PAGE)
        )
        rows = connection.execute(query).all()
        for row in rows:
            for each in messages.salvaged(row[0], [row[1:]]):
                if isinstance(each, DamagedMessage):
                    yield each
        if len(rows) < _PAGE:
            return
        key, seq = rows[-1][0], rows[-1][1]
