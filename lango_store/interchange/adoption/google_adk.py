"""Sessions of Google ADK: `DatabaseSessionService`, with its current schema or its first, and `SqliteSessionService`.

Each event becomes a message, as `LangoSessionService` stores it, so google-adk must be installed. The state of a
session becomes its values, and the state of an app or a user becomes shared values.
"""

import json
from collections.abc import Iterator
from typing import Any, Final

from lango_store.interchange.adoption.source import Database, Found, Piece, Row, adapter, mark_of, rest_of, time_of
from lango_store.interchange.draft import Part

NAME: Final = "google-adk"

_IDS: Final = ("app_name", "user_id", "session_id")
_LAST: Final = ("id", *_IDS, "invocation_id", "timestamp")
_OLD: Final = {"actions", "author", "content"}
_EVENT: Final = {
    *_LAST, *_OLD, "event_data", "branch", "partial", "turn_complete", "error_code", "error_message", "interrupted",
    "grounding_metadata", "custom_metadata", "usage_metadata", "citation_metadata", "input_transcription",
    "output_transcription", "long_running_tool_ids_json",
}  # fmt: skip


def recognizes(database: Database) -> bool:
    """Return True if the database has ADK's tables."""
    tables = database.tables
    events = tables["events"].columns if "events" in tables else set()
    is_known = events.issuperset(_LAST) and ("event_data" in events or events.issuperset(_OLD))
    return is_known and {"sessions", "app_states", "user_states"} <= tables.keys()


def shared(database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the state of each app and of each user."""
    stored = adapter("google_adk.stored", NAME)
    for table, prefix in (("app_states", "app:"), ("user_states", "user:")):
        for row in database.rows(f"SELECT * FROM {table} ORDER BY app_name"):
            scope = stored.Ids(row["app_name"], row.get("user_id", ""), "").scopes[prefix]
            state = {prefix + key: value for key, value in _json(row["state"]).items()}
            yield scope, stored.values_by_prefix(state).get(prefix, {})


def sessions(database: Database) -> Iterator[Found]:
    """Yield the sessions."""
    stored = adapter("google_adk.stored", NAME)
    is_sqlalchemy = "adk_internal_metadata" in database.tables or "actions" in database.tables["events"].columns
    query = "SELECT * FROM events WHERE app_name = :app_name AND user_id = :user_id AND session_id = :session_id"
    query += f' ORDER BY "timestamp", {"id" if is_sqlalchemy else "rowid"}'
    for row in database.rows("SELECT * FROM sessions ORDER BY app_name, user_id, id"):
        ids = stored.Ids(row["app_name"], row["user_id"], row["id"])
        found = Found(
            key=ids.key,
            read=lambda _: iter(()),
            fields=ids.fields,
            created_at=time_of(row["create_time"]),
            updated_at=time_of(row["update_time"]),
            columns=rest_of(row, "app_name", "user_id", "id", "state", "create_time", "update_time"),
        )
        try:
            found.values = stored.values_by_prefix(_json(row["state"])).get("", {})
        except ValueError as error:
            found.faults.append(f"its state is damaged ({error}): left out")
        found.read = _reader(database, query, dict(zip(_IDS, ids, strict=True)), stored, found)
        yield found


def _reader(database: Database, query: str, params: Row, stored: Any, found: Found) -> Any:
    def read(after: int) -> Iterator[Piece]:
        rows = database.rows(f"{query} LIMIT {2**62} OFFSET :offset", **params, offset=max(after - 1, 0))
        for number, row in enumerate(rows, max(after, 1)):
            mark = mark_of(*sorted(row.items()))
            if number == after:
                yield Piece(Part([]), 1, mark)
                continue
            try:
                event = stored.event_of_row(row, getattr(time_of(row["timestamp"]), "timestamp", lambda: None)())
                part = stored.part_of(event)
            except stored.FAULTS as error:
                reason = str(error).partition("\n")[0]  # the following lines of pydantic's error contain the event
                yield Piece(Part([]), 1, mark, [f"event {row['id']} cannot be read ({reason}): left out"])
                continue
            if event.actions.rewind_before_invocation_id:
                found.finish = lambda tx: stored.rewind(tx.conversation(found.key))
            if others := rest_of(row, *_EVENT):
                part.messages = [
                    each.model_copy(update={"extra": each.extra | {"adopted": others}}) for each in part.messages
                ]
            yield Piece(part, 1, mark, size=len(str(row.get("event_data") or row.get("content"))))

    return read


def _json(state: Any) -> dict[str, Any]:
    value = json.loads(state) if isinstance(state, str) else state
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return value
