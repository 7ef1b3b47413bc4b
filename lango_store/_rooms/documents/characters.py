"""Replacements for characters that would control a terminal or reverse a line."""

from typing import Final

_BIDIRECTIONAL: Final = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_SEPARATORS: Final = (0x2028, 0x2029)
_C1_CONTROLS: Final = (*range(0x80, 0xA0),)

PICTURES: Final[dict[int, str]] = (
    {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"}
    | {0x7F: "␡"}
    | {code: f"\\x{code:02x}" for code in _C1_CONTROLS}
    | {code: f"\\u{code:04x}" for code in (*_BIDIRECTIONAL, *_SEPARATORS)}
)
ON_ONE_LINE: Final = PICTURES | {0x09: "␉", 0x0A: "␊"}
ESCAPES: Final[dict[int, str]] = {
    code: f"\\u{code:04x}" for code in (*range(0x20), 0x7F, *_C1_CONTROLS, *_BIDIRECTIONAL, *_SEPARATORS)
} | {ord("\t"): "\\t", ord("\n"): "\\n", ord("\r"): "\\r", ord("\\"): "\\\\"}
