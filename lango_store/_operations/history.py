"""The end of a window as a model takes it: no more than was asked for, and nothing that a model refuses."""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from lango_store import window
from lango_store._dialect import AnyConnection, Moment
from lango_store._operations import messages, sessions
from lango_store._operations.messages import MAX_SEQ, Tail
from lango_store._values.model import Message, MessageRole

_FIRST_PAGE: Final = 64
_INSTRUCTIONS: Final = (MessageRole.SYSTEM, MessageRole.DEVELOPER)


def read(
    connection: AnyConnection,
    now: Moment,
    key: str,
    *,
    last: int | None,
    max_tokens: int | None,
    from_consolidated: bool,
    count: window.Count | None,
) -> list[Message]:
    """Return at most the `last` messages and `max_tokens` tokens of a live session's window, fit for a model.

    With `max_tokens` or `from_consolidated` it takes several statements.
    """
    most = MAX_SEQ
    if from_consolidated:
        info = sessions.info(connection, now, key)
        most = info.message_count - info.last_consolidated
    wanted = MAX_SEQ if last is None else last
    if max_tokens is None:
        return _legal(messages.tail(connection, now, key, wanted, most=most))
    size = min(_FIRST_PAGE, wanted)
    while True:
        tail = messages.tail(connection, now, key, size, most=most)
        found = tail.messages
        fitting = window.tail_within(found, max_tokens, count=count)
        if len(fitting) < len(found) or len(found) < size or size == wanted:
            return _legal(tail.end(len(fitting)))
        size = min(4 * size, wanted)


def _legal(tail: Tail) -> list[Message]:
    """Leave out what a model refuses or misunderstands at the front."""
    if tail.summary:  # nothing is missing but what the summary speaks of
        asking = [message for message in tail.summary if message.role.canonical is MessageRole.ASSISTANT]
        called = {call.id for message in asking for call in message.tool_calls}
        return [*window.without_orphans(tail.summary), *window.without_orphans(tail.later, called)]
    system = list(takewhile(lambda message: message.role in _INSTRUCTIONS, tail.later))
    return [*system, *window.legal_suffix(tail.later[len(system) :])]
