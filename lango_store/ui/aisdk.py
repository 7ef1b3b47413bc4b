"""The UI message stream and the UI messages of the AI SDK, version 7.

All answers, tool calls and results of a turn are one UI message, in which each answer of the model is a step. A draft
is the text of a step that has not ended: `reset-step` takes it back if another attempt writes another one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from typing import Any, Final, cast

import sqlalchemy as sa

from lango_store import (
    Alternative,
    Appended,
    Changed,
    Event,
    Message,
    MessageRole,
    Piece,
    Session,
    Suspension,
    Turn,
    following,
    sse,
)
from lango_store.aio import AsyncConversation
from lango_store.content import AISDK, Call, Native, Note, Part, Result, Text, ignore, parts
from lango_store.content.pages import output, tool_part
from lango_store.ui import streams
from lango_store.ui.requests import ChatRequest
from lango_store.ui.streams import Awaited, Calls, Messages, frame

Chunk = dict[str, Any]

_UNFINISHED: Final = {"type": "error", "errorText": "the answer was not finished"}
_DONE: Final = "data: [DONE]\n\n"
_OPEN: Final = "s"
"""The end of a position in the middle of a step."""


async def aisdk(
    conversation: AsyncConversation,
    turn: str | Awaited,
    *,
    after: str | None = None,
    continues: bool = False,
    whole: bool = False,
    retry: timedelta = timedelta(seconds=10),
    heartbeat: timedelta = timedelta(seconds=15),
) -> AsyncGenerator[str, None]:
    """Yield the UI message of a turn as server-sent events, until the turn ends.

    All answers, calls and results of the turn are one UI message, in which each answer of the model is a step. So are
    messages that an adapter writes with `in_turn`; those of other writers are not. Its id is computed from the id of
    the turn. Thinking blocks become reasoning parts. Blocks of the types `source-url`, `source-document` and `file` are
    sent as they are stored; other blocks are not sent.

    If an attempt fails or is killed, `reset-step` takes back its text, and answers that it appended stay. If messages
    are edited or removed in the meantime, the stream has a transient part `data-changed`: load the messages again. When
    the turn is saved, a suspension without an answer becomes a request for approval, and `finish` has the usage of the
    turn and of turns that an adapter saved within it, as `usage` in its metadata. A turn that begins with the results
    of calls of an earlier UI message continues that message. With `after`, complete steps are not sent again; the step
    that was cut is reset and sent again.

    Args:
        conversation: The conversation.
        turn: The id of a turn that has begun or was saved; or an `Awaited`, for a turn that may not have begun yet.
        after: The id of the last frame that the client has received. None (the default) and an empty id are the start
            of the message.
        continues: True if the client continues its last message, as it does after it has sent an approval. Then the
            message gets no new id. Defaults to False.
        whole: True if the client replaces its last message, as `useChat` does when it resumes. Then the stream has the
            whole UI message, also if the turn continues that of an earlier turn. Defaults to False.
        retry: How long to wait for the next attempt of a turn that ended without being saved. Then the stream ends with
            an error. Defaults to 10 seconds. With `Awaited`, the stream waits as long as the session is owed the turn.
        heartbeat: How long the stream is silent before a comment is sent. Defaults to 15 seconds.

    Yields:
        Frames of server-sent events.

    Raises:
        SessionNotFound: There is no such session, or it has expired.
        InvalidCursor: `after` is not the id of a frame.
    """
    after, turn_id = after or "", turn if isinstance(turn, str) else None
    if isinstance(turn, Awaited):
        async with aclosing(streams.wait_for_turn(conversation, turn, heartbeat)) as waiting:
            async for begun in waiting:
                turn_id = begun
                yield await streams.silence(conversation)
    if turn_id is None:
        yield frame(_UNFINISHED) + _DONE
        return
    followed, waits = (conversation, turn_id), isinstance(turn, Awaited)
    start, last_seq, number = await streams.read(conversation, _start, turn_id)
    writer = _Writer(turn_id, number, is_open=after.endswith(_OPEN))
    if whole and not after:  # wait for what shows whether the turn continues a message
        async with aclosing(streams.follow_turn(*followed, start, retry, heartbeat, waits=waits)) as events:
            async for event in events:
                if event is not None and writer.has_begun(event):
                    break
                yield await streams.silence(conversation)
    if whole:
        first = await _find_start(conversation, writer)
        start = following.Cursor.of(start)._replace(seq=first).text if first is not None else start
    writer.has_earlier_calls = continues or bool(after)
    if after:
        start = after.removesuffix(_OPEN)
    else:
        writer.known = last_seq
        yield frame({"type": "start"} if continues else {"type": "start", "messageId": writer.id})
    if writer.has_earlier_calls:
        for message in await streams.earlier(conversation, following.Cursor.of(start).seq):
            _shown(message, writer.calls, ignore)
    if after and writer.is_open:
        yield frame({"type": "reset-step"})
    async with aclosing(streams.follow_turn(*followed, start, retry, heartbeat, waits=waits)) as events:
        async for event in events:
            if event is None:
                yield await streams.silence(conversation)
            elif isinstance(event, Turn):
                if writer.draft:
                    yield frame({"type": "reset-step"})
                for suspension, calls in await streams.open_suspensions(conversation, turn_id, writer.calls.places):
                    for call in calls:
                        reason = {"reason": suspension.reason} if suspension.reason else {}
                        request = {"type": "tool-approval-request", "approvalId": suspension.id, "toolCallId": call}
                        yield frame(request | reason)
                # Without a position: a client that is cut here gets the end again.
                metadata = {"usage": event.usage} | ({"interrupted": True} if "stopped" in event.metadata else {})
                yield frame({"type": "finish", "finishReason": "stop", "messageMetadata": metadata})
                break
            else:
                for position, chunk in writer.chunks(event):
                    yield frame(chunk, position or None)
        else:
            yield frame(_UNFINISHED)
    yield _DONE


HEADERS: Final = [*sse.HEADERS, (b"x-vercel-ai-ui-message-stream", b"v1")]
"""The headers of a stream of the AI SDK."""


def _start(connection: sa.Connection, now: following.Moment, key: str, turn_id: str) -> tuple[str, int, int]:
    """Return the cursor before the first message of a turn, the session's `last_seq`, and the turn's number or 0."""
    newest, turn = following.newest(connection, now, key, turn_id), following.find(connection, key, turn_id)
    start = newest._replace(seq=following.start_of(connection, now, key, turn_id)).text
    return start, newest.seq, 0 if turn is None else turn.turn_no


async def _find_start(conversation: AsyncConversation, writer: _Writer) -> int | None:
    """Return the seq before the UI message that a turn continues, and let the writer add its turns; else None."""
    answers: dict[str, tuple[str, list[Message]]] = {}  # the messages of each UI message, by turn
    owners: dict[str, str] = {}  # the turns of calls
    calls, last = Calls(), ""
    for message in await streams.earlier(conversation):
        turn, found = streams.turn_of(message) or "", parts(message)
        is_answer = message.role.canonical is MessageRole.ASSISTANT
        for number, part in enumerate(found):
            if type(part) is Call and is_answer:
                owners[calls.add(message.seq, number, part)] = turn
            elif type(part) is Result and (id := calls.answered(part)) and turn and owners.get(id) == last:
                answers.setdefault(turn, answers[last])
        if is_answer:
            answers.setdefault(turn, (turn, []))[1].append(message)
            last = turn
        elif message.role is MessageRole.USER and not all(type(part) is Result for part in found):
            answers.pop(turn, None)
            last = ""
    id, messages = answers.get(writer.id, ("", []))
    if not id or id == writer.id:
        return None
    writer.id = id
    writer.ids |= {turn for turn in (streams.turn_of(each) for each in messages) if turn is not None}
    return messages[0].seq - 1


class _Writer:
    """Translates the events of a turn. `is_open` is True in a step, and `draft` is the text of its open text part.

    `stored` is the draft of the last piece, which may continue a draft that has been appended. Changes up to the seq
    `known` are part of what was read. The protocol's reader fails for results of calls that its message does not have.
    """

    def __init__(self, turn_id: str, number: int, *, is_open: bool) -> None:
        self.turn_id = turn_id
        self.id = following.id_prefix(turn_id)
        self.ids, self.turns = {self.id}, {number}
        self.is_open = is_open
        self.draft = self.stored = ""
        self.parts = self.known = 0
        self.calls = Calls()
        self._streamed: set[str] = set()
        self.has_earlier_calls = False

    def has_begun(self, event: Event | Turn) -> bool:
        """Return True if an event belongs to the turn."""
        match event:
            case Appended(messages=messages):
                return any(streams.turn_of(each) == self.id or each.turn_no in self.turns for each in messages)
            case Piece(turn_id=turn_id):
                return turn_id == self.turn_id
        return isinstance(event, Turn)

    def chunks(self, event: Event) -> Iterator[tuple[str, Chunk]]:
        """Yield the chunks of an event, each with the position after it."""
        cursor = following.Cursor.of(event.cursor)._replace(length=0, checksum=0)
        match event:
            case Appended():
                # A reader that was cut in a step gets the message of the step again.
                before = cursor._replace(seq=event.messages[0].seq - 1)
                for message in event.messages:
                    yield from self._message(message, before.text, before._replace(seq=message.seq).text)
                    before = before._replace(seq=message.seq)
            case Piece() if event.turn_id in (None, self.turn_id):
                for chunk in self._piece(event):
                    yield _position(cursor.text, chunk), chunk
            case Changed() if event.seq > self.known:
                yield "", {"type": "data-changed", "data": {"kind": event.kind}, "transient": True}

    def _piece(self, piece: Piece) -> Iterator[Chunk]:
        self.stored = self.stored[: piece.n] + piece.text
        if not self.stored.startswith(self.draft) or not self.stored:
            if self.draft:
                yield {"type": "reset-step"}
            self.draft = ""
        if text := self.stored[len(self.draft) :]:
            if not self.draft:
                yield from self._begin_step()
                yield self._part("text-start")
            self.draft = self.stored
            yield self._part("text-delta", delta=text)

    def _begin_step(self) -> Iterator[Chunk]:
        if not self.is_open:
            self.is_open = True
            yield {"type": "start-step"}
        self.parts += 1

    def _part(self, kind: str, **fields: Any) -> Chunk:
        return {"type": kind, "id": f"{self.parts}", **fields}

    def _message(self, message: Message, before: str, end: str) -> Iterator[tuple[str, Chunk]]:
        if message.role is MessageRole.RECORD:
            return
        is_ours = message.role.canonical is MessageRole.ASSISTANT and self._is_ours(message)
        shown, results = _shown(message, self.calls, ignore)
        if is_ours:
            for chunk in self._step(shown):
                yield _position(before, chunk), chunk
            if shown:
                self.is_open = False
                yield end, {"type": "finish-step"}
        for id, fields in results:
            if self.has_earlier_calls or id in self._streamed:
                yield (
                    (before + _OPEN if self.is_open else end),
                    {"type": f"tool-{fields.pop('state')}", "toolCallId": id, **fields},
                )

    def _is_ours(self, message: Message) -> bool:
        return streams.turn_of(message) in self.ids or message.turn_no in self.turns

    def _step(self, parts: list[Chunk]) -> Iterator[Chunk]:
        shown = parts
        if self.draft:
            text = parts[0]["text"] if parts and parts[0]["type"] == "text" else ""
            if text.startswith(self.draft):
                if rest := text[len(self.draft) :]:
                    yield self._part("text-delta", delta=rest)
                yield self._part("text-end")
                shown = parts[1:]
            else:
                yield {"type": "reset-step"}
            self.draft = ""
        if not parts:
            return
        yield from self._begin_step()
        for part in shown:
            self.parts += 1
            kind = part["type"]
            if kind in ("text", "reasoning"):
                yield self._part(f"{kind}-start")
                yield self._part(f"{kind}-delta", delta=part["text"])
                yield self._part(f"{kind}-end")
            elif "toolCallId" in part:
                self._streamed.add(part["toolCallId"])
                yield from _tool_chunks(part)
            else:
                yield part


def _position(before: str, chunk: Chunk) -> str:
    # The reader of the protocol does not keep a step without parts, so the beginning of a step is sent again.
    return "" if chunk["type"] == "start-step" else before + _OPEN


def _shown(message: Message, calls: Calls, note: Note, page: str = "") -> tuple[list[Chunk], list[tuple[str, Chunk]]]:
    """Return the parts of a UI message that show a message, and the fields of results of other messages' calls."""
    shown: list[Chunk] = []
    results: list[tuple[str, Chunk]] = []
    role = message.role.canonical._value_
    for number, part in enumerate(parts(message)):
        if type(part) is Text:
            if part.text:
                shown.append({"type": "text", "text": part.text})
            continue
        is_provider = type(part) is Native and part.form != AISDK.name and isinstance(part.like, Call | Result)
        if type(part) is Native and is_provider:
            part = cast(Part, part.like)
        if type(part) is Call and role == "assistant":
            tool = tool_part(part, calls.add(message.seq, number, part, page))
            shown.append(tool | {"providerExecuted": True} if is_provider else tool)
        elif type(part) is Result:
            id = calls.answered(part)
            if id is None:
                note(f"the result {part.id!r} has no call on the page, and is left out")
                continue
            own = [each for each in shown if each.get("toolCallId") == id] if shown else []
            for each in own:
                _answer(each, output(part, note))
            if not own:
                results.append((id, output(part, note)))
        elif (block := AISDK.block(part, role, note)) and block.get("text") != "":
            shown.append(block)
    return shown, results


def _answer(part: Chunk, fields: Chunk) -> None:
    """Add the fields of a result to the part of its call, in the place of those of an earlier result."""
    for name in ("output", "errorText"):
        part.pop(name, None)
    part |= fields


def _tool_chunks(part: Chunk) -> Iterator[Chunk]:
    """Yield the chunks of a call, and of its result if it has one."""
    id, name = part["toolCallId"], part["type"].removeprefix("tool-")
    chunk = {"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": part["input"]}
    ran: Chunk = {"providerExecuted": True} if "providerExecuted" in part else {}
    yield chunk | ran
    if part["state"] != "input-available":
        fields: Chunk = {field: part[field] for field in ("output", "errorText") if field in part}
        yield {"type": f"tool-{part['state']}", "toolCallId": id, **fields, **ran}


def aisdk_messages(
    session: Session,
    suspensions: Sequence[Suspension] = (),
    waiting: Sequence[Message] = (),
    alternatives: Sequence[Alternative] = (),
) -> Messages:
    """Return the messages of a session as UI messages, for the `messages` of `useChat`.

    The id of a UI message is the id of its first message, but the answers of a turn have one id that is the same in
    the stream of the turn. Messages without an id get one from their `seq`. A turn that begins with results for
    the last UI message, such as after an approval, continues this message. Answers to questions that a turn has taken
    after other answers, such as in another attempt, are another UI message, with the id of the first of them.

    Args:
        session: The session, as `AsyncStore.get` returns it.
        suspensions: The suspensions of the session. Those of calls after the last question that have no answer become
            requests for approval. If a call has no result although its suspension was answered, the page can send the
            approval again.
        waiting: The messages of the inbox. Questions among them come last, with `{"waiting": true}` in their metadata;
            those for a later time have `{"dueAt": "2026-11-30T14:30:00+00:00"}` too.
        alternatives: The alternatives of the session. A UI message that has some has `{"alternatives": {"ids": [3, 9],
            "shown": 1}}` in its metadata: the ids for `Conversation.switch`, and the index of the one that is shown.
            A summary has those of all messages that it replaces, and the last message those that would follow it.

    Returns:
        UI messages as dicts of JSON. The `repairs` of the list name what a UI message cannot express.
    """
    page = Messages()
    note = page._note
    answers: dict[str, dict[str, Any]] = {}
    ended: set[str] = set()
    owners: dict[str, dict[str, Any]] = {}
    tools: dict[str, Chunk] = {}
    calls = Calls()
    suspended: list[tuple[Chunk, Suspension]] = []
    asked: dict[int, list[tuple[tuple[int, int], Suspension]]] = {}
    for each in suspensions:
        for place in each.calls if each.handle is None else ():
            asked.setdefault(place[0], []).append((place, each))
    versions = _Versions(alternatives, session) if alternatives else None
    for message in session.messages:
        role, page._seq = message.role.canonical._value_, message.seq
        if role == "record" or role == "developer":
            continue
        is_answer = role == "assistant"
        name = id = (is_answer and streams.turn_of(message)) or message.id or f"seq-{message.seq}"
        if is_answer and name in answers:
            id = answers[name]["id"]
        elif is_answer and name in ended:
            id = message.id or f"seq-{message.seq}"
        shown, results = _shown(message, calls, note, id)
        if is_answer and shown:
            if (answer := answers.get(name)) is None:
                answer = answers[name] = {"id": id, "role": "assistant", "parts": []}
                page.append(answer)
            if versions:
                versions.add(answer, message)
            answer["parts"].append({"type": "step-start"})
            if message.extra.get("interrupted"):
                answer.setdefault("metadata", {})["interrupted"] = True
            for part in shown:
                if part["type"] == "text" or part["type"] == "reasoning":
                    part = {**part, "state": "done"}
                elif "toolCallId" in part:
                    tools[part["toolCallId"]], owners[part["toolCallId"]] = part, answer
                answer["parts"].append(part)
            for place, suspension in asked.pop(message.seq, ()):
                if tool := tools.get(calls.places.get(place, "")):
                    suspended.append((tool, suspension))
        elif shown:
            turn = streams.turn_of(message) or ""
            before = answers.get(turn)
            is_own = message.id is None or message.id.startswith(turn)  # written by an adapter, not from the inbox
            if before is not None and (not is_own or before["id"] != turn):
                del answers[turn]  # the answer to this question follows it
                if before["id"] == turn:
                    ended.add(turn)
            page.append({"id": id, "role": "system" if role == "system" else "user", "parts": shown})
            if role == "user":  # no turn runs a call from before the last question, so no approval is asked for
                suspended = [each for each in suspended if each[1].answered_at is not None]
            if versions:
                versions.add(page[-1], message)
        for call, fields in results:
            is_last = page and owners.get(call) is page[-1]
            if is_last and (continued := streams.turn_of(message)):
                answers.setdefault(continued, page[-1])
            if call in tools:
                _answer(tools[call], fields)
    if page and versions:
        versions.add(page[-1], session.messages[-1], is_end=True)
    for tool, suspension in suspended:
        if tool["state"] == "input-available":
            tool |= _approval(suspension)
    for number, message in enumerate(waiting):
        if message.role is MessageRole.USER:
            shown, _ = _shown(message, calls, note)
            fields = {"id": message.id or f"waiting-{number}", "role": "user", "parts": shown}
            later = {} if message.due_at is None else {"dueAt": message.due_at.isoformat()}
            page.append(fields | {"metadata": {"waiting": True} | later})
    return page


class _Versions:
    """Adds the alternatives of a session to the UI messages from which a user switches to them.

    The alternatives after a message are added to the next message that the page shows, or to the last one if the log
    has none. So the summary of a compaction has all those that branch off from what it replaces.
    """

    def __init__(self, alternatives: Sequence[Alternative], session: Session) -> None:
        self._waiting = sorted(alternatives, key=lambda each: (each.after_seq, each.is_shown), reverse=True)
        self._summary, self._upto = session.summary_turn, session.summarized_upto

    def add(self, shown: dict[str, Any], message: Message, *, is_end: bool = False) -> None:
        """Add those that branch off before a message to the UI message that shows it, or all that remain."""
        if not self._waiting:
            return
        is_summary = self._summary is not None and message.turn_no == self._summary
        position = self._upto if is_summary else message.seq
        if not is_end and self._waiting[-1].after_seq >= position:
            return
        metadata = shown.setdefault("metadata", {})
        before = metadata.get("alternatives", {"ids": [message.seq], "shown": 0})
        ids, current = {*before["ids"]}, before["ids"][before["shown"]]
        while self._waiting and (is_end or self._waiting[-1].after_seq < position):
            each = self._waiting.pop()
            if each.is_shown:
                ids, current = ids - {current}, each.id
            ids.add(each.id)
        in_order = sorted(ids)
        metadata["alternatives"] = {"ids": in_order, "shown": in_order.index(current)}


def _approval(suspension: Suspension) -> Chunk:
    """Return the fields of a call that waits for an approval, or that was approved or refused and has no result."""
    answer = suspension.answer
    if suspension.answered_at is None:
        reason = {"requestReason": suspension.reason} if suspension.reason else {}
        return {"state": "approval-requested", "approval": {"id": suspension.id, **reason}}
    if not isinstance(answer, dict) or not isinstance(answer.get("approved"), bool):
        return {}
    why = answer.get("reason") if isinstance(answer.get("reason"), str) else suspension.answered_why
    reason = {} if why is None else {"reason": why}
    return {
        "state": "approval-responded",
        "approval": {"id": suspension.id, "approved": answer["approved"], **reason},
    }


def from_aisdk(body: Mapping[str, Any]) -> ChatRequest:
    """Read the JSON that `useChat` sends to its `api`.

    Text and files of the last message of the user are read, and approvals and results of tools in the last answer.
    Everything else, such as earlier messages, is stored already, and a client could forge it. If the client has
    approved some of the calls of a suspension and refused others, the suspension is refused.

    Args:
        body: The decoded body of the request.

    Returns:
        The request.

    Raises:
        ValueError: The body is not a request of `useChat`.
    """
    try:
        messages = body["messages"]
        last = messages[-1]
        is_asked, again = last["role"] == "user", body.get("trigger") == "regenerate-message"
        answers = [each for each in messages if each["role"] == "assistant"]
        approvals: dict[str, Any] = {}
        results: list[Message] = []
        for part in answers[-1].get("parts", ()) if answers and not again else ():
            state = part.get("state")
            if state == "approval-responded" and not is_asked:
                given = part["approval"]
                answer = {"approved": given["approved"], "reason": given.get("reason")}
                if given["id"] not in approvals or not answer["approved"]:
                    approvals[given["id"]] = answer
            elif state in ("output-available", "output-error") and not part.get("providerExecuted"):
                failed = state == "output-error"
                content = part.get("errorText" if failed else "output")  # JSON has no undefined output
                results.append(Message.tool(content, failed=failed, tool_call_id=part["toolCallId"]))
        kind: Any = "approval" if approvals else "regenerate" if again else "message"
        if kind == "message" and results and not is_asked:
            kind = "results"
        message = None
        if kind in ("message", "regenerate") or any(each["role"] == "user" for each in messages):
            message = streams.user_message(messages, "parts", ("file",))
        if message is not None and is_asked and not again and isinstance(edited := body.get("messageId"), str):
            message = message.model_copy(update={"id": edited})
        answer_id = body.get("messageId") if again else None
        fields = {"approvals": [*approvals.items()], "results": results, "answer_id": answer_id}
        return ChatRequest(kind=kind, message=message, **fields)
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"this is not a request of useChat: {error!r}") from None
