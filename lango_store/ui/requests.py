"""Requests of front ends: what they bring is stored. A request that is sent again changes nothing."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection
from contextlib import suppress
from typing import Any, Final, Literal

from pydantic import Field

from lango_store import (
    AlreadyAnswered,
    Conflict,
    InvalidState,
    Message,
    MessageNotFound,
    MessageRole,
    Suspension,
    following,
)
from lango_store.aio import AsyncConversation
from lango_store.content import AISDK, Call, Result, ignore, parts
from lango_store.errors import quoted
from lango_store.ui import streams
from lango_store.ui.streams import Awaited, Calls

_NEWEST: Final = 100
_TRIES: Final = 5
_RUNS: Final = "ui.runs"
_MOST_RUNS: Final = 50


class ChatRequest(following.Value):
    """A request of a front end: a new message, a request for another answer, or answers to suspensions and calls.

    Attributes:
        kind: "message" for a message of the user, "regenerate" for another answer to it, "approval" for answers of the
            user to suspensions, or "results" for results of tools that the page has run. In AG-UI, a message that is
            stored already asks for another answer.
        message: The last message of the user; its `id` is the id in the front end. None if the client has sent none,
            which only requests with answers or results may do.
        approvals: The answers, as pairs of the suspension's id and the answer, for
            `Conversation.suspensions.answer`. An answer is a dict with `approved` and `reason`, or in AG-UI what
            the front end sends.
        results: The results of tools that the front end has, as tool messages with the ids of the calls on the page.
            A client can forge them: `submit` stores only those of calls that wait for the page.
        answer_id: The id of the UI message that another answer is to replace, if the client has sent it.
        run_id: The id of the run in AG-UI, which is the same if the request is sent again. Otherwise None.
        parent_run_id: The id of an earlier run in AG-UI after which the new message is to follow. Otherwise None.
    """

    kind: Literal["message", "regenerate", "approval", "results"]
    message: Message | None
    approvals: list[tuple[str, Any]] = Field(default_factory=list)
    results: list[Message] = Field(default_factory=list)
    answer_id: str | None = None
    run_id: str | None = None
    parent_run_id: str | None = None


class OpenCall(following.Value):
    """A tool call without a result.

    Attributes:
        seq: The `seq` of the message that asks for the call.
        position: The position of the call in the `tool_calls` of the message, from 0.
        id: The id of the call, "" if it has none.
        name: The name of the tool.
        arguments: The arguments of the call.
        suspension: The last suspension of the call, or None.
    """

    seq: int
    position: int
    id: str
    name: str
    arguments: Any = None
    suspension: Suspension | None = None

    @property
    def approved(self) -> bool | None:
        """The field `approved` of the answer to the suspension; None if it has no answer."""
        answer = None if self.suspension is None or self.suspension.answered_at is None else self.suspension.answer
        return None if answer is None else isinstance(answer, dict) and answer.get("approved") is True


async def submit(
    conversation: AsyncConversation,
    asked: ChatRequest,
    *,
    client_tools: Collection[str] = (),
    by: str | None = None,
    busy: Literal["wait", "refuse"] = "wait",
) -> Awaited:
    """Store what a request brings, so that a worker answers it.

    A new message is put into the inbox. A stored message with another text is replaced: its turn is stopped, and the
    log from the message on is kept as an alternative. So is the log after a message for which the client wants another
    answer, and what follows the answer of a run from which a client of AG-UI branches. Answers to suspensions are
    stored; if one was stored before, it stays. A result of a tool that the page runs is put into the inbox if its call
    has none, was never begun, belongs to no suspension, and follows the last question.

    Args:
        conversation: The conversation.
        asked: The request, from `from_aisdk` or `from_agui`.
        client_tools: The names of the tools that the page runs: results of other tools are ignored. Defaults to none.
        by: Who sends the request, such as the id of a user. It is stored with answers to suspensions.
        busy: What to do with a new message while the session is owed another turn: "wait" (default) puts it into the
            inbox, and "refuse" raises `InvalidState`.

    Returns:
        The turn that answers the request, for `aisdk` and `agui`.

    Raises:
        InvalidState: The session is owed another turn, and `busy` is "refuse"; nothing was stored.
        SuspensionNotFound: There is no such suspension.
        SuspensionExpired: The suspension's TTL has passed.
        InvalidMessage: The message cannot be stored losslessly; nothing was written.
        ValueError: The id is that of a message that is not the user's; nothing was written.
    """
    if asked.message is not None and asked.kind in ("message", "regenerate"):
        return await _ask(conversation, asked, asked.message, client_tools, by, busy)
    answered = await _put_results(conversation, asked, client_tools) if asked.results else None
    for id, given in asked.approvals:
        reason = given.get("reason") if isinstance(given, dict) else None
        with suppress(AlreadyAnswered):
            await conversation.suspensions.answer(id, given, by=by, why=reason if isinstance(reason, str) else None)
    current = await streams.find_turn(conversation, Awaited())
    if current.id is not None and not current.is_owed:  # it was given up
        await conversation.turns.retry()
    return Awaited(answered=True) if asked.approvals or answered is None else Awaited(message_id=answered)


async def _ask(
    conversation: AsyncConversation,
    asked: ChatRequest,
    message: Message,
    client_tools: Collection[str],
    by: str | None,
    busy: Literal["wait", "refuse"],
) -> Awaited:
    """Store a question, or ask for another answer to it."""
    id, inbox = str(message.id), conversation.inbox
    elsewhere = InvalidState(f"message {quoted(id)} is not in the conversation as it is shown: load it again")
    if asked.run_id is not None:
        message = message.model_copy(update={"extra": {"run": asked.run_id}})
    for _ in range(_TRIES):
        revision = (await conversation.info()).revision
        if (stored := await _find_question(conversation, message)) is not None:
            if stored.role is not MessageRole.USER:
                raise ValueError("the id of the message is that of another message: generate a new id for each message")
            is_edited = not _is_same(stored, message)
            question = _edited(message) if is_edited else stored
            awaited = await _answer_to(conversation, question)
            if is_edited and (kept := await _find_kept(conversation, question)) is not None:
                await conversation.turns.stop(by=by)
                await conversation.switch(kept.seq)
                return Awaited(answered=True)
            if is_edited or await _wants_other_answer(conversation, asked, stored, awaited):
                new, after = ([question], stored.seq - 1) if is_edited else ([], stored.seq)
                try:
                    await inbox.put_messages(new, replace_after=after, keep=True, expect=revision)
                except Conflict:  # perhaps the same request
                    continue
                if not is_edited and asked.run_id is not None:
                    await _note_run(conversation, asked.run_id)
                return awaited.model_copy(update={"message_id": question.id})
            turn = await streams.find_turn(conversation, awaited)
            if turn.id is not None and not turn.is_owed and await conversation.turns.find(turn.id) is None:
                await conversation.turns.retry()
            return awaited
        waiting = next((each for each in await inbox.list() if _is_version(each, id)), None)
        awaited = Awaited(message_id=id if waiting is None else waiting.id)
        if waiting is not None and _is_same(waiting, message):
            return awaited
        if waiting is not None:
            with suppress(MessageNotFound):  # a worker has taken it just now
                await inbox.update(message.model_copy(update={"id": waiting.id}))
                return awaited
            continue
        if (kept := await streams.find_aside(conversation, id)) is not None:
            if _is_same(kept, message) and asked.kind == "message":
                return Awaited(answered=True)
            raise elsewhere
        if _BY_SEQ.fullmatch(id):
            raise elsewhere
        if asked.parent_run_id and (later := await _after_run(conversation, asked.parent_run_id)) is not None:
            with suppress(Conflict):  # results are of calls that are set aside, too
                await inbox.put_messages([message], replace_after=later.seq - 1, keep=True, expect=revision)
                return awaited
            continue
        current = await streams.find_turn(conversation, Awaited())
        if current.is_owed and busy == "refuse":
            raise InvalidState(
                f"session {quoted(conversation.key)} is owed another answer: send the message when it has ended"
            )
        if current.id is not None and not current.is_owed:
            await conversation.turns.stop(by=by, reason="given up")
        results, _ = await _results(conversation, asked, client_tools) if asked.results else ([], None)
        try:
            new = await inbox.put_messages([*results, message], expect=revision if results else None)
        except Conflict:  # a call may be replaced
            continue
        if not new[-1].replayed or new[-1].content == message.content:
            return awaited
    raise InvalidState(f"message {quoted(id)} is changed by other requests: send it again")


_EDIT: Final = re.compile(r"~[0-9a-f]{12}$")
"""The end of the id of an edited question: the question that it replaces is kept, with its id."""


_BY_SEQ: Final = re.compile(r"seq-([1-9]\d{0,17})", re.ASCII)
"""The id that a page has for a message which is stored without an id."""


def _edited(message: Message) -> Message:
    """Return an edited question with an id that a repetition of the request gives, too."""
    content = json.dumps(message.content, sort_keys=True, ensure_ascii=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:12]
    return message.model_copy(update={"id": f"{_EDIT.sub('', str(message.id))}~{digest}"})


def _is_version(message: Message, id: str) -> bool:
    """Return True if a message has the id of a question, or of an earlier or later version of it."""
    return message.id is not None and _EDIT.sub("", message.id) == _EDIT.sub("", id)


async def _find_question(conversation: AsyncConversation, message: Message) -> Message | None:
    """Return the version of a question that is in the log, preferably the one with the same content."""
    stored = await conversation.find_message(str(message.id))
    if stored is None and (match := _BY_SEQ.fullmatch(str(message.id))):
        found = await conversation.all_messages(seqs=[int(match[1])])
        stored = found[0] if found and found[0].id is None else None
    if stored is not None and _is_same(stored, message):
        return stored
    same = await conversation.find_message(str(_edited(message).id))
    if same is not None or stored is not None:
        return same or stored
    newest = await conversation.all_messages(last=_NEWEST)
    return next((each for each in reversed(newest) if _is_version(each, str(message.id))), None)


async def _find_kept(conversation: AsyncConversation, question: Message) -> Message | None:
    """Return a stored version with the content of an edited question; the id of the first one has no digest."""
    if (kept := await streams.find_aside(conversation, str(question.id))) is not None:
        return kept
    first = await streams.find_aside(conversation, _EDIT.sub("", str(question.id)))
    return first if first is not None and _is_same(first, question) else None


def _is_same(stored: Message, message: Message) -> bool:
    """Return True if a page shows the same for two questions; other writers store other blocks than pages send."""
    return stored.content == message.content or _shown(stored) == _shown(message)


def _shown(question: Message) -> tuple[str, list[dict[str, Any]]]:
    blocks = [block for part in parts(question) if (block := AISDK.block(part, "user", ignore))]
    texts = [block["text"] for block in blocks if block["type"] == "text" and block["text"]]
    return "\n\n".join(texts), [block for block in blocks if block["type"] != "text"]


async def _answer_to(conversation: AsyncConversation, question: Message) -> Awaited:
    """Return the turn that answers a question; without an id of the question, that of the message after it."""
    if question.id is not None:
        return Awaited(message_id=question.id)
    newest = await streams.read(conversation, following.newest, "")
    later = await conversation.all_messages(after=question.seq, limit=1)
    return Awaited(message_id=later[0].id if later else None, after_turn=newest.turn_no)


async def _wants_other_answer(
    conversation: AsyncConversation, asked: ChatRequest, question: Message, awaited: Awaited
) -> bool:
    """Return True if a request wants another answer to a question, and is not a repetition."""
    if asked.run_id is not None:
        if asked.run_id in (question.extra.get("run"), *await _runs(conversation)):
            return False
    elif asked.kind != "regenerate":
        return False
    turn = await streams.find_turn(conversation, awaited)
    if asked.answer_id in (None, question.id, f"seq-{question.seq}"):
        if turn.is_owed:
            return False
    else:
        later = await conversation.all_messages(after=question.seq)
        current = [] if turn.id is None else [following.id_prefix(turn.id)]
        if asked.answer_id not in (
            *current,
            *(streams.turn_of(each) or f"seq-{each.seq}" for each in later),
            *(each.id for each in later),
        ):
            return False
    return True


async def _after_run(conversation: AsyncConversation, run_id: str) -> Message | None:
    """Return the question that follows the answer of a run; None if none does, or the run is not one of the newest."""
    newest = await conversation.all_messages(last=_NEWEST)
    asked = next((each for each in newest if each.extra.get("run") == run_id), None)
    later = [each for each in newest if asked and each.seq > asked.seq and each.turn_no != asked.turn_no]
    return next((each for each in later if each.role is MessageRole.USER), None)


async def _runs(conversation: AsyncConversation) -> list[str]:
    """Return the ids of the last runs of AG-UI that asked for another answer."""
    runs: list[str] = (await conversation.values.get(_RUNS)).get(_RUNS, [])
    return runs


async def _note_run(conversation: AsyncConversation, run_id: str) -> None:
    await conversation.values.set({_RUNS: [*await _runs(conversation), run_id][-_MOST_RUNS:]})


async def open_calls(conversation: AsyncConversation) -> list[OpenCall]:
    """List the tool calls without a result that were asked for since the last question of the user.

    A turn with such calls has to end without asking the model, because they wait for the page or for the answer to a
    suspension. A call whose suspension was answered can be run, with `turn.call`.

    Args:
        conversation: The conversation.
    """
    found = _open(await conversation.messages(last=_NEWEST))[0].open()
    suspended = {place: each for each in await conversation.suspensions.list() for place in each.calls} if found else {}
    return [
        OpenCall(
            seq=seq,
            position=call.position,
            id=call.id,
            name=call.name,
            arguments=call.arguments,
            suspension=suspended.get((seq, call.position)),
        )
        for seq, _, call, _ in found
    ]


async def _put_results(
    conversation: AsyncConversation, asked: ChatRequest, client_tools: Collection[str]
) -> str | None:
    """Put the results of a request into the inbox if their calls are still there; return the id of the last one."""
    for _ in range(_TRIES):
        revision = (await conversation.info()).revision
        results, last = await _results(conversation, asked, client_tools)
        try:
            if results:
                await conversation.inbox.put_messages(results, expect=revision)
        except Conflict:  # an edit may have replaced the calls
            continue
        return last
    raise InvalidState("the conversation is changed by other requests: send the results again")


async def _results(
    conversation: AsyncConversation, asked: ChatRequest, client_tools: Collection[str]
) -> tuple[list[Message], str | None]:
    """Return the results of a request that are to be stored, and the id of the last one that is stored then."""
    others = {place for each in await conversation.suspensions.list() for place in each.calls}
    others |= {(each.seq, each.position) for each in await conversation.calls.list()}
    inbox = await conversation.inbox.list()  # first, because a message moves from there to the log
    waiting = [each for each in inbox if each.due_at is None]
    messages = [*await conversation.messages(last=_NEWEST), *waiting]
    calls, asked_for = _open(messages)
    open = {(seq, call.position) for seq, _, call, _ in calls.open()}
    ids: dict[str, tuple[int, Call]] = {}
    for seq, number, call in asked_for:
        if (seq, call.position) not in others and call.name in client_tools:
            # A page that shows more messages may have had to change the id.
            names = calls.places[seq, call.position], f"{call.id or 'call'}-{seq}-{number}"
            ids |= dict.fromkeys(names, (seq, call))
    stored = {each.id for each in messages}
    new: dict[str, Message] = {}
    last = None
    for each in asked.results:
        if (found := ids.get(str(each.tool_call_id))) is None:
            continue
        seq, call = found
        id = f"result-{seq}-{call.position}"
        if (seq, call.position) in open:
            fields = {"id": id, "tool_call_id": call.id or None, "name": call.name or None}
            new.setdefault(id, each.model_copy(update=fields))
        if id in new or id in stored:
            last = id
    return [*new.values()], last


def _open(messages: list[Message]) -> tuple[Calls, list[tuple[int, int, Call]]]:
    """Return the calls since the last question, those without a result in `open()`; not those that a provider runs."""
    calls = Calls()
    all_calls: list[tuple[int, int, Call]] = []
    for message in messages:
        found = parts(message)
        if message.role is MessageRole.USER and not all(type(each) is Result for each in found):
            calls, all_calls = Calls(), []
        for number, part in enumerate(found):
            if type(part) is Call and message.role.canonical is MessageRole.ASSISTANT:
                calls.add(message.seq, number, part)
                all_calls.append((message.seq, number, part))
            elif type(part) is Result:
                calls.answered(part)
    return calls, all_calls
