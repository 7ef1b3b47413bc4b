"""Salvage of a damaged SQLite file: a copy of the file is read row by row, and readable rows are stored elsewhere."""

import sqlite3
import tempfile
from collections.abc import Container, Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from lango_store._rooms.examination import payload_faults
from lango_store._rooms.payloads import moving
from lango_store._rooms.turns_in_progress.checks import EMPTY_INBOX, end_wait
from lango_store.errors import DamagedMessage, InvalidFile, InvalidKey, UnknownFeature
from lango_store.interchange.copying import CopyReport, Failure, copy
from lango_store.interchange.source import copy_database
from lango_store.rows import (
    CHANGE,
    IS_COMPACTION,
    MESSAGE,
    SESSION,
    TABLES,
    TURN,
    WAITING_FIELDS,
    RoleColumn,
    Row,
    RowEncoder,
    checked_key,
    key_column,
    of_session,
    transfer,
)
from lango_store.rows.storage import changes, counters, guard, guard_fault, payloads, removals
from lango_store.store import Store
from lango_store.tables import KNOWN_FEATURES, SCHEMA_REVISION, VERSION_TABLE

_BATCH: Final = 500
_MISSES: Final = 1_000_000  # below the highest known row id: stop after this many row ids in sequence without a row
_MISSES_AT_END: Final = 20_000  # above it: stop after this many
_INSTRUCTIONS: Final = 1_000_000_000  # for row ids that are tried one by one
_RANGES: Final = 10


def salvage(path: Path, target: Store, *, dry_run: bool = False) -> CopyReport:
    """Copy the readable rows of a damaged SQLite file to another store.

    The file and its write-ahead log are copied first; the original is never opened as a database and never changed.
    The readable rows are then written to a temporary store. If the row of a session is lost, a new one is created;
    counters are corrected. The temporary store is copied to the target like any other store, see `copy`.

    Args:
        path: The damaged file.
        target: The store to copy to.
        dry_run: Return the report that a salvage would have, without writing to the target.

    Returns:
        The report of the copy. `missing` lists the data that could not be read.

    Raises:
        InvalidFile: The file cannot be read, or none of its tables can be found.
        UnknownFeature: The file uses a feature that this release does not know.
    """
    with tempfile.TemporaryDirectory(prefix="lango-store-") as folder:
        damaged = copy_database(path, folder)
        with Store(f"sqlite:///{folder}/sound.db", migrate=True, durability="normal") as sound:
            with closing(sqlite3.connect(damaged, isolation_level=None)) as source:
                guard(source, damaged, instructions=_INSTRUCTIONS)
                source.text_factory = _text
                source.execute("PRAGMA writable_schema = ON")  # reads files that were cut off, and damaged schemas
                _reject_unknown_features(source)
                missing = _Salvage(path, source, sound).run()
            report = copy(sound, target, dry_run=dry_run)
        report.missing = missing
        return report


def _text(data: bytes) -> str | bytes:
    try:
        return data.decode()
    except UnicodeDecodeError:  # encoding the row then fails, and reports the column
        return data


def _reject_unknown_features(source: sqlite3.Connection) -> None:
    try:
        used = [name for (name,) in source.execute("SELECT name FROM lango_feature")]
    except sqlite3.Error:  # the table is lost, or the file has schema 0100
        return
    if unknown := [str(name) for name in used if name not in KNOWN_FEATURES]:
        raise UnknownFeature(unknown)


class _Salvage:
    """Copies readable rows from a damaged file to a sound store."""

    def __init__(self, path: Path, source: sqlite3.Connection, sound: Store) -> None:
        self._path, self._source, self._sound = path, source, sound
        self._missing: list[Failure] = []
        self._sessions: set[str] = set()
        self._recreated: set[str] = set()
        self._absent: dict[sa.Table, str] = {}

    def run(self) -> list[Failure]:
        """Copy all tables, correct the sessions, and return the failures."""
        with self._sound._context.transaction() as to:
            for table in TABLES:
                batch: list[Row] = []
                for values in self._read(table):
                    try:
                        row = RowEncoder().encode_stored(table, transfer.stored_row(table, values))[0]
                        checked_key(row[key_column(table).name])
                    except (DamagedMessage, InvalidKey) as error:
                        self._report(getattr(error, "key", "") or "?", f"a row of {table.name} is damaged: {error}")
                    else:
                        batch.append(row)
                    if len(batch) == _BATCH:
                        self._put(to, table, batch)
                        batch = []
                self._put(to, table, batch)
            self._report_absent()
            self._correct(to)
        return self._missing

    def _correct(self, to: sa.Connection) -> None:
        for key, seq, _ in list(payload_faults.missing(to)):
            moving.move_row(to, key, seq, None, fills_missing=True)
            self._report(key, f"a large string of message {seq} is lost, its place is empty")
        for key, _ in list(payload_faults.unused(to)):
            payloads.release(to, key)
        removals.detach_misplaced(to)  # their turns may be lost
        for key, table, number, seq in list(changes.orphans(to)):
            changes.delete_orphans(to, key)
            self._report(key, f"{number} rows of {table} belong to lost messages, such as {seq}")
        for key, *_ in list(EMPTY_INBOX.find(to)):
            end_wait(to, key)
            self._report(key, "the messages in its inbox are lost")
        if self._revision() < "0107":  # the turns that forks copied are not marked
            older = (of_session(SESSION, TURN.c.session_key), TURN.c.created_at < SESSION.c.created_at)
            source = sa.select(SESSION.c.forked_from).where(*older).scalar_subquery()
            to.execute(sa.update(TURN).values(copied_from=source))
        for key, wrong in list(counters.wrong(to)):
            counters.correct(to, key)
            corrected = [wrong[name] for name in ("message_count", "record_count") if name in wrong]
            lost = sum(stored - counted for stored, counted in corrected)
            if lost > 0 and key not in self._recreated:
                self._report(key, f"{lost:,} messages are missing: {_gaps(to, key)}")
        for key in sorted(self._recreated):
            latest = sa.select(sa.func.max(MESSAGE.c.created_at)).where(of_session(MESSAGE, key)).scalar_subquery()
            times = {"updated_at": sa.func.coalesce(latest, SESSION.c.updated_at)}
            to.execute(sa.update(SESSION).where(of_session(SESSION, key)).values(times))
            self._report(key, f"its row is lost, with title, settings and TTL; missing messages: {_gaps(to, key)}")

    def _revision(self) -> str:
        """Return the revision of the file's schema; if it is lost, the revision of this release."""
        try:
            return str(self._source.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()[0])
        except (sqlite3.Error, TypeError):
            return SCHEMA_REVISION

    def _report_absent(self) -> None:
        """Report the tables that cannot be found. Raises `InvalidFile` if no table can be found."""
        if len(self._absent) == len(TABLES):
            reason = f"its tables cannot be found ({self._absent[SESSION]})"
            raise InvalidFile(self._path, f"{reason}: restore a backup, or try sqlite3 FILE .recover")
        for table, reason in self._absent.items():
            self._report("?", f"{table.name} cannot be found ({reason}): all of its rows are lost")

    def _report(self, key: object, reason: str) -> None:
        self._missing.append(Failure(key=str(key), reason=reason))

    def _put(self, to: sa.Connection, table: sa.Table, rows: list[Row]) -> None:
        if TABLES[table].is_child:
            for row in rows:
                if row["session_key"] not in self._sessions:
                    self._recreated.add(row["session_key"])
                    self._put(to, SESSION, [_new_session(row)])
        try:
            with to.begin_nested():
                transfer.insert(to, table, rows)
        except sqlite3.Error as error:  # a duplicate row, or a row that breaks another constraint
            middle = len(rows) // 2
            if not middle:
                self._report(rows[0][key_column(table).name], f"a row of {table.name} breaks a constraint: {error}")
                return
            self._put(to, table, rows[:middle])
            self._put(to, table, rows[middle:])
            return
        if table is SESSION:
            self._sessions |= {row["key"] for row in rows}

    def _read(self, table: sa.Table) -> Iterator[tuple[Any, ...]]:
        """Yield the readable rows of a table, without using its indexes.

        The table is read from both ends up to the first damaged page. Then each remaining row id is tried.
        """
        existing = {row[1] for row in self._source.execute(f"PRAGMA table_info({table.name})")}
        # A file of an older release lacks newer columns, which may be NULL. With the name of the table, because SQLite
        # reads an unknown quoted name without it as text.
        columns = ", ".join(
            "NULL" if each.nullable and each.name not in existing else f'{table.name}."{each.name}"'
            for each in TABLES[table].columns
        )
        embedded = TABLES[table].stored.embedded
        if embedded and embedded not in existing:
            columns = columns.replace(f'{table.name}."{embedded}"', _waiting_message(existing))
        query = f"SELECT rowid, {columns} FROM {table.name} NOT INDEXED"
        try:
            self._source.execute(f"{query} LIMIT 0")
        except sqlite3.Error as error:
            if self._revision() >= TABLES[table].stored.since:
                self._absent[table] = guard_fault(error) or str(error)
            return
        if "rowid" in {name.lower() for name in existing}:
            self._absent[table] = "it has a column named rowid"
            return
        seen: set[int] = set()
        for order in ("ASC", "DESC"):
            try:
                for rowid, *values in self._source.execute(f"{query} ORDER BY rowid {order}"):
                    if rowid in seen:
                        break
                    seen.add(rowid)
                    yield tuple(values)
                else:
                    return
            except sqlite3.Error as error:
                self._reject_endless(error)
        top, rowid, misses, faults, at_end = max(seen, default=0), 0, 0, 0, False
        while misses < (_MISSES if rowid < top else _MISSES_AT_END):
            rowid += 1
            misses += 1
            if rowid in seen:
                misses = 0
                continue
            try:
                row = self._source.execute(f"{query} WHERE rowid = ?", [rowid]).fetchone()
            except sqlite3.Error as error:
                self._reject_endless(error)
                faults += rowid < top
                at_end |= rowid > top  # the highest row id of the table is unknown
                continue
            if row is not None:
                misses = 0
                yield row[1:]
        end = ", and the end of the table is damaged" if at_end else ""
        self._report("?", f"rows of {table.name} may be lost: {faults:,} row ids are in damaged pages{end}")

    def _reject_endless(self, error: sqlite3.Error) -> None:
        """Raise `InvalidFile` if the guard interrupted the statement, as it would interrupt all later statements."""
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise InvalidFile(self._path, str(guard_fault(error))) from error


def _waiting_message(columns: Container[str]) -> str:
    """Return SQL for `lango_inbox.message` in a file of a revision before 0109, which has a column for each field."""
    parts = []
    for name in WAITING_FIELDS:
        if name in columns:
            is_text = isinstance(MESSAGE.c[name].type, sa.Text | RoleColumn)
            value = f"nullif(json_quote({name}), 'null')" if is_text else f"CAST({name} AS TEXT)"
            parts.append(f"""coalesce(',"{"content" if name == "text" else name}":' || {value}, '')""")
    return f"'{{' || substr({' || '.join(parts)}, 2) || '}}'"


def _new_session(row: Row) -> Row:
    times = (value for value in row.values() if isinstance(value, datetime))
    time = row.get("created_at") or next(times, datetime.now(UTC))  # a payload has no time
    empty = {column.name: None if column.nullable else 0 for column in TABLES[SESSION].columns}
    return empty | {"key": row["session_key"], "created_at": time, "updated_at": time}


def _gaps(connection: sa.Connection, key: str) -> str:
    """Describe the seqs of a session that no message, change or compaction uses."""
    last = connection.execute(sa.select(SESSION.c.last_seq).where(of_session(SESSION, key))).scalar_one()
    used = {row[0] for table in (MESSAGE, CHANGE) for row in _seqs(connection, table.c.seq, of_session(table, key))}
    used |= {row[0] - 1 for row in _seqs(connection, TURN.c.first_seq, of_session(TURN, key), IS_COMPACTION)}
    ranges, before = [], 0
    for seq in [*sorted(used), last + 1]:
        if seq > before + 1:
            ranges.append(f"{before + 1}" if seq == before + 2 else f"{before + 1} to {seq - 1}")
        before = seq
    shown = ", ".join(ranges[:_RANGES]) + (", …" if len(ranges) > _RANGES else "")
    return f"seq {shown}" if ranges else "none below the last seq"


def _seqs(connection: sa.Connection, column: Any, *conditions: Any) -> Any:
    return connection.execute(sa.select(column).where(*conditions))
