"""OpenAI's format for the fine-tuning of chat models: a file with one line of JSON for each session.

A line has the window of the session, as a model sees it. It follows OpenAI's rules: results follow their calls, the
last message is an answer of the assistant, no content is empty, and only users show images.

`developer` becomes `system`, `model` becomes `assistant`, and `function` becomes `tool`. Records, empty messages and
reasoning are left out. A `sent` is written instead of the content, several text blocks become one text, and large
strings are written in full. A missing result becomes a sentence that says so, unless the line ends with the call; a
result without a call is left out. Calls get new ids. Functions in the `tools` of the session, in OpenAI's or
Anthropic's form, become the `tools` of the line. Images that are not kept, audio and files become a text such as
`[audio/wav attachment]`, and are left out of messages of the assistant.
"""

import json
import re
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, Final

from lango_store import Session
from lango_store.content import OPENAI, Call, Entry, Media, Part, Refusal, Text, as_object, ignore
from lango_store.content.form import in_words
from lango_store.content.openai_chat import image_of
from lango_store.content.reading import plain_result
from lango_store.errors import InvalidValue, quoted
from lango_store.interchange.backups import export_to
from lango_store.interchange.fidelity import json_bytes
from lango_store.interchange.format import SESSION_FAULTS, Exported
from lango_store.interchange.redaction import Redact, redacted
from lango_store.rows import mapping
from lango_store.store import Store
from lango_store.window import Recorded, recorded_calls
from lango_store.window.repair import Repairer

NAME: Final = "openai"

_MAX_IMAGES: Final = 10
_IMAGE: Final = re.compile(r"https?://|data:image/(?:jpeg|png|webp);base64,")
_FUNCTION: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS: Final = ("name", "description", "parameters", "strict")
_NO_OUTPUT: Final = "(no output)"


class FineTuning:
    """The format `openai`, as it is written. `plain` reads it."""

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
        self._open: list[str] = []
        """The ids of the calls without a result so far, in the order of their results."""

    def line(self) -> dict[str, Any]:
        """Return the line. Raises `InvalidValue` if the session breaks a rule of the format."""
        repairer = Repairer(OPENAI, None, self._recorded)
        for entry in repairer.paired(repairer.entries(self._session.messages)):
            self._add(entry)
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

    def _add(self, entry: Entry) -> None:
        role, message = "system" if entry.role == "developer" else entry.role, entry.message
        if role == "tool":
            content = redacted(plain_result(entry.parts[0], ignore), self._redact) or _NO_OUTPUT
            self._messages.append({"role": role, "content": content, "tool_call_id": self._open.pop(0)})
            return
        blocks = [block for part in entry.parts if (block := self._block(part, role))]
        has_images = any("image_url" in block for block in blocks)
        line: dict[str, Any] = {"role": role} | (
            {"content": blocks if has_images else "\n\n".join(block["text"] for block in blocks)} if blocks else {}
        )
        if entry.calls:
            line["tool_calls"] = [self._call(call) for call in entry.calls]
        is_summary = message.turn_no is not None and message.turn_no == self._session.summary_turn
        if role == "assistant" and (is_summary or message.extra.get("interrupted") is True):
            line["weight"] = 0
        if blocks or entry.calls:
            self._messages.append(line)

    def _call(self, call: Call) -> dict[str, Any]:
        text = json.dumps(redacted(as_object(call.arguments), self._redact), ensure_ascii=False)
        self._open.append(next(self._ids))
        return {
            "id": self._open[-1],
            "type": "function",
            "function": {"name": self._name(call.name), "arguments": text},
        }

    def _block(self, part: Part, role: str) -> dict[str, Any] | None:
        """Return a part as an image of a user, or as text; of an assistant's parts, only texts are kept."""
        if isinstance(part, Media) and role == "user" and (uri := image_of(part)) and _IMAGE.match(uri):
            if redacted(uri, self._redact) == uri:
                return {"type": "image_url", "image_url": {"url": uri}}
        elif role == "assistant" and not isinstance(part, Text | Refusal):
            return None
        text = part if isinstance(part, Text) else in_words(part, ignore)
        return {"type": "text", "text": redacted(text.text, self._redact)} if text and text.text else None

    def _tool(self, tool: dict[str, Any]) -> dict[str, Any]:
        """Return the definition of a function in OpenAI's form, from its nested form, its flat form, or Anthropic's."""
        function = mapping(redacted(tool.get("function", tool), self._redact))
        function = {"parameters": function.get("input_schema")} | function | {"name": self._name(function.get("name"))}
        return {"type": "function", "function": {name: function[name] for name in _FIELDS if function.get(name)}}

    def _name(self, name: Any) -> str:
        if not _FUNCTION.fullmatch(str(name)):
            raise self._fault(f"has a tool named {quoted(str(name))}, which is not 1 to 64 of a-z, A-Z, 0-9, _ and -")
        return str(name)

    def _fault(self, reason: str) -> InvalidValue:
        return InvalidValue(f"session {quoted(self._session.key)}", reason)
