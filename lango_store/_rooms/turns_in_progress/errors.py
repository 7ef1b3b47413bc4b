"""The errors of the room."""

from datetime import datetime

from lango_store.errors.core import Conflict, LangoStoreError, NotFound, quoted


class LeaseLost(Conflict):
    """A turn no longer has the lease of its session; nothing was written.

    The lease ended and another turn took over, or `Conversation.turns.release` or `stop` was called. Begin the turn
    again with `Conversation.turn` and the same id. If another process has saved the turn, or stopped it, `replayed` of
    the new turn is True.
    """

    def __init__(self, key: str, last_seq: int) -> None:
        message = (
            f"the turn no longer has the lease of session {quoted(key)}: it ended and another turn took over, "
            "or turns.release() or turns.stop() was called; nothing was written, begin the turn again"
        )
        super().__init__(key, expected=last_seq, last_seq=last_seq, message=message)


class InProgress(LangoStoreError):
    """A turn or a tool call is in progress; nothing was written.

    Attributes:
        key: The key of the session.
        until: The time at which the lease of the turn ends, or the call becomes unknown.
    """

    key: str
    until: datetime


class TurnInProgress(InProgress):
    """Another turn has the lease of the session and may be running; nothing was written.

    `drafts.keep` and `drafts.delete` raise this exception if the turn that writes the draft has the lease. Wait and
    call again, pass `wait=` to `Conversation.turn`, or store the message with `Conversation.inbox.put`. If the process
    of the turn has died, the lease ends at `until`; `Conversation.turns.release` releases it at once.

    Attributes:
        key: The key of the session.
        turn_id: The id of the turn that has the lease.
        until: The time at which the lease ends, unless the turn extends it.
    """

    def __init__(self, key: str, turn_id: str, until: datetime) -> None:
        self._fact = f"turn {quoted(turn_id)} of session {quoted(key)} is in progress, its lease ends at {until}"
        super().__init__(f"{self._fact}: try again later, pass wait=, or store the message with inbox.put()")
        self.key = key
        self.turn_id = turn_id
        self.until = until


class DraftNotFound(NotFound):
    """The session has no draft with this id; nothing was written. `Conversation.drafts.list` lists the drafts."""
