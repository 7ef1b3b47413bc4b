"""The events that `tail` yields while it follows a session."""

from functools import cached_property
from typing import Literal

from lango_store._values.model import ChangeKind, Message
from lango_store._values.value import Value


class _Event(Value):
    """The fields of all events.

    All calls of `tail` for one session in a process may yield the same object. Do not change it.

    Attributes:
        cursor: The position after this event, to pass as `after` to a later `tail`. The cursor also identifies the
            session, so that the cursor of a deleted session does not continue in a new session with the same key.
    """

    cursor: str

    @cached_property
    def data(self) -> str:
        """All fields except `event` and `cursor`, as JSON on one line."""
        return self.model_dump_json(exclude={"event", "cursor"})


class Appended(_Event):
    """Messages that were appended, including records and the messages of summaries.

    Attributes:
        messages: The messages in the order of their `seq`, as they were stored when the event was read: a message that
            was edited before that has its new content.
    """

    event: Literal["appended"] = "appended"
    messages: list[Message]


class Changed(_Event):
    """A change of the log, which may affect messages that you have received.

    Each row of `lango_change` is one event.

    Attributes:
        kind: The kind of change, such as "truncate" or "update". The documentation of `lango_change` lists them.
        seq: The `seq` of the change.
        after_seq: The `seq` that the change refers to; its meaning depends on `kind`.
    """

    event: Literal["changed"] = "changed"
    kind: ChangeKind
    seq: int
    after_seq: int


class Piece(_Event):
    """New text of the draft of the turn in progress.

    Attributes:
        turn_id: The id of the turn; None if the draft ended.
        n: The number of characters of the draft before this piece: as many as you have received in earlier pieces, or
            0. If it is 0, discard what you have received, because another draft began or the draft ended.
        text: The text; empty if the draft ended, because the answer was stored or the turn failed. The draft of a
            failed turn stays in `Conversation.drafts.list`.
    """

    event: Literal["piece"] = "piece"
    turn_id: str | None
    n: int
    text: str


class Ended(_Event):
    """The last event: the followed session was deleted, has expired, or was replaced.

    Attributes:
        reason: "deleted"; "expired" if the TTL has passed; or "replaced" if another session has the key now.
    """

    event: Literal["ended"] = "ended"
    reason: Literal["deleted", "expired", "replaced"]


Event = Appended | Changed | Piece | Ended
"""An event that `tail` yields. Type checkers know its class from its field `event`."""
