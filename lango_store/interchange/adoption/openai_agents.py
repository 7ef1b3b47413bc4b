"""Sessions of openai-agents: `SQLiteSession`, `SQLAlchemySession` and `AdvancedSQLiteSession`.

Each item becomes a message; consecutive calls become one. A branch becomes a session below the key of its session, and
the usage of a turn becomes a turn.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from lango_store._values.model import Message
from lango_store.interchange import openai_items
from lango_store.interchange.adoption.source import (
    CHARACTERS,
    PAGE,
    Database,
    Found,
    Piece,
    Row,
    mark_of,
    rest_of,
    time_of,
)
from lango_store.interchange.draft import Part
from lango_store.interchange.fidelity import mapping

NAME: Final = "openai-agents"

_COLUMNS: Final = ("id", "session_id", "message_data", "created_at")
_USAGE: Final = ("requests", "input_tokens", "output_tokens", "total_tokens")
_MAIN: Final = "main"
_LONGEST: Final = 10 * PAGE
_ENCRYPTED: Final = (
    "EncryptedSession encrypted items, which stay encrypted: read them with "
    "EncryptedSession(session_id, underlying_session=LangoSession(…), encryption_key=…) and the same key"
)
_time_of: Final = lru_cache(time_of)


def recognizes(database: Database) -> bool:
    """Return True if a table has the columns of a table of items."""
    return bool(database.with_columns(*_COLUMNS))


def shared(database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield nothing: the framework has no shared values."""
    return iter(())


def sessions(database: Database) -> Iterator[Found]:
    """Yield the sessions of each table of items, and after each session its branches."""
    for items in database.with_columns(*_COLUMNS):
        structure = database.tables.get("message_structure")
        is_branched = structure is not None and items in structure.parents
        for owner in database.tables[items].parents:
            orphans = f'"{items}" WHERE session_id NOT IN (SELECT session_id FROM "{owner}") GROUP BY session_id'
            for query in (f'SELECT * FROM "{owner}" ORDER BY session_id', f"SELECT session_id FROM {orphans}"):
                for row in database.rows(query):
                    yield from _sessions(database, items, row, is_branched=is_branched)


def _sessions(database: Database, items: str, row: Row, *, is_branched: bool) -> Iterator[Found]:
    """Yield a session, and its branches."""
    id = row["session_id"]
    main = Found(
        key=_escaped(id),
        read=lambda _: iter(()),
        created_at=time_of(row.get("created_at")),
        updated_at=time_of(row.get("updated_at")),
        columns=rest_of(row, "session_id", "created_at", "updated_at"),
    )
    branches = []
    if is_branched:
        query = (
            "SELECT branch_id, min(created_at) AS created_at FROM message_structure WHERE session_id = :id GROUP BY 1"
        )
        branches = [*database.rows(query, id=id)]
    if not branches:
        order = "id" if f"idx_{items}_session_id" in database.tables[items].indexes else "created_at, id"
        query = f'SELECT * FROM "{items}" WHERE session_id = :id ORDER BY {order}'
        main.read = partial(_read, database, query, {"id": id}, {}, main.notes)
        yield main
        return
    query = (
        f'SELECT m.*, s.user_turn_number FROM "{items}" m JOIN message_structure s ON m.id = s.message_id '
        "WHERE m.session_id = :id AND s.branch_id = :branch ORDER BY s.sequence_number"
    )
    strays = f'SELECT count(*) AS count FROM "{items}" WHERE session_id = :id AND id NOT IN '
    strays += "(SELECT message_id FROM message_structure WHERE session_id = :id)"
    main.notes.append(
        "message_structure: message_type, tool_name and branch_turn_number follow from the items: left out"
    )
    if count := next(database.rows(strays, id=id))["count"]:
        main.notes.append(f"{count} items belong to no branch, so the framework does not read them: left out")
    for each in [{"branch_id": _MAIN}, *(each for each in branches if each["branch_id"] != _MAIN)]:
        branch = each["branch_id"]
        found = main
        if branch != _MAIN:
            key = f"{main.key}/{_escaped(branch)}"
            found = Found(key, main.read, created_at=time_of(each["created_at"]), forked_from=main.key)
        found.read = partial(
            _read, database, query, {"id": id, "branch": branch}, _usage(database, id, branch), found.notes
        )
        yield found


def _usage(database: Database, id: str, branch: str) -> dict[int, Row]:
    """Return the rows of the usage of a branch's turns."""
    query = "SELECT * FROM turn_usage WHERE session_id = :id AND branch_id = :branch ORDER BY user_turn_number"
    return {row["user_turn_number"]: row for row in database.rows(query, id=id, branch=branch)}


def _read(
    database: Database, query: str, params: Row, usage: dict[int, Row], notes: list[str], after: int
) -> Iterator[Piece]:
    """Yield the pieces of a session: each turn that has usage, and other items page by page."""
    rows = database.rows(f"{query} LIMIT {2**62} OFFSET :offset", **params, offset=max(after - 1, 0))
    if after:
        yield from (Piece(Part([]), 1, _mark(row)) for row in islice(rows, 1))
    unused = dict(usage)
    for turn, page in _pages(rows, usage):
        skipped = [f"row {row['id']}: {row['fault']}" for row in page if "fault" in row]
        part = Part(_messages([row for row in page if "fault" not in row], notes))
        if turn is not None:
            unused.pop(turn, None)
            part = replace(_turn(turn, usage[turn]), messages=part.messages)
        size = sum(len(str(row["message_data"])) for row in page)
        yield Piece(part, len(page), _mark(page[-1]), skipped, size)
    yield from (Piece(_turn(turn, row)) for turn, row in unused.items())


def _pages(rows: Iterator[Row], usage: dict[int, Row]) -> Iterator[tuple[int | None, list[Row]]]:
    """Divide rows into turns that have usage, and into pages that end before a message of the user or the model."""
    page: list[Row] = []
    last, size = None, 0
    for row in rows:
        number = row.pop("user_turn_number", None)
        turn = number if number in usage else None
        try:
            row["item"] = json.loads(row["message_data"])
            row["message_data"].encode()  # fails for invalid UTF-8
        except (TypeError, AttributeError, ValueError, RecursionError) as error:
            row["fault"] = f"its message_data is damaged ({error}): left out, as in the framework"
        is_full = len(page) >= PAGE or size > CHARACTERS
        is_boundary = "role" in mapping(row.get("item")) or len(page) >= _LONGEST
        if page and (turn != last or (turn is None and is_full and is_boundary)):
            yield last, page
            page, size = [], 0
        page.append(row)
        last, size = turn, size + len(str(row["message_data"]))
    if page:
        yield last, page


def _mark(row: Row) -> str:
    return mark_of(row["id"], row["message_data"])


def _turn(number: int, row: Row) -> Part:
    usage = {name: row[name] for name in _USAGE if row[name]}
    for name in ("input_tokens_details", "output_tokens_details"):
        try:
            usage |= {name: details} if (details := json.loads(row[name] or "null")) else {}
        except (TypeError, ValueError):
            usage[name] = row[name]
    return Part([], kind="turn", id=f"{NAME}:turn:{number}", usage=usage, created_at=time_of(row["created_at"]))


def _messages(rows: list[Row], notes: list[str]) -> list[Message]:
    """Convert the items of rows. The id of a message has the id of the last of its rows."""
    messages = openai_items.messages_of_json([row["item"] for row in rows])
    end = 0
    for position, message in enumerate(messages):
        start, end = end, end + max(1, len(message.tool_calls))
        row = rows[end - 1]
        changes: dict[str, Any] = {"id": f"{NAME}:{row['id']}", "created_at": _time_of(row["created_at"])}
        if others := [rest for each in rows[start:end] if (rest := rest_of(each, *_COLUMNS, "item"))]:
            changes["extra"] = message.extra | {"adopted": others}
        messages[position] = message.model_copy(update=changes)
    if _ENCRYPTED not in notes and any(mapping(row["item"]).get("__enc__") == 1 for row in rows):
        notes.append(_ENCRYPTED)
    return messages


def _escaped(id: Any) -> str:
    return str(id).replace("%", "%25").replace("/", "%2F")
