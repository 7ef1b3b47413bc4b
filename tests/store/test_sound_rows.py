"""Rows that are decoded without pydantic: the result, or the error, is the same as with validation."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from support.json_values import json_values, typed_repr
from support.rows import ODD_TEXTS, TIME

from lango_store import DamagedMessage, MessageRole, SessionInfo
from lango_store._operations.binds import SESSION
from lango_store._operations.rows import (
    MESSAGE_FIELDS,
    decode_checked,
    decode_session,
    session_info,
    session_value,
)
from lango_store._operations.sound_rows import (
    SESSION_FIELDS,
    SESSION_JSON,
    SESSION_NUMBERS,
    SESSION_TEXTS,
    decode_sound,
    decode_sound_session,
)
from lango_store._rows.columns import JsonColumn

NAIVE, ELSEWHERE = "2026-11-21T12:00:00", "2026-11-21T14:00:00+02:00"
ODD: list[Any] = [None, "", "null", "12", b"x", b"12", -1, 0, 2**53, 1.0, 1.5, True, "soon", "user"]
ODD += ["{", "{}", "[]", "[{}]", '[{"id":1,"name":"n"}]', '[{"id":"i","name":"n","extra":[]}]', '"text"', "NaN"]
ODD += [NAIVE, ELSEWHERE, *ODD_TEXTS, *(datetime.fromisoformat(each) for each in (TIME, NAIVE, ELSEWHERE))]
JSON = json_values(max_leaves=4).map(json.dumps) | st.sampled_from(ODD_TEXTS)
OBJECTS = st.dictionaries(st.text(), json_values(max_leaves=2), max_size=2).map(json.dumps)
CALLS = st.lists(
    st.fixed_dictionaries(
        {"id": st.text(), "name": st.text()},
        optional={name: json_values(max_leaves=2) for name in ("arguments", "output", "extra", "unknown")}
        | {"extra": st.dictionaries(st.text(), json_values(max_leaves=2), max_size=2)},
    ),
    max_size=2,
).map(json.dumps)
TIMES = st.datetimes(timezones=st.just(UTC))
SOUND = {
    "seq": st.integers(0, 2**63 - 1),
    "turn_no": st.none() | st.integers(0, 9),
    "role": st.sampled_from([role.value for role in MessageRole]),
    "tool_calls": st.none() | CALLS,
    "content": st.none() | JSON,
    "tokens": st.none() | st.sampled_from([0, 7, 2**53 - 1]),
    "extra": st.none() | OBJECTS,
    "created_at": TIMES | TIMES.map(datetime.isoformat),
    "sent": st.none() | JSON,
    "payloads": st.none(),
}
ROWS = st.fixed_dictionaries({name: SOUND.get(name, st.none() | st.text(min_size=1)) for name in MESSAGE_FIELDS}).map(
    lambda row: row | {"text": None} if row["content"] is not None else row
)

SOUND_ROW = dict.fromkeys(MESSAGE_FIELDS) | {"seq": 1, "role": "user", "text": "hi", "created_at": TIME}


def state_of(value: Any) -> Any:
    """Return everything in which two values may differ, with the types of all parts and the order of fields."""
    if isinstance(value, BaseModel):
        fields = {name: state_of(each) for name, each in value.__dict__.items()}
        return type(value), list(fields.items()), value.model_fields_set, value.model_extra, value.__pydantic_private__
    if isinstance(value, list):
        return [state_of(each) for each in value]
    return repr(value) if isinstance(value, datetime | MessageRole) else typed_repr(value)


def outcome(decode: Any, row: list[Any]) -> Any:
    try:
        return state_of(decode(row))
    except DamagedMessage as error:
        return str(error)


def assert_same(row: dict[str, Any]) -> None:
    """Assert that a row is decoded as by validation."""
    values = [*row.values()]
    expected = outcome(lambda each: decode_checked("k", each, None), values)
    decoded = outcome(lambda each: decode_sound([each], lambda row: decode_checked("k", row, None))[0], values)
    assert decoded == expected, row


@given(row=ROWS)
def test_message_of_a_row_is_the_same_as_with_validation(row: dict[str, Any]) -> None:
    assert_same(row)


@pytest.mark.parametrize("name", MESSAGE_FIELDS)
def test_odd_values_in_a_column_have_the_same_result_as_with_validation(name: str) -> None:
    for odd in ODD:
        assert_same(SOUND_ROW | {name: odd})
        assert_same(SOUND_ROW | {"text": None, "content": "null"} | {name: odd})


def test_sound_row_is_decoded_without_validation() -> None:
    for changes in ({}, {"tool_calls": '[{"id":"a","name":"b"}]'}, {"text": None, "content": "null"}, {"extra": "{}"}):
        values = [*(SOUND_ROW | changes).values()]
        (decoded,) = decode_sound([values], lambda row: pytest.fail(f"validated {row}"))
        assert state_of(decoded) == state_of(decode_checked("k", values, None))


def test_each_column_of_a_row_is_decoded_to_the_field_with_its_name() -> None:
    texts = [name for name in MESSAGE_FIELDS if name not in SOUND and name != "text"]
    row = SOUND_ROW | {name: name for name in texts} | {"turn_no": 2, "tokens": 3, "sent": '"sent"'}
    row |= {"tool_calls": '[{"id":"a","name":"b"}]', "extra": '{"a":1}'}
    assert [name for name, value in row.items() if value is None] == ["content", "payloads"]
    (decoded,) = decode_sound([[*row.values()]], lambda row: pytest.fail(f"validated {row}"))
    assert state_of(decoded) == state_of(decode_checked("k", [*row.values()], None))


NUMBERS = st.integers(0, 2**63 - 1)
SOUND_SESSION = {
    "key": st.text(min_size=1),
    **dict.fromkeys(("agent_id", "user_id", "title", "model", "forked_from", "hold"), st.none() | st.text()),
    **dict.fromkeys(("settings", "metadata"), st.none() | OBJECTS),
    "tools": st.none() | st.lists(json_values(max_leaves=2), max_size=2).map(json.dumps),
    **dict.fromkeys(("created_at", "updated_at"), TIMES | TIMES.map(datetime.isoformat)),
    "expires_at": st.none() | TIMES | TIMES.map(datetime.isoformat),
    "ttl_seconds": st.none() | st.floats(0, 1e9),
    "summary_turn": st.none() | NUMBERS,
}
SESSION_ROWS = st.fixed_dictionaries({name: SOUND_SESSION.get(name, NUMBERS) for name in SESSION_FIELDS})
SESSION_ROW = (
    dict.fromkeys(SESSION_FIELDS, 0)
    | dict.fromkeys(name for name in SOUND_SESSION)
    | {"key": "k", "created_at": TIME, "updated_at": TIME}
)


def test_lists_of_session_columns_match_the_types_of_the_table() -> None:
    def names(*types: type) -> set[str]:
        return {name for name in SESSION_FIELDS if isinstance(SESSION.c[name].type, types)}

    assert names(sa.Integer) == {*SESSION_NUMBERS}
    assert names(JsonColumn) == {*SESSION_JSON}
    assert names(sa.String) == {"key", *SESSION_TEXTS}


def assert_same_session(row: dict[str, Any]) -> None:
    """Assert that a session's row is decoded as by validation."""
    values = [*row.values()]
    expected = outcome(lambda each: session_value(SessionInfo, decode_session(each)), values)
    assert outcome(session_info, values) == expected, row


@given(row=SESSION_ROWS)
def test_session_of_a_row_is_the_same_as_with_validation(row: dict[str, Any]) -> None:
    assert_same_session(row)


@pytest.mark.parametrize("name", SESSION_FIELDS)
def test_odd_values_in_a_column_of_a_session_have_the_same_result_as_with_validation(name: str) -> None:
    for odd in ODD:
        assert_same_session(SESSION_ROW | {name: odd})


def test_sound_row_of_a_session_is_decoded_without_validation() -> None:
    values = [*(SESSION_ROW | {"title": "t", "tools": "[1]", "expires_at": TIME, "ttl_seconds": 1.5}).values()]
    assert decode_sound_session(values) == session_value(SessionInfo, decode_session(values))
