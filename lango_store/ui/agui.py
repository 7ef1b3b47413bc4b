"""The events and the messages of AG-UI, version 1.0.

A turn is a run. Each message of the log is a message with an id that a draft has already: in a turn, the answers of the
model are numbered. What a client has to take back is replaced by a snapshot of all messages.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from lango_store import (
    Appended,
    Changed,
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
from lango_store.content import AGUI, Call, Native, Note, Result, Text, ignore, parts
from lango_store.content.pages import agui_call, agui_result
from lango_store.errors import InvalidCursor, SessionNotFound, quoted
from lango_store.ui import streams
from lango_store.ui.requests import ChatRequest
from lango_store.ui.streams import TURN_ID, Awaited, Calls, Messages, frame

Fields = dict[str, Any]

_TEXT: Final = "TEXT_MESSAGE_CHUNK"
_MEDIA: Final = ("image", "audio", "video", "document", "binary")
_APPROVAL: Final = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "reason": {"type": "string"}},
    "required": ["approved"],
}
_UNFINISHED: Final = {"type": "RUN_ERROR", "message": "the answer was not finished"}
# The protocol's reader keeps the order of messages that it has, and keeps reasoning if a snapshot has none. After these
# two snapshots, it has only a message that the next snapshot removes. In the second one, the last message with the id
# counts; CopilotKit's older reader would not replace reasoning by a message of another role.
_PLACEHOLDER: Final = {"id": "-", "role": "assistant", "content": ""}
_CLEARED: Final = "".join(
    frame({"type": "MESSAGES_SNAPSHOT", "messages": messages}, "")
    for messages in ([_PLACEHOLDER], [_PLACEHOLDER | {"role": "reasoning"}, _PLACEHOLDER])
)


async def agui(
    conversation: AsyncConversation,
    turn: str | Awaited,
    *,
    run_id: str | None = None,
    thread_id: str | None = None,
    after: str | None = None,
    retry: timedelta = timedelta(seconds=10),
    heartbeat: timedelta = timedelta(seconds=15),
) -> AsyncGenerator[str, None]:
    """Yield a turn as the run of an agent, until the turn ends, as server-sent events.

    The stream begins with a snapshot of the messages of the window. Another one follows if messages are edited or
    removed, if an attempt fails after it has streamed text, or if an answer differs from its draft; two small snapshots
    before it clear what the client has, because `@ag-ui/client` otherwise keeps the order of its messages. Thinking
    blocks become messages with the role `reasoning`, and an answer with thinking or text after its calls becomes
    several messages. Texts, calls and reasoning are `…_CHUNK` events. `RUN_FINISHED` has the input and output tokens as
    `usage`, and the whole usage in its metadata. A suspension without an answer is an interrupt, and the `payload` with
    which the client resumes is its answer. With `after`, the text of a draft is continued in the middle.

    Images and files of users are sent as they are stored. Failed results of tools have `failed` in their metadata.
    Calls need an id that is unique in the session.

    Args:
        conversation: The conversation.
        turn: The id of a turn that has begun or was saved; or an `Awaited`, for a turn that may not have begun yet.
        thread_id: The id of the thread. Defaults to the key of the session.
        run_id: The id of the run. Defaults to the id of the turn, or to the key of the session for an `Awaited`.
        after: The id of the last frame that the client has received. With None (the default) or an empty id, the stream
            begins with a snapshot of the messages.
        retry: How long to wait for the next attempt of a turn that ended without being saved. Then the stream ends with
            an error. Defaults to 10 seconds. With `Awaited`, the stream waits as long as the session is owed the turn.
        heartbeat: How long the stream is silent before a comment is sent. Defaults to 15 seconds.

    Yields:
        Frames of server-sent events.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
        InvalidCursor: `after` is not the id of a frame.
    """
    turn_id = turn if isinstance(turn, str) else None
    run = {"threadId": thread_id or conversation.key, "runId": run_id or turn_id}
    opening = frame({"type": "RUN_STARTED"} | run)
    if isinstance(turn, Awaited):
        async with aclosing(streams.wait_for_turn(conversation, turn, heartbeat)) as waiting:
            async for turn_id in waiting:
                if run["runId"] is None:
                    run["runId"] = turn_id or conversation.key
                    opening = frame({"type": "RUN_STARTED"} | run)
                if opening and turn_id is None and not after:
                    opening += _snapshot(await streams.read(conversation, _load, ""), "")[1]
                if turn_id is None:
                    yield opening or ":\n\n"
                    opening = ""
    if turn_id is None:
        yield opening + frame(_UNFINISHED)
        return
    writer = None
    if after:
        writer = _Writer(turn_id, *_parse(after))
        for message in await streams.earlier(conversation, writer.at.seq):
            _shown(message, Counter(), writer.calls, ignore)
    while True:
        if writer is None:
            writer, snapshot = _snapshot(await streams.read(conversation, _load, turn_id), turn_id)
            yield opening + snapshot
            opening = ""
        followed = conversation, turn_id, writer.at.text, retry, heartbeat
        try:
            async with aclosing(streams.follow_turn(*followed, waits=isinstance(turn, Awaited))) as events:
                async for event in events:
                    for each in writer.frames(event):
                        yield opening + each
                        opening = ""
                    if isinstance(event, Turn):
                        asked = await streams.open_suspensions(conversation, turn_id, writer.calls.places)
                        yield opening + frame({"type": "RUN_FINISHED"} | run | _outcome(asked, event.usage))
                        return
            yield opening + frame(_UNFINISHED)
            return
        except _Outdated:
            writer = None


async def runs(
    conversation: AsyncConversation,
    *,
    thread_id: str | None = None,
    after: str | None = None,
    whole: bool = False,
    follow: bool = True,
    heartbeat: timedelta = timedelta(seconds=15),
) -> AsyncGenerator[str, None]:
    """Yield the turn in progress and each later turn as runs of an agent, until the session ends.

    Each run begins with a snapshot of the messages. If `after` is the id of an earlier frame, the last turn that was
    saved since then is the first run. A question that waits for the user is asked again if no turn runs or is owed.
    With `whole`, there is a first run that only has the stored messages. Without `follow`, later turns are left out.
    """
    if whole:
        loaded = await streams.read(conversation, _load, "")
        run, at = {"threadId": thread_id or conversation.key, "runId": conversation.key}, loaded.at
        yield frame({"type": "RUN_STARTED"} | run) + _snapshot(loaded, "")[1] + frame({"type": "RUN_FINISHED"} | run)
    else:
        at = await streams.read(conversation, following.newest, "")
    turn: str | Awaited | None = None
    if after:
        missed = _parse(after)[0].turn_no < at.turn_no
        at = at._replace(turn_no=at.turn_no - missed)
    else:
        is_idle = await streams.find_turn(conversation, Awaited()) == following.AwaitedTurn()
        newest = await streams.read(conversation, following.newest, "")
        if not follow and (not is_idle or newest.turn_no > at.turn_no):
            turn = Awaited(after_turn=at.turn_no)
        elif is_idle:
            turn = await streams.last_suspended(conversation)
    while True:
        try:
            if turn is not None:
                async with aclosing(agui(conversation, turn, thread_id=thread_id, heartbeat=heartbeat)) as frames:
                    async for each in frames:
                        yield each
            if isinstance(turn, Awaited) and follow:
                saved = await conversation.turns.find(str(turn.turn_id))
                at = at._replace(turn_no=at.turn_no if saved is None else saved.turn_no)
        except SessionNotFound:  # deleted during the run
            return
        if not follow:
            return
        turn = None
        # This reader begins with a read, which finds what has happened during the run.
        reader = following.Reader(conversation._twin._context, conversation.key, at.text, follow=True)
        followed = following.follow_async(conversation._threads, reader, heartbeat.total_seconds())
        async with aclosing(followed) as events:
            async for event in events:
                if event is None:
                    yield ":\n\n"
                elif isinstance(event, TurnBegan | TurnEnded) and event.turn_id is not None:
                    turn, at = Awaited(turn_id=event.turn_id), following.Cursor.of(event.cursor)
                    at = at._replace(length=0, checksum=0, attempt="")
                    break
        if turn is None:
            return


class _Outdated(Exception):
    """The client needs a snapshot."""


class _Loaded(NamedTuple):
    """The content of a snapshot: the messages of the window and of the inbox, and the cursor after those of the log."""

    messages: list[Message]
    waiting: list[Message]
    at: following.Cursor


def _load(connection: sa.Connection, now: following.Moment, key: str, turn_id: str) -> _Loaded:
    session, at = following.load(connection, now, key), following.newest(connection, now, key, turn_id)
    return _Loaded(session.messages, following.waiting(connection, now, key), at)


def _parse(position: str) -> tuple[following.Cursor, int]:
    match = re.fullmatch(r"(.+)_(\d{1,19})", position, re.ASCII)
    if match is None:
        raise InvalidCursor(f"after={quoted(position)} is not a position: give the id of a frame")
    return following.Cursor.of(match[1]), int(match[2])


def _outcome(asked: list[tuple[Suspension, list[str]]], usage: Mapping[str, Any]) -> Fields:
    """Return how a run has ended: with interrupts for suspensions, and with its usage."""
    counts = dict(
        zip(("inputTokens", "outputTokens"), following.tokens(following.numbers_by_path(usage)), strict=False)
    )
    fields: Fields = {"metadata": {"usage": usage}, "usage": [{name: each for name, each in counts.items() if each}]}
    interrupts = []
    for suspension, calls in asked:
        interrupt = {"id": suspension.id, "reason": "tool_call", "toolCallId": calls[0], "responseSchema": _APPROVAL}
        message = {"message": suspension.reason} if suspension.reason else {}
        expiry = {"expiresAt": suspension.due_at.isoformat()} if suspension.due_at else {}
        interrupts.append(interrupt | message | expiry)
    return fields | ({"outcome": {"type": "interrupt", "interrupts": interrupts}} if interrupts else {})


def _snapshot(loaded: _Loaded, turn_id: str) -> tuple[_Writer, str]:
    writer = _Writer(turn_id, loaded.at)
    return writer, writer.snapshot(loaded)


def _questions(waiting: Sequence[Message]) -> list[Message]:
    return [each for each in waiting if each.role is MessageRole.USER and each.due_at is None]


class _Writer:
    """Translates the events of a turn. The client is at the cursor `at`, which includes the draft that it has.

    `answers` counts the answers of each turn.
    """

    def __init__(self, turn_id: str, at: following.Cursor, answers: int = 0) -> None:
        self.turn_id = turn_id
        self.at = at
        self._prefix = following.id_prefix(turn_id)
        self._answers = Counter({self._prefix: answers})
        self.calls = Calls()
        self._waiting: set[str | None] = set()

    def snapshot(self, loaded: _Loaded) -> str:
        """Return all messages of a session as events."""
        messages = _messages(Messages(), loaded.messages, self._answers, self.calls)
        messages += _messages(Messages(), _questions(loaded.waiting), self._answers, Calls())
        self._waiting = {each.id for each in loaded.waiting}
        return _CLEARED + frame({"type": "MESSAGES_SNAPSHOT", "messages": messages}, self._position)

    def frames(self, event: Event | Turn | None) -> Iterator[str]:
        """Yield the events for an event of the session; raise `_Outdated` if the client needs a snapshot."""
        draft = self.at.length
        match event:
            case None:
                yield ":\n\n"
            case Appended(messages=messages) if any(self._was_waiting(each) for each in messages):
                raise _Outdated  # the client has the message, and would add its text a second time
            case Appended():
                for message in event.messages:
                    events = self._message(message)
                    last = len(events) - 1
                    for number, each in enumerate(events):
                        # A client that is cut in the middle of a message begins again.
                        yield frame(each, self._position if number == last else None if number else "")
            case Piece() if event.turn_id in (None, self.turn_id):
                if event.n != draft:
                    raise _Outdated
                if event.text:
                    self.at = following.Cursor.of(event.cursor)
                    chunk = {"type": _TEXT, "messageId": self._draft_id(), "role": "assistant", "delta": event.text}
                    yield frame(chunk, self._position)
            case Changed():
                raise _Outdated
            case Turn() if draft:
                raise _Outdated

    def _was_waiting(self, message: Message) -> bool:
        """Return True if the client may have a message. The inbox keeps None as an id, which the log replaces."""
        if None in self._waiting and message.role is MessageRole.USER:
            return True
        return message.id is not None and message.id in self._waiting

    @property
    def _position(self) -> str:
        return f"{self.at.text}_{self._answers[self._prefix]}"

    def _draft_id(self) -> str:
        return f"{self._prefix}-{self._answers[self._prefix]}"

    def _message(self, message: Message) -> list[Fields]:
        id, draft = self._draft_id(), self.at.length
        shown = _shown(message, self._answers, self.calls, ignore)
        if any(isinstance(each.get("content"), list) for each in shown):  # only snapshots have parts
            raise _Outdated
        events = [event for each in shown for event in _events(each)]
        if draft and any(each["role"] != "tool" for each in shown):
            text = shown[0].get("content", "")
            if shown[0]["id"] != id or following.after_draft(self.at, text[:draft]) != self.at:
                raise _Outdated
            events[:1] = [events[0] | {"delta": text[draft:]}] if text[draft:] else []
            self.at = self.at._replace(length=0, checksum=0)
        self.at = self.at._replace(seq=message.seq)
        return events


def _events(shown: Fields) -> Iterator[Fields]:
    """Yield the events that add a message."""
    id = {"messageId": shown["id"]}
    match shown["role"]:
        case "tool":
            yield {"type": "TOOL_CALL_RESULT"} | id | {name: each for name, each in shown.items() if name != "id"}
        case "reasoning":
            yield {"type": "REASONING_MESSAGE_CHUNK", "delta": shown["content"]} | id
        case role:
            if "content" in shown:
                yield {"type": _TEXT, "role": role, "delta": shown["content"]} | id
            for call in shown.get("toolCalls", ()):
                chunk = {"toolCallId": call["id"], "parentMessageId": shown["id"], "type": "TOOL_CALL_CHUNK"}
                yield chunk | {"toolCallName": call["function"]["name"], "delta": call["function"]["arguments"]}


def agui_messages(session: Session, waiting: Sequence[Message] = ()) -> Messages:
    """Return the messages of a session as messages of AG-UI, for the `initialMessages` of an agent.

    The id is the id of the stored message, but the answers of a turn are numbered, so that each has the same id in the
    stream of the turn. Messages without an id get one from their `seq`. The result of a tool follows its call.

    Args:
        session: The session, as `AsyncStore.get` returns it.
        waiting: The messages of the inbox. Questions among them come last, without those for a later time.

    Returns:
        Messages as dicts of JSON.
    """
    page = _messages(Messages(), session.messages, Counter(), Calls())
    page += _messages(Messages(), _questions(waiting), Counter(), Calls())
    return page


def _messages(page: Messages, messages: list[Message], answers: Counter[str], calls: Calls) -> Messages:
    groups: list[list[Fields]] = []  # each message with the results of its calls
    owners: dict[str, list[Fields]] = {}
    note = page._note
    for message in messages:
        page._seq = message.seq
        for each in _shown(message, answers, calls, note):
            if each["role"] == "tool" and groups:
                owners.get(each["toolCallId"], groups[-1]).append(each)
            else:
                groups.append([each])
            if "toolCalls" in each:
                for call in each["toolCalls"]:
                    owners.setdefault(call["id"], groups[-1])
    page += [each for group in groups for each in group]
    return page


def _shown(message: Message, answers: Counter[str], calls: Calls, note: Note) -> list[Fields]:
    """Return the messages of AG-UI that show a message; `answers` counts the answers of each turn."""
    id, role = message.id or f"seq-{message.seq}", message.role.canonical._value_
    if role == "record":
        return []
    is_answer = role == "assistant"
    if is_answer and id.startswith("turn") and (match := TURN_ID.match(id)):
        id = f"{match[0]}-{answers[match[0]]}"
        answers[match[0]] += 1
    results: list[Result] = []
    content: list[Fields] = []
    shown: list[Fields] = []
    for number, part in enumerate(parts(message)):
        if type(part) is Native and isinstance(part.like, Call | Result):
            part = part.like
        if type(part) is Result:
            results.append(part)
            continue
        if type(part) is Text:
            block: Fields | None = {"type": "text", "text": part.text}
        elif type(part) is Call and is_answer:
            block = agui_call(part, calls.add(message.seq, number, part))
        else:
            block = AGUI.block(part, "system" if role == "developer" else role, note)
        if block is None or block.get("text") == "":
            continue
        if not is_answer:
            content.append(block)
        elif "role" in block:
            shown.append({"id": f"{id}-reasoning-{len(shown)}", **block})
        else:
            _extend(shown, id, block)
    if not is_answer and (content or not results):
        texts = [block["text"] for block in content if block["type"] == "text"]
        text = content if len(texts) < len(content) else "\n\n".join(texts)
        shown.append({"id": id, "role": "user" if role == "tool" else role, "content": text})
    if results:
        shown += _results(results, id if role == "tool" and not content else f"{id}-result", calls, note)
    return shown


def _results(results: list[Result], id: str, calls: Calls, note: Note) -> Iterator[Fields]:
    for number, result in enumerate(results):
        call = calls.answered(result)
        if call is None:
            note(f"the result {result.id!r} has no call on the page")
        yield {"id": f"{id}-{number}" if number else id, **agui_result(result, call or result.id, note)}


def _extend(shown: list[Fields], id: str, block: Fields) -> None:
    """Add a text or a call to the last message of an answer, or to another one, since its calls follow its text."""
    is_text = block["type"] == "text"
    if not shown or shown[-1]["role"] != "assistant" or (is_text and "toolCalls" in shown[-1]):
        number = len([each for each in shown if each["role"] == "assistant"])
        shown.append({"id": f"{id}-part-{number}" if number else id, "role": "assistant"})
    if is_text:
        text = shown[-1].get("content")
        shown[-1]["content"] = block["text"] if text is None else f"{text}\n\n{block['text']}"
    else:
        shown[-1].setdefault("toolCalls", []).append(block)


def from_agui(body: Mapping[str, Any]) -> ChatRequest:
    """Read the JSON that an agent of AG-UI sends (`RunAgentInput`).

    Text, images and other files of the last message of the user are read, the answers to interrupts, and the results
    of tools after the last answer. Everything else, such as earlier messages, is stored already, and a client could
    forge it. A cancelled interrupt, or one without a payload, gets the answer `{"approved": False}`.

    Args:
        body: The decoded body of the request.

    Returns:
        The request.

    Raises:
        ValueError: The body is not a request of AG-UI.
    """
    try:
        approvals: dict[str, Any] = {}
        for each in body.get("resume") or ():
            payload = each.get("payload") if each["status"] == "resolved" else None
            approvals.setdefault(each["interruptId"], {"approved": False} if payload is None else payload)
        messages = body["messages"]
        roles = [each["role"] for each in messages]
        last_answer = max((number for number, role in enumerate(roles) if role == "assistant"), default=-1)
        results = [
            Message.tool(
                each.get("error") or each.get("content"),
                failed=bool(each.get("error")),
                tool_call_id=each["toolCallId"],
            )
            for each in messages[last_answer + 1 :]
            if each["role"] == "tool"
        ]
        kind: Any = "approval" if approvals else "results" if roles and roles[-1] == "tool" else "message"
        has_message = kind == "message" or "user" in roles
        message = streams.user_message(messages, "content", _MEDIA) if has_message else None
        fields = {"approvals": [*approvals.items()], "results": results}
        if not isinstance(run_id := body["runId"], str):
            raise TypeError("runId is not a string")
        parent = body.get("parentRunId")
        fields["parent_run_id"] = parent if isinstance(parent, str) else None
        return ChatRequest(kind=kind, message=message, run_id=run_id, **fields)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a request of AG-UI: {error!r}") from None
