"""Times as other systems write them: RFC 3339 with nanoseconds, `T` or a space between date and time."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_FORM: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))?", re.ASCII | re.IGNORECASE
)
_EPOCH: Final = datetime(1970, 1, 1)
# Go's zero time stands for "no time"; a day at either end is what a database's time zone may shift.
_EARLIEST: Final = datetime(1, 1, 2, tzinfo=UTC)
_LATEST: Final = datetime(9999, 12, 31, tzinfo=UTC)

GO_ZERO: Final = "0001-01-01T00:00:00Z"


def nanoseconds(text: Any) -> int | None:
    """Read a time as nanoseconds since 1970, in UTC if it names no zone; None if it is no time."""
    found = _FORM.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    date, time, fraction, sign, hours, minutes = found.groups(default="0")
    try:
        seconds = (datetime.fromisoformat(f"{date}T{time}") - _EPOCH) // timedelta(seconds=1)
    except ValueError:
        return None
    offset = int(hours) * 3600 + int(minutes) * 60
    return (seconds + (offset if sign == "-" else -offset)) * 10**9 + int(fraction[:9].ljust(9, "0"))


def moment(text: Any) -> datetime | None:
    """Read a time, to the microsecond; None if it is none, Go's zero time, or out of what databases keep."""
    count = nanoseconds(text)
    if count is None:
        return None
    try:
        found = _EPOCH.replace(tzinfo=UTC) + timedelta(microseconds=count // 1000)
    except OverflowError:
        return None
    return found if _EARLIEST <= found < _LATEST else None


def go_text(time: datetime | None) -> str:
    """Write a time as Go does: UTC, no zeros at the end of the fraction; its zero time for None."""
    if time is None:
        return GO_ZERO
    text = time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds")
    return text.rstrip("0").rstrip(".") + "Z"
