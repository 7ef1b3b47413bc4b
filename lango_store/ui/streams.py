"""Parts that the protocols of front ends share: the events of a turn, the blocks of a message, and a request."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar, Final, Literal, TypeVar

from pydantic import Field

from lango_store import sse
from lango_store._features.tail import reading
from lango_store._features.tail.following import Reader, follow_async
from lango_store._features.tail.reading import Cursor
from lango_store._values.events import Ended, Event, TurnBegan, TurnEnded
from lango_store._values.model import Message, Suspension, Turn
from lango_store._values.value import Value
from lango_store.aio import AsyncConversation
from lango_store.content import texts_of

R = TypeVar("R")

TURN_ID: Final = re.compile("turn[0-9a-f]{24}(?=[0-9a-f]{16})")
"""The beginning of the ids that the messages of a turn get."""

_REASONING: Final = {"thinking": "thinking", "reasoning": "text"}


class TurnStream(sse.Application):
    """An ASGI application that answers `GET /KEY/stream` with the answer in progress.

    Subclasses define the protocol.
    """

    path = re.compile("/(.+)/stream", re.DOTALL)

    stream: ClassVar[Callable[..., AsyncGenerator[str, None]]]
    """A function that yields the frames of a turn."""

    async def _frames(self, scope: Any, key: str) -> AsyncGenerator[bytes, None]:
        conversation = self._store.conversation(key)
        turn = await conversation.turns.in_progress()
        if turn is not None and turn.held:
            position, heartbeat = sse.requested_position(scope), timedelta(seconds=self._heartbeat)
            async with aclosing(self.stream(conversation, turn.id, after=position, heartbeat=heartbeat)) as frames:
                async for frame in frames:
                    yield frame.encode()


async def follow_turn(
    conversation: AsyncConversation, turn_id: str, start: str, retry: timedelta, heartbeat: timedelta
) -> AsyncGenerator[Event | Turn | None, None]:
    """Yield the events of a session, None as a heartbeat, and the turn as the last item when it was saved.

    The turn is left out if the session ends, if another turn begins, or if no attempt of the turn runs for the
    time `retry`.
    """
    reader = Reader(conversation._twin._context, conversation.key, start, follow=True)
    until = None if Cursor.of(start).attempt else monotonic() + retry.total_seconds()
    seconds = min(heartbeat, retry).total_seconds()
    turn, last_seq = None, 0
    async with aclosing(follow_async(conversation._threads, reader, seconds)) as events:
        async for event in events:
            at = reader.cursor if event is None else Cursor.of(event.cursor)
            if turn is not None and event is not None:  # a client that is cut gets the end of the turn again
                event = event.model_copy(update={"cursor": at._replace(turn_no=turn.turn_no - 1).text})
            match event:
                case TurnEnded(turn=Turn(id=id) as saved) if id == turn_id:
                    # Its event follows its last message: changes and messages of others may be missing.
                    turn, last_seq = saved, (await read(conversation, reading.newest, turn_id)).seq
                case TurnEnded(turn=None):
                    until = monotonic() + retry.total_seconds()
                case TurnBegan():
                    until = None if event.turn_id == turn_id else monotonic()
                case Ended():
                    until = monotonic()
            if event is None or event.event not in ("turn_began", "turn_ended"):
                yield event
            if turn is not None and at.seq >= last_seq:
                yield turn
                return
            if turn is None and until is not None and monotonic() >= until:
                return


async def read(conversation: AsyncConversation, operation: Callable[..., R], turn_id: str) -> R:
    """Run a read of a conversation in one snapshot of the primary."""
    context = conversation._twin._context.on_primary()
    return await conversation._threads.run(lambda: context.read_together(operation, conversation.key, turn_id))


async def open_suspensions(conversation: AsyncConversation, turn_id: str) -> list[tuple[Suspension, list[str]]]:
    """Return the suspensions without an answer whose calls a saved turn has, each with the ids of these calls."""
    waiting = [each for each in await conversation.suspensions.list() if each.answered_at is None]
    turn = await conversation.turns.find(turn_id) if waiting else None
    messages = {} if turn is None else {each.seq: each for each in turn.messages}
    calls = [  # an edit may have removed a call
        [call.id for seq, at in each.calls if seq in messages for call in messages[seq].tool_calls[at : at + 1]]
        for each in waiting
    ]
    return [(each, ids) for each, ids in zip(waiting, calls, strict=True) if ids]


def frame(fields: Mapping[str, Any], position: str | None = None) -> str:
    """Return an event, with its position as the id. An empty id makes a client that is cut begin again."""
    id = "" if position is None else f"id: {position}\n"
    return f"{id}data: {json.dumps(fields)}\n\n"


def blocks_of(message: Message) -> Iterator[dict[str, Any]]:
    """Yield the content of a message as blocks: those of the types "text" and "reasoning" have a `text`."""
    content = message.content
    blocks: list[Any] = [content] if isinstance(content, str) else [json.dumps(content)] if content else []
    if isinstance(content, list) and all(isinstance(block, dict) for block in content):
        blocks = texts_of(content) or content
    for block in blocks:
        kind = None if isinstance(block, str) else block.get("type")
        if isinstance(block, str):
            if block:
                yield {"type": "text", "text": block}
        elif kind in _REASONING:
            yield {"type": "reasoning", "text": str(block.get(_REASONING[kind]) or "")}
        else:
            yield block


def results_of(message: Message) -> dict[str | None, Any]:
    """Return the outputs of a tool message by the ids of their calls."""
    outputs: dict[str | None, Any] = {call.id: call.output for call in message.tool_calls if call.answered}
    return outputs or {message.tool_call_id: message.content}


class ChatRequest(Value):
    """A request of a front end: a new message, a request for another answer, or answers to suspensions.

    Attributes:
        kind: "message" for a new message of the user, "regenerate" for another answer to it, or "approval" for answers
            of the user to suspensions. In AG-UI, a message that is stored already asks for another answer.
        message: The last message of the user; its `id` is the id in the front end.
        turn_id: An id for the turn. A new message or an approval that is sent twice has the same id, so that it is
            answered once.
        approvals: The answers, as pairs of the suspension's id and the answer, for
            `Conversation.suspensions.answer_by_id`. An answer is a dict with `approved` and `reason`, or in AG-UI what
            the front end sends.
    """

    kind: Literal["message", "regenerate", "approval"]
    message: Message
    turn_id: str
    approvals: list[tuple[str, Any]] = Field(default_factory=list)


def user_message(messages: list[Any], field: str, types: tuple[str, ...]) -> Message:
    """Return the last message of the user; text and blocks of these types in its `field` become its content."""
    asked = [each for each in messages if each["role"] == "user"][-1]
    content = asked[field]
    if not isinstance(content, str):
        parts = [each for each in content if each["type"] in ("text", *types)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        content = "\n\n".join(texts) if len(texts) == len(parts) else parts
    return Message.user(content, id=asked["id"])
