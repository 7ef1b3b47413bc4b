"""The errors of the room."""

from datetime import datetime, timedelta

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


class BudgetExhausted(LangoStoreError):
    """The reservation of a turn does not fit into its budget: the turn has not begun, and nothing was written.

    `Store.work` runs the turn when the budget opens again.

    Attributes:
        scope: The scope of the budget.
        left: The rest of the budget, without what turns in progress have reserved; at least 0.
        opens_at: The time at which the next period begins. If only turns in progress have reserved too much, the time
            at which the first of their leases ends, unless it is extended. None if the budget has no period and is
            used up.
    """

    def __init__(self, scope: str, left: float, opens_at: datetime | None, pause: timedelta | None) -> None:
        opens = "it has no period: reset it" if opens_at is None else f"it opens at {opens_at}"
        super().__init__(
            f"the reservation of the turn is more than the {left} that are left of the budget of {quoted(scope)}, "
            f"{opens}; the turn has not begun"
        )
        self.scope = scope
        self.left = left
        self.opens_at = opens_at
        self._pause = pause  # None if it is enough that another turn ends


class DraftNotFound(NotFound):
    """The session has no draft with this id; nothing was written. `Conversation.drafts.list` lists the drafts."""
