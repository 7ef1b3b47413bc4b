"""Rows of ADK's own session services, which an adoption converts: those of the current schemas and of the first one.

The first schema of `DatabaseSessionService` pickled the actions of an event. They are read with ADK's own restricted
unpickler, which loads no other classes than those of actions.
"""

import json
import pickle
from collections.abc import Mapping
from typing import Any, Final

from google.adk.events import Event, EventActions

from lango_store.integrations.fields import turn_metadata
from lango_store.integrations.google_adk.events import new_event, values_by_prefix
from lango_store.integrations.google_adk.service import Ids as Ids
from lango_store.integrations.google_adk.service import rewind as rewind
from lango_store.interchange.draft import Part

COLUMNS: Final = (*Event.model_fields, "event_data", "long_running_tool_ids_json")
"""The columns of an event, of all schemas."""


def values_of(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return a state, whose keys have no prefix, as values of the scope with this prefix, or of a session."""
    return values_by_prefix({prefix + key: value for key, value in state.items()}).get(prefix, {})


def event_of(row: Mapping[str, Any], timestamp: float | None) -> Event:
    """Return the event of a row, as ADK's service reads it. Raises ValueError if that is impossible."""
    own = {"id": row["id"], "invocation_id": row["invocation_id"]}
    if "event_data" in row:
        data = json.loads(row["event_data"]) if isinstance(row["event_data"], str) else row["event_data"] or {}
        return Event.model_validate_json(json.dumps({"timestamp": timestamp} | data | own))
    fields = {name: row[name] for name in Event.model_fields if name in row}
    for name, value in fields.items():
        if name.endswith(("content", "metadata", "transcription")) and isinstance(value, str):
            fields[name] = json.loads(value)
    ids = {"long_running_tool_ids": set(json.loads(row["long_running_tool_ids_json"] or "[]"))}
    return Event.model_validate(fields | ids | {"timestamp": timestamp, "actions": _actions(row["actions"])})


def _actions(pickled: bytes | None) -> EventActions:
    if pickled is None:
        return EventActions()
    try:
        from google.adk.sessions import _restricted_pickle

        return EventActions.model_validate(_restricted_pickle.loads(bytes(pickled)).model_dump())
    except ImportError:  # the module is private
        raise ValueError("its actions are pickled, and this google-adk cannot read them safely: upgrade it") from None
    except pickle.UnpicklingError as error:
        raise ValueError(str(error)) from error


def part_of(event: Event) -> Part:
    """Return an event as a message or, if it has usage, as a turn."""
    new = new_event(event)
    if new.usage is None:
        return Part([new.message])
    metadata = turn_metadata([new.json.get("model_version")])
    return Part([new.message], kind="turn", usage=new.usage, metadata=metadata, created_at=new.message.created_at)
