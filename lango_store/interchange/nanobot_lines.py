"""The lines of nanobot's files, and the file names.

A message and its line are converted into each other byte for byte. Fields with a column are stored in the column; all
others and the text of `timestamp` are stored in `extra`, in the order of the line. If the line cannot be rebuilt from
these, `extra["_nanobot"]` holds the difference: `keys`, the order of the names in the line, and `values`, the original
values of columns; or the whole `line` as text.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from lango_store import Message, MessageRole, ToolCall
from lango_store.content import OPENAI, Native, ignore, read, written
from lango_store.errors import InvalidValue
from lango_store.interchange.fidelity import check_message, is_call, is_storable_json, known_role, read_json
from lango_store.interchange.moments import moment
from lango_store.rows import as_asked, is_storable_text, mapping
from lango_store.window.repair import split_calls

NAME: Final = "nanobot"
SUFFIX: Final = ".jsonl"

_UNSAFE: Final = re.compile(r'[<>:"/\\|?*]')


def file_name(key: str, generation: str) -> str:
    """Return the file name that a generation of nanobot expects for a session."""
    stem = _encoded(key) if generation == "g2" else _UNSAFE.sub("_", key).strip()
    return f"{stem}{SUFFIX}"


def _encoded(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def decoded(stem: str) -> str | None:
    """Return the key that a file name of the current generation encodes, None for any other name."""
    try:
        key = base64.urlsafe_b64decode(stem + "=" * (-len(stem) % 4)).decode()
    except ValueError:
        return None
    return key if key and _encoded(key) == stem else None


def key_of_name(stem: str, generation: str) -> str:
    """Derive the key from a file name, as this generation of nanobot does."""
    if generation == "g0":
        return stem.replace("_", ":")
    return decoded(stem) or stem.replace("_", ":", 1)


Head = Literal["metadata", "provider_state"]
HEADS: Final[tuple[Head, ...]] = ("metadata", "provider_state")

OFFSETS: Final = ("last_archived", "last_consolidated")
"""Two names of the same number, in the order in which nanobot looks for them. nanobot 0.3.5 introduced the first."""

_MAX_LEVELS: Final = 201  # the line itself, and a value with 200 levels


def read_object(text: str) -> dict[str, Any] | str:
    """Return the object of a line, or the reason why the line has no object."""
    try:
        value = read_json(text.strip(), levels=_MAX_LEVELS, strict=False)
    except ValueError as error:
        return str(error)
    return value if isinstance(value, dict) else f"is not a JSON object ({type(value).__name__})"


def metadata_of(line: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a metadata line, {} if the metadata cannot be stored."""
    metadata = line.get("metadata")
    return metadata if isinstance(metadata, dict) and is_storable(metadata) else {}


def offset_of(line: dict[str, Any]) -> int | None:
    """Return the number of consolidated messages of a metadata line, None if the line has no such number."""
    return next((line[name] for name in OFFSETS if type(line.get(name)) is int), None)


def title_of(metadata: dict[str, Any]) -> str | None:
    """Return the title in metadata, None if it is missing or cannot be stored."""
    title = metadata.get("title")
    return title if is_storable_text(title) else None


def metadata_out(fields: Mapping[str, Any], imported: dict[str, Any]) -> dict[str, Any]:
    """Return the stored metadata, with the session's title if that was changed separately."""
    metadata = dict(fields.get("metadata") or {})
    title = fields.get("title")
    if title != title_of(metadata_of(imported)):
        metadata.pop("title", None)
        metadata |= {} if title is None else {"title": title}
    return metadata


def is_storable(value: Any) -> bool:
    """Return True if a value can be stored in the `extra` of a session."""
    return is_storable_json({NAME: {"": value}})


RAW: Final = "_nanobot"

_TEXTS: Final = ("name", "tool_call_id")
_BLOCKS: Final = ("text", "image_url", "input_audio", "file", "refusal")
_FIRST: Final = ("role", "content", "timestamp")


# Styles


def _as_python(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if _is_unicode(text) else json.dumps(value)


def _as_go(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    if not _is_unicode(text):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
        return True
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can represent
        return False


def _local(moment: datetime) -> str:
    try:
        return moment.astimezone().replace(tzinfo=None).isoformat()
    except (ValueError, OverflowError, OSError):  # outside the range of this platform's clock
        return moment.replace(tzinfo=None).isoformat()


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True)
class Style:
    """The JSON and time formats of a generation of nanobot."""

    dumps: Callable[[Any], str]
    stamp: Callable[[datetime], str]


STYLES: Final = {
    "g0": Style(json.dumps, _local),
    "g1": Style(_as_python, _local),
    "g2": Style(_as_python, _local),
    "go": Style(_as_go, _utc),
}


# Lines to messages


def message_from_line(line: dict[str, Any], style: Style = STYLES["g2"]) -> Message:
    """Convert a line to a message. An unknown role becomes `user`, and the original is stored in `extra`."""
    message = _plain(line)
    rebuilt = line_from_message(message, style)
    values = {
        name: value for name, value in line.items() if name not in rebuilt or not _same(rebuilt[name], value, style)
    }
    if "timestamp" in line and not values and _names(rebuilt, style) == _names(line, style):
        return message
    message.extra[RAW] = {"keys": list(line), "values": values} if values else {"keys": list(line)}
    return message


def _names(line: dict[str, Any], style: Style) -> str:
    return style.dumps(dict.fromkeys(line))


def _same(one: Any, other: Any, style: Style) -> bool:
    return one is other or style.dumps(one) == style.dumps(other)


def _plain(line: dict[str, Any]) -> Message:
    """Convert the fields of a line that fit our columns and `extra`."""
    fields = {
        name: value for name, value in line.items() if name != RAW and (name not in _TEXTS or is_storable_text(value))
    }
    fields["role"] = (known_role(line.get("role")) or MessageRole.USER).value
    if "tool_calls" in line:
        calls = line["tool_calls"]
        fields["tool_calls"] = [call for call in calls if is_call(call)] if isinstance(calls, list) else []
        if not fields["tool_calls"]:
            del fields["tool_calls"]
    return Message.from_openai(fields, created_at=moment(line.get("timestamp"), local=True))


def message_from_text(text: str, line: dict[str, Any], style: Style) -> Message:
    """Convert a line to a message, perhaps one that cannot be stored, from which the exact text can be rebuilt."""
    message = message_from_line(line, style)
    if style.dumps(line_from_message(message, style)) != text:
        message.extra[RAW] = {"line": text}
    return message


def storable(message: Message, style: Style) -> tuple[Message, str | None]:
    """Return a storable form of a message, and the reason if the line could only be stored as text."""
    try:
        check_message(message)
    except InvalidValue as error:
        (text,) = text_from_message(message, style)
        content = message.content if isinstance(message.content, str) else None
        reduced = Message(
            role=message.role, content=content, created_at=message.created_at, extra={RAW: {"line": text}}
        )
        return reduced, f"stored as text only: {error}"
    return message, None


# Messages to lines


def text_from_message(message: Message, style: Style) -> list[str]:
    """Convert a message to lines of a file, as texts without line ends."""
    raw = mapping(message.extra.get(RAW))
    if isinstance(raw.get("line"), str):
        return [raw["line"]]
    return [style.dumps(line) for line in lines_from_message(message, style)]


def line_from_message(message: Message, style: Style = STYLES["g2"]) -> dict[str, Any]:
    """Convert a message to one line, as an object."""
    raw = mapping(message.extra.get(RAW))
    if isinstance(raw.get("line"), str):
        return mapping(json.loads(raw["line"]))
    line = as_asked(message)
    line["role"] = message.role.canonical.value
    if isinstance(message.content, list) and RAW not in message.extra:
        is_own = all(isinstance(block, dict) and block.get("type") in _BLOCKS for block in message.content)
        found = read(message.content, is_data=True)
        if not is_own and not (isinstance(found[0], Native) and found[0].block is message.content):
            role = "system" if message.role is MessageRole.DEVELOPER else line["role"]
            line["content"] = written(OPENAI, found, role, ignore) or ""
    line.pop(RAW, None)
    if "timestamp" not in line and message.created_at is not None:
        line["timestamp"] = style.stamp(message.created_at)
    if isinstance(raw.get("keys"), list):
        values = line | mapping(raw.get("values"))
        return {name: values[name] for name in raw["keys"] if name in values}
    first = {name: line.pop(name) for name in _FIRST if name in line}
    calls = {name: line.pop(name) for name in ("tool_calls", "tool_call_id", "name") if name in line}
    return first | calls | line


def lines_from_message(message: Message, style: Style = STYLES["g2"]) -> list[dict[str, Any]]:
    """Convert a message to lines, as objects. The output of a tool call becomes a separate line."""
    if RAW in message.extra:
        return [line_from_message(message, style)]
    return [line for part in split_calls(message) for line in _split_lines(part, style)]


def _split_lines(message: Message, style: Style) -> list[dict[str, Any]]:
    line = line_from_message(message, style)
    answered = [call for call in message.tool_calls if call.answered]
    if not answered:
        return [line]
    if line["role"] != MessageRole.TOOL:
        answer = {"role": "tool", "content": None} | {name: line[name] for name in ("timestamp",) if name in line}
        return [line, *(answer | _answer(call) for call in answered)]
    del line["tool_calls"]
    if message.content is None:
        return [line | _answer(call) for call in answered]
    return [line | {name: value for name, value in _answer(answered[0]).items() if name not in line}]


def _answer(call: ToolCall) -> dict[str, Any]:
    output = call.output
    text = output if isinstance(output, str | list) else json.dumps(output, ensure_ascii=False)
    return {"content": text, "tool_call_id": call.id, "name": call.name}
