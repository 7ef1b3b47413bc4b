"""The text of contents that are lists of blocks, as OpenAI, Anthropic and Gemini write them."""

import json
import re
from collections.abc import Callable
from typing import Any, Final

from lango_store.content.parts import Block

_TYPES: Final = ("text", "input_text", "output_text")
_SCALARS: Final = frozenset({int, float, bool, type(None)})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_REPLACED: Final = "halves of surrogate pairs, which no request can contain, are replaced"
_WITHOUT_TYPE: Final = frozenset({"text", "thoughtSignature", "thought_signature"})


def text_of(content: Any) -> str | None:
    """Return the text of a content, one paragraph per block; None if it is not, or not only, text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content or not all(isinstance(block, dict) for block in content):
        return None
    texts = [text for block in content if (text := text_in(block)) is not None]
    return "\n\n".join(texts) if len(texts) == len(content) else None


def as_text(output: Any) -> str:
    """Return the output of a tool as text for a model: text and text blocks unchanged, anything else as JSON."""
    text = text_of(output)
    return json.dumps(output, ensure_ascii=False) if text is None else text


def text_in(block: Block) -> str | None:
    """Return the text of a text block; None for any other block."""
    text = block.get("text")
    if not isinstance(text, str):
        return None
    if (kind := block.get("type")) is not None:
        return text if kind in _TYPES else None
    # A block without a type is Gemini's text only if it has no other fields: a search result has a text too.
    fields = {name for name, value in block.items() if value is not None}
    return text if fields <= _WITHOUT_TYPE else None


def as_object(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object; arguments that are none become its field `arguments`."""
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments or "{}")
        except ValueError:
            value = arguments
        arguments = value if isinstance(value, dict) else arguments
    return arguments if isinstance(arguments, dict) else {} if arguments is None else {"arguments": arguments}


def sound(value: Any, note: Callable[[str], None]) -> Any:
    """Return a copy of a JSON value whose texts can be encoded: halves of surrogate pairs are replaced, and noted."""
    if isinstance(value, str):
        try:
            value.encode("utf-16")  # the fastest way to find halves of surrogate pairs
        except UnicodeEncodeError:
            note(_REPLACED)
            return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", value)
        return value
    # No call for numbers and texts in ASCII, which are most items.
    if isinstance(value, dict):
        return {
            name if type(name) is str and name.isascii() else sound(name, note): item
            if (type(item) is str and item.isascii()) or type(item) in _SCALARS
            else sound(item, note)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [
            item if (type(item) is str and item.isascii()) or type(item) in _SCALARS else sound(item, note)
            for item in value
        ]
    return value
