"""Sessions of Google ADK: `DatabaseSessionService`, with its current schema or its first, and `SqliteSessionService`.

Each event becomes a message, as `LangoSessionService` stores it, so google-adk must be installed. The state of a
session becomes its values, and the state of an app or a user becomes shared values.
"""

import json
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from lango_store.interchange.adoption.source import Database, Original, Row, adapter, rest_of, time_of
from lango_store.interchange.draft import Part

NAME: Final = "google-adk"

_EVENT: Final = frozenset({"id", "app_name", "user_id", "session_id", "invocation_id", "timestamp"})
_SESSION: Final = frozenset({"app_name", "user_id", "id", "state", "create_time", "update_time"})


def recognizes(database: Database) -> bool:
    """Return True if the database has ADK's tables."""
    events = database.tables.get("events", set())
    is_event = events.issuperset(_EVENT) and bool(events & {"event_data", "actions"})
    return is_event and database.tables.keys() >= {"sessions", "app_states", "user_states"}


def columns(database: Database) -> dict[str, frozenset[str]]:
    """Return the columns that are read of the tables that are not read completely."""
    states = frozenset({"app_name", "user_id", "state"})
    return {"app_states": states, "user_states": states, "adk_internal_metadata": frozenset()}


def shared(database: Database) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the state of each app and of each user."""
    stored = adapter("google_adk.stored", NAME)
    for table, prefix in (("app_states", "app:"), ("user_states", "user:")):
        for row in database.rows(f"SELECT * FROM {table} ORDER BY app_name"):
            scope = stored.Ids(row["app_name"], row.get("user_id", ""), "").scopes[prefix]
            yield scope, stored.values_of(_json(row["state"]), prefix)


def sessions(database: Database) -> Iterator[Original]:
    """Yield the sessions."""
    stored = adapter("google_adk.stored", NAME)
    tie = "id" if "adk_internal_metadata" in database.tables or not database.with_columns("event_data") else "rowid"
    query = "SELECT * FROM events WHERE app_name = :app_name AND user_id = :user_id AND session_id = :session_id"
    for row in database.rows("SELECT * FROM sessions ORDER BY app_name, user_id, id"):
        ids = stored.Ids(row["app_name"], row["user_id"], row["id"])
        created_at, updated_at = time_of(row["create_time"]), time_of(row["update_time"])
        found = Original(ids.key, lambda _: iter(()), ids.fields, created_at, updated_at)
        found.columns = rest_of(row, _SESSION).get("adopted", {})
        try:
            found.values = stored.values_of(_json(row["state"]), "")
        except ValueError as error:
            found.skipped.append(f"its state is damaged ({error}): left out")
        convert = partial(_convert, stored, found)
        found.read = partial(database.read, f'{query} ORDER BY "timestamp", {tie}', convert=convert, **ids._asdict())
        yield found


def _convert(stored: Any, found: Original, row: Row) -> Part:
    at = time_of(row["timestamp"])
    event = stored.event_of(row, None if at is None else at.timestamp())
    if event.actions.rewind_before_invocation_id:
        found.finish = lambda tx: stored.rewind(tx.conversation(found.key))
    part: Part = stored.part_of(event)
    if others := rest_of(row, _EVENT.union(stored.COLUMNS)):
        part.messages = [each.model_copy(update={"extra": each.extra | others}) for each in part.messages]
    return part


def _json(state: Any) -> dict[str, Any]:
    value = json.loads(state) if isinstance(state, str) else state
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return value
