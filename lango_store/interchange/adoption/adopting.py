"""Adoption of the sessions of a source: each in transactions of a few hundred rows, continued where it stopped.

The metadata of an adopted session says how many rows of the source it has, and identifies the last one. They are
written together with the rows, so an adoption that was killed, or a source that grew, is continued after these rows.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa
from pydantic import Field

from lango_store import UNSET, SessionInfo, errors
from lango_store.errors import quoted
from lango_store.interchange import importing
from lango_store.interchange.adoption import google_adk, langchain, langgraph, openai_agents, values
from lango_store.interchange.adoption.source import (
    CHARACTERS,
    PAGE,
    Damaged,
    Database,
    Original,
    Piece,
    Shared,
    Source,
    legible,
    mark_of,
    open_source,
    unread,
)
from lango_store.interchange.draft import Part, SessionDraft
from lango_store.interchange.fidelity import check_message, is_storable_json
from lango_store.interchange.pieces import Pause
from lango_store.rows import MESSAGE, TURN, Value, checked_key, encode_text, mapping, of_session, storable_id
from lango_store.rows.storage import NewSession, sessions
from lango_store.store import Store

SOURCES: Final[dict[str, Source]] = {each.NAME: each for each in (openai_agents, google_adk, langgraph, langchain)}
"""The frameworks whose databases can be adopted, in the order in which they are tried."""


class Adopted(Value):
    """The result of adopting a session, or shared values. In a dry run, the result of a real one.

    Attributes:
        key: The key of the session, or the scope of shared values. With the state `left out`, the framework.
        source: The framework.
        state: `imported`: the session is new. `continued`: new rows were added to a session that was adopted before.
            `already there`: the source has nothing new. `collided`: the session or the values exist, but were not
            adopted from this source, or the source has changed or removed rows since. They were not changed. `failed`:
            see `skipped`. `left out`: `notes` names the columns of the source that hold data and are not adopted.
        messages: The number of messages that were added; for LangGraph, of checkpoints.
        skipped: What could not be read or stored, with the table and the reason. Everything else was adopted. A
            repeated adoption also reports the number of rows that were left out before.
        notes: What became of data that has no column.
        dry_run: True for a dry run, which writes nothing.
    """

    key: str
    source: str
    state: Literal["imported", "continued", "already there", "collided", "failed", "left out"] = "already there"
    messages: int = 0
    skipped: list[str] = Field(default_factory=list)
    notes: list[str] = Field(default_factory=list)
    dry_run: bool = False


def adopt(
    store: Store,
    url: str,
    source: str | None = None,
    *,
    table: str | None = None,
    prefix: str = "",
    dry_run: bool = False,
    on_session: Callable[[Adopted], None] | None = None,
    on_rows: Callable[[int], None] = lambda _: None,
) -> list[Adopted]:
    """Adopt the sessions in the database of an agent framework.

    The database is opened read-only. It may also be the database of the store. An adoption can be repeated, also after
    it was killed: no message is adopted twice, and a source that has grown is continued.

    OpenAI Agents: tables with other names are found by their columns, and sessions without items by their foreign key.
    The usage of a turn becomes the usage of a turn. Items of `EncryptedSession` stay encrypted. Items that are not JSON
    are left out and reported.

    Google ADK: the state of a session becomes its values, that of an app or a user shared values. If it has changed
    both in the source and in the store since it was adopted, the store's is kept, and this is reported. Pickled actions
    of the first schema are read with ADK's restricted unpickler, which runs no other code; an event with anything else
    in its actions is left out and reported. Events that ADK has rewound become records.

    LangGraph: its own saver reads the source. Each checkpoint is stored with its pending writes, the oldest one first;
    messages have the time of the adoption. If a thread has new checkpoints on both sides, the store's are kept: a
    collision. A thread whose old checkpoints were pruned is continued as long as the store has one of the others. No
    class of the source is loaded, except those of LangGraph's list of safe types. Checkpoints of an
    `EncryptedSerializer`, damaged ones, and those with pickled values are left out and reported.

    LangChain: a history with another converter is not recognized, and neither is a table whose first 100 rows have no
    message of LangChain.

    Args:
        store: The store to write to.
        url: The URL of the database to read, `sqlite:///…` or `postgresql://…`.
        source: The framework, a key of `adopting.SOURCES`. By default, it is detected by the tables.
        table: Adopt only the sessions in this table of items, messages or checkpoints. By default, those in all tables
            that have the columns of the framework.
        prefix: A prefix of the session keys, so that sessions with one id in two sources do not collide. Pass it to the
            framework's adapter too. Google ADK has none.
        dry_run: Return the reports of a real adoption, without writing anything. Values of LangGraph are read, but it
            is not tried whether they can be stored.
        on_session: Called with each report.
        on_rows: Called with the number of rows after each transaction.

    Returns:
        A report for each session, for each scope of shared values, and for data that is not adopted.

    Raises:
        ValueError: `source` is unknown, no framework or several have tables in the database, `table` is not one of
            them, `prefix` is used with Google ADK, or the framework's package is needed but not installed.
        InvalidFile: The SQLite file is damaged or missing. Sessions that were adopted before are kept.
        DatabaseBusy: The database is busy. What was committed before is kept; run the adoption again.
        DatabaseUnavailable: A database cannot be reached. What was committed before is kept.
    """
    if source is not None and source not in SOURCES:
        raise ValueError(f"{quoted(source)} cannot be adopted: give one of {', '.join(SOURCES)}")
    reports: list[Adopted] = []

    def add(report: Adopted) -> None:
        reports.append(report)
        if on_session is not None:
            on_session(report)

    def failed(name: str, key: str, reason: str) -> None:
        add(Adopted(key=key, source=name, state="failed", skipped=[reason], dry_run=dry_run))

    with open_source(url) as database:
        chosen = _choose(database, source)
        name, tables = chosen.NAME, chosen.tables(database)
        if table is not None and table not in tables:
            raise ValueError(f"{quoted(table)} is not a table of {name}: give one of {', '.join(tables)}")
        table_of: dict[str, str] = {}
        for session in chosen.sessions(database, tables if table is None else [table], prefix):
            if isinstance(session, Damaged):
                failed(name, *session)
            elif session.key in table_of:
                failed(name, legible(session.key), _same_key(session.table, table_of[session.key]))
            else:
                table_of[session.key] = session.table
                add(_Adoption(store, session, name, dry_run=dry_run).run(on_rows))
        for scope in chosen.shared(database):
            if isinstance(scope, Damaged):
                failed(name, *scope)
            else:
                add(_adopt_shared(store, scope, name, dry_run=dry_run))
        if notes := [*unread(database, chosen.columns(database))]:
            add(Adopted(key=name, source=name, state="left out", notes=notes, dry_run=dry_run))
    return reports


def check_source(url: str, source: str | None) -> None:
    """Raise the error that `adopt` would raise if the database does not have the tables of exactly one framework."""
    with open_source(url) as database:
        _choose(database, source)


def _choose(database: Database, source: str | None) -> Source:
    """Return the framework whose tables the database has. Raises ValueError if there is not exactly one."""
    candidates = [each for name, each in SOURCES.items() if source in (None, name)]
    found = [each for each in candidates if each.tables(database)]
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(each.NAME for each in found)
        raise ValueError(f"the database has the tables of {names}: choose one of them as the source")
    for schema, tables in database.elsewhere().items():
        other = database._replace(tables=tables, query=lambda *_: iter(()))
        for each in candidates:
            if each.tables(other):
                remedy = "append ?options=-csearch_path%3D and the name of the schema to the URL"
                raise ValueError(f"the tables of {each.NAME} are in the schema {quoted(schema)}: {remedy}")
    names = ", ".join(each.NAME for each in candidates)
    raise ValueError(f"the database has the tables of none of {names}: check the URL, or choose the source")


def _same_key(table: str, other: str) -> str:
    if table == other:
        return f"table {table}: another session has the same key, because the ids differ only in their type"
    remedy = "adopt one table after the other, with table= (--table) and a prefix= (--prefix) for the second one"
    return f"table {table}: table {other} has a session with the same key: {remedy}"


_COLLISIONS: Final = (errors.Conflict, errors.UniqueViolation, errors.SessionNotFound)
_FAILURES: Final = (errors.InvalidKey, errors.InvalidValue, errors.DamagedMessage)


class _Adoption:
    """The adoption of one session. `_mark` is its entry in the metadata, None before the first transaction."""

    def __init__(self, store: Store, session: Original, name: str, *, dry_run: bool) -> None:
        self._store, self._context, self._session = store, store._context, session
        self._report = Adopted(key=legible(session.key), source=name, dry_run=dry_run)
        self._mark: dict[str, Any] | None = None
        self._turns: set[str | None] = set()

    def run(self, on_rows: Callable[[int], None]) -> Adopted:
        """Write what the store does not have yet, and return the report."""
        report, session, pause = self._report, self._session, Pause(self._context)
        try:
            checked_key(session.key)
            if session.adopt is not None:
                options: dict[str, Any] = {"dry_run": report.dry_run, "on_rows": on_rows, "skipped": report.skipped}
                report.state, report.messages = session.adopt(self._store, **options)
                return report
            if session.values is not None and (fault := values.fault_of(session.key, session.values)):
                session.values = None
                session.skipped.append(f"its state cannot be stored ({fault}): left out")
            with self._context.snapshot() as connection:
                if info := self._info(connection, self._context.now(connection)):
                    self._mark = mapping(info.metadata)[values.MARK]
                    self._turns |= {*connection.scalars(sa.select(TURN.c.id).where(of_session(TURN, session.key)))}
            stored: dict[str, Any] = {"rows": 0} | (self._mark or {})
            if count := stored.get("left_out"):
                report.skipped.append(f"table {session.table}: {count} rows were left out before")
            pieces = session.read(stored["rows"])
            if stored["rows"] and mark_of(next(pieces, Piece(Part([]))).last or {}) != stored["last"]:
                raise self._conflict("was adopted, but the source has changed or removed rows since")
            for batch, is_last in _batches(pieces):
                self._write(batch, is_last=is_last)
                on_rows(sum(each.rows for each in batch))
                pause.after_batch()
        except (*_COLLISIONS, *_FAILURES) as error:
            report.state = "collided" if isinstance(error, _COLLISIONS) else "failed"
            report.skipped.append(str(error))
        return report.model_copy(update={"skipped": session.skipped + report.skipped, "notes": session.notes})

    def _conflict(self, fact: str) -> errors.Conflict:
        remedy = "delete it in the store to adopt it again, or adopt with another prefix"
        message = f"session {quoted(self._session.key)} {fact}: it was not changed, {remedy}"
        return errors.Conflict(self._session.key, expected=0, last_seq=0, message=message)

    def _info(self, connection: sa.Connection, now: datetime) -> SessionInfo | None:
        """Return the session as adopted before, None if there is none."""
        try:
            info = sessions.info(connection, now, self._session.key)
        except errors.SessionNotFound:
            return None
        mark = mapping(mapping(info.metadata).get(values.MARK))
        if mark.get("source") != self._report.source:
            raise self._conflict("exists, and was not adopted from this source")
        if mark["table"] != self._session.table:
            raise self._conflict(f"was adopted from table {mark['table']}, not from table {self._session.table}")
        return info

    def _write(self, batch: list[Piece], *, is_last: bool) -> None:
        report, is_new = self._report, self._mark is None
        parts: list[Part] = []
        turns = {*self._turns}
        for part in (each.part for each in batch):
            has_turn = part.kind is not None and (part.id is None or part.id not in turns)
            turns.add(part.id)
            if has_turn or not parts or parts[-1].kind:
                parts.append(part if has_turn else Part([]))
            if not has_turn:
                parts[-1].messages.extend(part.messages)
        parts = [part for part in parts if part.messages or part.kind]
        skipped = [reason for each in batch for reason in each.skipped]
        mark: dict[str, Any] = {"source": report.source, "table": self._session.table, "rows": 0, "last": ""}
        mark |= {"values": values.EMPTY}
        mark |= self._mark or ({"columns": self._session.columns} if self._session.columns else {})
        mark["rows"] += sum(each.rows for each in batch)
        if last := next((each.last for each in reversed(batch) if each.last), None):
            mark["last"] = mark_of(last)
        try:
            self._commit(parts, self._counted(mark, skipped), is_last=is_last)
        except (errors.InvalidValue, errors.UniqueViolation):
            parts = self._storable(parts, skipped)
            self._commit(parts, self._counted(mark, skipped), is_last=is_last)
        self._mark, self._turns = mark, turns
        report.skipped.extend(skipped)
        report.messages += sum(len(part.messages) for part in parts)
        if is_new or (parts and report.state != "imported"):
            report.state = "imported" if is_new else "continued"

    def _counted(self, mark: dict[str, Any], skipped: list[str]) -> dict[str, Any]:
        """Set the number of rows that were left out, including those of the transactions before."""
        if count := mapping(self._mark).get("left_out", 0) + len(skipped):
            mark["left_out"] = count
        return mark

    def _storable(self, parts: list[Part], skipped: list[str]) -> list[Part]:
        """Return parts without the messages and turns that cannot be stored, and without ids that are stored."""
        key, kept = self._session.key, list[Part]()
        ids = [message.id for part in parts for message in part.messages]
        query = sa.select(MESSAGE.c.id).where(of_session(MESSAGE, key), MESSAGE.c.id.in_(ids))
        with self._context.snapshot() as connection:
            known = {*connection.scalars(query)}
        for part in parts:
            messages = []
            for message in part.messages:
                try:
                    check_message(message)
                    if message.id in known:
                        raise errors.InvalidMessage("id", "another row has the same id")
                except errors.InvalidMessage as error:
                    where = f"table {self._session.table}, {legible(message.id)}"
                    skipped.append(f"{where} cannot be stored ({error}): left out")
                else:
                    known.add(message.id)
                    messages.append(message)
            has_id = part.id is None or storable_id(part.id)
            if not (has_id and is_storable_json(part.usage) and is_storable_json(part.metadata)):
                # Not counted as left out: each adoption finds usage without a turn again
                self._report.skipped.append(f"{legible(part.id)}: the usage of the turn cannot be stored: left out")
                part = Part([])
            if messages or part.kind:
                kept.append(replace(part, messages=messages))
        return kept

    def _commit(self, parts: list[Part], mark: dict[str, Any], *, is_last: bool) -> None:
        """Write parts and the mark. Changes `mark["values"]` if values were written."""
        session, context, draft = self._session, self._context, SessionDraft(self._session.key, parts)
        if self._report.dry_run:
            importing.check(draft, context.clock_time())
            return
        with context.transaction() as connection:
            now, tx = context.now(connection), self._store.using(connection)
            if self._mark is None:
                new = NewSession(session.key, context.ttl(session.key, UNSET), session.fields)
                if sessions.insert(connection, now, new) is None:
                    raise self._conflict("was created by another process")
                columns: dict[str, Any] = {
                    "created_at": session.created_at or now,
                    "updated_at": session.updated_at or now,
                }
                columns["forked_from"] = encode_text(session.forked_from, "forked_from")
            else:
                sessions.lock(connection, now, session.key)
                info = self._info(connection, now)
                if info is None or mapping(info.metadata)[values.MARK] != self._mark:
                    raise self._conflict("was adopted further by another process")
                columns = {"updated_at": max(session.updated_at or now, info.updated_at), "metadata": info.metadata}
            if is_last and session.values is not None:
                try:
                    stored = tx.conversation(session.key).values
                    mark["values"] = values.replace_values(stored, session.values, mark["values"])
                except errors.Conflict as error:
                    self._report.skipped.append(str(error))
            if parts or mark != self._mark:
                columns["metadata"] = mapping(columns.get("metadata")) | {values.MARK: mark}
                importing.extend(connection, now, draft, encode=context.batch, **columns)
                session.finish(tx)


def _batches(pieces: Iterator[Piece]) -> Iterator[tuple[list[Piece], bool]]:
    """Yield as many pieces as one transaction should write, and whether they are the last ones."""
    batch: list[Piece] = []
    rows = size = 0
    for piece in pieces:
        if rows >= PAGE or size >= CHARACTERS:
            yield batch, False
            batch, rows, size = [], 0, 0
        batch.append(piece)
        rows, size = rows + piece.rows, size + piece.size
    yield batch, True


def _adopt_shared(store: Store, scope: Shared, name: str, *, dry_run: bool) -> Adopted:
    """Adopt the values of a scope. What was adopted is noted in the scope `MARK`."""
    report = Adopted(key=scope.key, source=name, dry_run=dry_run)
    try:
        if values.adopt_shared(store, scope, dry_run=dry_run):
            report.state = "imported"
    except (*_COLLISIONS, *_FAILURES) as error:
        report.state = "collided" if isinstance(error, _COLLISIONS) else "failed"
        report.skipped.append(str(error))
    return report
