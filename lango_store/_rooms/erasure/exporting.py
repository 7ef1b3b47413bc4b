"""Export everything of a person to one file: what an erasure with the same arguments would delete or redact."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

import sqlalchemy as sa

from lango_store._connections.context import Context
from lango_store._operations.log import payloads
from lango_store._operations.session_tables import MESSAGES
from lango_store._rooms.documents.page import PAGE_END, escape_line, escape_text, start_page
from lango_store._rooms.erasure import person
from lango_store._rooms.erasure.erasing import databases
from lango_store._rooms.erasure.person import Found, Person
from lango_store._rooms.erasure.values import Rows
from lango_store._rows.columns import JsonColumn, TimeColumn
from lango_store._rows.encoding import decode_json, decode_time
from lango_store._rows.payloads import FAULTS, put_back

PersonFormat = Literal["jsonl", "html"]

_OWNERS: Final = ("session_key", "key", "scope")


class _Exported(NamedTuple):
    """A row of the export, with the session or the scope that it belongs to."""

    database: str
    owner: str
    table: str
    row: dict[str, Any]


def export(
    context: Context, someone: Person, archives: Sequence[str | Path], to: BinaryIO, format: PersonFormat
) -> Rows:
    """Write all rows of a person to a file; return the numbers of rows by database and table."""
    counts: Rows = {}
    owner = None
    with databases(context, someone, archives) as found:
        if format == "html":
            title = f"Everything of {someone.user_id or 'a person'}"
            to.write(f"{start_page(title)}<h1>{escape_line(title)}</h1>\n".encode(errors="backslashreplace"))
        for database, (each, part) in found.items():
            counts[database] = {}
            with ExitStack() as stack:
                connection, own = each.trying(partial(_begin, each, part, stack))
                for exported in _rows(connection, database, part, own):
                    named = counts[database]
                    named[exported.table] = named.get(exported.table, 0) + 1
                    text = _as_html(exported, owner) if format == "html" else _as_json(exported)
                    to.write(text.encode(errors="backslashreplace"))
                    owner = exported[:2]
        if format == "html":
            to.write(PAGE_END.encode())
    return counts


def _begin(context: Context, someone: Person, stack: ExitStack) -> tuple[sa.Connection, list[str]]:
    """Open a snapshot until the end of `stack`, and find the sessions. Writes nothing yet, so it can be retried."""
    with ExitStack() as opened:
        connection = opened.enter_context(context.snapshot())
        own = someone.sessions(connection)
        stack.push(opened.pop_all())
    return connection, own


def _rows(connection: sa.Connection, database: str, someone: Person, own: Sequence[str]) -> Iterator[_Exported]:
    for table, row in _found(connection, someone, own):
        owner = next(str(row[name]) for name in _OWNERS if name in row)
        if table in MESSAGES and row["payloads"] is not None:
            _put_back(connection, owner, row)
        yield _Exported(database, owner, table.name, _decoded(table, row))


def _found(connection: sa.Connection, someone: Person, own: Sequence[str]) -> Iterator[Found]:
    yield from person.rows_of(connection, own, someone.scopes)
    for key in someone.elsewhere(connection, own):
        yield from person.rows_by(connection, str(someone.user_id), key)


def _put_back(connection: sa.Connection, key: str, row: dict[str, Any]) -> None:
    """Replace the references of a message by its payloads, unless the row is damaged."""
    stored, whole = str(row["payloads"]), dict(row)
    try:
        put_back(whole, decode_json(stored), payloads.read(connection, key, payloads.digests_of([stored])))
    except FAULTS:
        return
    row |= whole


def _decoded(table: sa.Table, row: dict[str, Any]) -> dict[str, Any]:
    return {name: _value(table.c[name], value) for name, value in row.items() if value is not None}


def _value(column: sa.Column[Any], value: Any) -> Any:
    """Return a stored value as JSON; damaged values become text."""
    try:
        if isinstance(column.type, TimeColumn):
            return decode_time(value).isoformat()
        if isinstance(column.type, JsonColumn):
            return decode_json(value)
    except ValueError:
        return str(value)
    return str(value) if isinstance(value, bytes) else value


def _as_json(exported: _Exported) -> str:
    named = exported._asdict() | {"row": exported.row}
    return json.dumps(named, ensure_ascii=False) + "\n"


def _as_html(exported: _Exported, before: tuple[Any, ...] | None) -> str:
    heading = f"<h2>{escape_line(exported.owner)} ({exported.database})</h2>\n" if before != exported[:2] else ""
    name = exported.table.removeprefix("lango_").replace("_", " ").capitalize()
    cells = (
        f"<tr><th>{escape_line(column)}</th><td><pre>{escape_text(_as_text(value))}</pre></td></tr>\n"
        for column, value in exported.row.items()
        if column not in _OWNERS
    )
    return f"{heading}<h3>{name}</h3>\n<table>\n{''.join(cells)}</table>\n"


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)
