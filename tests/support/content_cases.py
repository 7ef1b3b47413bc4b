"""Contents that every form is tried on: cases made of parts, and blocks as real systems write them."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final

from lango_store import Message, Session, ToolCall, window
from lango_store.content import (
    Call,
    Form,
    Media,
    Native,
    Note,
    Part,
    Refusal,
    Result,
    Source,
    Text,
    Thinking,
    as_object,
    ignore,
    parts,
    read,
    written_result,
)
from lango_store.ui import agui_messages, aisdk_messages

PNG: Final = "iVBORw0KGgo="
PDF: Final = "JVBERi0xLjQK"
WAV: Final = "UklGRiQAAABXQVZF"
PICTURE: Final = Media("image/png", data=PNG)
SEARCH: Final = Call("call_1", "search", {"query": "tides"})
READ: Final = Call("call_2", "read", {"page": 7})
DONE: Final = Result("call_1", "search", "two tides")
CHART: Final = [{"type": "text", "text": "a chart"}, {"type": "image", "data": PNG, "mimeType": "image/png"}]
_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_PAGES: Final[dict[str, Callable[[Session], Any]]] = {"aisdk": aisdk_messages, "agui": agui_messages}
_ISSUERS: Final = {"claude": "anthropic", "adk": "gemini"}
"""Forms that have the blocks of another one."""

# Blocks of each form, as its system writes them

SIGNED: Final[dict[str, dict[str, Any]]] = {
    "anthropic": {"type": "thinking", "thinking": "the moon", "signature": "c2ln"},
    "gemini": {"text": "the moon", "thought": True, "thought_signature": "c2ln"},
    "openai-responses": {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "the moon"}],
        "encrypted_content": "c2ln",
    },
}
"""Signed thinking, by the form that can read the signature."""

NATIVE: Final[dict[str, dict[str, Any]]] = {
    "anthropic": {"type": "compaction", "content": None},
    "gemini": {"executable_code": {"language": "PYTHON", "code": "1 + 1"}},
    "openai-responses": {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "tides"},
    },
    "aisdk": {"type": "data-weather", "data": {"degrees": 7}},
}
"""A block that no other form has, by its form."""


# Logs: the role and the parts of each message

Log = list[tuple[str, list[Part]]]

_QUESTION: Final[tuple[str, list[Part]]] = ("user", [Text("what are the tides?")])
_USER: Final[dict[str, list[Part]]] = {
    "text": [Text("hello")],
    "several texts": [Text("one"), Text("two"), Text("three")],
    "picture by data": [Text("look"), PICTURE, Text("closer")],
    "picture by URL": [Text("look"), Media("image/png", url="https://files.test/a.png")],
    "PDF": [Text("read"), Media("application/pdf", data=PDF, name="tides.pdf")],
    "audio": [Text("listen"), Media("audio/wav", data=WAV)],
}
_ANSWERS: Final[dict[str, list[Part]]] = {
    "call": [Text("I look it up."), SEARCH],
    "parallel calls": [SEARCH, READ],
    "refusal": [Refusal("I will not.")],
    "unsigned thinking": [Thinking("the moon"), Text("twice a day")],
}
_RESULTS: Final[dict[str, list[Result]]] = {
    "call": [DONE],
    "parallel calls": [DONE, Result("call_2", "read", "spring tides")],
    "result": [DONE],
    "result with picture": [Result("call_1", "search", CHART)],
    "failed result": [Result("call_1", "search", "no network", failed=True)],
    "failed result with picture": [Result("call_1", "search", CHART, failed=True)],
}
CASES: Final = tuple(dict.fromkeys((*_USER, *_ANSWERS, *_RESULTS, "signed thinking", "native block")))


def family(name: str) -> str:
    """Return the name of the form whose blocks a form has."""
    return _ISSUERS.get(name, name)


def case_log(case: str, issuer: str) -> Log | None:
    """Return a case as a log. Signed thinking and native blocks are those of a form; None if it has no such block."""
    if case in _USER:
        return [("user", _USER[case])]
    results: Log = [("tool", [result]) for result in _RESULTS.get(case, [])]
    if case in ("signed thinking", "native block"):
        block = (SIGNED if case == "signed thinking" else NATIVE).get(family(issuer))
        return None if block is None else [_QUESTION, ("assistant", [*read([block]), Text("twice a day")])]
    return [_QUESTION, ("assistant", _ANSWERS.get(case, [SEARCH])), *results]


def stored(form: Form, log: Log, note: Note) -> list[Message]:
    """Return a log as messages whose contents have the blocks of a form.

    Calls and results for which the form has no block that can be read are in the fields of the message.
    """
    messages: list[Message] = []
    for seq, (role, found) in enumerate(log, 1):
        if role == "tool":
            messages += [_result(form, part, note) for part in found if isinstance(part, Result)]
            continue
        calls = [part for part in found if isinstance(part, Call) and not _reads(form, part, role)]
        content = form.write([part for part in found if part not in calls], role, note)
        asked = [ToolCall(id=call.id, name=call.name, arguments=call.arguments) for call in calls]
        messages.append(Message(role=role, content=content, tool_calls=asked, seq=seq))
    return [message.model_copy(update={"seq": seq}) for seq, message in enumerate(messages, 1)]


def _reads(form: Form, part: Part, role: str) -> bool:
    written = form.writers[type(part)](part, ignore) if type(part) in form.roles[role] else None
    return written is not None and type(part) in map(type, read([written]))


def _result(form: Form, part: Result, note: Note) -> Message:
    for role in ("tool", "user", "assistant"):
        if _reads(form, part, role):
            return Message(role="tool" if role == "assistant" else role, content=form.write([part], role, note))
    content = written_result(form, part, note)
    return Message.tool(content, tool_call_id=part.id, name=part.name, failed=part.failed)


def flat(log: Iterable[Part], *, with_signatures: bool = True) -> list[Any]:
    """Return parts in a form in which those are equal that say the same.

    Ids are numbers, because some providers have none. A result follows its call. Adjacent texts are one text.
    """
    calls, results = list[str](), 0
    said: list[Any] = []
    for part in log:
        match part:
            case Call():
                calls.append(part.id)
                said.append(("call", len(calls) - 1, part.name, as_object(part.arguments)))
            case Result():
                number = calls.index(part.id) if part.id in calls else results
                result = ("result", number, part.failed, flat(read(part.content, is_data=True)))
                asked = [place for place, each in enumerate(said, 1) if each[:2] == ("call", number)]
                said.insert(asked[-1] if asked else len(said), result)
                results += 1
            case Media() if part.url:
                said.append(("media", part.type, part.url))
            case Media():
                said.append(("media", part.type, part.data))
            case Native(form=form, block=block):
                said.append(("native", form, block))
            case Text() if said and said[-1][0] == "Text":
                said[-1] = ("Text", f"{said[-1][1]}\n\n{part.text}", None)
            case Thinking() | Text() | Refusal():
                said.append(
                    (type(part).__name__, part.text, getattr(part, "signature", None) if with_signatures else None)
                )
            case Source():
                said.append(("source", part.url))
    return said


# Reading what was written for another system


def page_of(protocol: str, messages: list[Message]) -> Any:
    """Return the messages of a page."""
    return _PAGES[protocol](Session(key="k", created_at=_NOW, updated_at=_NOW, messages=messages))


def written_for(form: Form, messages: list[Message]) -> tuple[list[Any], list[str]]:
    """Return what a form writes for messages: a prompt, a page or stored messages; and what it names as missing."""
    if form.render is not None:
        prompt = window.prompt(messages, form.name, unanswered="keep")  # type: ignore[arg-type]
        # Calls of Gemini have no ids, which is the only other repair.
        return list(prompt), [repair.text for repair in prompt.repairs if repair.kind != "id"]
    if form.name in _PAGES:
        page = page_of(form.name, messages)
        return list(page), [repair.text for repair in page.repairs]
    notes: list[str] = []
    log: Log = [(message.role.canonical.value, parts(message)) for message in messages]
    return list(stored(form, _by_result(log), notes.append)), notes


def _by_result(log: Log) -> Log:
    """Results in a user's message are messages of their own, as each form stores them."""
    return [("tool" if any(isinstance(part, Result) for part in found) else role, found) for role, found in log]


def read_back(form: Form, written: list[Any]) -> list[Part]:
    """Return the parts of what a form has written."""
    return [part for message in written for part in _parts_of(form, message)]


def _parts_of(form: Form, message: Any) -> list[Part]:
    if isinstance(message, Message):
        return parts(message)
    if form.name == "openai":
        return parts(Message.from_openai(message))
    if form.name == "agui":
        return _agui(message)
    if "role" not in message:
        return read([message])
    return read(message["parts"] if "parts" in message else message["content"])


def _agui(message: dict[str, Any]) -> list[Part]:
    if message["role"] == "tool":
        failed = message.get("metadata", {}).get("failed", False)
        return [Result(message["toolCallId"], None, message["content"], failed)]
    if message["role"] == "reasoning":
        return [Thinking(message["content"])]
    calls = [
        Call(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in message.get("toolCalls", ())
    ]
    return [*read(message.get("content")), *calls]
