"""Adoption of the sessions of a source: each in transactions of a few hundred rows, continued where it stopped.

The metadata of an adopted session says how many rows of the source it has, and identifies the last one. They are
written together with the rows, so an adoption that was killed, or a source that grew, is continued after these rows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, Literal

import sqlalchemy as sa
from pydantic import Field

from lango_store import errors
from lango_store._features.named_values.groups import Values
from lango_store._operations.binds import TURN, of_session
from lango_store._operations.session import sessions
from lango_store._operations.session.sessions import NewSession
from lango_store._rows.encoding import encode_text
from lango_store._values.model import UNSET, SessionInfo
from lango_store._values.value import Value
from lango_store.errors import quoted
from lango_store.interchange import importing
from lango_store.interchange.adoption import google_adk, langchain, langgraph, openai_agents
from lango_store.interchange.adoption.source import (
    CHARACTERS,
    PAGE,
    Original,
    Piece,
    Source,
    mark_of,
    open_source,
    unread,
)
from lango_store.interchange.draft import Part, SessionDraft
from lango_store.interchange.fidelity import check_message, mapping
from lango_store.interchange.pieces import Pause
from lango_store.store import Store

SOURCES: Final[dict[str, Source]] = {each.NAME: each for each in (openai_agents, google_adk, langgraph, langchain)}
"""The frameworks whose databases can be adopted, in the order in which they are tried."""

MARK: Final = "adopted"
"""The name in the metadata of a session, and the scope of shared values, that says what was adopted."""


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
        skipped: What could not be read or stored, with the reasons.
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
    dry_run: bool = False,
    on_session: Callable[[Adopted], None] | None = None,
    on_rows: Callable[[int], None] = lambda _: None,
) -> list[Adopted]:
    """Adopt the sessions in the database of an agent framework.

    The database is opened read-only. It may also be the database of the store. An adoption can be repeated, also after
    it was killed: no message is adopted twice, and a source that has grown is continued.

    Args:
        store: The store to write to.
        url: The URL of the database to read, `sqlite:///…` or `postgresql://…`.
        source: The framework, a key of `adopting.SOURCES`. By default, it is detected by the tables.
        dry_run: Return the reports of a real adoption, without writing anything.
        on_session: Called with each report.
        on_rows: Called with the number of rows after each transaction.

    Returns:
        A report for each session, for each scope of shared values, and for data that is not adopted.

    Raises:
        ValueError: `source` is unknown, no framework or several have tables in the database, or the framework's package
            is needed but not installed.
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

    with open_source(url) as database:
        names = [name for name, each in SOURCES.items() if source in (None, name) and each.recognizes(database)]
        if len(names) != 1:
            tables = " and ".join(names) or f"none of {', '.join(SOURCES if source is None else [source])}"
            raise ValueError(f"the database has the tables of {tables}: check the URL, or choose the source")
        chosen = SOURCES[names[0]]
        for session in chosen.sessions(database):
            add(_Adoption(store, session, chosen.NAME, dry_run=dry_run).run(on_rows))
        for scope, values in chosen.shared(database):
            add(_adopt_shared(store, scope, values, chosen.NAME, dry_run=dry_run))
        if notes := [*unread(database, chosen.columns(database))]:
            add(Adopted(key=chosen.NAME, source=chosen.NAME, state="left out", notes=notes, dry_run=dry_run))
    return reports


_EMPTY: Final = mark_of({})
_COLLISIONS: Final = (errors.Conflict, errors.UniqueViolation, errors.SessionExpired)
_FAILURES: Final = (errors.InvalidKey, errors.InvalidValue, errors.DamagedMessage)


class _Adoption:
    """The adoption of one session. `_mark` is its entry in the metadata, None before the first transaction."""

    def __init__(self, store: Store, session: Original, name: str, *, dry_run: bool) -> None:
        self._store, self._context, self._session = store, store._context, session
        self._report = Adopted(key=session.key, source=name, dry_run=dry_run)
        self._mark: dict[str, Any] | None = None
        self._turns: set[str | None] = set()

    def run(self, on_rows: Callable[[int], None]) -> Adopted:
        """Write what the store does not have yet, and return the report."""
        report, session, pause = self._report, self._session, Pause(self._context)
        try:
            if session.adopt is not None:
                options: dict[str, Any] = {"dry_run": report.dry_run, "on_rows": on_rows, "skipped": report.skipped}
                report.state, report.messages = session.adopt(self._store, **options)
                return report
            with self._context.snapshot() as connection:
                if info := self._info(connection, self._context.now(connection)):
                    self._mark = mapping(info.metadata)[MARK]
                    self._turns |= {*connection.scalars(sa.select(TURN.c.id).where(of_session(TURN, session.key)))}
            stored: dict[str, Any] = {"rows": 0} | (self._mark or {})
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
        message = f"session {quoted(self._session.key)} {fact}: it was not changed"
        return errors.Conflict(self._session.key, expected=0, last_seq=0, message=message)

    def _info(self, connection: sa.Connection, now: datetime) -> SessionInfo | None:
        """Return the session as adopted before, None if there is none."""
        try:
            info = sessions.info(connection, now, self._session.key)
        except errors.SessionNotFound:
            return None
        if mapping(mapping(info.metadata).get(MARK)).get("source") != self._report.source:
            raise self._conflict("exists, and was not adopted from this source")
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
        mark: dict[str, Any] = {"source": report.source, "rows": 0, "last": "", "values": _EMPTY}
        mark |= self._mark or ({"columns": self._session.columns} if self._session.columns else {})
        mark["rows"] += sum(each.rows for each in batch)
        if last := next((each.last for each in reversed(batch) if each.last), None):
            mark["last"] = mark_of(last)
        try:
            self._commit(parts, mark, is_last=is_last)
        except errors.InvalidMessage:
            parts = [_storable(part, skipped) for part in parts]
            self._commit(parts, mark, is_last=is_last)
        self._mark, self._turns = mark, turns
        report.skipped.extend(skipped)
        report.messages += sum(len(part.messages) for part in parts)
        if is_new or (parts and report.state != "imported"):
            report.state = "imported" if is_new else "continued"

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
                if info is None or mapping(info.metadata)[MARK] != self._mark:
                    raise self._conflict("was adopted further by another process")
                columns = {"updated_at": max(session.updated_at or now, info.updated_at), "metadata": info.metadata}
            if is_last and session.values is not None:
                try:
                    mark["values"] = _replace_values(
                        tx.conversation(session.key).values, session.values, mark["values"]
                    )
                except errors.Conflict as error:
                    self._report.skipped.append(str(error))
            if parts or mark != self._mark:
                columns["metadata"] = mapping(columns.get("metadata")) | {MARK: mark}
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


def _storable(part: Part, skipped: list[str]) -> Part:
    """Return a part without the messages that cannot be stored."""
    messages = []
    for message in part.messages:
        try:
            check_message(message)
            messages.append(message)
        except errors.InvalidMessage as error:
            skipped.append(f"{message.id}: {error}: left out")
    return replace(part, messages=messages)


def _replace_values(values: Values, new: Mapping[str, Any], adopted: str) -> str:
    """Replace values that have not changed since they were adopted. Return the mark of the adopted values.

    Raises `Conflict` if both the source and the store have new values.
    """
    mark = mark_of(new)
    if mark == adopted or mark == (current := mark_of(values.get())):
        return mark
    if current != adopted:
        message = "values have changed in the source and in the store: those of the store were kept"
        raise errors.Conflict(values.key or "", expected=0, last_seq=0, message=message)
    values.drop()
    values.set(dict(new))
    return mark


def _adopt_shared(store: Store, scope: str, values: dict[str, Any], name: str, *, dry_run: bool) -> Adopted:
    """Adopt the values of a scope. What was adopted is noted in the scope `MARK`."""
    report = Adopted(key=scope, source=name, dry_run=dry_run)

    def write(tx: Store) -> bool:
        marks = tx.shared_values(MARK)
        adopted = str(marks.get(prefix=scope).get(scope, _EMPTY))
        marks.set({scope: (mark := _replace_values(tx.shared_values(scope), values, adopted))})
        return mark != adopted

    try:
        if not dry_run and store.transact(write):
            report.state = "imported"
    except (*_COLLISIONS, *_FAILURES) as error:
        report.state = "collided" if isinstance(error, _COLLISIONS) else "failed"
        report.skipped.append(str(error))
    return report
