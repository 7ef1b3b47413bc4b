"""A row of a session as one line of JSON, every column of it: what backups and copies are made of.

A row's line is its columns by their names, NULL left out. A JSON column stands there as the very text that the database
has; where that text cannot stand inside a line, it stands there as a string, and `"quoted"` behind the row names the
column. Nothing is decoded, so that nothing is lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa

from lango_store._operations import transfer
from lango_store._operations.binds import MESSAGE, SESSION, SHARED_VALUE, TURN, VALUE
from lango_store._operations.transfer import Row
from lango_store._rows.columns import JsonColumn
from lango_store._rows.encoding import reject_constant

VERSION: Final = 1
"""The version of the format, which every file names."""

TABLES: Final = {
    "session": SESSION,
    "turn": TURN,
    "message": MESSAGE,
    "value": VALUE,
    "shared_value": SHARED_VALUE,
}
KINDS: Final = {table.name: kind for kind, table in TABLES.items()}


def pages(connection: sa.Connection, key: str) -> Iterator[tuple[sa.Table, list[Row]]]:
    """Yield the rows of a session, its own first, page by page however many it has."""
    if (row := transfer.session(connection, key)) is not None:
        yield SESSION, [row]
        for rows in transfer.turns(connection, [key]):
            yield TURN, rows
        for rows in transfer.messages(connection, [key]):
            yield MESSAGE, rows
        for rows in transfer.values(connection, [key]):
            yield VALUE, rows


def digest(connection: sa.Connection, key: str) -> str:
    """Return the digest of a session: two are equal in every column if their digests are."""
    counted = SessionDigest()
    for table, rows in pages(connection, key):
        for row in rows:
            counted.add(table, row_line(table, row).encode())
    return counted.digest


class SessionDigest:
    """Counts and digests the lines of a session, or of the values that sessions share."""

    def __init__(self) -> None:
        self._lines = dict.fromkeys(TABLES, 0)
        self._sha256 = hashlib.sha256()

    def add(self, table: sa.Table, line: bytes) -> None:
        """Count a row's line, without its end, and add it to the digest."""
        self._lines[KINDS[table.name]] += 1
        self._sha256.update(line)
        self._sha256.update(b"\n")

    @property
    def sessions(self) -> int:
        """How many rows of sessions there were: one, or none."""
        return self._lines["session"]

    @property
    def messages(self) -> int:
        """How many messages there were."""
        return self._lines["message"]

    @property
    def shared_values(self) -> int:
        """How many shared values there were."""
        return self._lines["shared_value"]

    @property
    def digest(self) -> str:
        """The digest of the lines so far."""
        return self._sha256.hexdigest()

    def closing(self) -> str:
        """Return the line that closes the session."""
        values = {"values": self._lines["value"]} if self._lines["value"] else {}
        end = {"turns": self._lines["turn"], "messages": self.messages, **values, "sha256": self.digest}
        return json_line({"end": end})

    def closing_shared(self) -> str:
        """Return the line that closes the values of shared scopes."""
        return json_line({"shared": {"values": self.shared_values, "sha256": self.digest}})


def json_line(value: Any) -> str:
    """Return a value as one line, without its end."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def row_line(table: sa.Table, row: Row) -> str:
    """Return a row as one line, without its end."""
    members: list[str] = []
    quoted: list[str] = []
    for column in transfer.COLUMNS[table.name]:
        name, value = column.name, row[column.name]
        if value is None or name == "session_key":
            continue
        try:
            text = json_line(value)
        except TypeError as error:
            raise transfer.damaged(row, name, str(error)) from None
        if isinstance(column.type, JsonColumn):
            if _stands_in_a_line(value):
                text = value
            else:
                quoted.append(name)
        members.append(f'"{name}":{text}')
    behind = f',"quoted":{json_line(quoted)}' if quoted else ""
    return f'{{"{KINDS[table.name]}":{{{",".join(members)}}}{behind}}}'


_scan: Final = json.JSONDecoder(parse_constant=reject_constant).raw_decode


def _stands_in_a_line(text: str) -> bool:
    """Whether a reader that scans the line finds this text again: JSON on one line, nothing around it."""
    try:
        return "\n" not in text and "\r" not in text and _scan(text)[1] == len(text)
    except (ValueError, RecursionError):
        return False


def read_row(table: sa.Table, line: str) -> Row:
    """Return the row that `row_line` wrote; ValueError if the line is damaged."""
    row, end = _members(table, line, line.index(":") + 1)
    quoted = json.loads("{" + line[end:].lstrip(","))  # `}`, or `,"quoted":[…]}`
    there = {column.name for column in transfer.COLUMNS[table.name]}
    for name in row:
        if name not in there:
            raise ValueError(f"{name!r} is not a column of a {KINDS[table.name]}")
    for name in quoted.get("quoted", ()):
        if name in row and name in _JSON[table.name]:
            row[name] = json.loads(row[name], parse_constant=reject_constant)
    row = dict.fromkeys(column.name for column in transfer.COLUMNS[table.name]) | row
    missing = [c.name for c in transfer.COLUMNS[table.name] if not c.nullable and row[c.name] is None]
    if set(missing) - {"session_key"}:
        raise ValueError(f"{missing[-1]!r} is missing")
    return row


_JSON: Final = {
    table.name: frozenset(column.name for column in table.c if isinstance(column.type, JsonColumn))
    for table in TABLES.values()
}


def _members(table: sa.Table, line: str, at: int) -> tuple[Row, int]:
    """Return the members of an object, those of JSON columns as their very texts, and where it ends."""
    members: Row = {}
    mark = "{"
    while line.startswith(mark, at):
        name, at = _scan(line, at + 1)
        value, end = _scan(line, at + 1)
        if name in _JSON[table.name]:
            del value  # it may be large, and so is its text
            members[name] = line[at + 1 : end]
        else:
            members[name] = value
        if line.startswith("}", end):
            return members, end + 1
        at, mark = end, ","
    raise ValueError(f"{line[at : at + 20]!r} stands where a row should continue")
