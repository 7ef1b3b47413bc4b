"""Sessions of openai-agents: `SQLiteSession`, `SQLAlchemySession` and `AdvancedSQLiteSession`.

Each item becomes a message; consecutive calls become one. A branch becomes a session below the key of its session, and
the usage of a turn becomes a turn. A session has the times of its items, or without items those of its row.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from typing import Final

from lango_store import Message, MessageRole
from lango_store.interchange import openai_items
from lango_store.interchange.adoption.source import (
    CHARACTERS,
    PAGE,
    Damaged,
    Database,
    Original,
    Piece,
    Row,
    Shared,
    converted,
    escaped,
    rest_of,
    time_of,
)
from lango_store.interchange.draft import Part
from lango_store.interchange.fidelity import check_message
from lango_store.rows import MAX_LEVELS, levels_within, mapping

NAME: Final = "openai-agents"

_COLUMNS: Final = frozenset({"id", "session_id", "message_data", "created_at"})
_SESSION: Final = frozenset({"session_id", "created_at", "updated_at"})
_READ: Final = _COLUMNS | {"user_turn_number"}
_USAGE: Final = ("requests", "input_tokens", "output_tokens", "total_tokens")
_MAIN: Final = "main"
_BRANCH: Final = ("session_id", "branch_id")
_NEAR: Final = 100
"""The number of messages between a call and its output in which the name of the call is looked for."""
_ENCRYPTED: Final = (
    "EncryptedSession encrypted items, which stay encrypted: read them with "
    "EncryptedSession(session_id, underlying_session=LangoSession(…), encryption_key=…) and the same key"
)
_time_of: Final = lru_cache(time_of)


def tables(database: Database) -> list[str]:
    """Return the tables that have the columns of a table of items."""
    return database.with_columns(*_COLUMNS)


def columns(database: Database) -> dict[str, frozenset[str]]:
    """Return the columns that are read of the tables that are not read completely."""
    structure = {"id", "session_id", "message_id", "branch_id", "sequence_number", "user_turn_number"}
    others = dict.fromkeys(("branch_reservations", "session_clear_generations"), frozenset[str]())
    tables_of_sessions = {table for items in tables(database) for table in _tables_of_sessions(database, items)}
    return dict.fromkeys(sorted(tables_of_sessions), _SESSION) | {"message_structure": frozenset(structure)} | others


def _tables_of_sessions(database: Database, items: str) -> set[str]:
    """Return the table to which a table of items refers."""
    return database.references(items).intersection(database.with_columns(*_SESSION))


def shared(database: Database) -> Iterator[Shared | Damaged]:
    """Yield nothing: the framework has no shared values."""
    return iter(())


def sessions(database: Database, tables: Sequence[str], prefix: str) -> Iterator[Original | Damaged]:
    """Yield the sessions of each table of items, and after each session its branches; then sessions without items."""
    for table in tables:
        times = "min(created_at) AS created_at, max(created_at) AS updated_at"
        query = f"SELECT session_id, {times} FROM {database.named(table)} GROUP BY session_id ORDER BY session_id"
        with_items = partial(_with_items, database, table, prefix)
        yield from converted(table, database.rows(query), ["session_id"], with_items)
    for table in tables:
        items = database.named(table)
        for parent in _tables_of_sessions(database, table):
            query = f"SELECT * FROM {database.named(parent)} s WHERE session_id IS NOT NULL"
            query += f" AND NOT EXISTS (SELECT 1 FROM {items} WHERE session_id = s.session_id) ORDER BY session_id"
            without_items = partial(_without_items, table, prefix)
            yield from converted(parent, database.rows(query), ["session_id"], without_items)


def _without_items(table: str, prefix: str, row: Row) -> Iterator[Original]:
    created_at, updated_at = time_of(row["created_at"]), time_of(row["updated_at"])
    yield Original(prefix + escaped(row["session_id"]), table, created_at=created_at, updated_at=updated_at)


def _with_items(database: Database, table: str, prefix: str, row: Row) -> Iterator[Original | Damaged]:
    id = row["session_id"]
    (found,) = _without_items(table, prefix, row)
    if branches := [*_branches(database, id)]:
        yield from _branched(database, table, found, id, branches)
    else:
        query = f"SELECT * FROM {database.named(table)} WHERE session_id = :id ORDER BY {_order(database, table)}"
        found.read = partial(_read, database, table, query, {"id": id}, {}, found.notes)
        yield found


def _order(database: Database, items: str) -> str:
    """Return the order in which the framework reads: SQLiteSession, which has its own index, reads by id."""
    query = "SELECT 1 FROM sqlite_master WHERE name = :index"
    is_file = not database.tables.keys().isdisjoint({"sqlite_sequence"})
    return "id" if is_file and any(database.rows(query, index=f"idx_{items}_session_id")) else "created_at, id"


def _branches(database: Database, id: str) -> Iterator[Row]:
    if database.with_columns("message_id", "branch_id", "sequence_number"):
        query = "SELECT branch_id FROM message_structure WHERE session_id = :id GROUP BY branch_id ORDER BY min(id)"
        yield from database.rows(query, id=id)


def _branched(
    database: Database, table: str, main: Original, id: str, branches: list[Row]
) -> Iterator[Original | Damaged]:
    """Yield the main branch of a session, and then the others."""
    items = database.named(table)
    strays = "AND id NOT IN (SELECT message_id FROM message_structure WHERE session_id = :id)"
    query = f"SELECT count(*) AS count FROM {items} WHERE session_id = :id {strays}"
    if count := next(database.rows(query, id=id))["count"]:
        main.notes.append(f"{count} items belong to no branch, so the framework does not read them: left out")
    query = (
        f"SELECT m.*, s.user_turn_number FROM {items} m JOIN message_structure s ON m.id = s.message_id "
        "WHERE m.session_id = :id AND s.branch_id = :branch ORDER BY s.sequence_number"
    )
    usage = "SELECT * FROM turn_usage WHERE session_id = :id AND branch_id = :branch ORDER BY user_turn_number"

    def convert(row: Row) -> Iterator[Original]:
        branch = row["branch_id"]
        is_main, params = branch == _MAIN, {"id": id, "branch": branch}
        key, fork = (main.key, None) if is_main else (f"{main.key}/{escaped(branch)}", main.key)
        found = replace(main, key=key, forked_from=fork, notes=[*main.notes] if is_main else [])
        turns = {row["user_turn_number"]: row for row in database.rows(usage, **params)}
        found.read = partial(_read, database, table, query, params, turns, found.notes)
        yield found

    rows = [{"branch_id": _MAIN}, *(each for each in branches if each["branch_id"] != _MAIN)]
    yield from converted("message_structure", [{"session_id": id} | row for row in rows], _BRANCH, convert)


def _read(
    database: Database, table: str, query: str, params: Row, usage: dict[int, Row], notes: list[str], after: int
) -> Iterator[Piece]:
    """Yield the pieces of a session: each turn that has usage, each group of calls, and each other item."""
    unused = dict(usage)

    def convert(row: Row) -> Part:
        item = json.loads(row["message_data"])
        row["message_data"].encode()  # fails for invalid UTF-8
        if "__enc__" in mapping(item) and _ENCRYPTED not in notes:
            notes.append(_ENCRYPTED)
        id, created_at = f"{NAME}:{row['id']}", _time_of(row["created_at"])
        message = openai_items.message_of_json(item, id=id, created_at=created_at)
        message.extra.update(rest_of(row, _READ))
        if message.tool_calls:
            check_message(message)  # before it is joined with the calls of other rows
        part, turn = Part([message]), row.get("user_turn_number")
        if turn in usage:
            unused.pop(turn, None)
            part = replace(_turn(turn, dict(usage[turn])), messages=part.messages)
        return part

    pieces = database.read(table, query, after, convert, **params)
    yield from islice(pieces, 1 if after else 0)
    yield from _joined(pieces)
    yield from (Piece(_turn(turn, row)) for turn, row in unused.items())


def _joined(pieces: Iterator[Piece]) -> Iterator[Piece]:
    """Join pieces to transactions that divide neither a turn, nor calls from each other and from their outputs."""
    last: Piece | None = None
    for piece in pieces:
        if last is None:
            last = piece
        elif not piece.part.messages or _belong_together(last, piece):
            _extend(last.part.messages, piece.part.messages)
            skipped = [*last.skipped, *piece.skipped]
            last = Piece(last.part, last.rows + piece.rows, piece.last, last.size + piece.size, skipped)
        else:
            yield last
            last = piece
    if last is not None:
        yield last


def _belong_together(one: Piece, other: Piece) -> bool:
    if one.part.kind or other.part.kind:
        return one.part.id == other.part.id
    if one.rows < PAGE and one.size < CHARACTERS:
        return True
    have_calls = all(each.part.messages and each.part.messages[-1].tool_calls for each in (one, other))
    return have_calls and one.rows < 2 * PAGE


def _extend(messages: list[Message], new: list[Message]) -> None:
    """Append a message; a call joins the calls before it, and an output gets the name of its call."""
    for message in new:
        calls = message.tool_calls
        last = messages[-1] if messages and messages[-1].tool_calls else None
        is_plain = last is not None and len(last.extra) == len(message.extra) == 1  # without other columns
        if last and calls and is_plain and last.role is message.role is MessageRole.ASSISTANT:
            extra = {openai_items.NAME: last.extra[openai_items.NAME] + message.extra[openai_items.NAME]}
            messages[-1] = message.model_copy(update={"tool_calls": last.tool_calls + calls, "extra": extra})
            continue
        if calls and message.role is MessageRole.TOOL:
            asked = (call for each in islice(reversed(messages), _NEAR) for call in each.tool_calls)
            name = next((call.name for call in asked if call.id == calls[0].id and call.name), "")
            calls[0].name = name
        messages.append(message)


def _turn(number: int, row: Row) -> Part:
    usage = {name: row[name] for name in _USAGE if row[name]}
    for name in ("input_tokens_details", "output_tokens_details"):
        with suppress(TypeError, ValueError, RecursionError):  # damaged or deeply nested details are stored unchanged
            details = json.loads(row[name] or "null")
            row[name] = details if levels_within(details, MAX_LEVELS - 1) else row[name]
        usage |= {name: row[name]} if row[name] else {}
    return Part([], kind="turn", id=f"{NAME}:turn:{number}", usage=usage, created_at=time_of(row["created_at"]))
