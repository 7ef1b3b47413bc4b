"""Transcripts as sessions: entries, usage, titles, expiry, deletion, lists and summaries."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import claude_agent_sdk as sdk
import pytest
import sqlalchemy as sa
from frameworks.claude_agent_sdk.transcripts import KEY, written

from lango_store import InvalidMessage, LangoStoreError, Message, SessionNotFound, Store
from lango_store.integrations.claude_agent_sdk import LangoSessionStore
from lango_store.testing import Clock

pytestmark = pytest.mark.anyio
PROJECT = KEY["project_key"]
NAME = f"{PROJECT}:{KEY['session_id']}"
SUB: Any = {**KEY, "subpath": "subagents/agent-1"}


def entry(**fields: Any) -> Any:
    return {"type": "mode", **fields}


def block(uuid: str, response: str | None, output_tokens: int = 5, **fields: Any) -> Any:
    """One block of a model's response; each repeats the usage of the whole response."""
    usage = {"input_tokens": 10, "output_tokens": output_tokens, "cache": {"read": 1}, "speed": "standard"}
    message = {"id": response, "role": "assistant", "content": [{"type": "text", "text": uuid}], "usage": usage}
    return {"type": "assistant", "uuid": uuid, "message": message, **fields}


async def test_entry_with_a_uuid_is_stored_once_even_if_sent_again(sessions: LangoSessionStore) -> None:
    a, b, c, d = (entry(uuid=uuid) for uuid in "abcd")
    unnamed = entry(mode="normal")
    await sessions.append(KEY, [a, b, unnamed])
    await sessions.append(KEY, [a, b, unnamed])  # a retry: what has no uuid is always stored
    await sessions.append(KEY, [b, c])  # an overlap
    await sessions.append(KEY, [d, d])
    assert await sessions.load(KEY) == [a, b, unnamed, unnamed, c, d]


async def test_batch_with_value_that_is_not_json_is_not_stored(sessions: LangoSessionStore) -> None:
    for wrong in (float("nan"), {1: 2}, b"x", (1,)):
        with pytest.raises(InvalidMessage, match=r"content\.mode"):
            await sessions.append(KEY, [entry(uuid="a"), entry(mode=wrong)])
    with pytest.raises(InvalidMessage, match="entry"):
        await sessions.append(KEY, [entry(uuid="a"), [1]])  # type: ignore[list-item]
    assert await sessions.load(KEY) is None


async def test_usage_of_response_with_several_entries_is_counted_once(
    store: Store, sessions: LangoSessionStore
) -> None:
    await sessions.append(KEY, [entry(), block("a", "1"), block("b", "1"), block("c", "2", 7)])
    await sessions.append(KEY, [block("d", "2", 7), entry(uuid="e"), block("f", "3")])
    await sessions.append(KEY, [block("c", "2", 7), block("d", "2", 7), block("f", "3"), block("g", "4")])
    await sessions.append(KEY, [entry()])
    usage = {"input_tokens": 40, "output_tokens": 22, "cache": {"read": 4}, "speed": "standard"}
    assert store.conversation(NAME).total_usage() == usage
    assert store.conversation(NAME).info().turn_count == 4
    assert store.conversation(NAME).info().token_count == 22


async def test_response_in_several_batches_has_the_usage_of_its_last_entry(
    store: Store, sessions: LangoSessionStore
) -> None:
    await sessions.append(KEY, [block("a", "1", 1), block("b", "1", 2)])
    for _ in range(2):  # as if the answer had been lost
        await sessions.append(KEY, [block("c", "1", 7), block("d", "1", 9)])
    await sessions.append(KEY, [block("e", "1", 9), block("f", "2", 4)])
    assert store.conversation(NAME).total_usage() == {
        "input_tokens": 20,
        "output_tokens": 13,
        "cache": {"read": 2},
        "speed": "standard",
    }
    assert store.conversation(NAME).info().token_count == 13


def cost_state(start: int = 1, **output_tokens: int) -> Any:
    """The tokens that the CLI has counted, by model; each response has 10 input tokens and 5 output tokens."""
    usage = {
        model: {"inputTokens": 2 * count, "outputTokens": count, "cacheReadInputTokens": 0, "costUSD": 0.1}
        for model, count in output_tokens.items()
    }
    return {"type": "cost-state", "startTime": start, "totalCostUSD": 0.1, "modelUsage": usage}


def response(uuid: str, output_tokens: int, model: str = "opus", **fields: Any) -> Any:
    made = block(uuid, f"msg_{uuid}", output_tokens, **fields)
    made["message"]["model"] = model
    return made


def output_tokens(store: Store, *, children: bool = True) -> int:
    return store.conversation(NAME).total_usage(descendants=children).get("output_tokens", 0)


async def test_tokens_that_only_the_cli_has_counted_are_added(store: Store, sessions: LangoSessionStore) -> None:
    await sessions.append(KEY, [response("a", 1), response("b", 1), cost_state(opus=100)])
    assert output_tokens(store) == 100
    await sessions.append(KEY, [cost_state(opus=100)])  # a retry
    assert output_tokens(store) == 100
    await sessions.append(KEY, [response("c", 5)])
    await sessions.append(KEY, [cost_state(opus=105)])
    assert output_tokens(store) == 105
    await sessions.append(KEY, [response("d", 1, "haiku"), cost_state(opus=110, haiku=30)])
    assert {row.model: row.output_tokens for row in store.usage(["model"])} == {"opus": 110, "haiku": 30}
    assert store.usage()[0].input_tokens == 2 * 140
    assert store.usage()[0].cost_usd is None


async def test_totals_of_a_new_count_and_totals_below_the_stored_usage_are_accepted(
    store: Store, sessions: LangoSessionStore
) -> None:
    await sessions.append(KEY, [response("a", 50), cost_state(opus=20)])
    assert output_tokens(store) == 50
    await sessions.append(KEY, [response("b", 1), cost_state(2, opus=30)])
    assert output_tokens(store) == 80
    await sessions.append(KEY, [response("c", 1), {"type": "cost-state"}, cost_state(2, **{"opus[1m]": 30})])
    assert output_tokens(store) == 81 + 29


async def test_totals_include_subagents_whose_entries_arrive_before_or_after_them(
    store: Store, sessions: LangoSessionStore
) -> None:
    await sessions.append(SUB, [response("a", 10, "haiku")])
    await sessions.append(KEY, [response("a", 1), cost_state(opus=20, haiku=15)])
    assert (output_tokens(store), output_tokens(store, children=False)) == (35, 25)
    await sessions.append(KEY, [response("b", 1), cost_state(opus=40, haiku=45)])
    assert output_tokens(store) == 85
    for uuid, subpath in (("b", "agent-1"), ("a", "agent-2")):
        await sessions.append(SUB | {"subpath": f"subagents/{subpath}"}, [response(uuid, 10, "haiku")])
        assert output_tokens(store) == 85
    assert output_tokens(store, children=False) == 85 - 30
    await sessions.append(KEY, [cost_state(opus=40, haiku=45)])
    assert output_tokens(store) == 85


async def test_copied_responses_of_a_fork_have_no_usage(store: Store, sessions: LangoSessionStore) -> None:
    await sessions.append(KEY, [*written(), cost_state(**{"claude-sonnet-4-5": 100})])
    fork: Any = {**KEY, "session_id": "0a4f9c2e-6c9d-4f5b-9b61-0f3f5b6a7c11"}
    copies: Any = [each for each in await sessions.load(KEY) or [] if "uuid" in each]
    await sessions.append(fork, [entry(mode="normal")])
    await sessions.append(fork, [*copies, response("new", 5, "claude-sonnet-4-5", parentUuid=copies[-1]["uuid"])])
    await sessions.append(fork, [response("next", 5, "claude-sonnet-4-5", parentUuid="new")])
    assert store.usage()[0].output_tokens == 100 + 10
    await sessions.append(fork, [cost_state(**{"claude-sonnet-4-5": 100 + 30})])
    assert store.usage()[0].output_tokens == 100 + 30


async def test_fork_via_store_has_no_usage_of_copied_responses(
    store: Store, sessions: LangoSessionStore, tmp_path: Path
) -> None:
    key: Any = {**KEY, "project_key": sdk.project_key_for_directory(tmp_path)}
    await sessions.append(key, written())
    before = store.usage()[0].usage
    forked = await sdk.fork_session_via_store(sessions, KEY["session_id"], directory=str(tmp_path))
    fork: Any = {**key, "session_id": forked.session_id}
    assert len(store.conversation(f"{key['project_key']}:{forked.session_id}").messages()) == 5
    assert store.usage()[0].usage == before
    await sessions.append(fork, [response("new", 5), cost_state(opus=30)])
    assert store.usage()[0].output_tokens == before["output_tokens"] + 30


async def test_usage_grouped_by_model_uses_the_model_of_each_response(
    store: Store, sessions: LangoSessionStore
) -> None:
    entries = [block("a", "1"), block("b", "1"), block("c", "2"), block("d", "3"), block("e", "4")]
    for each, model in zip(entries, ("opus", "opus", "haiku", "opus", ["not a text"]), strict=True):
        each["message"]["model"] = model
    await sessions.append(KEY, entries)
    assert await sessions.load(KEY) == entries
    rows = store.usage(["model"])
    assert [(row.model, row.input_tokens) for row in rows] == [(None, 10), ("haiku", 10), ("opus", 20)]


async def test_usage_of_a_response_whose_blocks_arrive_in_two_batches_is_counted_once(store: Store) -> None:
    await LangoSessionStore(store).append(KEY, [block("a", "1", apiBlockIndex=0)])
    await LangoSessionStore(store).append(KEY, [block("b", "1", apiBlockIndex=1), block("c", "2", apiBlockIndex=0)])
    assert store.conversation(NAME).total_usage()["output_tokens"] == 10


async def test_usage_of_a_failed_batch_is_counted_when_the_batch_is_sent_again(
    store: Store, sessions: LangoSessionStore
) -> None:
    await sessions.append(KEY, [block("a", "1")])
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE lango_turn RENAME TO gone"))
    with pytest.raises(LangoStoreError):
        await sessions.append(KEY, [block("b", "1"), block("c", "2")])
    with store.engine.begin() as connection:
        connection.execute(sa.text("ALTER TABLE gone RENAME TO lango_turn"))
    await sessions.append(KEY, [block("b", "1"), block("c", "2")])
    assert store.conversation(NAME).total_usage()["output_tokens"] == 10


async def test_each_entry_without_response_id_is_counted_as_one_response(
    store: Store, sessions: LangoSessionStore
) -> None:
    await sessions.append(KEY, [block("a", None), block("b", None)])
    assert store.conversation(NAME).total_usage()["output_tokens"] == 10


async def test_title_comes_from_the_user_or_else_the_model_or_else_the_summary(
    store: Store, sessions: LangoSessionStore
) -> None:
    steps: list[tuple[dict[str, Any], str | None]] = [
        ({"mode": "normal"}, None),
        ({"summary": "sum"}, "sum"),
        ({"aiTitle": "ai"}, "ai"),
        ({"summary": "later"}, "ai"),
        ({"aiTitle": "ai 2"}, "ai 2"),
        ({"customTitle": "mine", "aiTitle": "not mine"}, "mine"),
        ({"aiTitle": "ai 3"}, "mine"),
        ({"customTitle": "mine 2"}, "mine 2"),
        ({"customTitle": "half \ud800"}, "mine 2"),  # cannot be stored as a title, but the entry is stored
        ({"customTitle": ""}, None),
    ]
    for fields, title in steps:
        await sessions.append(KEY, [entry(**fields)])
        assert store.conversation(NAME).info().title == title
    assert store.conversation(NAME).info().metadata == {}
    assert await sessions.load(KEY) == [entry(**fields) for fields, _ in steps]


async def test_title_is_set_by_the_first_entries_of_a_session(store: Store, sessions: LangoSessionStore) -> None:
    for field in ("customTitle", "aiTitle", "summary"):
        await sessions.append({"project_key": "p", "session_id": field}, [entry(uuid="a", **{field: "x"})])
        assert store.conversation(f"p:{field}").info().title == "x"


async def test_message_of_subagent_has_subagent_name_as_author(store: Store, sessions: LangoSessionStore) -> None:
    said = block("a", "1", isSidechain=True, agentId="a7f")
    await sessions.append(SUB, [said, block("b", "2", isSidechain=False, agentId="a7f")])
    first, second = store.conversation(f"{NAME}/subagents%2Fagent-1").messages()
    assert (first.author, second.author) == ("a7f", None)
    assert (await sessions.load(SUB) or [])[0] == said


async def test_sessions_get_configured_user_and_key_prefix(store: Store) -> None:
    sessions = LangoSessionStore(store, prefix="claude/", user_id="ann")
    await sessions.append(KEY, [entry()])
    await sessions.append(SUB, [entry()])
    assert {(info.key, info.user_id) for info in store.iter_sessions()} == {
        (f"claude/{NAME}", "ann"),
        (f"claude/{NAME}/subagents%2Fagent-1", "ann"),
    }
    assert [found["session_id"] for found in await sessions.list_sessions(PROJECT)] == [KEY["session_id"]]
    assert await sessions.list_subkeys(KEY) == [SUB["subpath"]]
    assert [found["session_id"] for found in await sessions.list_session_summaries(PROJECT)] == [KEY["session_id"]]
    assert await LangoSessionStore(store).load(KEY) is None
    store.delete_where(user_id="ann")
    assert await sessions.load(KEY) is await sessions.load(SUB) is None


async def test_different_ids_map_to_different_keys(sessions: LangoSessionStore) -> None:
    keys: list[Any] = [
        {"project_key": project, "session_id": session, **sub}
        for project in ("a", "a:b", "a%3Ab", "", "\0")
        for session in ("b", "b:c", "\ud800", "")
        for sub in ({}, {"subpath": "c"}, {"subpath": "c:d/e"})
    ]
    for number, key in enumerate(keys):
        await sessions.append(key, [entry(n=number)])
    assert [await sessions.load(key) for key in keys] == [[entry(n=number)] for number in range(len(keys))]
    for project in ("a", "a:b", "\0"):
        found = await sessions.list_sessions(project)
        assert sorted(each["session_id"] for each in found) == ["", "b", "b:c", "\ud800"]
    assert await sessions.list_subkeys({"project_key": "a:b", "session_id": "b:c"}) == ["c", "c:d/e"]


async def test_expired_transcript_is_not_listed_and_an_append_starts_a_new_one(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        sessions = LangoSessionStore(store)
        await sessions.append(KEY, [entry(uuid="a", customTitle="old")])
        await sessions.append(SUB, [entry(uuid="a")])
        await sessions.list_session_summaries(PROJECT)
        clock.move(hours=1)
        assert await sessions.list_sessions(PROJECT) == await sessions.list_session_summaries(PROJECT) == []
        assert await sessions.list_subkeys(KEY) == []
        await sessions.append(KEY, [entry(uuid="a", aiTitle="new")])
        assert await sessions.load(KEY) == [entry(uuid="a", aiTitle="new")]
        assert store.conversation(NAME).info().title == "new"
        assert [found["data"]["ai_title"] for found in await sessions.list_session_summaries(PROJECT)] == ["new"]


def test_adapter_works_in_trio_and_asyncio_and_refuses_calls_after_close(loop: Callable[..., Any], url: str) -> None:
    async def main() -> None:
        async with LangoSessionStore(url) as sessions:
            await sessions.append(KEY, written())
            assert await sessions.load(KEY) == written()
        with pytest.raises(LangoStoreError, match="closed"):
            await sessions.load(KEY)

    loop(main)


async def test_session_is_deleted_with_all_subpaths_or_not_at_all(store: Store, sessions: LangoSessionStore) -> None:
    other: Any = {**KEY, "session_id": KEY["session_id"] + "0", "subpath": "subagents/agent-1"}
    for key in (KEY, SUB, SUB | {"subpath": "subagents/agent-2"}, other):
        await sessions.append(key, [entry(uuid="a")])
    with store.engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE note (session TEXT REFERENCES lango_session (key))"))
        connection.execute(sa.text("INSERT INTO note VALUES (:key)"), {"key": f"{NAME}/subagents%2Fagent-2"})
    with pytest.raises(LangoStoreError, match="is held by"):
        await sessions.delete(KEY)
    assert await sessions.load(KEY) == [entry(uuid="a")]
    assert len(await sessions.list_subkeys(KEY)) == 2

    with store.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE note"))
    await sessions.delete(KEY)
    assert await sessions.load(KEY) is await sessions.load(SUB) is None
    assert await sessions.load(other) == [entry(uuid="a")]
    await sessions.append(KEY, [entry(uuid="a", parentUuid=None)])
    assert await sessions.load(KEY) == [entry(uuid="a", parentUuid=None)]


async def test_run_does_not_create_a_session_again_that_was_deleted_during_the_run(
    store: Store, sessions: LangoSessionStore
) -> None:
    async def refuse(key: Any, writer: LangoSessionStore) -> None:
        boundary = entry(uuid="c", parentUuid=None, logicalParentUuid="b")  # after a compaction
        for batch in ([entry(uuid="b", parentUuid="a")], [entry(mode="normal")], [boundary]):
            with pytest.raises(SessionNotFound):
                await writer.append(key, batch)

    other = LangoSessionStore(store)
    await sessions.append(KEY, [entry(uuid="a", parentUuid=None)])
    await sessions.append(SUB, [entry(uuid="a", parentUuid=None)])
    await other.load(KEY)
    await sessions.delete(KEY)
    for writer in (sessions, other):
        await refuse(KEY, writer)
    await refuse(SUB, sessions)
    with pytest.raises(SessionNotFound):  # a subagent that was started after the deletion
        await sessions.append(SUB | {"subpath": "subagents/agent-2"}, [entry(uuid="a", parentUuid=None)])
    assert list(store.iter_sessions()) == []


async def test_run_during_which_a_session_expires_stores_its_entries(
    store: Store, clock: Clock, sessions: LangoSessionStore
) -> None:
    store.create(NAME, ttl=timedelta(minutes=1))
    await sessions.append(KEY, [entry(uuid="a", parentUuid=None)])
    clock.move(minutes=2)
    await sessions.append(SUB, [entry(uuid="a", parentUuid=None)])
    await sessions.append(KEY, [entry(uuid="b", parentUuid="a")])
    assert await sessions.load(KEY) == [entry(uuid="b", parentUuid="a")]


async def test_session_summary_equals_the_sdks_summary_and_its_mtime_equals_the_listed_mtime(
    store: Store, sessions: LangoSessionStore, clock: Clock
) -> None:
    batches = [written(), [entry(customTitle="Weather")], [{"type": "tag", "tag": "oslo"}, *written("another")]]
    expected: Any = None
    for batch in batches:
        clock.move(seconds=1)
        await sessions.append(KEY, batch)
        expected = sdk.fold_session_summary(expected, KEY, batch)
        for _ in range(2):
            clock.move(seconds=1)
            (found,) = await sessions.list_session_summaries(PROJECT)
            assert found["data"] == expected["data"]
            (listed,) = await sessions.list_sessions(PROJECT)
            assert found["mtime"] == listed["mtime"]
    assert (listed["mtime"], listed["session_id"]) == (1795262407123, KEY["session_id"])
    assert store.conversation(NAME).info().metadata == {}


async def test_summary_is_rebuilt_after_entries_were_removed(store: Store, sessions: LangoSessionStore) -> None:
    await sessions.append(KEY, [entry(customTitle="secret"), *written()])
    await sessions.list_session_summaries(PROJECT)
    store.conversation(NAME).edits.delete(1)
    (found,) = await sessions.list_session_summaries(PROJECT)
    assert found["data"] == sdk.fold_session_summary(None, KEY, written())["data"]


async def test_overlapping_batches_store_each_entry_once_and_count_each_response_once(url: str) -> None:
    def batch(writer: int, number: int) -> list[Any]:
        own = block(f"{writer}/{number}", f"{writer}/{number}", apiBlockIndex=0)
        return [own, entry(uuid=f"shared/{number}"), entry(title=number)]

    async def write(writer: int) -> None:
        async with LangoSessionStore(url) as sessions:
            for number in range(6):
                await sessions.append(KEY, batch(writer, number))
                await sessions.append(KEY, batch(writer, number)[:2])  # as if the answer had been lost
                await sessions.list_session_summaries(PROJECT)

    await asyncio.gather(*map(write, range(4)))
    async with LangoSessionStore(url) as sessions:
        found: Any = await sessions.load(KEY)
        ids = [each["uuid"] for each in found if "uuid" in each]
        assert len(ids) == len(set(ids)) == 6 * 4 + 6
        assert len(found) == len(ids) + 6 * 4
        assert sessions.store.conversation(NAME).total_usage()["output_tokens"] == 5 * 6 * 4
        (summary,) = await sessions.list_session_summaries(PROJECT)
        assert summary["data"] == sdk.fold_session_summary(None, KEY, found)["data"]
        assert [finding for finding in sessions.store.maintenance.examine() if finding.name != "settings"] == []


@pytest.mark.parametrize(("number", "statements"), [(10, 2), (1_001, 4)])
async def test_list_of_summaries_after_appends_reads_no_messages(url: str, number: int, statements: int) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        sessions = LangoSessionStore(store)
        with store.transaction() as tx:
            inner = LangoSessionStore(tx)
            for name in range(number):
                key: Any = {"project_key": PROJECT, "session_id": f"{name}"}
                await inner.append(key, [entry(customTitle=f"title {name}")])
        await sessions.append(KEY, written())
        for _ in range(2):
            await sessions.append(KEY, [entry(customTitle="new")])
            sent.clear()
            listed = await sessions.list_session_summaries(PROJECT)
            assert (len(listed), len(sent)) == (number + 1, statements)
            assert all(each["data"]["custom_title"] for each in listed)


async def test_list_of_summaries_reads_messages_of_other_programs_with_one_statement(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        sessions = LangoSessionStore(store)
        for number in range(30):
            key: Any = {"project_key": PROJECT, "session_id": f"{number}"}
            if number % 2:
                await sessions.append(key, [entry(customTitle=f"title {number}")])
            for _ in range(number % 3):
                store.append_message(f"{PROJECT}:{number}".replace("/", "%2F"), Message.user("Hello"), create=True)
        for _ in range(2):
            sent.clear()
            found = await sessions.list_session_summaries(PROJECT)
            assert len(sent) == 3
        for each in found:
            key = {"project_key": PROJECT, "session_id": each["session_id"]}
            entries: Any = await sessions.load(key)
            assert each["data"] == sdk.fold_session_summary(None, key, entries)["data"]


async def test_summary_that_misses_many_messages_is_stored_by_the_list(store: Store) -> None:
    store.create(NAME, messages=[Message.user(f"Hello {number}") for number in range(30)])
    sessions = LangoSessionStore(store)
    await sessions.append(KEY, [entry(customTitle="title")])  # an append does not read what it did not write
    (found,) = await sessions.list_session_summaries(PROJECT)
    assert (found["data"]["first_prompt"], found["data"]["custom_title"]) == ("Hello 0", "title")
    value = store.conversation(NAME).values.get()["claude_agent_sdk.summary"]
    assert (value["seq"], value["data"]) == (31, found["data"])
    await sessions.append(KEY, [entry(customTitle="other")])
    assert store.conversation(NAME).values.get()["claude_agent_sdk.summary"]["seq"] == 32


async def test_append_after_a_redaction_does_not_restore_the_summary(store: Store, sessions: LangoSessionStore) -> None:
    await sessions.append(KEY, written("my secret"))
    conversation = store.conversation(NAME)
    conversation.edits.redact(1)
    conversation.values.delete(["claude_agent_sdk.summary"])
    await sessions.append(KEY, [entry(customTitle="title")])
    (found,) = await sessions.list_session_summaries(PROJECT)
    assert "secret" not in str(found)
    assert "secret" not in str(conversation.values.get())
