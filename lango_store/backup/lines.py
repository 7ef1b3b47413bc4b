"""The lines of a backup: each row as one JSON object, with digests that detect damage."""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from typing import Any, Final

from lango_store._operations.binds import MESSAGE, SESSION, SHARED_VALUE, TURN, VALUE
from lango_store._operations.portable_rows import Fields
from lango_store._rows.encoding import encode_time_text

VERSION: Final = 1
"""The version of the format, which every file names."""

TABLES: Final = {
    "session": SESSION,
    "turn": TURN,
    "message": MESSAGE,
    "value": VALUE,
    "shared_value": SHARED_VALUE,
}
KINDS: Final = {table.name: kind for kind, table in TABLES.items()}


class SessionDigest:
    """Counts and digests the lines of a session, or of the shared values."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(TABLES, 0)
        self._sha256 = hashlib.sha256()

    def add(self, kind: str, line: bytes) -> None:
        """Count a row's line, without its end, and add it to the digest."""
        self.counts[kind] += 1
        self._sha256.update(line)
        self._sha256.update(b"\n")

    def closing(self) -> bytes:
        """Return the line that closes the session."""
        values = {"values": self.counts["value"]} if self.counts["value"] else {}
        end = {"turns": self.counts["turn"], "messages": self.counts["message"], **values}
        return json_line({"end": end | {"sha256": self._sha256.hexdigest()}})

    def closing_shared(self) -> bytes:
        """Return the line that closes the shared values."""
        return json_line({"shared": {"values": self.counts["shared_value"], "sha256": self._sha256.hexdigest()}})


def row_line(kind: str, fields: Fields) -> bytes:
    """Return a row as one line, without its end."""
    return json_line({kind: {name: value for name, value in fields.items() if name != "session_key"}})


def json_line(value: Any) -> bytes:
    """Return a value as one line, without its end."""
    try:
        return _dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:  # lone surrogates have no UTF-8
        return _dumps(value, ensure_ascii=True).encode()


def _dumps(value: Any, *, ensure_ascii: bool) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, separators=(",", ":"), default=_encode_time)


def _encode_time(value: datetime) -> str:
    return encode_time_text(value)
