"""The values of the room."""

from typing import Literal

from pydantic import AwareDatetime

from lango_store._values.value import Value


class OpenTurn(Value):
    """A turn that has begun and not ended.

    The turn is running, or its process died or was paused.

    Attributes:
        key: The key of the session.
        id: The id of the turn.
        until: The time at which the lease ends and another turn may take over, in UTC.
        held: True if the lease has not ended yet.
        draft_id: The id that the draft of the turn has as soon as the turn has written a piece.
    """

    key: str
    id: str
    until: AwareDatetime
    held: bool
    draft_id: str


class OwedTurn(Value):
    """A turn that a session is owed and that no process is running.

    Attributes:
        key: The key of the session.
        reason: `"interrupted"`: a turn began and was not saved; `"inbox"`: messages wait in the inbox; `"answer"`: a
            suspension was answered, and no turn has begun since.
        turn_id: The id of the interrupted turn, which the next attempt gets too. None for a turn that has not begun.
        due_at: The time since when, or from when, a worker may run the turn, in UTC. None for a turn that was given up.
        attempts: How often workers have tried to run the turn, without those that a worker gave back.
        error: The class name of the last error, such as `TimeoutError`; for a turn that waits for its budget,
            `BudgetExhausted: ` and the scope. None if there was none.
        given_up: True if the turn has failed too often, so that no worker runs it. `Conversation.turns.retry` makes it
            due again.
    """

    key: str
    reason: Literal["interrupted", "inbox", "answer"]
    turn_id: str | None = None
    due_at: AwareDatetime | None = None
    attempts: int = 0
    error: str | None = None
    given_up: bool = False


class Draft(Value):
    """The text that a turn has streamed and not appended, so that it is not in the log.

    Attributes:
        id: The id of the draft, for `drafts.keep` and `drafts.delete`.
        turn_id: The id of the turn.
        text: The text up to the last piece that was stored.
        created_at: The time of the first piece, in UTC.
        updated_at: The time of the last piece, in UTC.
    """

    id: str
    turn_id: str
    text: str
    created_at: AwareDatetime
    updated_at: AwareDatetime
