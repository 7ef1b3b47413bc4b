"""Parts that the protocols of front ends share: the events of a turn, the blocks of a message, and a request."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import timedelta
from operator import itemgetter
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

import sqlalchemy as sa

from lango_store import (
    Alternative,
    Ended,
    Event,
    Message,
    MessageRole,
    Piece,
    Session,
    Suspension,
    Turn,
    TurnBegan,
    TurnEnded,
    following,
)
from lango_store.aio import AsyncConversation
from lango_store.content import Call, Result, parts
from lango_store.window import Repair

R = TypeVar("R")

_EARLIER: Final = 100
_ALTERNATIVES: Final = 1_000

TURN_ID: Final = re.compile("turn[0-9a-f]{24}(?=[0-9a-f]{16})")
"""The beginning of the ids that the messages of a turn get."""


class Awaited(following.Value):
    """The turn that answers a request, which may not have begun yet. `submit` returns it.

    Attributes:
        message_id: The id of the message that the turn takes from the inbox, or of a question in the log, whose newest
            answer is meant.
        answered: True for the turn that begins after the last answer to a suspension.
        turn_id: The id of a turn that has begun. If all three are left out, the turn in progress or the next one is
            meant.
        after_turn: The number of a saved turn. If no turn is in progress or owed, the last one after it is meant.
            Defaults to the last turn that is saved when the wait begins.
    """

    message_id: str | None = None
    answered: bool = False
    turn_id: str | None = None
    after_turn: int | None = None


async def find_turn(conversation: AsyncConversation, awaited: Awaited) -> following.AwaitedTurn:
    """Return the state of a turn that a reader waits for."""
    if awaited.turn_id is not None:
        return following.AwaitedTurn(awaited.turn_id)
    if awaited.message_id is not None:
        return await read(conversation, following.of_message, awaited.message_id)
    return await read(conversation, following.after_answer if awaited.answered else following.next_turn)


async def wait_for_turn(
    conversation: AsyncConversation, awaited: Awaited, heartbeat: timedelta
) -> AsyncGenerator[str | None, None]:
    """Yield None while a turn has not begun, and its id as the last item; no id if none will begin.

    A reader that waits has no connection and no lease.
    """
    start = await read(conversation, following.newest, "")
    after = start.turn_no if awaited.after_turn is None else awaited.after_turn
    reader = following.Reader(conversation._twin._context, conversation.key, start.text, follow=True)
    events = following.follow_async(conversation._threads, reader, heartbeat.total_seconds())
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Piece):
                continue
            if isinstance(event, Ended):
                return
            turn = await find_turn(conversation, awaited)
            if turn.id is None and not turn.is_owed and awaited.message_id is None and not awaited.answered:
                turn = await _find_ended(conversation, after)
            if turn.id is not None:
                yield turn.id
            if turn.id is not None or not turn.is_owed:
                return
            yield None


async def _find_ended(conversation: AsyncConversation, turn_no: int) -> following.AwaitedTurn:
    """Return the last turn if its number is higher: it began and ended between two reads."""
    turn = await read(conversation, following.after_answer)
    saved = None if turn.id is None else await conversation.turns.find(turn.id)
    return turn if saved is not None and saved.turn_no > turn_no else following.AwaitedTurn()


async def follow_turn(
    conversation: AsyncConversation,
    turn_id: str,
    start: str,
    retry: timedelta,
    heartbeat: timedelta,
    *,
    waits: bool = False,
) -> AsyncGenerator[Event | Turn | None, None]:
    """Yield the events of a session, None as a heartbeat, and the turn as the last item when it was saved.

    The usage of the turn includes the turns that were saved under its lease. The turn is left out if the session ends,
    if another turn begins, or if no attempt of the turn runs for the time `retry`. With `waits`, it is instead left
    out if the session is not owed another attempt.
    """
    reader = following.Reader(conversation._twin._context, conversation.key, start, follow=True)
    pause = 0.0 if waits else retry.total_seconds()
    until = None if following.Cursor.of(start).attempt else monotonic() + pause
    seconds = min(heartbeat, retry).total_seconds()
    turn, last_seq = None, 0
    async with aclosing(following.follow_async(conversation._threads, reader, seconds)) as events:
        async for event in events:
            at = reader.cursor if event is None else following.Cursor.of(event.cursor)
            if turn is not None and event is not None:  # a client that is cut gets the end of the turn again
                event = event.model_copy(update={"cursor": at._replace(turn_no=turn.turn_no - 1).text})
            match event:
                case TurnEnded(turn=Turn(id=id) as saved) if id == turn_id:
                    # Its event follows its last message: changes and messages of others may be missing.
                    turn, last_seq = saved, (await read(conversation, following.newest, turn_id)).seq
                case TurnEnded(turn=None):
                    until = monotonic() + pause
                case TurnBegan():
                    until = None if event.turn_id == turn_id else monotonic()
                case Ended():
                    until, waits = monotonic(), False
            if event is None or event.event not in ("turn_began", "turn_ended"):
                yield event
            if turn is not None and at.seq >= last_seq:
                within = await read(conversation, following.turns_within, turn_id)
                yield turn.model_copy(update={"usage": following.total(each.usage for each in (*within, turn))})
                return
            if turn is None and until is not None and monotonic() >= until:
                if not waits or not await _is_expected(conversation, turn_id):
                    return
                until = monotonic() + retry.total_seconds()


async def _is_expected(conversation: AsyncConversation, turn_id: str) -> bool:
    """Return True if the end of a turn will follow, because it is saved, in progress, or owed another attempt."""
    if await read(conversation, following.is_owed, turn_id):
        return True
    return await conversation.turns.find(turn_id) is not None


async def read(conversation: AsyncConversation, operation: Callable[..., R], *args: Any) -> R:
    """Run a read of a conversation in one snapshot of the primary."""
    context = conversation._twin._context.on_primary()
    return await conversation._threads.run(lambda: context.read_together(operation, conversation.key, *args))


async def silence(conversation: AsyncConversation) -> str:
    """Return a comment or, if the turn waits for its budget, a part for the page that it does not keep."""
    waits = await read(conversation, following.budget_awaited)
    return ":\n\n" if waits is None else frame({"type": "data-waiting", "data": waits, "transient": True})


async def find_aside(conversation: AsyncConversation, id: str) -> Message | None:
    """Return the stored message with an id, also if it is set aside, in an alternative."""

    def find(connection: sa.Connection, _: following.Moment, key: str) -> Message | None:
        return following.read_by_ids(connection, key, frozenset([id])).get(id)

    return await read(conversation, find)


async def earlier(conversation: AsyncConversation, seq: int | None = None) -> list[Message]:
    """Return the last messages, up to a seq, to find the calls of results."""
    messages = await conversation.all_messages(before=None if seq is None else seq + 1, last=_EARLIER)
    return [message for message in messages if message.role is not MessageRole.RECORD]


async def open_suspensions(
    conversation: AsyncConversation, turn_id: str, page: Mapping[tuple[int, int], str]
) -> list[tuple[Suspension, list[str]]]:
    """Return the suspensions without an answer whose calls a saved turn has, each with the ids of these calls.

    Calls before the last question are left out: no turn runs them any more.
    `page` has the ids that calls have on the page, by the `seq` of the message and the position of the call.
    """
    waiting = [each for each in await conversation.suspensions.list() if each.is_open_question]
    turn = await conversation.turns.find(turn_id) if waiting else None
    asked_at = max((each.seq for each in await earlier(conversation) if is_question(each)), default=0) if turn else 0
    messages = {} if turn is None else {each.seq: each for each in turn.messages if each.seq > asked_at}
    calls = [  # an edit may have removed a call
        [
            page.get((seq, at), call.id)
            for seq, at in each.calls
            if seq in messages
            for call in messages[seq].tool_calls[at : at + 1]
        ]
        for each in waiting
    ]
    return [(each, ids) for each, ids in zip(waiting, calls, strict=True) if ids]


def is_question(message: Message) -> bool:
    """Return True for a message of the user that is more than the results of tools."""
    return message.role is MessageRole.USER and not all(type(part) is Result for part in parts(message))


async def last_suspended(conversation: AsyncConversation) -> str | None:
    """Return the id of the last turn with a call that waits for an answer to a suspension, if the turn is saved.

    There is none if a question follows the call, because no turn runs it then.
    """
    waiting = [each for each in await conversation.suspensions.list() if each.is_open_question and each.calls]
    for seq in sorted((each.calls[0][0] for each in waiting), reverse=True)[:1]:
        found = [each for each in await earlier(conversation) if each.seq >= seq]
        is_asked_since = any(map(is_question, found))
        if found and not is_asked_since and found[0].seq == seq and found[0].id is not None:
            return (await find_turn(conversation, Awaited(message_id=found[0].id))).id
    return None


class Page(NamedTuple):
    """The content of a page at one moment."""

    session: Session
    waiting: list[Message]
    suspensions: list[Suspension]
    alternatives: list[Alternative]


def load_page(connection: sa.Connection, now: following.Moment, key: str) -> Page:
    """Read what a page shows. Needs a snapshot."""
    waiting, suspensions = following.waiting(connection, now, key), following.suspensions(connection, now, key)
    alternatives = following.alternatives(connection, now, key, _ALTERNATIVES)
    return Page(following.load(connection, now, key), waiting, suspensions, alternatives)


def turn_of(message: Message) -> str | None:
    """Return the beginning of the ids that the turn of a message gives, None without a turn in progress."""
    if message._taken_by is not None:
        return following.id_prefix(message._taken_by)
    id = message.id
    match = TURN_ID.match(id) if id and id.startswith("turn") else None
    return match[0] if match else None


def frame(fields: Mapping[str, Any], position: str | None = None) -> str:
    """Return an event, with its position as the id. An empty id makes a client that is cut begin again."""
    id = "" if position is None else f"id: {position}\n"
    return f"{id}data: {json.dumps(fields)}\n\n"


_Open = tuple[int, int, Call, str]
"""A call without a result: the `seq` of its message, its position there, and its id on the page."""


class Calls:
    """The calls of a conversation with their ids on a page, where each call has another id that is not empty.

    Providers repeat ids, or give none. Results are found as in prompts: by the id, otherwise by the name and the order.
    """

    def __init__(self) -> None:
        self.places: dict[tuple[int, int], str] = {}
        """The ids on the page, by the `seq` of the message and the position of the call."""
        self._ids: set[tuple[str, str]] = set()
        self._newest: dict[str, str] = {}
        self._open: dict[str, list[_Open]] = {}

    def add(self, seq: int, number: int, call: Call, page: str = "") -> str:
        """Add a call, and return its id on the page. Ids are different in each page that is named.

        `number` is the position of the call among the parts of its message.
        """
        id = call.id
        if not id or (page, id) in self._ids:
            id = f"{id or 'call'}-{seq}-{number}"
        self._ids.add((page, id))
        self._open.setdefault(call.id, []).append((seq, number, call, id))
        self.places[seq, call.position] = self._newest[call.id] = id
        return id

    def answered(self, result: Result) -> str | None:
        """Return the id on the page of the call that a result answers; None if there is no such call."""
        same = self._open.get(result.id) or self._open.get("", []) if result.id else self.open()
        if not same:
            return self._newest.get(result.id or "")
        if len(same) > 1:
            same = [each for each in same if each[0] == same[-1][0]]
            same = [each for each in same if each[2].name == result.name] or same
        answered = same[0]
        self._open[answered[2].id].remove(answered)
        return answered[3]

    def open(self) -> list[_Open]:
        """Return the calls without a result, in their order."""
        return sorted((each for calls in self._open.values() for each in calls), key=itemgetter(0, 1))


class Messages(list[dict[str, Any]]):
    """The messages of a page, as dicts of JSON.

    Attributes:
        repairs: What the protocol cannot express, so that the page does not show it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.repairs: list[Repair] = []
        self._seq = 0
        """The `seq` of the message that is added."""

    def _note(self, text: str) -> None:
        """Add a repair of the message that is added."""
        self.repairs.append(Repair(seq=self._seq, kind="content", text=text))


def user_message(messages: list[Any], field: str, types: tuple[str, ...]) -> Message:
    """Return the last message of the user; text and blocks of these types in its `field` become its content."""
    asked = [each for each in messages if each["role"] == "user"][-1]
    if not isinstance(asked["id"], str):
        raise TypeError("the id of a message is not a string")
    content = asked[field]
    if not isinstance(content, str):
        parts = [each for each in content if each["type"] in ("text", *types)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        content = "\n\n".join(texts) if len(texts) == len(parts) else parts
    return Message.user(content, id=asked["id"])
