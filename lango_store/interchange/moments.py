"""Times as other systems write them: ISO 8601, with up to nine digits after the second."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(1970, 1, 1)
_NANOSECONDS: Final = re.compile(r"[.,]\d{6}(\d{1,3})", re.ASCII)
# Go's zero time stands for "no time"; a day at either end is what a database's time zone may shift.
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)

GO_ZERO: Final = "0001-01-01T00:00:00Z"


def _parsed(text: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(text.upper()) if isinstance(text, str) else None
    except ValueError:
        return None


def nanoseconds(text: Any) -> int | None:
    """Return a time as nanoseconds since 1970, in UTC if it names no zone; None if the text is not a time."""
    found = _parsed(text)
    if found is None:
        return None
    since = found.replace(tzinfo=None) - _EPOCH - (found.utcoffset() or timedelta(0))
    rest = _NANOSECONDS.search(text)
    return since // timedelta(microseconds=1) * 1_000 + (int(rest[1].ljust(3, "0")) if rest else 0)


def moment(text: Any, *, local: bool = False) -> datetime | None:
    """Return a time in UTC, to the microsecond; None for Go's zero time, and for what no database can store as a time.

    A text that names no zone is read in UTC, with `local` on this machine's clock.
    """
    found = _parsed(text)
    if found is None:
        return None
    if found.tzinfo is None and not local:
        found = found.replace(tzinfo=UTC)
    try:
        found = found.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        return None
    return found if _EARLIEST <= found < _LATEST else None


def go_text(time: datetime | None) -> str:
    """Return a time as Go writes it: UTC, no zeros at the end of the fraction; its zero time for None."""
    if time is None:
        return GO_ZERO
    text = time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.rstrip("0").rstrip(".") + "Z"
