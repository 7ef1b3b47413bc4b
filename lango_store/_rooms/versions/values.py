"""The values of the room."""

from datetime import datetime

from pydantic import Field

from lango_store._values.model import ChangeKind, Message
from lango_store._values.value import Value, absent


class Change(Value):
    """One change of a session's log: a cut, an edit, a compaction, an undo or a redo.

    Attributes:
        seq: The `seq` that the change used up. If an undo or redo used up several, the last of them.
        kind: "truncate", "clear", "pop", "delete", "update", "redact", "drop_sent", "compact", "discard" (a compaction
            with `discard=True`), "undo", "redo" or, in a fork, "fork".
        after_seq: The `seq` that the change refers to, of several edited messages the lowest. Its meaning depends on
            `kind`; the documentation of `lango_change` lists the meanings.
        changed_by: None in this release.
        changed_at: The time of the change, in UTC.
        undo_until: The time until which the removed messages are kept, so that the change can be taken back (never a
            "redact", "drop_sent" or "fork"); None if they are not kept.
        added_upto: The last `seq` of the messages that the change itself added, such as a summary; None without any.
        consolidated: The session's `last_consolidated` before the change; None if removed messages are not kept, or
            if the change only replaced content.
    """

    seq: int
    kind: ChangeKind
    after_seq: int
    changed_by: str | None = Field(default=None, exclude_if=absent)
    changed_at: datetime
    undo_until: datetime | None = Field(default=None, exclude_if=absent)
    added_upto: int | None = Field(default=None, exclude_if=absent)
    consolidated: int | None = Field(default=None, exclude_if=absent)


class Undone(Value):
    """The result of `undo` or `redo`.

    Attributes:
        change: The change that was taken back; for `redo`, the undo.
        seq: The `seq` of the undo or redo itself.
        restored: The number of messages and records that were restored, including earlier versions of edited messages.
        removed: The number of messages and records that were removed, including the versions that were replaced.
    """

    change: Change
    seq: int
    restored: int
    removed: int


class Diff(Value):
    """The differences between the logs of a session at two moments.

    Attributes:
        added: The messages that only the second log has.
        removed: The messages that only the first log has.
        changed: The messages that differ between the two logs, as pairs of the first and the second version.
    """

    added: list[Message]
    removed: list[Message]
    changed: list[tuple[Message, Message]]
