"""Requests that no provider refuses: models and providers of answers, prefixes, instructions and tools."""

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.databases import not_on_a_cluster
from support.provider_talks import played
from support.statements import Counts, counted
from support.strict_rules import Request, judge, rule_of

from lango_store import InstructionsChanged, Message, Store, ToolCall, window
from lango_store.interchange import export, import_path

TALKS: Final = int(os.environ.get("LANGO_STORE_DAMAGED_LOGS", "300"))
CLAUDE: Final = "claude-opus-5-5"
HI: Final = Message.user("hi")


def thinking(text: str = "hm", **fields: Any) -> Message:
    """Return an answer of Claude with signed thinking."""
    blocks = [{"type": "thinking", "thinking": text, "signature": text}, {"type": "text", "text": f"answer {text}"}]
    return Message.assistant(blocks, **fields)


def thoughts(prompt: window.Prompt) -> list[str]:
    content = [message["content"] for message in prompt if message["role"] == "assistant"]
    found = [block for blocks in content if isinstance(blocks, list) for block in blocks]
    return [block["thinking"] for block in found if block["type"] == "thinking"]


def kinds(prompt: window.Prompt) -> list[tuple[int, str]]:
    return [(repair.seq, repair.kind) for repair in prompt.repairs]


def begins_with(request: Request, before: Request) -> bool:
    """Return True if a provider's cache recognizes the request before this one, byte for byte."""
    texts = [json.dumps([each.system, each.tools, each.messages]) for each in (before, request)]
    return texts[1].startswith(texts[0][:-2])


@pytest.mark.slow
@pytest.mark.parametrize("system_changes", ["replace", "append"])
def test_no_provider_refuses_a_request_and_thinking_that_can_be_kept_is_kept(store: Store, system_changes: str) -> None:
    faults: Counter[str] = Counter()
    share: Counter[str] = Counter()
    for number in range(TALKS // 4):
        requests = played(Random(f"{system_changes} {number}"), store, number, system_changes)
        for account in ("new", "old"):
            found, counted = judge(requests, account)
            faults.update({f"{rule_of(fault)} in talk {number}" for fault in found})
            share += counted
        for request in requests:
            if request.follows is not None:
                share["followed"] += 1
                share["begun"] += begins_with(request, request.follows)
    assert faults == {}
    assert share["could"] > 10 * TALKS
    assert share["kept"] >= 0.98 * share["could"]
    assert share["followed"] > TALKS
    assert share["begun"] >= 0.99 * share["followed"]


# Thinking that is bound to its prefix


def talk(store: Store, count: int = 3, **request: Any) -> Any:
    """Return a session with questions and answers with thinking, each an answer to a request."""
    conversation = store.open()
    for number in range(count):
        conversation.append_message(Message.user(f"question {number}", sent=f"[12:00] question {number}"))
        prompt = conversation.history(model=CLAUDE, **request)
        conversation.append_message(thinking(str(number)), request=prompt)
    conversation.append_message(HI)
    return conversation


def test_thinking_of_earlier_requests_is_kept(store: Store) -> None:
    conversation = talk(store, system="Be kind.", tools=[{"name": "search"}])
    prompt = conversation.history(model=CLAUDE)
    assert thoughts(prompt) == ["0", "1", "2"]
    assert (prompt.system, prompt.tools, prompt.repairs) == ("Be kind.", [{"name": "search"}], [])


CHANGES: Final[dict[str, tuple[Any, dict[str, Any], list[str]]]] = {
    "a limit": (lambda c: None, {"last": 5}, []),
    "an edited question": (lambda c: c.edits.update(seqs(c)[2], HI), {}, ["0"]),
    "a redacted question": (lambda c: c.edits.redact(seqs(c)[2]), {}, ["0"]),
    "a deleted question": (lambda c: c.edits.delete(seqs(c)[2]), {}, ["0"]),
    "a dropped context": (lambda c: c.edits.drop_sent(before=seqs(c)[1]), {}, []),
    "a summary": (lambda c: compact_during_an_answer(c), {}, []),
    "other instructions": (lambda c: None, {"system": "Be brief."}, []),
    "other tools": (lambda c: None, {"tools": [{"name": "pay"}]}, []),
    "a fork": (lambda c: c.append_message(HI), {}, ["0", "1", "2"]),
    "a tool that is loaded later": (lambda c: None, {"tools": [{"name": "a", "defer_loading": True}]}, ["0", "1", "2"]),
}


def compact_during_an_answer(conversation: Any) -> None:
    prompt = conversation.history(model=CLAUDE)
    has_fingerprints = conversation.messages()[1].request is not None

    def summary(_: Any) -> Message:
        conversation.append_message(thinking("late"), request=prompt if has_fingerprints else None)
        return Message.user("They talked.")

    conversation.compact(summary)
    conversation.append_message(HI)


def seqs(conversation: Any) -> list[int]:
    return [each.seq for each in conversation.messages()]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("has_fingerprints", [True, False])
def test_thinking_after_a_changed_prefix_is_left_out(store: Store, name: str, has_fingerprints: bool) -> None:
    change, options, kept = CHANGES[name]
    conversation = talk(store)
    if not has_fingerprints:
        conversation = store.open(
            messages=[each.model_copy(update={"request": None}) for each in conversation.messages()]
        )
        if name in ("other instructions", "other tools"):  # nothing shows that these are others
            return
    change(conversation)
    if name == "a fork":
        conversation = conversation.fork()
    prompt = conversation.history(model=CLAUDE, **options)
    assert thoughts(prompt) == kept
    left_out = [repair for repair in prompt.repairs if repair.kind == "thinking"]
    assert len(left_out) == len([each for each in prompt if each["role"] == "assistant"]) - len(kept)
    older = conversation.history(model="claude-opus-4-5", **options)
    assert len(thoughts(older)) == len(kept) + len(left_out)  # which does not bind thinking


@pytest.mark.parametrize(("made_by", "kept"), [("claude-opus-5", ["hm"]), ("claude-opus-5-5", []), (None, [])])
def test_only_thinking_of_models_that_bind_it_is_bound(made_by: str | None, kept: list[str]) -> None:
    log = [HI, thinking(model=made_by, request="of.another.prefix"), HI]
    assert thoughts(window.prompt(log, "anthropic", model=CLAUDE)) == kept


def test_thinking_is_valid_again_after_an_undo(store: Store) -> None:
    keeping = Store(store.engine, keep_removed=timedelta(days=1))
    conversation = talk(keeping)
    conversation.edits.delete(seqs(conversation)[0])
    assert thoughts(conversation.history(model=CLAUDE)) == []
    conversation.versions.undo()
    assert thoughts(conversation.history(model=CLAUDE)) == ["0", "1", "2"]


def test_thinking_after_missing_thinking_is_left_out(store: Store) -> None:
    conversation = talk(store)
    second = conversation.messages()[3]
    stripped = second.model_copy(update={"content": second.content[1:]})
    conversation.edits.update(second.seq, stripped)
    prompt = conversation.history(model=CLAUDE)
    assert thoughts(prompt) == ["0"]
    assert "the thinking before it is missing" in prompt.repairs[0].text
    first = conversation.messages()[1]
    conversation.edits.update(first.seq, first.model_copy(update={"content": first.content[1:]}))
    assert thoughts(conversation.history(model=CLAUDE)) == ["2"]  # thinking at the beginning may be left out


def test_thinking_after_a_call_whose_id_is_repaired_is_left_out(store: Store) -> None:
    use = {"type": "tool_use", "id": "a", "name": "search", "input": {}}
    signed = [{"type": "thinking", "thinking": text, "signature": text} for text in ("one", "two")]
    for id, kept in (("a", ["one", "two"]), ("a:b", [])):
        conversation = store.open(messages=[HI])
        answer = Message.assistant([signed[0], use | {"id": id}, signed[1], use | {"id": "c"}])
        conversation.append_message(answer, request=conversation.history(model=CLAUDE))
        assert thoughts(conversation.history(model=CLAUDE)) == kept


def test_cache_marks_and_messages_that_a_program_adds_to_a_prompt_count_as_sent(store: Store) -> None:
    conversation = store.open(messages=[HI])
    mark = {"cache_control": {"type": "ephemeral"}}
    prompt = conversation.history(model=CLAUDE)
    prompt[0]["content"] = [{"type": "text", "text": "hi"} | mark]
    marked = prompt.fingerprint
    prompt[0]["content"] = [{"type": "text", "text": "hi"}]
    assert prompt.fingerprint == marked
    prompt.append({"role": "user", "content": "It is Monday."})
    conversation.append_message(thinking(), request=prompt)
    conversation.append_message(HI)
    assert thoughts(conversation.history(model=CLAUDE)) == []


def test_fingerprint_is_equal_in_another_process_and_has_at_most_100_bytes(store: Store) -> None:
    conversation = talk(store, system="Be kind.", tools=[{"name": "search"}])
    prompts = [
        conversation.history(model=CLAUDE),
        Store(store.engine).conversation(conversation.key).history(model=CLAUDE),
    ]
    assert json.dumps(prompts[0]) == json.dumps(prompts[1])
    assert prompts[0].fingerprint == prompts[1].fingerprint
    assert len(prompts[0].fingerprint.encode()) <= 100
    code = "from lango_store import Message, window; print(window.prompt([Message.user('é')], system='x').fingerprint)"
    command = [sys.executable, "-c", code]
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        run = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
        assert run.stdout.strip() == window.prompt([Message.user("é")], system="x").fingerprint


# Models and providers of messages


def test_answer_to_a_request_has_its_model_and_provider(store: Store) -> None:
    conversation = store.open(messages=[HI])
    prompt = conversation.history(model=CLAUDE, provider="bedrock")
    with conversation.turn() as turn:
        answer = turn.append(Message.assistant("hello"), request=prompt)
        turn.metadata = {"steps": 1}
    assert (answer.model, answer.provider, answer.request) == (CLAUDE, "bedrock", prompt.fingerprint)
    assert [each.metadata for each in conversation.turns.list()] == [{"model": CLAUDE, "steps": 1}]
    assert [row.model for row in store.usage(["model"])] == [CLAUDE]
    dated = Message.assistant("hello", model=f"{CLAUDE}-20260901")
    assert conversation.append_message(dated, request=prompt).model == f"{CLAUDE}-20260901"


REASONING: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln"}
COMPACTION: Final = {"type": "compaction", "id": "cmp_1", "encrypted_content": "c2ln"}
SEARCH: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Final = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
CALL: Final = {"function_call": {"name": "search", "args": {}}, "thought_signature": "c2ln"}
SEALED: Final[list[tuple[window.Format, str, list[Any]]]] = [
    ("anthropic", "anthropic", [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}]),
    ("anthropic", "anthropic", [{"type": "redacted_thinking", "data": "c2ln"}]),
    ("anthropic", "anthropic", [SEARCH, FOUND]),
    ("openai-responses", "openai", [REASONING]),
    ("openai-responses", "openai", [COMPACTION]),
    ("gemini", "google", [CALL]),
    ("gemini", "google", [{"text": "hm", "thought": True, "thought_signature": "c2ln"}]),
    ("gemini", "google", [{"text": "a map", "thought_signature": "c2ln"}]),
]


@pytest.mark.parametrize(("format", "vendor", "blocks"), SEALED)
def test_sealed_blocks_are_sent_only_to_the_provider_that_made_them(
    format: window.Format, vendor: str, blocks: list[Any]
) -> None:
    text = {"text": "found"} if format == "gemini" else {"type": "output_text", "text": "found"}

    def has_blocks(made_by: str | None, sent_to: str | None) -> bool:
        log = [HI, Message.assistant([*blocks, text], provider=made_by, model="claude-opus-4-5"), HI]
        prompt = window.prompt(log, format, provider=sent_to, model="claude-opus-4-5")
        assert "found" in json.dumps(prompt)
        has = "c2ln" in json.dumps(prompt) or "srvtoolu" in json.dumps(prompt)
        assert has == ("thinking" not in [repair.kind for repair in prompt.repairs])
        return has

    assert has_blocks(None, None)
    assert has_blocks(None, vendor)
    assert has_blocks(vendor, None)
    assert has_blocks("minimax", "minimax")
    assert has_blocks("google-vertex", "vertex")
    assert not has_blocks("minimax", None)
    assert not has_blocks("minimax", vendor)
    assert not has_blocks(vendor, "minimax")
    assert not has_blocks(None, "minimax")


def test_summary_of_a_vendor_is_its_text_for_others() -> None:
    log = [HI, Message.assistant([{"type": "compaction", "content": "They talked."}], provider="anthropic"), HI]
    assert window.prompt(log, "anthropic")[1]["content"] == [{"type": "compaction", "content": "They talked."}]
    assert window.prompt(log, "anthropic", provider="minimax")[1]["content"] == "They talked."


def test_calls_of_others_have_the_placeholder_for_gemini_and_reasoning_for_servers_that_need_it() -> None:
    call = ToolCall(id="a", name="search", arguments={})
    log = [HI, Message.assistant(None, tool_calls=[call]), Message.tool("1", tool_call_id="a")]
    (part,) = window.prompt(log, "gemini", model="gemini-3-pro")[1]["parts"]
    assert b64decode(part["thought_signature"]) == b"skip_thought_signature_validator"
    for provider in ("deepseek", "moonshot", "kimi"):
        assert window.prompt(log, provider=provider)[1]["reasoning_content"].isspace()
    assert "reasoning_content" not in window.prompt(log, provider="openai")[1]
    log[1] = Message.assistant(None, tool_calls=[call], extra={"reasoning_content": "hm"}, provider="deepseek")
    assert window.prompt(log, provider="deepseek")[1]["reasoning_content"] == "hm"
    assert window.prompt(log)[1]["reasoning_content"] == "hm"
    assert window.prompt(log, provider="moonshot")[1]["reasoning_content"].isspace()


# An answer at the end, and marks for the cache


@pytest.mark.parametrize(
    ("model", "provider", "continues"),
    [
        (None, None, False),
        ("claude-opus-4-6", None, False),
        ("anthropic/claude-sonnet-4.6", "openrouter", False),
        ("us.anthropic.claude-opus-5-5-v1:0", "bedrock", False),
        ("claude-opus-4-5-20251101", None, True),
        ("claude-sonnet-4-20250514", None, True),
        ("claude-3-5-sonnet-20241022", None, True),
        ("minimax-m3", "minimax", True),
    ],
)
def test_answer_at_the_end_is_followed_by_a_user_message_for_models_that_refuse_it(
    model: str | None, provider: str | None, continues: bool
) -> None:
    prompt = window.prompt([HI, Message.assistant("hello")], "anthropic", model=model, provider=provider)
    assert (prompt[-1]["role"] == "assistant") is continues
    assert kinds(prompt) == [] if continues else [(0, "last answer")]


def test_user_message_that_was_added_at_the_end_stays_before_the_answer(store: Store) -> None:
    conversation = store.open(messages=[HI, Message.assistant("hello")])
    before = conversation.history(model=CLAUDE)
    conversation.append_message(thinking(), request=before)
    conversation.append_message(HI)
    after = conversation.history(model=CLAUDE)
    assert after[: len(before)] == before
    assert thoughts(after) == ["hm"]


def test_no_user_message_follows_a_tool_of_the_provider_that_is_running() -> None:
    prompt = window.prompt([HI, Message.assistant([SEARCH])], "anthropic")
    assert (prompt[-1]["role"], prompt.repairs) == ("assistant", [])


def test_marks_of_instructions_and_tools_count_towards_the_four_of_a_request() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    log = [Message.user([{"type": "text", "text": f"text {number}"} | mark]) for number in range(4)]
    system, tools = [{"type": "text", "text": "Be kind."} | mark], [{"name": "search"} | mark]
    prompt = window.prompt(log, "anthropic", system=system, tools=tools)
    assert prompt.system == system
    assert ["cache_control" in each["content"][0] for each in prompt] == [False, False, True, True]


# Instructions and tools of a session


def test_instructions_and_tools_are_those_of_the_last_request_and_are_stored_once(store: Store) -> None:
    conversation = talk(store, system="Be kind.", tools=[{"name": "search"}])
    records = [each for each in conversation.all_messages() if each.role == "record"]
    assert [each.content for each in records] == [{"system": "Be kind.", "tools": [{"name": "search"}]}]
    for format in ("openai", "openai-responses", "anthropic", "gemini"):
        prompt = conversation.history(format=format, model="any")
        assert prompt.tools == [{"name": "search"}]
        assert prompt.system == "Be kind." if format in ("anthropic", "gemini") else prompt[0]["content"] == "Be kind."
    assert conversation.history(model=CLAUDE).notes == []
    assert conversation.history()[0]["content"] == "Be kind."
    assert conversation.history(model="gpt-6", system="Be brief.")[0]["content"] == "Be brief."
    prompt = conversation.history(model=CLAUDE, tools=[{"name": "pay"}])
    assert (prompt.system, prompt.tools) == ("Be kind.", [{"name": "pay"}])


def test_long_instructions_are_payloads_and_belong_to_forks_and_backups(store: Store, tmp_path: Path) -> None:
    tools = [{"name": "search", "description": "y" * 5_000}]
    conversation = talk(store, 1, system="x" * 5_000, tools=tools)
    export(store, tmp_path / "backup.jsonl", "backup", everything=True)
    with Store("sqlite://", migrate=True) as other:
        import_path(other, tmp_path / "backup.jsonl")
        for each in (conversation, conversation.fork(), other.conversation(conversation.key)):
            prompt = each.history(model=CLAUDE)
            assert (prompt.system, prompt.tools, thoughts(prompt)) == ("x" * 5_000, tools, ["0"])


def test_redacted_instructions_are_not_used(store: Store) -> None:
    conversation = talk(store, 1, system="Be kind.")
    (record,) = (each for each in conversation.all_messages() if each.role == "record")
    conversation.edits.redact(record.seq)
    assert conversation.history(model=CLAUDE).system is None
    prompt = conversation.history(model=CLAUDE, system="Be kind.")
    assert (prompt.system, thoughts(prompt)) == ("Be kind.", ["0"])


def test_equal_tools_are_sent_byte_for_byte_as_before(store: Store) -> None:
    conversation = talk(store, tools=[{"name": "search", "description": "Find."}])
    prompt = conversation.history(model=CLAUDE, tools=({"description": "Find.", "name": "search"},))
    assert json.dumps(prompt.tools) == '[{"name": "search", "description": "Find."}]'


def test_thinking_without_a_fingerprint_is_left_out_if_the_instructions_change(store: Store) -> None:
    conversation = talk(store, 1, system="Be kind.")
    conversation.append_messages([thinking("late"), HI])
    assert thoughts(conversation.history(model=CLAUDE)) == ["0", "late"]
    prompt = conversation.history(model=CLAUDE, system="Be brief.")
    assert (thoughts(prompt), [kind for _, kind in kinds(prompt)]) == ([], ["thinking", "thinking"])


@pytest.mark.parametrize("has_fingerprint", [True, False])
def test_thinking_is_left_out_if_its_request_may_have_had_another_message_before_it(
    store: Store, has_fingerprint: bool
) -> None:
    call = ToolCall(id="a", name="search", arguments={})
    asking = [HI, Message.assistant(None, tool_calls=[call])]
    for log, late, kept in (
        (asking, [Message.tool("late", tool_call_id="a")], []),
        ([HI, Message.assistant("hello"), Message.user(" ")], [], ["hm"] if has_fingerprint else []),
        ([Message.user(" ")], [], []),
        (asking, [], ["hm"]),
    ):
        conversation = store.open(messages=log)
        request = conversation.history(model=CLAUDE)
        conversation.append_message(thinking(), request=request if has_fingerprint else None)
        conversation.append_messages([*late, HI])
        assert thoughts(conversation.history(model=CLAUDE)) == kept


def test_instructions_that_are_used_again_are_not_stored_again(store: Store) -> None:
    conversation = store.open()
    for system in ("a", "b", "a", "b"):
        conversation.append_message(HI)
        conversation.append_message(thinking(system), request=conversation.history(model=CLAUDE, system=system))
    assert conversation.info().record_count == 2
    conversation.append_message(HI)
    assert thoughts(conversation.history(model=CLAUDE)) == ["b", "b"]


def test_changed_instructions_raise_an_error_if_the_caller_wants_it(store: Store) -> None:
    conversation = talk(store, system="Be kind.")
    same = conversation.history(model=CLAUDE, system="Be kind.", system_changes="error")
    assert thoughts(same) == ["0", "1", "2"]
    for changed in ({"system": "Be brief."}, {"tools": [{"name": "pay"}]}):
        with pytest.raises(InstructionsChanged, match="changed since the last request"):
            conversation.history(model=CLAUDE, system_changes="error", **changed)
    with pytest.raises(ValueError, match="system_changes"):
        conversation.history(system_changes="ignore")


@pytest.mark.parametrize("format", ["openai", "openai-responses", "anthropic", "gemini"])
def test_changed_instructions_are_appended_once(store: Store, format: window.Format) -> None:
    conversation = talk(store, system="Be kind.")
    asked: dict[str, Any] = {"format": format, "model": CLAUDE, "system": "Be brief.", "system_changes": "append"}
    before = conversation.history(**asked)
    assert "Be brief." in json.dumps(before[-1])
    conversation.append_message(thinking("3"), request=before)
    conversation.append_message(HI)
    after = conversation.history(**asked)
    assert json.dumps(after).startswith(json.dumps(before)[:-1])
    assert json.dumps(after).count("Be brief.") == 1
    if format == "anthropic":
        assert (after.system, thoughts(after)) == ("Be kind.", ["0", "1", "2", "3"])
    again = conversation.history(**asked | {"system": "Be kind."})
    assert "Be kind." in json.dumps(again[-1])


@not_on_a_cluster("takes several statements on a cluster")
def test_answer_with_its_request_is_one_statement(one_connection: sa.Engine, tmp_path: Path) -> None:
    with Store(one_connection) as store:
        conversation = store.open("k", messages=[HI])
        prompt = conversation.history(model=CLAUDE, system="Be kind.")
        with counted(one_connection, tmp_path) as counts:
            conversation.append_message(thinking(), request=prompt)
        assert counts == Counts(1, 1)
        with counted(one_connection, tmp_path) as counts:
            conversation.history(model=CLAUDE)
        assert counts.statements == 2 or counts == Counts(2, 2)
