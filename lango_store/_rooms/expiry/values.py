"""The report of a purge."""

from datetime import datetime

from pydantic import Field

from lango_store._values.model import SessionInfo
from lango_store._values.value import Value, absent


class ExpiryReport(Value):
    """The result of a purge, or of a dry run.

    Attributes:
        sessions: The number of sessions that were deleted; on a dry run, that would be deleted.
        messages: The number of messages of these sessions.
        batches: The number of transactions.
        seconds: The duration in seconds.
        at: The time, in UTC, with which the TTLs of sessions were compared: the argument `now` of `expire`, or the time
            of the call.
        dry_run: True for a dry run, which deletes nothing.
        oldest: On a dry run, the first 10 sessions that would be deleted; otherwise empty.
        held: The sessions that were not deleted, because a row of another table refers to them: each key with the name
            of the foreign key (on SQLite, with the text of the error); and because of a hold: each key with "hold: "
            and the reason. A dry run, which does not try to delete, lists only holds.
        rule: With `apply_policy`, the name of the rule; otherwise None.
        put_on_hold: With `apply_policy`, the number of sessions that the rule put on hold; on a dry run, that it would
            put on hold.
    """

    sessions: int = 0
    messages: int = 0
    batches: int = 0
    seconds: float = 0.0
    at: datetime | None = None
    dry_run: bool = False
    oldest: list[SessionInfo] = Field(default_factory=list, exclude_if=absent)
    held: dict[str, str] = Field(default_factory=dict, exclude_if=absent)
    rule: str | None = Field(default=None, exclude_if=absent)
    put_on_hold: int = Field(default=0, exclude_if=absent)
