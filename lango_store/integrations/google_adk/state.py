"""Names for ADK's sessions and state in a store: keys, scopes and the names of values."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from google.adk.sessions import State
from pydantic_core import to_jsonable_python

from lango_store.integrations.fields import storable_text
from lango_store.integrations.keys import escaped, joined_key, split_key

logger = logging.getLogger("lango_store")

_SHARED: Final = "google_adk/"
_ESCAPED: Final = re.compile("[%\0\ud800-\udfff]")
_EMPTY: Final = "%"
"""The name of the empty key. No other key has it, since `%` is escaped."""


class Ids(NamedTuple):
    """The three ids of a session."""

    app_name: str
    user_id: str
    session_id: str

    @classmethod
    def of_key(cls, key: str) -> Ids | None:
        """Return the ids that a key consists of; None if the session is not one of ADK."""
        parts = split_key(key)
        return cls(*parts) if len(parts) == 3 and key == ":".join(map(escaped, parts)) else None

    @property
    def key(self) -> str:
        """The key of the session; `InvalidKey` names the longest id if they are too long together."""
        return joined_key(**self._asdict())

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of the session by which lists are filtered."""
        return {"agent_id": storable_text(self.app_name), "user_id": storable_text(self.user_id)}

    @property
    def scopes(self) -> dict[str, str]:
        """The scopes of shared state, by the prefix of its keys in a session's state."""
        return {
            State.APP_PREFIX: joined_key(_SHARED, app_name=self.app_name),
            State.USER_PREFIX: joined_key(_SHARED, app_name=self.app_name, user_id=self.user_id),
        }


def values_by_prefix(state: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return a state as values by name, for each prefix of its keys; `""` for those of the session."""
    values: dict[str, dict[str, Any]] = {}
    for key, value in state.items():
        prefix = next((each for each in (State.APP_PREFIX, State.USER_PREFIX) if key.startswith(each)), "")
        values.setdefault(prefix, {})[escaped(key.removeprefix(prefix), _ESCAPED) or _EMPTY] = value
    return values


def keyed(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return values as a part of a state, whose keys begin with a prefix."""
    return {
        prefix + ("" if name == _EMPTY else unquote(name, errors="surrogatepass")): value
        for name, value in values.items()
    }


def as_json(value: Any) -> Any:
    """Return a value as JSON; what is not JSON is written as pydantic does, or else as its text, with a warning.

    pydantic alone replaces a lone surrogate in a key, and writes NaN as null.
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
