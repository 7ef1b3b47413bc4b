"""Redaction of personal data and secrets in the texts of an export."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.json_values import json_values

from lango_store.interchange import redact_text
from lango_store.interchange.redaction import redacted


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Write to ann.o'neil+x@mail.example.co.uk, please.", "Write to [email], please."),
        ("<ünal@münchen.example>", "<[email]>"),
        ("not an address: a @ b, @ann, ann@localhost", None),
        ("Call +49 (0)30 1234567.", "Call [phone]."),
        ("Call +1-415-555-2671, or (415) 555-2671.", "Call [phone], or [phone]."),
        ("030/123 45 67 and 01.23.45.67.89 and 0049 30 1234567", "[phone] and [phone] and [phone]"),
        ("On 2026-11-21T08:30:00.123456+00:00, or 21.11.2026, at 08:30", None),
        ("550e8400-e29b-41d4-a716-446655440000, 192.168.100.21:8080, v1.22.333, 3.14159265358979", None),
        ("an id of 12345678, and one of 1764115200000", None),
        ("4111 1111 1111 1111 until 12/29", "[card] until 12/29"),
        ("4111-1111-1111-1111, 378282246310005", "[card], [card]"),
        ("code 123 of 4111 1111 1111 1111 123", "code 123 of [card] 123"),
        ("4111 1111 1111 1112", None),
        ("pay to DE89 3704 0044 0532 0130 00 AND NOBODY", "pay to [iban] AND NOBODY"),
        ("AT61 1904 3002 3457 3201 TODAY, or GB82WEST12345698765432", "[iban] TODAY, or [iban]"),
        ("DE00WEST12345698765432", None),
        ("Authorization: Bearer abcdef0123456789abcdef==", "Authorization: Bearer [token]"),
        ("the bearer documents of a bearer", None),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk", "[token]"),
        ("sk-proj-abcdefghijklmnop1234 sk_live_abcdefghijklmnop", "[key] [key]"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123456789", "[key]"),
        ("AKIAIOSFODNN7EXAMPLE, AIzaSyA1234567890abcdefghijklmnopqrstuv", "[key], [key]"),
        ("xoxb-123456789012-abcdefghijkl", "[key]"),
        ('{"api_key": "abcd1234abcd1234abcd"}', '{"api_key": "[key]"}'),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "AWS_SECRET_ACCESS_KEY=[key]"),
        ("api_key = settings.openai_api_key", None),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nafter", "[key]\nafter"),
        ("see data:image/png;base64,iVBORw0KGgo= here", "see [data] here"),
    ],
)
def test_redact_text_replaces_only_what_it_recognizes(text: str, expected: str | None) -> None:
    assert redact_text(text) == (text if expected is None else expected)


@pytest.mark.slow
def test_time_of_redact_text_is_linear_in_the_length_of_the_text() -> None:
    pieces = ("a", "1 ", "a@", "a.a-", "A1", "data:;a", "eyJ", "+1-", "(1", "0", "DE89 ", "api_key=aaaaaaaaaaaaaaaa")
    for piece in pieces:
        text = piece * (100_000 // len(piece))
        started = time.process_time()
        redact_text(text)
        assert time.process_time() - started < 3


@given(st.text())
def test_redact_text_is_idempotent(text: str) -> None:
    assert redact_text(redact_text(text)) == redact_text(text)


@given(json_values())
def test_redacted_value_is_json_and_equals_the_value_if_nothing_is_replaced(value: Any) -> None:
    assert redacted(value, None) == value
    assert redacted(value, lambda text: text) == value
    json.dumps(redacted(value, lambda text: "x"))


def test_redaction_of_a_value_also_replaces_object_keys_and_numbers() -> None:
    value = {"ann@example.com": [378282246310005, 1.5, True, None, {"to": "bob@example.com"}]}
    assert redacted(value, redact_text) == {"[email]": ["[card]", 1.5, True, None, {"to": "[email]"}]}
