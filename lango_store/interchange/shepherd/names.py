"""The names of Shepherd's files, keys and members."""

from __future__ import annotations

import re
from typing import Final

from lango_store.errors import InvalidKey
from lango_store.interchange.source import MAX_NAME

NAME: Final = "shepherd"
VERSION: Final = 1
PREFIX: Final = f"{NAME}:"
"""What stands before the provider in a session's key."""

INDICES: Final = {"last_assistant_message_index": "assistant", "last_user_message_index": "user"}
"""The members that say where the last message of a role stands."""

FILE: Final = re.compile(r"\.shepherd_session\..*\.json", re.DOTALL)

_NOT_IN_NAMES: Final = re.compile(rb"[^0-9A-Za-z.-]")


def file_name(provider: str, key: str) -> str:
    """Return the name of a provider's file; `InvalidKey` if it is too long for one."""
    provider = _NOT_IN_NAMES.sub(b"-", provider.encode("utf-8", "replace")).decode()
    name = f".shepherd_session.{provider}.json"
    if len(name) > MAX_NAME:
        raise InvalidKey(f"session key {key!r} is too long for a file's name: fork it to a shorter key")
    return name
