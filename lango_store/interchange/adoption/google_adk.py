"""Sessions of Google ADK: `DatabaseSessionService`, with its current schema or its first, and `SqliteSessionService`.

Each event becomes a message, as `LangoSessionService` stores it, so google-adk must be installed. The state of a
session becomes its values, and the state of an app or a user becomes shared values.
"""

import json
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

from lango_store.interchange.adoption.source import (
    Damaged,
    Database,
    Original,
    Row,
    Shared,
    adapter,
    converted,
    reason_of,
    rest_of,
    text_of,
    time_of,
)
from lango_store.interchange.draft import Part

NAME: Final = "google-adk"

_EVENT: Final = frozenset({"id", "app_name", "user_id", "session_id", "invocation_id", "timestamp"})
_SESSION: Final = frozenset({"app_name", "user_id", "id", "state", "create_time", "update_time"})


def tables(database: Database) -> list[str]:
    """Return the table of events if the database has ADK's tables."""
    events = database.tables.get("events", set())
    is_event = events.issuperset(_EVENT) and bool(events & {"event_data", "actions"})
    return ["events"] if is_event and database.tables.keys() >= {"sessions", "app_states", "user_states"} else []


def columns(database: Database) -> dict[str, frozenset[str]]:
    """Return the columns that are read of the tables that are not read completely."""
    states = frozenset({"app_name", "user_id", "state"})
    return {"app_states": states, "user_states": states, "adk_internal_metadata": frozenset()}


def shared(database: Database) -> Iterator[Shared | Damaged]:
    """Yield the state of each app and of each user."""
    stored = adapter("google_adk.stored", NAME)
    for table, prefix, ids in (("app_states", "app:", ["app_name"]), ("user_states", "user:", ["app_name", "user_id"])):

        def convert(row: Row, prefix: str = prefix) -> Iterator[Shared]:
            scope = stored.Ids(text_of(row["app_name"]), text_of(row.get("user_id", "")), "").scopes[prefix]
            yield Shared(scope, stored.values_of(_json(row["state"]), prefix))

        yield from converted(table, database.rows(f"SELECT * FROM {table} ORDER BY app_name"), ids, convert)


def sessions(database: Database, tables: Sequence[str], prefix: str) -> Iterator[Original | Damaged]:
    """Yield the sessions. Raises ValueError with a prefix, because `LangoSessionService` has none."""
    if prefix:
        raise ValueError("sessions of google-adk cannot have a prefix: leave it out")
    stored = adapter("google_adk.stored", NAME)
    rows = database.rows("SELECT * FROM sessions ORDER BY app_name, user_id, id")
    yield from converted("sessions", rows, ["app_name", "user_id", "id"], partial(_original, database, stored))


def _original(database: Database, stored: Any, row: Row) -> Iterator[Original]:
    ids = stored.Ids(*(text_of(row[name]) for name in ("app_name", "user_id", "id")))
    created_at, updated_at = time_of(row["create_time"]), time_of(row["update_time"])
    found = Original(ids.key, "events", fields=ids.fields, created_at=created_at, updated_at=updated_at)
    found.columns = rest_of(row, _SESSION).get("adopted", {})
    try:
        found.values = stored.values_of(_json(row["state"]), "")
    except Exception as error:  # as in `converted`; the events can be read without the state
        found.skipped.append(f"table sessions: its state is damaged ({reason_of(error)}): left out")
    tie = "id" if "adk_internal_metadata" in database.tables or not database.with_columns("event_data") else "rowid"
    query = "SELECT * FROM events WHERE app_name = :app_name AND user_id = :user_id AND session_id = :session_id"
    convert = partial(_convert, stored, found)
    found.read = partial(
        database.read, "events", f'{query} ORDER BY "timestamp", {tie}', convert=convert, **ids._asdict()
    )
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
    value = json.loads(state)
    if not isinstance(value, dict):
        raise ValueError("is not a JSON object")
    return value
