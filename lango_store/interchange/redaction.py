"""Redaction: replace personal data and secrets in the texts of an export."""

import re
from collections.abc import Callable
from typing import Any, Final

Redact = Callable[[str], str]
"""A function that returns a text without personal data and secrets."""


def redact_text(text: str) -> str:
    """Replace personal data and secrets that can be recognized by their form.

    E-mail addresses become `[email]`, telephone numbers `[phone]`, payment card numbers with a correct check digit
    `[card]`, IBANs with correct check digits `[iban]`, API keys and private keys `[key]`, bearer tokens and JSON Web
    Tokens `[token]`, and base64 data URIs `[data]`. Names, addresses and passwords are not recognized.

    Args:
        text: Any text.

    Returns:
        The text with these replacements.
    """
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redacted(value: Any, redact: Redact | None) -> Any:
    """Return a JSON value with its texts, numbers and names redacted."""
    if isinstance(value, dict):
        return {redacted(name, redact): redacted(each, redact) for name, each in value.items()}
    if isinstance(value, list):
        return [redacted(each, redact) for each in value]
    if redact is None or value is None or isinstance(value, bool):
        return value
    text = redact(str(value))
    return value if text == str(value) else text


def _checked(name: str, is_valid: Callable[[str], bool]) -> Callable[[re.Match[str]], str]:
    """Return a function that replaces the first valid part of a match, the longest at that place, by `name`."""

    def replace(match: re.Match[str]) -> str:
        pieces = re.split("([ -])", match[0])
        for start in range(0, len(pieces), 2):
            for end in range(len(pieces), start, -2):
                if is_valid("".join(pieces[start:end:2])):
                    return "".join([*pieces[:start], name, *pieces[end:]])
        return match[0]

    return replace


def _is_card(digits: str) -> bool:
    if not 13 <= len(digits) <= 19 or digits[0] not in "23456":
        return False
    doubled = [int(digit) * (1 + position % 2) for position, digit in enumerate(reversed(digits))]
    return sum(each // 10 + each % 10 for each in doubled) % 10 == 0


def _is_iban(text: str) -> bool:
    return 15 <= len(text) <= 34 and int("".join(str(int(each, 36)) for each in text[4:] + text[:4])) % 97 == 1


_PATTERNS: Final = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?a)\bdata:[\w.+/-]*(?:;[\w.+=-]+)*;base64,[\w+/=-]+", "[data]"),
        (r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", "[key]"),
        (r"(?a)\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*", "[token]"),
        (r"(?ai)\b(bearer\s+)[\w.~+/-]{16,}=*", r"\1[token]"),
        (r"(?a)\b(?:sk|pk|rk|github_pat|glpat|xox[a-z])[-_][\w-]{16,}|\bya29\.[\w-]{20,}", "[key]"),
        (r"(?a)\b(?:gh[opsur]_|hf_|npm_|AIza)[\w-]{20,}|\bA[KS]IA[A-Z\d]{16}", "[key]"),
        (r"(?ai)((?:api|access|secret)[_-]?(?:key|token)\W{0,3}[=:]\W{0,2})(?=[a-z_+/-]*\d)[\w+/-]{16,}=*", r"\1[key]"),
        (r"[\w.!#$%&'*+/=?^`{|}~-]{1,64}@\w[\w-]{0,62}(?:\.\w[\w-]{0,62})+", "[email]"),
        (r"(?a)\b[A-Z]{2}\d{2}(?: ?[A-Z\d]{4}){2,7}(?: ?[A-Z\d]{1,3})?\b", _checked("[iban]", _is_iban)),
        (r"(?<![\w.])\d(?:[ -]?\d){12,18}(?!\w)", _checked("[card]", _is_card)),
        # International, national with a leading 0, and North American; each may have separators.
        (r"(?<![\w.+-])\(?\+\d(?:[ ()./-]{0,2}\d){6,14}(?!\w|[.-]\d)", "[phone]"),
        (r"(?<![\w.+-])\(?00?[1-9](?:[ ()./-]{0,2}\d){7,12}(?!\w|[.-]\d)", "[phone]"),
        (r"(?<![\w.+-])\(?\d{3}\)?[ .-]?\d{3}[ .-]\d{4}(?!\w|[.-]\d)", "[phone]"),
    )
]
