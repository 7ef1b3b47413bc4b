"""The values of the room."""

import json
from collections.abc import Iterable
from typing import Any, Literal

from pydantic import AwareDatetime, Field

from lango_store._values.value import Json, Value, absent


class BegunCall(Value):
    """A tool call that was begun, as `Conversation.calls.list` returns it.

    Attributes:
        key: The key of the session.
        seq: The `seq` of the message that asks for the call.
        position: The position of the call in the `tool_calls` of that message, from 0.
        name: The name of the tool; "" if the message no longer has the call.
        effect_key: The random key for the tool, `Effect.key`.
        state: `running` until the time limit passes; `waiting` for a result from outside, see `Store.calls.waiting`;
            `finished`, with a result; `unknown`, if the time limit passed
            without a result, or if the result was deleted; or `retry`, if `calls.resolve` allowed the call to run
            again.
        begun_at: The time at which the call was last begun, in UTC.
        until: The time limit of the call, in UTC; the end of the year 9999 for a call that waits or has waited.
        result_seq: The `seq` of the message with the result, or None.
    """

    key: str
    seq: int
    position: int
    name: str
    effect_key: str
    state: Literal["running", "waiting", "finished", "unknown", "retry"]
    begun_at: AwareDatetime
    until: AwareDatetime
    result_seq: int | None = None


class Suspension(Value):
    """A request for an answer from outside the program, such as an approval.

    Attributes:
        key: The key of the session.
        id: The id of the suspension, for `Conversation.suspensions.answer`. It is not secret, unlike the `token`.
        calls: The tool calls that wait for the answer, as pairs of the message's `seq` and the position of the call.
        state: Any JSON that the program needs to continue, such as the run state of an agent framework.
        handle: If the call waits for its result from outside (`Effect.wait`), what identifies it there: a JSON object.
            None for a question to a person.
        reason: The text of the question, or None.
        created_at: The time of the suspension, in UTC.
        due_at: The time from which the suspension can no longer be answered, in UTC; None if it has no TTL.
        answer: The answer, any JSON; None without an answer. `answered_at` tells an answer of None from no answer.
        answered_at: The time of the answer, in UTC; None without an answer.
        answered_by: Who has answered, such as the id of a user; None if this is not known.
        answered_why: Why, or None.
        token: The secret text to pass to `Store.suspensions.answer`, for one answer. Only the result of
            `Conversation.suspensions.create` has it, because the database stores only a digest; otherwise None.
    """

    key: str
    id: str
    calls: list[tuple[int, int]] = Field(default_factory=list)
    state: Json = None
    handle: dict[str, Any] | None = None
    reason: str | None = None
    created_at: AwareDatetime
    due_at: AwareDatetime | None = None
    answer: Json = None
    answered_at: AwareDatetime | None = None
    answered_by: str | None = None
    answered_why: str | None = None
    token: str | None = Field(default=None, exclude_if=absent, repr=False)

    @property
    def is_open_question(self) -> bool:
        """True if a person, not a job, has not answered yet."""
        return self.handle is None and self.answered_at is None


def describe_answers(suspensions: Iterable[Suspension]) -> dict[int | None, list[str]]:
    """Describe questions and answers on one line each, by the `seq` of the message whose calls wait, or None."""
    lines: dict[int | None, list[str]] = {}
    for each in suspensions:
        calls = "call " + ", ".join(str(position) for _, position in each.calls) if each.calls else ""
        facts = [calls, each.reason, "not answered"]
        if each.handle is not None:
            end = "waiting for" if each.answered_at is None else "has waited for"
            until = f"until {each.due_at:%Y-%m-%d %H:%M:%S} UTC"
            facts[1:] = [f"{end} {json.dumps(each.handle, ensure_ascii=False)}", until]
        elif each.answered_at is not None:
            by = "" if each.answered_by is None else f" by {each.answered_by}"
            when = f"answered {each.answered_at:%Y-%m-%d %H:%M:%S} UTC{by}"
            facts[2:] = [f"{when}: {json.dumps(each.answer, ensure_ascii=False)}", each.answered_why]
        lines.setdefault(each.calls[0][0] if each.calls else None, []).append(" · ".join(filter(None, facts)))
    return lines
