"""Parse and format timestamps of other systems: ISO 8601, with up to nine fractional digits on input.

Only `nanoseconds` keeps nine digits. The other functions work with microseconds.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1)
_NANOSECONDS: Final = re.compile(r"[.,]\d{6}(\d{1,3})", re.ASCII)
# Go's zero time means "no time". One day at either end is excluded, since a database's time zone may shift a time.
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)

GO_ZERO: Final = "0001-01-01T00:00:00Z"


def _parsed(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text.upper()) if isinstance(text, str) else None
    except ValueError:
        return None


def nanoseconds(text: Any) -> int | None:
    """Return a time as nanoseconds since 1970, None if the text is not a time. The default time zone is UTC."""
    time = _parsed(text)
    if time is None:
        return None
    since_epoch = time.replace(tzinfo=None) - _EPOCH - (time.utcoffset() or timedelta(0))
    rest = _NANOSECONDS.search(text)
    return since_epoch // timedelta(microseconds=1) * 1_000 + (int(rest[1].ljust(3, "0")) if rest else 0)


def moment(text: Any, *, local: bool = False) -> datetime | None:
    """Return a time in UTC; None if the text is not a time, is Go's zero time, or is a time that no database can store.

    A text without a time zone is read in UTC, or with `local` in the time zone of this machine.
    """
    time = _parsed(text)
    if time is None:
        return None
    if time.tzinfo is None and not local:
        time = time.replace(tzinfo=UTC)
    try:
        time = time.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return time if _EARLIEST <= time < _LATEST else None


def go_text(time: datetime | None) -> str:
    """Return a time as Go writes it: UTC, without trailing zeros. None becomes Go's zero time."""
    if time is None:
        return GO_ZERO
    text = time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.rstrip("0").rstrip(".") + "Z"
