"""Requests of front ends, and the turns that answer them. A request that is sent again is answered once."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from hashlib import sha256
from typing import Any, Final, Literal

from pydantic import Field

from lango_store import AlreadyAnswered, Message, MessageRole, TurnInProgress, following
from lango_store.aio import AsyncConversation, AsyncRunningTurn
from lango_store.content import Call, Result, parts
from lango_store.ui.streams import Calls

_NEWEST: Final = 100


class ChatRequest(following.Value):
    """A request of a front end: a new message, a request for another answer, or answers to suspensions and calls.

    Attributes:
        kind: "message" for a message of the user, "regenerate" for another answer to it, "approval" for answers of the
            user to suspensions, or "results" for results of tools that the page has run. In AG-UI, a message that is
            stored already asks for another answer.
        message: The last message of the user; its `id` is the id in the front end. None if the client has sent none,
            which only requests with answers or results may do.
        turn_id: An id for the turn. A request that is sent twice has the same id, so that it is answered once.
        approvals: The answers, as pairs of the suspension's id and the answer, for
            `Conversation.suspensions.answer`. An answer is a dict with `approved` and `reason`, or in AG-UI what
            the front end sends.
        results: The results of tools that the front end has, as tool messages with the ids of the calls on the page.
            A client can forge them: `open_turn` stores only those of calls that wait for the page.
        reruns: True if a message that is stored already asks for another answer, as in AG-UI. Otherwise it is a
            repetition.
    """

    kind: Literal["message", "regenerate", "approval", "results"]
    message: Message | None
    turn_id: str
    approvals: list[tuple[str, Any]] = Field(default_factory=list)
    results: list[Message] = Field(default_factory=list)
    reruns: bool = False


class OpenCall(following.Value):
    """A tool call without a result.

    Attributes:
        seq: The `seq` of the message that asks for the call.
        position: The position of the call in the `tool_calls` of the message, from 0.
        id: The id of the call, "" if it has none.
        name: The name of the tool.
    """

    seq: int
    position: int
    id: str
    name: str


@asynccontextmanager
async def open_turn(
    conversation: AsyncConversation,
    asked: ChatRequest,
    *,
    server_tools: Collection[str] = (),
    lease: timedelta = timedelta(minutes=2),
) -> AsyncGenerator[tuple[str, AsyncRunningTurn | None]]:
    """Begin the turn that answers a request, and store what the request brings.

    A new message is appended. A stored message with another text is replaced, and the log after it is deleted. So is
    the log after a message for which the client wants another answer. Answers to suspensions are stored before the turn
    begins, in one transaction with a note that the session is owed a turn; if one was stored before, it stays. A result
    is stored if its call has none, was never begun, does not belong to a suspension, and follows the last question.

    Args:
        conversation: The conversation.
        asked: The request, from `from_aisdk` or `from_agui`.
        server_tools: The names of tools whose results the client may not send. Defaults to none.
        lease: How long the lease lasts after the last write of the turn. Defaults to 2 minutes.

    Yields:
        The id of the turn whose stream is the answer, and the turn, which is saved at the end of the block. The turn is
        None if the request is a repetition whose answer is stored or in progress.

    Raises:
        TurnInProgress: Another request is being answered. Answers to suspensions are stored nevertheless.
        SuspensionNotFound: There is no such suspension.
        SuspensionExpired: The suspension's TTL has passed.
        InvalidMessage: The message cannot be stored losslessly; nothing was written.
        ValueError: The id is that of a message that is not the user's; nothing was written.
    """
    for id, given in asked.approvals:
        with suppress(AlreadyAnswered):
            await conversation.suspensions.answer(id, given)
    turn_id = await _turn_id(conversation, asked)
    async with AsyncExitStack() as stack:
        turn: AsyncRunningTurn | None = None
        try:
            turn = await stack.enter_async_context(conversation.turn(turn_id, lease=lease))
        except TurnInProgress as error:
            if error.turn_id != turn_id and not await _is_last_question(conversation, asked):
                raise
            turn_id = error.turn_id
        if turn is not None and not turn.replayed and not turn.messages:
            await _store(conversation, asked, turn, server_tools)
        yield turn_id, None if turn is None or turn.replayed else turn


async def open_calls(conversation: AsyncConversation) -> list[OpenCall]:
    """List the tool calls without a result that were asked for since the last question of the user.

    A turn with such calls has to end, because they wait for the page or for the answer to a suspension.

    Args:
        conversation: The conversation.
    """
    found = await _open(conversation)
    return [OpenCall(seq=seq, position=call.position, id=call.id, name=call.name) for seq, _, call, _ in found]


async def _question(conversation: AsyncConversation, asked: ChatRequest) -> Message | None:
    """Return the stored message of a request for an answer to a message."""
    if asked.message is None or asked.kind in ("approval", "results"):
        return None
    stored = await conversation.find_message(str(asked.message.id))
    if stored is not None and stored.role is not MessageRole.USER:
        raise ValueError("the id of the message is that of another message: generate a new id for each message")
    return stored


async def _turn_id(conversation: AsyncConversation, asked: ChatRequest) -> str:
    """Return the id of the turn that answers a request, or that has answered it."""
    stored = await _question(conversation, asked)
    if stored is None or asked.message is None or asked.kind != "message" or stored.content != asked.message.content:
        return asked.turn_id
    if asked.reruns and stored._taken_by != asked.turn_id:
        return asked.turn_id
    following_messages = await conversation.all_messages(after=stored.seq, limit=1)
    answers = [each for each in following_messages if each.role is not MessageRole.USER]
    turns = [each._taken_by for each in (stored, *answers) if each._taken_by is not None]
    return turns[-1] if turns else asked.turn_id


async def _is_last_question(conversation: AsyncConversation, asked: ChatRequest) -> bool:
    """Return True if the turn in progress answers the question of a request."""
    stored = await _question(conversation, asked)
    if stored is None or asked.message is None or stored.content != asked.message.content:
        return False
    return all(each.role is not MessageRole.USER for each in await conversation.all_messages(after=stored.seq))


async def _store(
    conversation: AsyncConversation, asked: ChatRequest, turn: AsyncRunningTurn, server_tools: Collection[str]
) -> None:
    results = await _results(conversation, asked, server_tools) if asked.results else []
    if asked.message is None or asked.kind in ("approval", "results"):
        await turn.append_messages(results)
        return
    if results:  # of the last answer: they are not part of this one
        await conversation.append_messages(results)
    stored = await _question(conversation, asked)
    if stored is None:
        await turn.append(asked.message)
    elif stored.content == asked.message.content:
        await turn.append_messages([], replace_after=stored.seq)
    else:
        await turn.append_messages([asked.message], replace_after=stored.seq - 1)


async def _results(conversation: AsyncConversation, asked: ChatRequest, server_tools: Collection[str]) -> list[Message]:
    """Return the results of a request that are stored: those of open calls that the page may have run."""
    others = {place for each in await conversation.suspensions.list() for place in each.calls}
    others |= {(each.seq, each.position) for each in await conversation.calls.list()}
    ids: dict[str, Call] = {}
    for seq, number, call, id in await _open(conversation):
        if (seq, call.position) not in others and call.name not in server_tools:
            # A page that shows more messages may have had to change the id.
            ids |= dict.fromkeys((id, f"{call.id or 'call'}-{seq}-{number}"), call)
    results: list[Message] = []
    calls: list[Call] = []
    for each in asked.results:
        answered = ids.get(str(each.tool_call_id))
        if answered is not None and not any(answered is other for other in calls):
            calls.append(answered)
            results.append(each.model_copy(update={"tool_call_id": answered.id or None, "name": answered.name or None}))
    return results


async def _open(conversation: AsyncConversation) -> list[tuple[int, int, Call, str]]:
    """Return the open calls since the last question. Calls that a provider runs are left out."""
    calls = Calls()
    for message in await conversation.messages(last=_NEWEST):
        found = parts(message)
        if message.role is MessageRole.USER and not all(type(each) is Result for each in found):
            calls = Calls()
        for number, part in enumerate(found):
            if type(part) is Call and message.role.canonical is MessageRole.ASSISTANT:
                calls.add(message.seq, number, part)
            elif type(part) is Result:
                calls.answered(part)
    return calls.open()


def id_of(*names: object) -> str:
    """Return the end of the id of a turn, which depends on these names."""
    return sha256(repr(names).encode()).hexdigest()[:24]
