"""Stored text on its way to a terminal or into a pipe: harmless, whole, and never the end of a command."""

from __future__ import annotations

import codecs
import sys
from typing import Final

from rich.console import Console

_ESCAPED: Final = "lango_store.escaped"


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Write what an encoding lacks as JSON's escapes, so that JSON stays what it was and text can be made out."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2)), error.end


codecs.register_error(_ESCAPED, _escaped)


def let_streams_escape() -> None:
    """Let standard output and error escape what their encodings lack."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=_ESCAPED)


_BIDIRECTIONAL: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEPARATORS: Final = (0x2028, 0x2029)
_OTHERS: Final = (*range(0x80, 0xA0),)

_PICTURES: Final[dict[int, str]] = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "␡"}
    | {code: f"\\x{code:02x}" for code in _OTHERS}
    | {code: f"\\u{code:04x}" for code in (*_BIDIRECTIONAL, *_SEPARATORS)}
)
_ON_ONE_LINE: Final = _PICTURES | {0x09: "␉", 0x0A: "␊"}
_ESCAPES: Final[dict[int, str]] = {
    code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F, *_OTHERS, *_BIDIRECTIONAL, *_SEPARATORS)
} | {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r", ord("\\"): "\\\\"}


def printable(text: str) -> str:
    """Return stored text made harmless to a terminal: what would steer it, or turn its lines, becomes visible."""
    return _encodable(text).translate(_PICTURES)


def on_one_line(text: str) -> str:
    """Return stored text made printable, line breaks and tabs too."""
    return _encodable(text).translate(_ON_ONE_LINE)


def as_field(text: str) -> str:
    r"""Return stored text as a field between tabs, from which it can be had back: `\t`, `\n`, `\r`, `\\`, `\u001b`."""
    return text.translate(_ESCAPES)


def _encodable(text: str) -> str:
    # Here and not in the stream, so that what is escaped is measured as wide as it is.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, _ESCAPED).decode(encoding)


def say(text: str) -> None:
    """Print a line that is not an answer, on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(printable(text), markup=False)
