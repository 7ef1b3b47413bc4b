"""Prompts that providers accept, from any log, in each of their formats."""

import json
import os
from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.factories import message, messages
from support.prompt_rules import FORMATS, damaged_logs, faults
from support.statements import watched

from lango_store import Conversation, Message, NotKept, Store, ToolCall, create_engine, window

LOGS: Final = int(os.environ.get("LANGO_STORE_DAMAGED_LOGS", "300"))
SESSIONS: Final = max(LOGS // 50, 6)
OPTIONS: Final[list[dict[str, Any]]] = [
    {},
    {"last": 5},
    {"last": 3, "step": 4},
    {"max_tokens": 30},
    {"max_tokens": 40, "step_tokens": 20},
    {"last": 4, "from_consolidated": True},
    {"nested": False},
]
CHANGES: Final = ["append", "turn", "compact", "undo", "fork", "delete", "truncate", "consolidate"]


def numbered(log: list[Message]) -> list[Message]:
    return [message.model_copy(update={"seq": seq}) for seq, message in enumerate(log, 1)]


def marked(log: list[Message]) -> tuple[list[Message], list[str]]:
    """Put a unique mark into the text of each user message and answer, and return the marks as well."""
    marks: list[str] = []
    result: list[Message] = []
    for position, each in enumerate(log):
        is_talk = each.role.value in ("user", "assistant") and isinstance(each.content, str) and each.content.strip()
        if is_talk:
            marks.append(f"<{position}>")
            each = each.model_copy(update={"content": f"{marks[-1]}{each.content}"})
        result.append(each)
    return result, marks


def marks_in(prompt: window.Prompt, marks: list[str]) -> list[str]:
    """Return the marks in the order of the prompt."""
    text = json.dumps(prompt)
    return sorted((mark for mark in marks if mark in text), key=text.index)


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
@settings(max_examples=LOGS)
@given(log=damaged_logs(), cut=st.none() | st.integers(1, 8))
def test_provider_accepts_the_prompt_of_any_log(format: Any, log: list[Message], cut: int | None) -> None:
    for is_stored in (True, False):  # messages that are not stored all have the seq 0
        covered, marks = marked((numbered(log) if is_stored else log)[-(cut or 0) :])
        prompt = window.prompt(covered, format)
        assert faults(prompt, format) == []
        assert marks_in(prompt, marks) == marks


def change(store: Store, conversation: Conversation, kind: str, log: list[Message], number: int) -> Conversation:
    last = conversation.info().last_seq
    if kind == "append":
        conversation.append_messages(log)
    elif kind == "turn":
        with conversation.turn() as turn:
            turn.append_messages(log)
    elif kind == "compact":
        conversation.compact(lambda _: log[:2])
    elif kind == "undo":
        try:
            conversation.versions.undo()
        except NotKept:  # a fork has no copies of what its source removed
            assert conversation.info().forked_from is not None
    elif kind == "fork":
        return conversation.fork()
    elif kind == "truncate":
        conversation.truncate(after=max(last - number, 0))
    elif kind == "consolidate":
        conversation.update(last_consolidated=min(number, conversation.info().message_count))
    elif found := conversation.messages()[number % 3 :]:
        conversation.edits.delete(found[0].seq)
    return conversation


@pytest.mark.slow
@settings(max_examples=SESSIONS)
@given(
    steps=st.lists(st.tuples(st.sampled_from(CHANGES), damaged_logs(6), st.integers(0, 9)), min_size=1, max_size=6),
    format=st.sampled_from(FORMATS),
)
@example([(kind, messages(3), 0) for kind in ("append", "compact", "append", "fork", "undo")], "openai")
def test_provider_accepts_the_history_of_any_session_with_each_limit(
    store: Store, steps: list[tuple[str, list[Message], int]], format: Any
) -> None:
    counting = Store(store.engine, token_counter=lambda _: 7, keep_removed=timedelta(days=1))
    conversation = counting.open(messages=[message("start")])
    for kind, log, number in steps:
        conversation = change(counting, conversation, kind, log, number)
        before = conversation.all_messages()
        for options in OPTIONS:
            if format == "openai" or options.get("nested", True):
                prompt = conversation.history(format=format, **options)
                assert options.get("nested") is False or faults(prompt, format) == [], (options, before)
        assert conversation.all_messages() == before


@pytest.mark.slow
@settings(max_examples=SESSIONS)
@given(log=damaged_logs(), last=st.integers(1, 12), format=st.sampled_from(FORMATS))
def test_history_has_all_user_messages_and_answers_of_the_last_messages(
    store: Store, log: list[Message], last: int, format: Any
) -> None:
    covered, marks = marked(log)
    conversation = store.open(messages=covered)
    assert marks_in(conversation.history(format=format), marks) == marks
    end = conversation.messages(last=last)
    users = [position for position, each in enumerate(end) if each.role == "user"]
    if users and last < len(log):
        end = end[users[0] :]
    wanted = [mark for mark in marks if any(str(each.content).startswith(mark) for each in end)]
    assert [
        mark for mark in marks_in(conversation.history(format=format, last=last), marks) if mark in wanted
    ] == wanted


# Instructions


def test_instructions_stay_in_a_prompt_that_is_cut_and_count_as_tokens(store: Store) -> None:
    rules = [Message.system("be kind", tokens=10), Message(role="developer", content="be brief", tokens=10)]
    conversation = store.open("k", messages=[*rules, *messages(9, tokens=10)])
    for options in ({"last": 2}, {"last": 2, "step": 2}, {"max_tokens": 45}, {"max_tokens": 45, "step_tokens": 20}):
        prompt = conversation.history(**options)  # type: ignore[arg-type]
        assert [each["content"] for each in prompt[:2]] == ["be kind", "be brief"]
        assert 2 < len(prompt) <= 5
        assert conversation.history(format="anthropic", **options).system == "be kind\n\nbe brief"  # type: ignore[arg-type]
    assert [each["content"] for each in conversation.history(max_tokens=20)] == ["be kind", "be brief"]


@pytest.mark.slow
def test_history_sends_one_more_statement_only_if_the_limit_cuts_instructions(url: str) -> None:
    engine = create_engine(url, pool_size=1)
    with Store(engine) as store:
        plain = store.open("plain", messages=messages(9))
        ruled = store.open("ruled", messages=[Message.system("be kind"), *messages(9)])
        counts: list[int] = []
        for conversation, last in ((plain, 5), (ruled, 20), (ruled, 5)):
            with watched(engine) as statements:
                conversation.history(last=last)
            counts.append(len(statements))
        assert counts == [1, 1, 2]
    engine.dispose()


def test_instructions_after_a_summary_or_a_user_message_are_not_repeated(store: Store) -> None:
    conversation = store.open("k", messages=[message("hi"), Message.system("be kind"), *messages(9)])
    assert [each["role"] for each in conversation.history(last=2)] == ["user", "user"]
    conversation.compact(lambda _: [Message.assistant("summary")])
    conversation.append_messages([Message.system("be brief"), *messages(5)])
    assert [each["role"] for each in conversation.history(last=2)] == ["user", "user"]


# Each repair


def call(id: str, name: str = "search", **fields: Any) -> ToolCall:
    return ToolCall(id=id, name=name, **{"arguments": {}} | fields)


def asks(*calls: ToolCall) -> Message:
    return Message.assistant(tool_calls=list(calls))


def repaired(*log: Message, format: Any = "openai") -> window.Prompt:
    prompt = window.prompt(numbered(list(log)), format)
    assert faults(prompt, format) == []
    return prompt


def kinds(prompt: window.Prompt) -> list[tuple[int, str]]:
    return [(repair.seq, repair.kind) for repair in prompt.repairs]


def contents(prompt: window.Prompt) -> list[Any]:
    return [each["content"] for each in prompt]


HI: Final = Message.user("hi")


def test_undamaged_log_is_not_repaired() -> None:
    log = [Message.system("be kind"), HI, asks(call("a"), call("b")), Message.tool("1", tool_call_id="a")]
    log += [Message.tool("2", tool_call_id="b"), Message.assistant("done"), HI]
    assert repaired(*log) == window.as_prompt(log)
    for format in FORMATS:
        assert repaired(*log, format=format).repairs == []


def test_result_without_a_call_is_left_out() -> None:
    prompt = repaired(HI, Message.tool("?", tool_call_id="zz"), Message.user("go"))
    assert contents(prompt) == ["hi", "go"]
    assert kinds(prompt) == [(2, "result without a call")]


def test_first_result_of_a_call_wins() -> None:
    results = [Message.tool(text, tool_call_id="x") for text in ("first", "second")]
    prompt = repaired(HI, asks(call("x")), *results, Message.assistant("ok"), Message.tool("third", tool_call_id="x"))
    assert contents(prompt) == ["hi", None, "first", "ok"]
    assert [kind for _, kind in kinds(prompt)] == ["second result", "result without a call"]


def test_call_without_a_result_gets_one_that_is_an_error() -> None:
    assert kinds(repaired(HI, asks(call("x")))) == [(2, "unfinished call")]
    (block,) = repaired(HI, asks(call("x")), format="anthropic")[-1]["content"]
    assert block["is_error"] is True
    (part,) = repaired(HI, asks(call("x")), format="gemini")[-1]["parts"]
    assert list(part["function_response"]["response"]) == ["error"]


def test_late_result_directly_follows_its_call() -> None:
    prompt = repaired(HI, asks(call("x")), Message.user("!ls"), Message.tool("late", tool_call_id="x"))
    assert contents(prompt) == ["hi", None, "late", "!ls"]
    assert kinds(prompt) == [(4, "late result")]


@pytest.mark.parametrize("empty", [None, "", " \n", [], [{"type": "text", "text": " "}]])
def test_empty_messages_are_left_out_unless_they_have_calls(empty: Any) -> None:
    blank = [Message.assistant(empty), Message.user(empty), Message.system(empty)]
    for format in FORMATS:
        prompt = repaired(HI, *blank, Message.user("go"), format=format)
        assert prompt == repaired(HI, Message.user("go"), format=format)
        assert kinds(prompt) == [(seq, "empty message") for seq in (2, 3, 4)]
        with_call = repaired(HI, Message.assistant(empty, tool_calls=[call("x")]), Message.tool(empty), format=format)
        assert "search" in json.dumps(with_call)
        assert "[]" not in json.dumps(with_call[:-1])


def test_user_message_with_only_an_attachment_is_kept() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K"}}
    assert contents(repaired(Message.user([{"type": "text", "text": "x"}, image]))) == [
        [{"type": "text", "text": "x"}, image]
    ]
    for format in FORMATS:
        assert "iVBORw0K" in json.dumps(repaired(Message.user([image]), format=format))


def test_prompt_of_empty_messages_has_a_note_and_that_of_an_empty_log_is_empty() -> None:
    for format in FORMATS:
        assert len(repaired(Message.user(""), format=format)) == 1
        assert kinds(repaired(Message.user(""), format=format))[-1] == (1, "first message")
        assert repaired(format=format) == []


@pytest.mark.parametrize(
    ("format", "accepted", "refused"),
    [
        ("openai", "view:66", "x" * 41),
        ("openai-responses", "x" * 64, "x" * 65),
        ("anthropic", "x" * 64, "view:66"),
    ],
)
def test_id_that_a_provider_refuses_is_replaced_in_call_and_result(format: Any, accepted: str, refused: str) -> None:
    log = [HI, asks(call(accepted)), Message.tool("1", tool_call_id=accepted)]
    log += [asks(call(refused)), Message.tool("2", tool_call_id=refused)]
    prompt = repaired(*log, format=format)
    text = json.dumps(prompt)
    assert text.count(f'"{accepted}"') == text.count('"call_4_0"') == 2
    assert refused not in text
    assert kinds(prompt) == [(4, "id")]


def test_repeated_and_empty_ids_become_unique() -> None:
    turn = [asks(call("call_0"), call("")), Message.tool("1", tool_call_id="call_0"), Message.tool("2")]
    prompt = repaired(HI, *turn, *turn, asks(call("call_5_0")))
    ids = [each["id"] for message in prompt for each in message.get("tool_calls", ())]
    assert ids == ["call_0", "call_2_1", "call_5_0", "call_5_1", "call_8_0"]
    assert contents(prompt)[2:4] == contents(prompt)[5:7] == ["1", "2"]


def test_names_of_tools_and_participants_become_valid() -> None:
    log = [Message.user("hi", name="Ann Lee"), asks(call("x", "get weather")), Message.tool("1", name="get weather")]
    prompt = repaired(*log)
    assert prompt[0]["name"] == "Ann_Lee"
    assert kinds(prompt) == [(1, "name"), (2, "name")]
    assert prompt[1]["tool_calls"][0]["function"]["name"] == prompt[2]["name"] == "get_weather"
    gemini = repaired(HI, asks(call("x", "")), Message.tool("1"), format="gemini")
    assert gemini[1]["parts"][0]["function_call"]["name"] == gemini[2]["parts"][0]["function_response"]["name"]


@pytest.mark.parametrize(
    ("stored", "sent"),
    [("", {}), (None, {}), ("{broken", {"arguments": "{broken"}), ([1], {"arguments": [1]}), ('{"a": 1}', {"a": 1})],
)
def test_arguments_that_are_not_an_object_become_one(stored: Any, sent: dict[str, Any]) -> None:
    prompt = repaired(HI, asks(call("x", arguments=stored)), Message.tool("1", tool_call_id="x"))
    assert json.loads(prompt[1]["tool_calls"][0]["function"]["arguments"]) == sent
    anthropic = repaired(HI, asks(call("x", arguments=stored)), Message.tool("1", tool_call_id="x"), format="anthropic")
    assert anthropic[1]["content"][0]["input"] == sent


def test_calls_of_a_user_message_are_left_out() -> None:
    prompt = repaired(Message(role="user", content="hi", tool_calls=[call("x")]))
    assert prompt == [{"role": "user", "content": "hi"}]
    assert kinds(prompt) == [(1, "calls of another role")]


def test_prompt_that_starts_with_the_assistant_has_a_user_message_first_if_the_provider_asks_for_it() -> None:
    greeting = [Message.system("be kind"), Message.assistant("Welcome!")]
    assert [each["role"] for each in repaired(*greeting)] == ["system", "assistant"]
    for format in ("anthropic", "gemini"):
        prompt = repaired(*greeting, format=format)
        assert prompt[0]["role"] == "user"
        assert prompt.system == "be kind"


def test_white_space_at_the_end_of_an_answer_is_removed_for_anthropic() -> None:
    assert repaired(HI, Message.assistant("done \n"), format="anthropic")[1]["content"] == "done"
    assert repaired(HI, Message.assistant("done \n"))[-1]["content"] == "done \n"


def test_instructions_after_the_start_are_marked_text_of_a_user() -> None:
    log = (HI, Message.system("be brief"))
    text = "<system>\nbe brief\n</system>"
    assert repaired(*log, format="anthropic")[-1] == {"role": "user", "content": text}
    assert repaired(*log, format="gemini")[-1] == {"role": "user", "parts": [{"text": text}]}


def test_signed_thinking_is_sent_only_to_its_provider() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    unsigned = {"type": "thinking", "thinking": "hm"}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": []}
    content = [thinking, unsigned, reasoning, {"type": "text", "text": "done"}]
    log = [HI, Message.assistant(content, tool_calls=[call("x", extra={"thought_signature": "Z2Vt"})])]
    blocks = repaired(*log, format="anthropic")[1]["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    items = repaired(*log, format="openai-responses")
    assert [item.get("type", "message") for item in items[1:4]] == ["reasoning", "message", "function_call"]
    assert repaired(*log)[1]["content"] == [{"type": "text", "text": "done"}]
    parts = repaired(*log, format="gemini")[1]["parts"]
    assert parts == [{"text": "done"}, {"function_call": {"name": "search", "args": {}}, "thought_signature": "Z2Vt"}]


def test_calls_and_results_in_content_blocks_are_found() -> None:
    asked = [
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"q": 1}},
    ]
    given = [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "found", "is_error": True}]
    log = [HI, Message.assistant(asked), Message.user(given)]
    assert repaired(*log, format="anthropic")[1:] == [
        {"role": "assistant", "content": asked},
        {"role": "user", "content": given},
    ]
    prompt = repaired(*log)
    assert [each["role"] for each in prompt] == ["user", "assistant", "tool"]
    assert prompt[1]["tool_calls"][0]["id"] == prompt[2]["tool_call_id"] == "toolu_1"


def test_call_that_is_in_the_content_and_in_tool_calls_is_sent_once() -> None:
    use = {"type": "tool_use", "id": "toolu_1", "name": "search", "input": {}}
    prompt = repaired(HI, Message.assistant([use], tool_calls=[call("toolu_1")]), format="anthropic")
    assert prompt[1]["content"] == [use]


def test_all_results_of_a_message_are_one_message_for_anthropic_and_gemini() -> None:
    log = [HI, asks(call("a"), call("b")), Message.tool("1", tool_call_id="a"), Message.tool("2", tool_call_id="b")]
    assert [len(each["content"]) for each in repaired(*log, format="anthropic")][1:] == [2, 2]
    assert [len(each["parts"]) for each in repaired(*log, format="gemini")] == [1, 2, 2]


def test_thinking_is_not_the_last_block_of_an_answer() -> None:
    thinking = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    text = {"type": "text", "text": "done"}
    assert repaired(HI, Message.assistant([text, thinking]), format="anthropic")[1]["content"] == [text]


def test_interrupted_answer_is_followed_by_a_user_message() -> None:
    half = Message.assistant("half", extra={"interrupted": True})
    assert contents(repaired(HI, half)) == ["hi", "half", "(The answer was interrupted.)"]
    assert contents(repaired(HI, half, Message.user("go"))) == ["hi", "half", "go"]
    assert kinds(repaired(HI, half)) == [(2, "interrupted answer")]


def test_second_recorded_result_of_a_call_is_left_out() -> None:
    log = numbered([HI, asks(call("a")), Message.tool("first"), Message.tool("second")])
    assert contents(window.prompt(log, recorded={3: (2, 0), 4: (2, 0)})) == ["hi", None, "first"]


PNG: Final = "iVBORw0K"


@pytest.mark.parametrize(
    "image",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        {"inlineData": {"mimeType": "image/png", "data": PNG}},
    ],
)
def test_image_of_any_provider_is_sent_in_the_form_of_each_format(image: dict[str, Any]) -> None:
    def sent(format: str, field: str = "content") -> Any:
        return repaired(Message.user([image]), format=format)[0][field]

    assert sent("openai") == [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}]
    (responses,) = sent("openai-responses")
    assert (responses["type"], responses["image_url"]) == ("input_image", f"data:image/png;base64,{PNG}")
    source = {"type": "base64", "media_type": "image/png", "data": PNG}
    assert sent("anthropic") == [{"type": "image", "source": source}]
    assert sent("gemini", "parts") == [{"inline_data": {"mime_type": "image/png", "data": PNG}}]


def test_attachment_that_a_format_cannot_express_is_named() -> None:
    audio = {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}
    prompt = repaired(Message.user([audio]), format="anthropic")
    assert prompt[0]["content"] == [{"type": "text", "text": "[audio/wav attachment]"}]
    assert kinds(prompt) == [(1, "content")]


def test_text_document_is_text_and_a_file_that_only_one_provider_has_is_named() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "page 1"}
    document = {"type": "document", "source": source}
    image = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}
    assert repaired(Message.user([document, image]), format="anthropic")[0]["content"] == [document, image]
    assert repaired(Message.user([document, image]), format="gemini")[0]["parts"] == [
        {"text": "page 1"},
        {"text": "[image attachment]"},
    ]


def test_repeated_ids_need_no_repair_for_gemini_which_has_none() -> None:
    turn = [asks(call("call_0")), Message.tool("1", tool_call_id="call_0")]
    assert kinds(repaired(HI, *turn, *turn, format="gemini")) == []


def test_history_with_unanswered_keep_leaves_calls_open_and_removes_orphans(store: Store) -> None:
    log = [HI, Message.tool("?", tool_call_id="zz"), asks(call("x"))]
    prompt = store.open("k", messages=log).history(unanswered="keep")
    assert [each["role"] for each in prompt] == ["user", "assistant"]


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"format": "mistral"}, "format='mistral'"), ({"format": "gemini", "nested": False}, "nested=False")],
)
def test_history_refuses_an_unknown_format(store: Store, options: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        store.open().history(**options)


# Sessions from public reports of other programs, in which each later request was refused


def is_accepted_everywhere(*log: Message) -> bool:
    return all(faults(window.prompt(numbered(list(log)), format), format) == [] for format in FORMATS)


def test_message_stored_while_a_call_is_running_stands_after_its_result() -> None:
    """Reported for Crush: the output of a shell command was stored between a call and its result."""
    log = [HI, asks(call("a"), call("b")), Message.tool("1", tool_call_id="a"), Message.user("$ ls")]
    log.append(Message.tool("2", tool_call_id="b"))
    assert contents(repaired(*log)) == ["hi", None, "1", "2", "$ ls"]
    assert is_accepted_everywhere(*log)


def test_results_in_another_order_than_in_the_log_answer_the_calls_of_their_message() -> None:
    """Reported for Crush: the log has the order of events, with ids such as view:66 and bash:51."""
    log = [HI, asks(call("view:66")), asks(call("bash:51")), Message.tool("51", tool_call_id="bash:51")]
    log.append(Message.tool("66", tool_call_id="view:66"))
    assert contents(repaired(*log)) == ["hi", None, "66", None, "51"]
    assert is_accepted_everywhere(*log)


def test_result_whose_call_was_compacted_away_does_not_block_the_session(store: Store) -> None:
    """Reported for the Copilot CLI: a compaction in the background removed a call, but not its result."""
    conversation = store.open("k", messages=[HI, asks(call("toolu_1"))])
    conversation.compact(lambda _: [Message.user("summary")])
    conversation.append_messages([Message.tool("late", tool_call_id="toolu_1"), Message.user("go on")])
    for format in FORMATS:
        prompt = conversation.history(format=format)
        assert faults(prompt, format) == []
        assert "late" not in json.dumps(prompt)


def test_empty_answer_after_an_error_does_not_block_the_session() -> None:
    """Reported for Positron: an answer without text was stored after a request had failed."""
    log = [HI, Message.assistant(""), Message.user("again"), Message.assistant([{"type": "text", "text": ""}])]
    assert contents(repaired(*log, Message.user("hello?"))) == ["hi", "again", "hello?"]
    assert is_accepted_everywhere(*log)


def test_two_results_of_one_call_do_not_block_the_session() -> None:
    """Reported for ADK: a tool that needs an approval answered twice, first with its state and then with its result."""
    log = [HI, asks(call("a", "pay"), call("b", "mail")), Message.tool({"status": "pending"}, tool_call_id="a")]
    log += [Message.tool({"sent": 1}, tool_call_id="b"), Message.tool({"paid": 1}, tool_call_id="a")]
    (first, second) = repaired(*log, format="gemini")[2]["parts"]
    assert first["function_response"] == {"name": "pay", "response": {"status": "pending"}}
    assert second["function_response"] == {"name": "mail", "response": {"sent": 1}}
    assert is_accepted_everywhere(*log)


def test_calls_of_a_cancelled_request_do_not_block_the_session() -> None:
    """Reported for VS Code: a request was cancelled while tools were running, and the user wrote again."""
    log = [HI, asks(call("a"), call("b")), Message.tool("1", tool_call_id="b"), Message.user("stop")]
    unknown = "The tool did not finish: its result is unknown."
    assert contents(repaired(*log)) == ["hi", None, unknown, "1", "stop"]
    assert is_accepted_everywhere(*log)


def test_gemini_gets_as_many_responses_as_calls() -> None:
    """Reported for the Gemini CLI: "the number of function response parts is equal to the number of call parts"."""
    log = [HI, asks(call("a", "read"), call("b", "read"), call("c", "write")), Message.tool("2", tool_call_id="b")]
    parts = repaired(*log, Message.user("go on"), format="gemini")[2]["parts"]
    assert [part["function_response"]["name"] for part in parts] == ["read", "read", "write"]


def test_gemini_gets_calls_only_after_a_user_or_a_response() -> None:
    """Reported for the Gemini CLI: an answer, and then a call of the same model."""
    log = [HI, Message.assistant("I look."), asks(call("a", "read")), Message.tool("1", tool_call_id="a")]
    prompt = repaired(*log, format="gemini")
    assert [content["role"] for content in prompt] == ["user", "model", "user"]
    assert is_accepted_everywhere(*log)


@pytest.mark.parametrize(
    ("model", "provider", "is_added"),
    [
        ("anthropic/claude-opus-4.6", "openrouter", True),
        ("anthropic/claude-opus-4.5", "openrouter", False),
        ("mistral-large-latest", None, True),
        (None, "mistralai", True),
        ("gpt-6", None, False),
    ],
)
def test_model_in_the_format_of_openai_that_refuses_an_answer_at_the_end_gets_a_user_message(
    model: str | None, provider: str | None, is_added: bool
) -> None:
    prompt = window.prompt([Message.user("q"), Message.assistant("a")], model=model, provider=provider)
    assert [each["role"] for each in prompt] == ["user", "assistant", *["user"] * is_added]
    assert [repair.kind for repair in prompt.repairs] == ["last answer"] * is_added


def test_mistral_gets_ids_of_nine_characters_and_an_answer_after_each_result() -> None:
    asked = [Message.assistant(tool_calls=[ToolCall(id=id, name="f", arguments={})]) for id in ("c1", "", "abcDEF123")]
    log = numbered([Message.user("q"), *asked, Message.tool("r", tool_call_id="c1"), Message.user("and now?")])
    prompt = window.prompt(log, provider="mistral")
    assert faults(prompt, "openai") == []
    assert [call["id"] for each in prompt for call in each.get("tool_calls", ())] == [
        *("000000200", "000000300", "abcDEF123"),
    ]
    assert [each["role"] for each in prompt][-3:] == ["tool", "assistant", "user"]
    assert [each["role"] for each in window.prompt(log)][-2:] == ["tool", "user"]


def test_thought_signature_is_sent_to_gemini_in_the_format_of_openai_and_to_no_other() -> None:
    signed = {"thought_signature": "c2ln"}
    kinds = {"native": signed, "compatible": {"extra_content": {"google": signed}}, "none": {}}
    for kind, extra in kinds.items():
        calls = [ToolCall(id=f"c{number}", name="f", arguments={}, extra=extra) for number in range(2)]
        log = [Message.user("q"), Message.assistant(tool_calls=calls)]
        sent = {
            provider: [call.keys() - {"id", "type", "function"} for call in prompt[1]["tool_calls"]]
            for provider in ("google", "openai", None)
            for prompt in [window.prompt(log, provider=provider)]
        }
        is_signed = kind != "none"
        assert sent["google"] == [{"extra_content"}, {"extra_content"} if is_signed else set()]
        assert sent["openai"] == [set(), set()]
        assert sent[None] == [{"extra_content"} if kind == "compatible" else set()] * 2
        (first, _) = window.prompt(log, provider="google")[1]["tool_calls"]
        assert (first["extra_content"]["google"] == signed) is is_signed
