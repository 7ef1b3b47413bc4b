"""Text in contents that are lists of blocks, as OpenAI, Anthropic and Gemini write them."""

from typing import Any, Final

_TYPES: Final = ("text", "input_text", "output_text")
_WITHOUT_TYPE: Final = frozenset({"text", "thoughtSignature", "thought_signature"})


def parts_of(content: Any) -> list[str | dict[str, Any]] | None:
    """Return the blocks of a content, text blocks as plain text; None if it is not a list with a text block."""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        return None
    texts = [_text(block) for block in content]
    if all(text is None for text in texts):
        return None
    return [block if text is None else text for block, text in zip(content, texts, strict=True)]


def text_of(content: Any) -> str | None:
    """Return the text of a content, one paragraph per block; None if it is not, or not only, text."""
    if isinstance(content, str):
        return content
    parts = parts_of(content) or []
    texts = [part for part in parts if isinstance(part, str)]
    return "\n\n".join(texts) if parts and len(texts) == len(parts) else None


def _text(block: dict[str, Any]) -> str | None:
    # A block without a type is Gemini's text only if it has no other fields: a search result has a text too.
    fields = {name for name, value in block.items() if value is not None}
    is_text = block["type"] in _TYPES if "type" in fields else fields <= _WITHOUT_TYPE
    text = block.get("text")
    return text if is_text and isinstance(text, str) else None
