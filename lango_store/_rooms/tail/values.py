"""The events that `tail` yields while it follows a session."""

from functools import cached_property
from typing import Literal

from lango_store._values.model import ChangeKind, Message, Turn
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


class TurnBegan(_Event):
    """An attempt of a turn has the lease of the session: the turn is in progress.

    A turn that began and ended between two reads has no such event. An attempt that continues after its lease ended has
    another one.

    Attributes:
        turn_id: The id of the turn.
    """

    event: Literal["turn_began"] = "turn_began"
    turn_id: str


class TurnEnded(_Event):
    """A turn was saved, or the turn of the last `TurnBegan` has ended without being saved.

    Attributes:
        outcome: "saved"; "given_up" if the lease was released, because the block raised an exception or
            `Conversation.turns.release` was called; or "lease_lost" if the time of the lease has passed, for example
            because the process was killed, or if another turn or attempt has the lease now.
        turn_id: The id of a saved turn, which may be None; None for other outcomes.
        turn: The saved turn with its usage, without its messages; None for other outcomes.
    """

    event: Literal["turn_ended"] = "turn_ended"
    outcome: Literal["saved", "given_up", "lease_lost"]
    turn_id: str | None = None
    turn: Turn | None = None


class Ended(_Event):
    """The last event: the followed session was deleted, has expired, or was replaced.

    Attributes:
        reason: "deleted"; "expired" if the TTL has passed; or "replaced" if another session has the key now.
    """

    event: Literal["ended"] = "ended"
    reason: Literal["deleted", "expired", "replaced"]


Event = Appended | Changed | Piece | TurnBegan | TurnEnded | Ended
"""An event that `tail` yields. Type checkers know its class from its field `event`."""
