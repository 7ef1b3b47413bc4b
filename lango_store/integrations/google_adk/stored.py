"""Rows of ADK's own session services as parts of a session: those of its current schemas and of its first one.

The first schema of `DatabaseSessionService` pickled the actions of an event. They are read with ADK's own restricted
unpickler, which loads no other classes than those of actions.
"""

import json
import pickle
from collections.abc import Mapping
from typing import Any, Final

from google.adk.events import Event, EventActions
from pydantic import ValidationError

from lango_store import InvalidMessage
from lango_store.integrations.fields import turn_metadata
from lango_store.integrations.google_adk.events import new_event, values_by_prefix
from lango_store.integrations.google_adk.service import Ids, rewind
from lango_store.interchange.draft import Part

try:
    from google.adk.sessions import _restricted_pickle
except ImportError:  # the module is private
    _restricted_pickle = None

__all__ = ["FAULTS", "Ids", "event_of_row", "part_of", "rewind", "values_by_prefix"]

FAULTS: Final = (
    ValidationError,
    InvalidMessage,
    ValueError,
    TypeError,
    AttributeError,
    pickle.UnpicklingError,
    EOFError,
)
"""The errors of a row that cannot be read or stored."""

_JSON: Final = (
    "content",
    "grounding_metadata",
    "custom_metadata",
    "usage_metadata",
    "citation_metadata",
    "input_transcription",
    "output_transcription",
)
_PLAIN: Final = (
    "id", "invocation_id", "author", "branch", "partial", "turn_complete", "error_code", "error_message", "interrupted",
)  # fmt: skip


def event_of_row(row: Mapping[str, Any], timestamp: float | None) -> Event:
    """Return the event of a row, as ADK's service reads it. `timestamp` is the time in the row's column."""
    if "event_data" not in row:
        return _first_schema(row, timestamp)
    data = row["event_data"]
    if isinstance(data, str):
        event = Event.model_validate_json(data)
        return event if event.id == row["id"] else event.model_copy(update={"id": row["id"]})
    own = {"id": row["id"], "invocation_id": row["invocation_id"]}
    return Event.model_validate({"timestamp": timestamp, **(data or {}), **own})


def _first_schema(row: Mapping[str, Any], timestamp: float | None) -> Event:
    values = {name: row.get(name) for name in _JSON}
    values = {name: json.loads(value) if isinstance(value, str) else value for name, value in values.items()}
    if row["actions"] is None:
        actions = EventActions()
    elif _restricted_pickle is None:
        raise ValueError("its actions are pickled, and this release of google-adk cannot read them safely: upgrade it")
    else:
        actions = EventActions.model_validate(_restricted_pickle.loads(bytes(row["actions"])).model_dump())
    ids = set(json.loads(row.get("long_running_tool_ids_json") or "[]"))
    own = {name: row.get(name) for name in _PLAIN} | {"timestamp": timestamp, "long_running_tool_ids": ids}
    return Event.model_validate({**values, **own, "actions": actions})


def part_of(event: Event) -> Part:
    """Return an event as a message or, if it has usage, as a turn."""
    new = new_event(event)
    if new.usage is None:
        return Part([new.message])
    metadata = turn_metadata([new.json.get("model_version")])
    return Part([new.message], kind="turn", usage=new.usage, metadata=metadata, created_at=new.message.created_at)
