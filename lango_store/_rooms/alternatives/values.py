"""The values of the room."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from pydantic import Field

from lango_store._values.model import MessageRole
from lango_store._values.value import Value, absent


class MessagePreview(Value):
    """A message in a list of alternatives.

    Attributes:
        seq: The `seq` of the message.
        role: Its role.
        text: The first 200 characters of its content; None if the content is not text, or is stored as a payload.
    """

    seq: int
    role: MessageRole
    text: str | None = Field(default=None, exclude_if=absent)


class Alternative(Value):
    """One of several continuations of a session after the same message.

    Attributes:
        id: The `seq` of its first message, which identifies it.
        after_seq: The `seq` of the message after which it differs; 0 for the start of the session.
        is_shown: True if it is in the log, False if it is set aside.
        first: Its first message or record.
        last: Its last one.
        message_count: The number of its messages, without records; None if it is shown.
        alternatives: The number of alternatives that branch off from it; None if it is shown.
        set_aside_at: The time at which it was set aside, in UTC; None if it is shown.
    """

    id: int
    after_seq: int
    is_shown: bool
    first: MessagePreview
    last: MessagePreview
    message_count: int | None = Field(default=None, exclude_if=absent)
    alternatives: int | None = Field(default=None, exclude_if=absent)
    set_aside_at: datetime | None = Field(default=None, exclude_if=absent)


def describe_versions(alternatives: Iterable[Alternative]) -> dict[int, str]:
    """Describe on one line which of several continuations the log has, by the `seq` of its first message."""
    points: defaultdict[int, list[Alternative]] = defaultdict(list)
    for each in alternatives:
        points[each.after_seq].append(each)
    lines: dict[int, str] = {}
    for point in points.values():
        others = ", ".join(str(each.id) for each in point if not each.is_shown)
        for number, each in enumerate(point, 1):
            if each.is_shown:
                lines[each.id] = f"version {number} of {len(point)} · alternatives: {others}"
    return lines
