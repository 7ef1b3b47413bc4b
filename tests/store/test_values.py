"""What callers hold: pydantic models that refuse what makes no sense, and dump what others can read."""

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


def test_a_role_is_typed_inside_and_text_in_json() -> None:
    made = Message(role=MessageRole.USER, content="hi")
    assert made.role is MessageRole.USER
    assert made.model_dump_json() == '{"role":"user","content":"hi"}'
    assert Message.model_validate_json('{"role":"user","content":"hi"}') == made


def test_canonical_roles() -> None:
    assert MessageRole.MODEL.canonical is MessageRole.ASSISTANT
    assert MessageRole.FUNCTION.canonical is MessageRole.TOOL
    assert MessageRole.DEVELOPER.canonical is MessageRole.DEVELOPER


@pytest.mark.parametrize(
    "wrong",
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
def test_a_constructor_refuses_what_makes_no_sense(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        Message.model_validate(wrong)


def test_assignments_are_validated() -> None:
    made = message()
    with pytest.raises(ValidationError):
        made.role = 5  # type: ignore[assignment]
    made.role = "tool"  # type: ignore[assignment]
    assert made.role is MessageRole.TOOL


def test_a_dump_leaves_out_what_is_absent_and_never_content() -> None:
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
def test_lone_surrogates_are_written_as_json_escapes(indent: int | None) -> None:
    made = message({"\udfff": ["a\ud800b", "☀"]}, created_at=datetime(2026, 1, 1, tzinfo=UTC))
    dumped = json.loads(made.model_dump_json(indent=indent))
    assert dumped["content"] == made.content
    assert Message.model_validate(dumped) == made
    assert Message.model_validate_json(made.model_dump_json(indent=indent)) == made


def test_what_is_not_json_is_refused_in_pydantics_words() -> None:
    for text in ('{"role":"user"', b'{"role":"user","content":"\xff"}', "[" * 100_000):
        with pytest.raises(ValidationError, match="Invalid JSON"):
            Message.model_validate_json(text)
    with pytest.raises(ValidationError, match="role"):
        Message.model_validate_json('{"role":"\\ud800"}')


def test_a_call_without_an_answer_stays_without_one() -> None:
    made = message(tool_calls=[ToolCall(id="a", name="n"), ToolCall(id="b", name="n", output=None)])
    for again in (Message.model_validate_json(made.model_dump_json()), Message.model_validate(made.model_dump())):
        assert [call.answered for call in again.tool_calls] == [False, True]


def test_openai_messages_come_back_with_every_key() -> None:
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


def test_a_custom_call_has_its_name_and_input_and_comes_back_from_the_store(store: Store) -> None:
    call = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    original = {"role": "assistant", "content": None, "tool_calls": [call]}
    store.create("k", messages=[message(), Message.from_openai(original)])
    found = store.messages("k")[1]
    assert (found.tool_calls[0].name, found.tool_calls[0].arguments) == ("sql", "SELECT 1")
    assert found.to_openai() == original
    assert store.conversation("k").history()[1] == original
    assert Message.assistant(tool_calls=[ToolCall(id="c", name="n", extra={"type": "custom"})]).to_openai()[
        "tool_calls"
    ] == [{"id": "c", "type": "custom", "custom": {"name": "n", "input": ""}}]


@pytest.mark.parametrize("output", [{"celsius": -3}, "☀", None, ["a"]])
@pytest.mark.parametrize("tool_call_id", [None, "c1"])
def test_a_tools_output_is_the_content_where_openai_reads_it(output: Any, tool_call_id: str | None) -> None:
    call = ToolCall(id="c1", name="get_weather", output=output)
    answer = Message.tool(tool_call_id=tool_call_id, tool_calls=[call], extra={"cache": 1})
    assert answer.to_openai() == {**window.as_prompt([answer])[0], "cache": 1}
    assert len(window.as_prompt([answer])) == 1


@pytest.mark.parametrize(
    "several",
    [
        Message.tool(tool_calls=[ToolCall(id="a", name="n", output=1), ToolCall(id="b", name="n", output=2)]),
        Message.tool("of another", tool_call_id="b", tool_calls=[ToolCall(id="a", name="n", output=1)]),
        Message.assistant(tool_calls=[ToolCall(id="a", name="n", arguments={}, output=1)]),
    ],
)
def test_a_message_that_is_several_of_openais_loses_none_of_them(several: Message) -> None:
    with pytest.raises(ValueError, match="as_prompt"):
        several.to_openai()
    assert len(window.as_prompt([several])) == 2


def test_constructors_of_each_role() -> None:
    made = [Message.user("u", id="1"), Message.assistant("a", tokens=2), Message.tool("t"), Message.system("s")]
    assert [(m.role.value, m.content) for m in made] == [
        ("user", "u"),
        ("assistant", "a"),
        ("tool", "t"),
        ("system", "s"),
    ]
    assert (made[0].id, made[1].tokens) == ("1", 2)
    with pytest.raises(ValidationError):
        Message.user("u", surprise=1)  # type: ignore[call-arg]


def test_fields_are_named_alike_in_value_and_row() -> None:
    renamed = {"metadata": "meta"}
    assert {renamed.get(name, name) for name in SessionInfo.model_fields} <= set(SessionRow.model_fields)
    assert set(Message.model_fields) - {"replayed"} == set(MessageRow.model_fields) - {"session_key", "text"}


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
def test_errors_cross_process_boundaries(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert again.__dict__ == error.__dict__


class NewMessage(BaseModel):
    role: MessageRole
    content: object = None


def test_sessions_round_trip_through_fastapi(store: Store) -> None:
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


def deep(levels: int) -> Any:
    value: Any = "☀"
    for _ in range(levels):
        value = [value]
    return value


def test_two_hundred_levels_round_trip_through_json(store: Store) -> None:
    call = ToolCall(id="c", name="n", output=deep(200), extra={"x": deep(199)})
    new = message(deep(200), extra={"x": deep(199)}, tool_calls=[call])
    assert Message.model_validate_json(new.model_dump_json()) == new
    made = store.create("k", metadata={"x": deep(199)}, messages=[new])
    assert Session.model_validate_json(made.model_dump_json()) == made == store.get("k")
    assert Session.model_validate_json(TypeAdapter(Session).dump_json(made)) == made


def test_two_halves_of_a_character_are_that_character_in_json_and_refused_by_the_store(store: Store) -> None:
    halves = message("\ud83d\ude00")
    assert Message.model_validate_json(halves.model_dump_json()).content == "😀"
    with pytest.raises(InvalidMessage):
        store.create("k", messages=[halves])
    whole = Message.model_validate_json('{"role":"user","content":"\\ud83d\\ude00"}')
    assert store.create("k", messages=[whole]).messages[0].content == "😀"


def test_many_values_dump_through_a_type_adapter() -> None:
    dumped = TypeAdapter(list[Message]).dump_json([message("a"), message("b")])
    assert json.loads(dumped) == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
