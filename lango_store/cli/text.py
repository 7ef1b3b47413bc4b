"""Stored text on its way to a terminal or into a pipe: harmless, whole, and never the end of a command."""

from __future__ import annotations

import codecs
import sys
from typing import Final

from rich.console import Console

from lango_store._values.escaping import ESCAPES, ON_ONE_LINE, PICTURES

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


def printable(text: str) -> str:
    """Return stored text made harmless to a terminal: what would steer it, or turn its lines, becomes visible."""
    return _encodable(text).translate(PICTURES)


def on_one_line(text: str) -> str:
    """Return stored text made printable, line breaks and tabs too."""
    return _encodable(text).translate(ON_ONE_LINE)


def as_field(text: str) -> str:
    r"""Return stored text as a field between tabs, from which it can be had back: `\t`, `\n`, `\r`, `\\`, `\u001b`."""
    return text.translate(ESCAPES)


def _encodable(text: str) -> str:
    # Here and not in the stream, so that what is escaped is measured as wide as it is.
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, _ESCAPED).decode(encoding)


def say(text: str) -> None:
    """Print a line that is not an answer, on standard error."""
    Console(stderr=True, soft_wrap=True, highlight=False).print(printable(text), markup=False)
