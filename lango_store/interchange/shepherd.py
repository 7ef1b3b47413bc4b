"""Shepherd's session files: one JSON object for each provider, indented by 2, with sorted keys.

The session key is `shepherd:` and the provider. The `extra["shepherd"]` of the session holds the members of the file
except messages and indices; that of a message holds data without a field of ours, as described in `fidelity`. Times
without a time zone are local.

An unchanged session is exported byte for byte. `tool_calls_json` becomes tool calls if it has OpenAI's form, and is
stored as text otherwise. Every message has the time at which the file was saved. Any session can be exported, as its
log; if it did not come from Shepherd, its key is written as the provider.
"""

import json
import re
from collections.abc import Collection, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from lango_store import Message, MessageRole, ToolCall
from lango_store.content import Result, ignore
from lango_store.content.reading import plain_result
from lango_store.errors import InvalidFile, InvalidKey, quoted
from lango_store.interchange import files
from lango_store.interchange.documents import read_members
from lango_store.interchange.draft import FileParts, Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import difference, is_call, json_bytes, read_json, read_role, restored
from lango_store.interchange.files import state
from lango_store.interchange.moments import moment
from lango_store.interchange.source import MAX_NAME, checked_file_key, reading_unchanged
from lango_store.rows import mapping, storable_text
from lango_store.window.repair import split_calls

NAME: Final = "shepherd"
_VERSION: Final = 1
_PREFIX: Final = f"{NAME}:"
"""The prefix of session keys; the provider follows."""

_INDICES: Final = {"last_assistant_message_index": "assistant", "last_user_message_index": "user"}
"""Members of a file that hold the index of the last message of a role."""

_MESSAGES: Final = "messages"

_FILE: Final = re.compile(r"\.shepherd_session\..*\.json", re.DOTALL)

_NOT_IN_NAMES: Final = re.compile(rb"[^0-9A-Za-z.-]")

_ROLES: Final = {MessageRole.DEVELOPER: "system", MessageRole.MODEL: "assistant"}


def recognizes(path: Path) -> bool:
    """Return True if the name of a file is that of a session of Shepherd."""
    return _FILE.fullmatch(path.name) is not None


def read(path: Path, skipped: list[Skipped]) -> list[SessionDraft]:
    """Read a session. Raises `InvalidFile` if the file is damaged, or its version is not 1."""
    before = state(path)
    raw: dict[str, Any] = {}
    for name, value in _read(path, before):
        raw.setdefault(name, value)
    if not isinstance(raw.pop(_MESSAGES, None), list):
        raise InvalidFile(path, "has no messages: give a session of Shepherd")
    if type(raw.get("version")) is not int or raw["version"] != _VERSION:
        raise InvalidFile(
            path, f"has version {quoted(raw.get('version'))}: save it with a Shepherd release that writes version 1"
        )
    if not isinstance(raw.get("provider"), str):
        raise InvalidFile(path, "has no provider, which the session key is made of: add one")
    saved_at = moment(raw.get("timestamp"), local=True)
    model = storable_text(raw.get("model"))

    def parts(skipped: list[Skipped]) -> Iterator[Part]:
        messages = (value for name, value in _read(path, before) if name == _MESSAGES and value != [])
        for number, message in enumerate(messages, 1):
            yield Part([_message_from(message, saved_at, number, skipped)], created_at=saved_at)

    return [
        SessionDraft(
            key=checked_file_key(path, _PREFIX + raw["provider"]),
            parts=FileParts(parts, skipped),
            fields={"model": model} if model else {},
            created_at=saved_at,
            updated_at=saved_at,
            extra={NAME: {name: value for name, value in raw.items() if name not in _INDICES}},
        )
    ]


def _read(path: Path, before: object) -> Iterator[tuple[str, Any]]:
    """Yield the members of the file; of `messages`, yield [] and then each message."""
    with reading_unchanged(path, before) as file:
        try:
            for name, value in read_members(file, _MESSAGES):
                if name == _MESSAGES and value != [] and not isinstance(value, dict):
                    raise ValueError("it has messages that are not objects")
                yield name, value
        except ValueError as error:
            raise InvalidFile(
                path, f"is not a session of Shepherd ({error}): fix the file; it was not changed"
            ) from error


def write(draft: SessionDraft, folder: Path, *, replace: Collection[Path] = ()) -> Path:
    """Write a session's log to the file that Shepherd reads for the provider.

    If the session did not come from Shepherd, its key is used as the provider.
    """
    raw = mapping(draft.extra.get(NAME))
    members: dict[str, Any] = {"provider": draft.key.removeprefix(_PREFIX), "model": "", "version": _VERSION}
    members |= {"timestamp": None} | raw
    if not isinstance(members["provider"], str):
        members["provider"] = draft.key.removeprefix(_PREFIX)
    if draft.fields.get("model") != storable_text(members["model"]):
        members["model"] = draft.fields.get("model") or ""
    if not raw or moment(members["timestamp"], local=True) not in (None, draft.updated_at):
        members["timestamp"] = _stamp(draft.updated_at)
    members |= {_MESSAGES: []} | dict.fromkeys(_INDICES, -1)
    for index, message in enumerate(_messages(draft)):
        members |= {name: index for name, role in _INDICES.items() if message.get("role") == role}
    path = folder / _file_name(members["provider"], draft.key)
    with files.atomic_writer(path, replace=path in replace) as file:
        start, empty, end = _text_of(members).partition(_NO_MESSAGES)
        file.write(json_bytes(start))
        between, after = _FIRST, empty
        for message in _messages(draft):  # written one by one, because they may not fit into memory
            file.write(json_bytes(between + _text_of(message).replace("\n", "\n    ")))
            between, after = _NEXT, _LAST
        file.write(json_bytes(after + end))
    return path


_NO_MESSAGES: Final = '\n  "messages": []'
"""The empty member in an indented file. A text in JSON contains no newline, so the member occurs once."""
_FIRST, _NEXT, _LAST = '\n  "messages": [\n    ', ",\n    ", "\n  ]"


def _text_of(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2, sort_keys=True)


def _messages(draft: SessionDraft) -> Iterator[dict[str, Any]]:
    return (each for message in draft.messages for each in _messages_to(message))


def _stamp(time: datetime | None) -> str:
    return "" if time is None else time.astimezone().replace(tzinfo=None).isoformat(timespec="seconds")


def _file_name(provider: str, key: str) -> str:
    provider = _NOT_IN_NAMES.sub(b"-", provider.encode("utf-8", "replace")).decode()
    name = f".shepherd_session.{provider}.json"
    if len(name) > MAX_NAME:
        raise InvalidKey(f"session key {quoted(key)} is too long for a file name: fork the session to a shorter key")
    return name


# Messages


def _message_from(message: dict[str, Any], saved_at: datetime | None, number: int, skipped: list[Skipped]) -> Message:
    """Convert a message of Shepherd. Its time is the time at which the file was saved."""
    read = Message(
        role=read_role(message.get("role"), skipped, number, f"message {number}"),
        content=message.get("content"),
        name=storable_text(message.get("tool_name")),
        tool_call_id=storable_text(message.get("tool_call_id")),
        tool_calls=_calls(message.get("tool_calls_json")),
        tokens=_tokens(message.get("tokens")),
        created_at=saved_at,
    )
    if raw := difference(message, _written(read)):
        read.extra = {NAME: raw}
    return read


def _calls(text: Any) -> list[ToolCall]:
    """Return tool calls in OpenAI's form. Calls in another form are not returned; their text is stored in `extra`."""
    try:
        calls = read_json(text) if isinstance(text, str) else None
    except ValueError:
        return []
    if not isinstance(calls, list) or not all(map(is_call, calls)):
        return []
    return Message.from_openai({"role": "assistant", "tool_calls": calls}).tool_calls


def _tokens(count: Any) -> int | None:
    return count if type(count) is int and 0 <= count < 2**53 else None


def _messages_to(message: Message) -> list[dict[str, Any]]:
    """Convert a message to messages of Shepherd. The output of a tool call becomes a separate message."""
    return [each for part in split_calls(message) for each in _split_messages(part)]


def _split_messages(message: Message) -> list[dict[str, Any]]:
    raw = mapping(message.extra.get(NAME))
    outputs = [_output(call) for call in message.tool_calls if call.answered]
    if not outputs:
        return [restored(_written(message), raw)]
    first = _written(message)
    is_repeated = message.role.canonical is MessageRole.TOOL and first["content"] in (
        "",
        *(each["content"] for each in outputs),
    )
    if is_repeated and "tool_calls_json" not in first:
        outputs[0]["tokens"] = first["tokens"]
        return outputs
    return [first, *outputs]


def _written(message: Message) -> dict[str, Any]:
    requests = [call for call in message.tool_calls if not call.answered]
    written = {
        "role": _ROLES.get(message.role, message.role.value),
        "content": _text(message.content),
        "tokens": message.tokens or 0,
        "tool_name": message.name,
        "tool_call_id": message.tool_call_id,
        "tool_calls_json": _calls_text(requests) if requests else None,
    }
    return {name: value for name, value in written.items() if value is not None}


def _calls_text(calls: list[ToolCall]) -> str:
    nested = Message(role=MessageRole.ASSISTANT, tool_calls=calls).to_openai()["tool_calls"]
    return json.dumps(nested, ensure_ascii=False, separators=(",", ":"))


def _output(call: ToolCall) -> dict[str, Any]:
    return {"role": "tool", "content": _text(call.output), "tokens": 0, "tool_name": call.name, "tool_call_id": call.id}


def _text(value: Any) -> str:
    """Return content as text for Shepherd: texts are joined, attachments are named, and other data are JSON."""
    return plain_result(Result(None, None, value), ignore)
