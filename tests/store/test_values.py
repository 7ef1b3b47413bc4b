"""The pydantic models that callers use: validation, JSON, OpenAI messages and pickled errors."""

import json
import pickle
from datetime import UTC, datetime
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel, TypeAdapter, ValidationError
from support.factories import message

from lango_store import (
    Conflict,
    DamagedMessage,
    InvalidMessage,
    Message,
    MessageRole,
    SchemaOutOfDate,
    Session,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    Store,
    ToolCall,
    window,
)
from lango_store._values.model import SessionInfo
from lango_store.tables import MessageRow, SessionRow


def test_role_is_an_enum_in_python_and_text_in_json() -> None:
    created = Message(role=MessageRole.USER, content="hi")
    assert created.role is MessageRole.USER
    assert created.model_dump_json() == '{"role":"user","content":"hi"}'
    assert Message.model_validate_json('{"role":"user","content":"hi"}') == created


def test_canonical_role_is_assistant_for_model_and_tool_for_function() -> None:
    assert MessageRole.MODEL.canonical is MessageRole.ASSISTANT
    assert MessageRole.FUNCTION.canonical is MessageRole.TOOL
    assert MessageRole.DEVELOPER.canonical is MessageRole.DEVELOPER


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "bogus"},
        {"role": "user", "surprise": 1},
        {"role": "user", "tokens": -1},
        {"role": "user", "id": ""},
        {"role": "user", "created_at": datetime(2026, 1, 1)},
        {"role": "user", "tool_calls": [{"id": 1, "name": "n"}]},
        {"content": "x"},
    ],
)
def test_message_refuses_invalid_fields(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate(fields)


def test_assignment_to_a_field_is_validated() -> None:
    created = message()
    with pytest.raises(ValidationError):
        created.role = 5  # type: ignore[assignment]
    created.role = "tool"  # type: ignore[assignment]
    assert created.role is MessageRole.TOOL


def test_model_dump_omits_unset_fields_but_not_content() -> None:
    assert message(None).model_dump() == {"role": MessageRole.USER, "content": None}
    full = message("x", author="a", name="n", tool_call_id="c", tokens=0, id="i", extra={"e": 1}, seq=3)
    assert set(full.model_dump()) == {
        "role",
        "content",
        "author",
        "name",
        "tool_call_id",
        "tokens",
        "id",
        "extra",
        "seq",
    }
    assert "replayed" not in full.model_copy(update={"replayed": True}).model_dump_json()


@pytest.mark.parametrize("indent", [None, 2])
def test_lone_surrogate_is_dumped_as_a_json_escape(indent: int | None) -> None:
    created = message({"\udfff": ["a\ud800b", "☀"]}, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    dumped = json.loads(created.model_dump_json(indent=indent))
    assert dumped["content"] == created.content
    assert Message.model_validate(dumped) == created
    assert Message.model_validate_json(created.model_dump_json(indent=indent)) == created


def test_invalid_json_raises_pydantics_validation_error() -> None:
    for text in ('{"role":"user"', b'{"role":"user","content":"\xff"}', "[" * 100_000):
        with pytest.raises(ValidationError, match="Invalid JSON"):
            Message.model_validate_json(text)
    with pytest.raises(ValidationError, match="role"):
        Message.model_validate_json('{"role":"\\ud800"}')


def test_json_of_a_tool_call_has_its_arguments_as_text() -> None:
    created = Message.assistant("", tool_calls=[ToolCall(id="c", name="search", arguments='{"q":"x"}')])
    calls = [{"id": "c", "name": "search", "arguments": '{"q":"x"}'}]
    assert json.loads(created.model_dump_json()) == {"role": "assistant", "content": "", "tool_calls": calls}


def test_unanswered_tool_call_stays_unanswered_in_json() -> None:
    created = message(tool_calls=[ToolCall(id="a", name="n"), ToolCall(id="b", name="n", output=None)])
    for again in (Message.model_validate_json(created.model_dump_json()), Message.model_validate(created.model_dump())):
        assert [call.answered for call in again.tool_calls] == [False, True]


def test_openai_message_is_converted_back_with_every_key() -> None:
    for original in (
        {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "refusal": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "index": 0},
                {"id": "c2", "type": "function", "function": {"name": "g", "arguments": "", "strict": True}},
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}},
                {"id": "c2", "type": "custom", "custom": {"name": "sh", "input": "", "strict": True}, "index": 1},
            ],
        },
        {"role": "tool", "content": "-3", "tool_call_id": "c1"},
        {"role": "developer", "content": "x", "tool_calls": []},
    ):
        read = Message.from_openai(original, author="planner")
        assert read.author == "planner"
        assert read.to_openai() == original
    assert read.extra == {"tool_calls": []}


def test_openai_custom_tool_call_is_stored_unchanged(store: Store) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    original = {"role": "assistant", "content": None, "tool_calls": [call]}
    store.create("k", messages=[message(), Message.from_openai(original)])
    stored = store.conversation("k").messages()[1]
    assert (stored.tool_calls[0].name, stored.tool_calls[0].arguments) == ("sql", "SELECT 1")
    assert stored.to_openai() == original
    assert store.conversation("k").history()[1] == original
    assert Message.assistant(tool_calls=[ToolCall(id="c", name="n", extra={"type": "custom"})]).to_openai()[
        "tool_calls"
    ] == [{"id": "c", "type": "custom", "custom": {"name": "n", "input": ""}}]


@pytest.mark.parametrize("output", [{"celsius": -3}, "☀", None, ["a"]])
@pytest.mark.parametrize("tool_call_id", [None, "c1"])
def test_to_openai_uses_tool_output_as_content(output: Any, tool_call_id: str | None) -> None:
    call = ToolCall(id="c1", name="get_weather", output=output)
    answer = Message.tool(tool_call_id=tool_call_id, tool_calls=[call], extra={"cache": 1})
    assert answer.to_openai() == {**window.as_prompt([answer])[0], "cache": 1}
    assert len(window.as_prompt([answer])) == 1


@pytest.mark.parametrize(
    "combined",
    [
        Message.tool(tool_calls=[ToolCall(id="a", name="n", output=1), ToolCall(id="b", name="n", output=2)]),
        Message.tool("of another", tool_call_id="b", tool_calls=[ToolCall(id="a", name="n", output=1)]),
        Message.assistant(tool_calls=[ToolCall(id="a", name="n", arguments={}, output=1)]),
    ],
)
def test_to_openai_refuses_a_message_that_would_become_two_messages(combined: Message) -> None:
    with pytest.raises(ValueError, match="as_prompt"):
        combined.to_openai()
    assert len(window.as_prompt([combined])) == 2


def test_role_constructors_create_messages() -> None:
    created = [Message.user("u", id="1"), Message.assistant("a", tokens=2), Message.tool("t"), Message.system("s")]
    assert [(m.role.value, m.content) for m in created] == [
        ("user", "u"),
        ("assistant", "a"),
        ("tool", "t"),
        ("system", "s"),
    ]
    assert (created[0].id, created[1].tokens) == ("1", 2)
    with pytest.raises(ValidationError):
        Message.user("u", surprise=1)  # type: ignore[call-arg]


def test_models_and_rows_have_the_same_field_names() -> None:
    column_names = {"metadata": "meta"}
    assert {column_names.get(name, name) for name in SessionInfo.model_fields} <= set(SessionRow.model_fields)
    assert set(Message.model_fields) - {"replayed"} == set(MessageRow.model_fields) - {
        "session_key",
        "text",
        "payloads",
        "logged_at",
        "taken_by",
    }


@pytest.mark.parametrize(
    "error",
    [
        SessionNotFound("k"),
        SessionExpired("k", datetime(2026, 1, 1, tzinfo=UTC)),
        SessionExists("k", expired=True),
        Conflict("k", expected=1, last_seq=2),
        InvalidMessage("content", "is bad"),
        DamagedMessage("k", 3, "content", "torn"),
        SchemaOutOfDate("0001", "0003"),
    ],
)
def test_errors_can_be_pickled(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


class NewMessage(BaseModel):
    role: MessageRole
    content: object = None


def test_sessions_are_valid_fastapi_responses(store: Store) -> None:
    app = FastAPI()

    @app.post("/sessions/{key}/messages", response_model=Message)
    def append(key: str, new: NewMessage) -> Message:
        return store.append_message(key, Message(**new.model_dump()))

    @app.get("/sessions/{key}", response_model=Session)
    def get(key: str) -> Session:
        return store.get(key)

    call = ToolCall(id="c", name="n", output={"celsius": -3})
    store.create("k", settings={"a": 1}, messages=[message("☀", tool_calls=[call])])
    with TestClient(app) as client:
        assert client.post("/sessions/k/messages", json={"role": "user", "content": [1]}).json()["seq"] == 2
        response = client.get("/sessions/k")
        assert Session.model_validate(response.json()) == store.get("k")
        assert Session.model_validate_json(response.text) == store.get("k")
        store.append_message("k", message("torn \ud83d emoji"))
        answer = client.get("/sessions/k")
        assert answer.status_code == 200
        assert Session.model_validate(answer.json()).messages[2].content == "torn \\ud83d emoji"
        assert Session.model_validate_json(store.get("k").model_dump_json()) == store.get("k")
    schema = app.openapi()["components"]["schemas"]
    assert "MessageRole" in schema
    assert "content" in schema["Message"]["properties"]
    assert "output" in schema["ToolCall"]["properties"]


def nested(levels: int) -> Any:
    value: Any = "☀"
    for _ in range(levels):
        value = [value]
    return value


def test_values_with_200_levels_round_trip_through_json(store: Store) -> None:
    call = ToolCall(id="c", name="n", output=nested(200), extra={"x": nested(199)})
    new = message(nested(200), extra={"x": nested(199)}, tool_calls=[call])
    assert Message.model_validate_json(new.model_dump_json()) == new
    created = store.create("k", metadata={"x": nested(199)}, messages=[new])
    assert Session.model_validate_json(created.model_dump_json()) == created == store.get("k")
    assert Session.model_validate_json(TypeAdapter(Session).dump_json(created)) == created


def test_surrogate_pair_is_refused_in_a_str_but_read_as_one_character_from_json(store: Store) -> None:
    halves = message("\ud83d\ude00")
    assert Message.model_validate_json(halves.model_dump_json()).content == "😀"
    with pytest.raises(InvalidMessage):
        store.create("k", messages=[halves])
    whole = Message.model_validate_json('{"role":"user","content":"\\ud83d\\ude00"}')
    assert store.create("k", messages=[whole]).messages[0].content == "😀"


def test_type_adapter_dumps_a_list_of_messages() -> None:
    dumped = TypeAdapter(list[Message]).dump_json([message("a"), message("b")])
    assert json.loads(dumped) == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
