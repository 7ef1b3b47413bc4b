"""ADK's state as values by name: whose scope each is in, how a key becomes a name, and what is no JSON its text."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from google.adk.sessions import State
from pydantic_core import to_jsonable_python

from lango_store.integrations.fields import storable_text
from lango_store.integrations.keys import escaped, joined_key, split_key

logger = logging.getLogger("lango_store")

SHARED: Final = "google_adk/"
"""What the scopes of an app's and of a user's state begin with; no key of a session does, `/` is escaped there."""

_ESCAPED: Final = re.compile("[%\0\ud800-\udfff]")
_EMPTY: Final = "%"
"""The name of the empty key: no other key becomes it, a `%` is escaped."""


@dataclass(frozen=True)
class Place:
    """A session of ADK's by its ids, and where in the store it lies: its key, and the scopes of what it shares."""

    app_name: str
    user_id: str
    session_id: str
    key: str
    app_scope: str
    user_scope: str

    @property
    def fields(self) -> dict[str, Any]:
        """What the session's row says of the ids, for lists and filters."""
        return {"agent_id": storable_text(self.app_name), "user_id": storable_text(self.user_id)}


def place_of(app_name: str, user_id: str, session_id: str) -> Place:
    """Return where a session lies; `InvalidKey` names the longest id if they are too long together."""
    key = joined_key(app_name=app_name, user_id=user_id, session_id=session_id)
    return Place(app_name, user_id, session_id, key, app_scope(app_name), user_scope(app_name, user_id))


def app_scope(app_name: str) -> str:
    """Return the scope of the state that all users of an app share."""
    return joined_key(SHARED, app_name=app_name)


def user_scope(app_name: str, user_id: str) -> str:
    """Return the scope of the state that all sessions of a user share."""
    return joined_key(SHARED, app_name=app_name, user_id=user_id)


def users_prefix(app_name: str) -> str:
    """Return what the scopes of an app's users begin with."""
    return f"{app_scope(app_name)}:"


def key_prefix(app_name: str, user_id: str | None) -> str:
    """Return what the keys of an app's sessions begin with, or those of a user's in it."""
    return f"{joined_key(app_name=app_name) if user_id is None else joined_key(app_name=app_name, user_id=user_id)}:"


def found_at(key: str) -> Place | None:
    """Return the place that a key is of; None for a key of anything else than a session of ADK's."""
    ids = split_key(key)
    return place_of(*ids) if len(ids) == 3 and key == ":".join(map(escaped, ids)) else None


# Names and scopes


def scoped(state: Mapping[str, Any], place: Place) -> dict[str, dict[str, Any]]:
    """Return a state as values by scope and name; what begins with `temp:` is left out."""
    values: dict[str, dict[str, Any]] = {}
    for key, value in state.items():
        if key.startswith(State.TEMP_PREFIX):
            continue
        scope, rest = place.key, key
        if key.startswith(State.APP_PREFIX):
            scope, rest = place.app_scope, key.removeprefix(State.APP_PREFIX)
        elif key.startswith(State.USER_PREFIX):
            scope, rest = place.user_scope, key.removeprefix(State.USER_PREFIX)
        values.setdefault(scope, {})[_ESCAPED.sub(_percent, rest) or _EMPTY] = value
    return values


def unscoped(scope: str, name: str, place: Place) -> str:
    """Return the key of a value in a session's state."""
    prefix = {place.app_scope: State.APP_PREFIX, place.user_scope: State.USER_PREFIX}.get(scope, "")
    return prefix + key_of(name)


def key_of(name: str) -> str:
    """Return the key that a value's name was made of."""
    return "" if name == _EMPTY else unquote(name, errors="surrogatepass")


def _percent(found: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass"))


# JSON


def as_json(value: Any) -> Any:
    """Return a value as JSON; what is not JSON is written as pydantic does, or else as its text, with a warning.

    pydantic's own JSON has other characters for a lone surrogate in a key, or none at all, and null for NaN.
    """
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return value
    if kind is dict:
        return {key if type(key) is str else _as_key(key): as_json(item) for key, item in value.items()}
    if kind in (list, tuple, set, frozenset):
        return [as_json(item) for item in value]
    if kind is float:
        return value if math.isfinite(value) else _as_text(value)
    return to_jsonable_python(value, bytes_mode="base64", fallback=_as_text)


def _as_key(key: Any) -> str:
    (written,) = to_jsonable_python({key: None}, bytes_mode="base64", fallback=_as_text)
    return str(written)


def _as_text(value: object) -> str:
    logger.warning("%s is no JSON: its text is stored", type(value).__name__)
    return str(value)
