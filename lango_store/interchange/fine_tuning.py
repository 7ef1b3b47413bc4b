"""OpenAI's format for the fine-tuning of chat models: a file with one line of JSON for each session.

A line has the window of the session, as a model sees it. It follows OpenAI's rules: results follow their calls, the
last message is an answer of the assistant, no content is empty, and only users show images.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

from lango_store._values.model import Message
from lango_store._values.session import Session
from lango_store.content import as_text, text_of
from lango_store.errors import InvalidValue, quoted
from lango_store.interchange.backups import export_to
from lango_store.interchange.fidelity import json_bytes, mapping
from lango_store.interchange.format import SESSION_FAULTS, Exported
from lango_store.interchange.redaction import Redact, redacted
from lango_store.store import Store
from lango_store.window import Recorded, as_prompt, close_calls, recorded_calls

NAME: Final = "openai"

_MAX_IMAGES: Final = 10
_IMAGE: Final = re.compile(r"https?://|data:image/(?:jpeg|png|webp);base64,")
_MEDIA: Final = re.compile("image|audio|video|file|document|inline", re.IGNORECASE)
_FUNCTION: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS: Final = ("name", "description", "parameters", "strict")
_NO_OUTPUT: Final = "(no output)"


class FineTuning:
    """The format `openai`, which can only be written."""

    exports_expired = False

    def __init__(self, redact: Redact | None) -> None:
        self._redact = redact

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write one file with a line for each session. A session that breaks a rule is left out and reported."""

        def write(file: BinaryIO) -> Iterator[Exported]:
            for key in dict.fromkeys(keys):
                try:
                    session = store.get(key)
                    recorded = recorded_calls(store.conversation(key).calls.list())
                    line = _Example(session, recorded, self._redact).line()
                except SESSION_FAULTS as error:
                    yield Exported(key=key, error=error.fact)
                else:
                    file.write(json_bytes(json.dumps(line, ensure_ascii=False)) + b"\n")
                    yield Exported(key=key, records=session.record_count)

        return export_to(to, f"{NAME}.jsonl", write, replace=replace)


class _Example:
    """The line of one session."""

    def __init__(self, session: Session, recorded: Recorded, redact: Redact | None) -> None:
        self._session, self._recorded, self._redact = session, recorded, redact
        self._messages: list[dict[str, Any]] = []
        self._ids = (f"call_{number}" for number in count(1))
        self._open: list[tuple[str, str]] = []
        """The calls without a result so far: the id of each in the session, and in the line."""

    def line(self) -> dict[str, Any]:
        """Return the line. Raises `InvalidValue` if the session breaks a rule of the format."""
        for message in close_calls(self._session.messages, recorded=self._recorded):
            for entry in as_prompt([message], nested=False):
                self._add(entry, message)
        while self._messages and (self._messages[-1]["role"] != "assistant" or "weight" in self._messages[-1]):
            self._messages.pop()
        if not self._messages:
            raise self._fault("has no answer of a model to learn from")
        contents = [each["content"] for each in self._messages if isinstance(each.get("content"), list)]
        if (images := sum("image_url" in part for parts in contents for part in parts)) > _MAX_IMAGES:
            raise self._fault(f"has {images} images, more than {_MAX_IMAGES}")
        tools = [
            self._tool(tool) for tool in self._session.tools if mapping(tool).get("type", "function") == "function"
        ]
        return {"messages": self._messages} | ({"tools": tools} if tools else {})

    def _add(self, entry: dict[str, Any], message: Message) -> None:
        content = self._content(entry["role"], entry["content"])
        line = {"role": "system" if entry["role"] == "developer" else entry["role"]}
        line |= {"content": content} if content else {}
        if entry["role"] == "tool":
            asked = entry.get("tool_call_id", "")
            same = [each for each in self._open if each[0] == asked]
            for each in (same or [each for each in self._open if not (each[0] and asked)])[:1]:
                self._open.remove(each)
                self._messages.append({"content": _NO_OUTPUT, **line, "tool_call_id": each[1]})
            return
        if calls := [self._call(call) for call in entry.get("tool_calls", ())]:
            line["tool_calls"] = calls
        is_summary = message.turn_no is not None and message.turn_no == self._session.summary_turn
        if entry["role"] == "assistant" and (is_summary or message.extra.get("interrupted") is True):
            line["weight"] = 0
        if content or calls:
            self._messages.append(line)

    def _call(self, call: dict[str, Any]) -> dict[str, Any]:
        arguments = call.get("arguments") or {}
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments)
            except ValueError:  # the text of a custom tool
                arguments = {"input": arguments}
        text = json.dumps(redacted(arguments, self._redact), ensure_ascii=False)
        self._open.append((call["id"], next(self._ids)))
        function = {"name": self._name(call), "arguments": text}
        return {"id": self._open[-1][1], "type": "function", "function": function}

    def _tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """Return the definition of a function in OpenAI's form, from its nested form, its flat form, or Anthropic's."""
        function = mapping(redacted(tool.get("function", tool), self._redact))
        function = {"parameters": function.get("input_schema")} | function | {"name": self._name(function)}
        return {"type": "function", "function": {name: function[name] for name in _FIELDS if function.get(name)}}

    def _name(self, function: dict[str, Any]) -> str:
        name = str(function.get("name"))
        if not _FUNCTION.fullmatch(name):
            raise self._fault(f"has a tool named {quoted(name)}, which is not 1 to 64 of a-z, A-Z, 0-9, _ and -")
        return name

    def _content(self, role: str, content: Any) -> str | list[dict[str, Any]]:
        """Return a content as text, or as parts if a user shows images. Of an assistant's blocks, only text is kept."""
        if not (isinstance(content, list) and all(isinstance(block, dict) for block in content)):
            return "" if content is None else as_text(redacted(content, self._redact))
        parts: list[dict[str, Any]] = []
        for block in content:
            text = text_of([block])
            if text is None and role == "user" and (url := self._image_url(block)):
                parts.append({"type": "image_url", "image_url": {"url": url}})
            elif text is None and role != "assistant":  # skips an assistant's reasoning, and copies of its calls
                kind = str(block.get("type") or next(iter(block), ""))
                text = f"[{kind}]" if _MEDIA.search(kind) else as_text(redacted(block, self._redact))
            if text:
                parts.append({"type": "text", "text": redacted(text, self._redact)})
        if any("image_url" in part for part in parts):
            return parts
        return "\n\n".join(part["text"] for part in parts)

    def _image_url(self, block: dict[str, Any]) -> str | None:
        """Return the URL of an image; None if the format or the redaction does not allow it."""
        image = block.get("image_url") or mapping(block.get("source")).get("url")
        url = str(mapping(image).get("url") or image)
        return url if _IMAGE.match(url) and redacted(url, self._redact) == url else None

    def _fault(self, reason: str) -> InvalidValue:
        return InvalidValue(f"session {quoted(self._session.key)}", reason)
