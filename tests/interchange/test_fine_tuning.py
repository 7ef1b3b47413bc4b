"""The export of sessions as lines for fine-tuning."""

import json
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run
from support.factories import message_of, summary

from lango_store import Message, MessageRole, Store, ToolCall, interchange

pytestmark = pytest.mark.one_database

Lines = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def lines(store: Store, tmp_path: Path) -> Lines:
    """Export all sessions, none of which may fail, and return the lines."""

    def export(**options: Any) -> list[dict[str, Any]]:
        done = interchange.export(store, tmp_path, "openai", everything=True, replace=True, **options)
        assert [each.error for each in done] == [None] * len(done)
        assert {each.path for each in done} == {str(tmp_path / "openai.jsonl")}
        return [json.loads(line) for line in (tmp_path / "openai.jsonl").read_text().splitlines()]

    return export


def check(line: dict[str, Any]) -> None:
    """Check the published rules of the format."""
    assert line.keys() <= {"messages", "tools"}
    unanswered: set[str] = set()
    asked: set[str] = set()
    for message in line["messages"]:
        role = message["role"]
        assert role in ("system", "user", "assistant", "tool")
        assert message.keys() <= {"role", "content"} | {
            "assistant": {"tool_calls", "weight"},
            "tool": {"tool_call_id"},
        }.get(role, set())
        assert message.get("content") or message.get("tool_calls")
        if role == "tool":
            assert isinstance(message["content"], str)
            unanswered.remove(message["tool_call_id"])
            continue
        assert not unanswered, "a call without a result"
        assert isinstance(message.get("content", ""), str if role != "user" else str | list)
        for call in message.get("tool_calls", ()):
            assert call["type"] == "function"
            assert call.keys() == {"id", "type", "function"}
            assert call["function"].keys() == {"name", "arguments"}
            json.loads(call["function"]["arguments"])
            assert call["id"] not in asked
            asked.add(call["id"])
            unanswered.add(call["id"])
    assert line["messages"][-1]["role"] == "assistant"
    assert "weight" not in line["messages"][-1]


def failure(store: Store, folder: Path, key: str = "k") -> str:
    """Export a session that cannot be exported, and return the reason."""
    (done,) = interchange.export(store, folder, "openai", keys=[key])
    assert done.path is None
    return str(done.error)


QUESTION = Message.user("What is the weather?")
CALL = Message.assistant(tool_calls=[ToolCall(id="a", name="weather", arguments={"city": "Oslo"})])
RESULT = Message.tool("-3 °C", tool_call_id="a", name="weather")
ANSWER = Message.assistant("Cold.")


def test_session_is_exported_as_one_line(store: Store, lines: Lines) -> None:
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    store.create(
        "k", messages=[Message(role="developer", content="Be brief."), QUESTION, CALL, RESULT, ANSWER], tools=tools
    )
    store.append_message("k", Message(role="record", content="not for models"))
    (line,) = lines()
    check(line)
    assert line == {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the weather?"},
            {
                "role": "assistant",
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "weather", "arguments": '{"city": "Oslo"}'},
                    }
                ],
            },
            {"role": "tool", "content": "-3 °C", "tool_call_id": "call_1"},
            {"role": "assistant", "content": "Cold."},
        ],
        "tools": tools,
    }


def test_export_has_one_line_for_each_live_session(store: Store, lines: Lines) -> None:
    for key in ("a", "b"):
        store.create(key, messages=[Message.user(f"of {key}"), ANSWER])
    assert [line["messages"][0]["content"] for line in lines()] == ["of a", "of b"]


def test_messages_after_the_last_answer_are_left_out(store: Store, lines: Lines) -> None:
    store.create("k", messages=[QUESTION, ANSWER, Message.user("And tomorrow?")])
    store.create("l", messages=[QUESTION, CALL, RESULT])
    first, second = lines()
    assert [each["role"] for each in first["messages"]] == ["user", "assistant"]
    assert [each["role"] for each in second["messages"]] == ["user", "assistant"]


def test_unanswered_call_gets_a_later_result_or_a_placeholder(store: Store, lines: Lines) -> None:
    store.create("k", messages=[QUESTION, CALL, Message.user("Hello?"), ANSWER, RESULT, ANSWER])
    store.create("l", messages=[QUESTION, CALL, Message.user("Hello?"), ANSWER])
    late, never = lines()
    check(late)
    check(never)
    assert late["messages"][2]["content"] == "-3 °C"
    assert never["messages"][2]["content"] == "The tool did not finish: its result is unknown."


def test_tool_results_without_a_call_and_messages_without_content_are_left_out(store: Store, lines: Lines) -> None:
    empty = [Message.user(""), Message.assistant(None), Message.user([]), Message.tool("", tool_call_id="a")]
    store.create("k", messages=[RESULT, QUESTION, CALL, *empty[3:], *empty[:3], ANSWER])
    (line,) = lines()
    check(line)
    assert [each.get("content") for each in line["messages"]] == ["What is the weather?", None, "(no output)", "Cold."]


def test_interrupted_answer_and_summary_have_weight_0(store: Store, lines: Lines) -> None:
    talk = store.open("k")
    talk.save_turn([QUESTION, ANSWER])
    talk.compact(lambda _: summary("They talked about the weather."))
    talk.save_turn([QUESTION, Message.assistant("It", extra={"interrupted": True}), QUESTION, ANSWER])
    (line,) = lines()
    check(line)
    assert [each.get("weight") for each in line["messages"] if each["role"] == "assistant"] == [0, 0, None]


def test_output_in_an_assistant_message_becomes_a_tool_message(store: Store, lines: Lines) -> None:
    calls = [ToolCall(id="", name="f", arguments="not JSON", output={"a": 1}), ToolCall(id="", name="g", output=None)]
    store.create("k", messages=[QUESTION, Message.assistant("Wait.", tool_calls=calls), ANSWER])
    (line,) = lines()
    check(line)
    assert line["messages"][1]["tool_calls"][0]["function"]["arguments"] == '{"arguments": "not JSON"}'
    assert [each["content"] for each in line["messages"] if each["role"] == "tool"] == ['{"a": 1}', "null"]


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
        {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}},
        {"name": "f", "description": "d", "input_schema": {"type": "object"}},
    ],
)
def test_function_tools_are_exported_in_nested_form(store: Store, lines: Lines, tool: dict[str, Any]) -> None:
    store.create("k", messages=[QUESTION, ANSWER], tools=[tool, {"type": "web_search"}])
    (line,) = lines()
    assert line["tools"] == [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
    ]


URL = "https://example.com/cat.png"
DATA = "data:image/png;base64,iVBORw0KGgo="


def test_images_of_users_are_kept_as_urls(store: Store, lines: Lines) -> None:
    blocks: list[dict[str, Any]] = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
        {"type": "input_image", "image_url": URL},
        {"type": "image", "source": {"type": "url", "url": URL}},
        {"type": "image_url", "image_url": {"url": DATA}},
        {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    ]
    store.create("k", messages=[Message.user(blocks), ANSWER])
    (line,) = lines()
    check(line)
    image = {"type": "image_url", "image_url": {"url": URL}}
    named = [{"type": "text", "text": f"[{type} attachment]"} for type in ("image/png", "audio/wav")]
    assert line["messages"][0]["content"] == [{"type": "text", "text": "Look:"}, image, image, image, *named]
    (unchanged,) = lines(redact=None)
    assert unchanged["messages"][0]["content"][4] == {"type": "image_url", "image_url": {"url": DATA}}


def test_blocks_of_an_assistant_are_reduced_to_their_text(store: Store, lines: Lines) -> None:
    blocks = [
        {"type": "thinking", "thinking": "hm"},
        {"type": "text", "text": "Cold."},
        {"type": "image_url", "image_url": URL},
        {"type": "refusal", "refusal": "Ask a meteorologist."},
    ]
    store.create("k", messages=[QUESTION, Message.assistant(blocks)])
    (line,) = lines()
    assert line["messages"][1] == {"role": "assistant", "content": "Cold.\n\nAsk a meteorologist."}


def test_calls_and_results_in_blocks_are_exported(store: Store, lines: Lines) -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    asked = {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}}
    answered = {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "-3 °C"}, picture]}
    store.create("k", messages=[QUESTION, Message.assistant([asked]), Message.user([answered]), ANSWER])
    (line,) = lines()
    check(line)
    assert line["messages"][1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
    assert line["messages"][2]["content"] == "-3 °C\n\n[image/png attachment]"


def test_text_files_are_redacted(store: Store, lines: Lines) -> None:
    data = b64encode(b"I am ann@example.com").decode()
    file = {"type": "file", "mediaType": "text/plain", "url": f"data:text/plain;base64,{data}"}
    store.create("k", messages=[Message.user([file]), CALL, Message.tool([file], tool_call_id="a"), ANSWER])
    (line,) = lines()
    texts = [line["messages"][number]["content"] for number in (0, 2)]
    assert texts == ["I am [email]", "I am [email]"]


def test_payloads_are_exported_as_whole_strings(store: Store, lines: Lines) -> None:
    with Store(store.engine, payload_threshold=10) as small:
        small.create("k", messages=[Message.user("x" * 5_000), ANSWER])
    (line,) = lines()
    assert line["messages"][0]["content"] == "x" * 5_000


def test_sent_field_is_exported_as_the_content(store: Store, lines: Lines) -> None:
    store.create("k", messages=[Message.user("Hi", sent="Hi (it is Monday)"), ANSWER])
    assert lines()[0]["messages"][0]["content"] == "Hi (it is Monday)"


def test_texts_of_every_field_are_redacted_by_default(store: Store, lines: Lines) -> None:
    secret = "ann@example.com"
    calls = [ToolCall(id="a", name="f", arguments=json.dumps({secret: [secret, 378282246310005]}))]
    talk = [
        Message.system(f"Help {secret}"),
        Message.user(
            [{"type": "text", "text": secret}, {"type": "image_url", "image_url": {"url": f"{URL}?{secret}"}}]
        ),
        Message.assistant(secret, tool_calls=calls),
        Message.tool({"from": secret}, tool_call_id="a"),
        Message.assistant(f"Done, {secret}"),
    ]
    tools = [{"name": "f", "description": secret, "parameters": {"default": secret}}]
    store.create(secret, user_id=secret, title=secret, messages=talk, tools=tools)
    (line,) = lines()
    check(line)
    assert secret not in json.dumps(line)
    assert "378282246310005" not in json.dumps(line)
    assert line["messages"][3]["content"] == '{"from": "[email]"}'
    assert json.loads(line["messages"][2]["tool_calls"][0]["function"]["arguments"]) == {
        "[email]": ["[email]", "[card]"]
    }
    assert secret in json.dumps(lines(redact=None))


def test_redact_option_accepts_another_function(store: Store, lines: Lines) -> None:
    store.create("k", messages=[QUESTION, ANSWER])
    (line,) = lines(redact=str.upper)
    assert [each["content"] for each in line["messages"]] == ["WHAT IS THE WEATHER?", "COLD."]


def test_export_in_another_format_refuses_a_redact_function(store: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="backup cannot be redacted"):
        interchange.export(store, tmp_path, "backup", everything=True, redact=str.upper)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "has no answer of a model"),
        ([QUESTION], "has no answer of a model"),
        ([QUESTION, Message.assistant("It", extra={"interrupted": True})], "has no answer of a model"),
        ([QUESTION, Message.assistant(tool_calls=[ToolCall(id="a", name="no name")])], "has a tool named 'no name'"),
        ([Message.user([{"type": "image_url", "image_url": {"url": URL}}] * 11), ANSWER], "has 11 images"),
    ],
)
def test_session_that_breaks_a_rule_of_the_format_is_reported(
    store: Store, tmp_path: Path, messages: list[Message], reason: str
) -> None:
    store.create("k", messages=messages)
    assert f"session 'k': {reason}" in failure(store, tmp_path)
    assert (tmp_path / "openai.jsonl").read_bytes() == b""


def test_missing_session_is_reported(store: Store, tmp_path: Path) -> None:
    assert "no session 'missing'" in failure(store, tmp_path, "missing")


kinds = st.sampled_from(
    ["user", "system", "developer", "assistant", "model", "call", "result", "outputs", "bare result"]
)
any_message = st.builds(
    message_of,
    st.sampled_from(["", "hello", "ann@example.com"]),
    kinds,
    st.none(),
    st.none(),
    st.sampled_from(["", "a", "b"]),
)


@pytest.mark.slow
@given(st.lists(any_message, max_size=12))
def test_each_exported_line_follows_the_rules_of_the_format(
    store: Store, tmp_path: Path, messages: list[Message]
) -> None:
    store.delete_where(key_prefix="k")
    store.create("k", messages=messages)
    (done,) = interchange.export(store, tmp_path, "openai", keys=["k"], replace=True)
    text = (tmp_path / "openai.jsonl").read_text()
    if done.error is None:
        check(json.loads(text))
    else:
        answers = [each for each in messages if each.role.canonical is MessageRole.ASSISTANT]
        assert not any(each.content or each.tool_calls for each in answers)


# The command


@pytest.fixture
def filled(store: Store, url: str) -> str:
    store.create("k", messages=[Message.user("I am ann@example.com"), ANSWER])
    store.create("l", messages=[QUESTION])
    return url


def test_export_command_writes_redacted_lines_and_reports_failed_sessions(filled: str, tmp_path: Path) -> None:
    words = ("export", "--all", "--format", "openai", "--url", filled)
    done = run(*words, "--to", str(tmp_path / "out"))
    assert done.returncode == 1
    assert done.stdout == f"exported 1 session to {tmp_path}/out, 0 unchanged, 1 failed\n"
    assert done.stderr == "error: session 'l': has no answer of a model to learn from\n"
    assert "I am [email]" in (tmp_path / "out" / "openai.jsonl").read_text()
    shown = run(*words, "--to", "-", "--no-redact")
    assert json.loads(shown.stdout)["messages"][0]["content"] == "I am ann@example.com"


@pytest.fixture(autouse=True)
def unchanged_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what `--redact` adds to the path of modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_export_command_redacts_with_a_function_from_a_module(filled: str, tmp_path: Path) -> None:
    (tmp_path / "own_redaction.py").write_text("def shout(text):\n    return text.upper()\n")
    words = ("export", "k", "--format", "openai", "--url", filled, "--to", "-")
    done = run(*words, "--redact", "own_redaction:shout", folder=tmp_path)
    assert json.loads(done.stdout)["messages"][0]["content"] == "I AM ANN@EXAMPLE.COM"
    for name in ("own_redaction:missing", "missing:f", "json:decoder"):
        refused = run(*words, "--redact", name, folder=tmp_path)
        assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.parametrize("options", [("--no-redact",), ("--redact", "json:dumps")])
def test_export_command_refuses_redact_options_with_other_formats(filled: str, options: tuple[str, ...]) -> None:
    refused = run("export", "--all", "--to", "-", "--url", filled, *options)
    assert refused.returncode == 2
    assert "with --format openai" in " ".join(refused.stderr.split())


def test_late_result_follows_the_call_for_which_it_was_stored_if_calls_share_an_id(store: Store, lines: Lines) -> None:
    call = ToolCall(id="call_0", name="pay", arguments={})
    conversation = store.open("k", messages=[Message.user("Pay."), Message.assistant(tool_calls=[call])])
    conversation.append_messages([Message.user("Pay once more."), Message.assistant(tool_calls=[call])])
    conversation.calls.finish(conversation.calls.begin(2, 0), "paid")
    conversation.append_message(Message.assistant("Done."))
    (line,) = lines()
    check(line)
    results = [each["content"] for each in line["messages"] if each["role"] == "tool"]
    assert results == ["paid", "The tool did not finish: its result is unknown."]
