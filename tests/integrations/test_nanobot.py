"""The real nanobot package on the store instead of its files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from nanobot.session import manager as nanobots
from nanobot.session.manager import JsonlSessionStore, SessionManager
from support.factories import message
from support.nanobots import KEY, private, talk

from lango_store import Conflict, MessageRole, Store, ToolCall
from lango_store.integrations.nanobot import LangoSessionStore


def test_session_is_unchanged_after_restart(start: Callable[[], SessionManager]) -> None:
    session = start().get_or_create(KEY)
    talk(session)
    session.last_consolidated = 2
    session.provider_state = private()
    start().save(session)
    again = start().get_or_create(KEY)
    assert again == session
    assert again.provider_state == private()
    assert again.get_history() == session.get_history()
    assert [list(line) for line in again.messages] == [list(line) for line in session.messages]


def test_get_or_create_of_a_missing_session_stores_nothing(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    assert sessions.get_or_create(KEY).messages == []
    assert sessions.read_session_file(KEY) is None
    assert sessions.read_session_metadata(KEY) is None
    assert sessions.update_session_metadata(KEY, {"a": 1}) is False
    assert sessions.delete_session(KEY) is False
    assert store.count() == 0


def test_message_saved_by_nanobot_is_readable_in_store(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    user, asking, answer, _ = store.conversation(KEY).messages()
    assert (user.role, user.content) == (MessageRole.USER, "Weather in Oslo? 😀")
    assert asking.tool_calls[0] == ToolCall(id="call_1", name="read", arguments='{"path": "ä.txt"}')
    assert (answer.tool_call_id, answer.name, answer.content) == ("call_1", "read", "sun\0\ud83d")
    info = store.conversation(KEY).info()
    assert (info.title, info.metadata["goal_state"], info.last_consolidated) == ("Oslo", {"z": 1, "a": None}, 0)


def test_fork_is_a_separate_session(start: Callable[[], SessionManager]) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(3):
        session.add_message("user", f"question {number}")
        session.add_message("assistant", f"answer {number}")
    sessions.save(session)
    fork = sessions.fork_session_before_user_index(KEY, "telegram:fork", 2)
    assert fork is not None
    fork.add_message("user", "another question")
    sessions.save(fork)
    fresh = start()
    assert [line["content"] for line in fresh.get_or_create("telegram:fork").messages][3:] == [
        "answer 1",
        "another question",
    ]
    assert len(fresh.get_or_create(KEY).messages) == 6


def test_deleted_session_is_gone_and_can_be_created_again(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    for content in ("first life", "second life"):
        session = sessions.get_or_create(KEY)
        assert session.messages == []
        session.add_message("user", content)
        sessions.save(session)
        assert sessions.delete_session(KEY) is True
    assert store.count(expired=None) == 0


def test_cleared_session_stays_empty_after_restart(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    session.provider_state = private()
    sessions.save(session)
    session.clear()
    sessions.save(session)
    again = start().get_or_create(KEY)
    assert (again.messages, again.provider_state, again.metadata["title"]) == ([], None, "Oslo")
    again.add_message("user", "again")
    start().save(session)  # without changes
    assert store.conversation(KEY).info().message_count == 0


def test_summary_inserted_between_messages_keeps_its_position(start: Callable[[], SessionManager]) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(6):
        session.add_message("user", f"message {number}")
    sessions.save(session)
    session.commit_summary_checkpoint("so far", insert_at=4)
    sessions.save(session)
    again = start().get_or_create(KEY)
    assert again == session
    assert again.last_archived == 4


def test_metadata_update_keeps_messages(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    before = store.conversation(KEY).info()
    assert sessions.update_session_metadata(KEY, {"title": "Bergen", "new": {"a": 1}}) is True
    after = store.conversation(KEY).info()
    assert (after.title, after.updated_at, after.last_seq) == ("Bergen", before.updated_at, before.last_seq)
    session.add_message("user", "more")
    sessions.save(session)
    again = start().get_or_create(KEY)
    assert again == session
    assert (again.metadata["title"], again.metadata["new"], again.metadata["goal_state"]) == (
        "Bergen",
        {"a": 1},
        {"z": 1, "a": None},
    )


def test_model_preset_is_renamed_in_all_sessions(start: Callable[[], SessionManager]) -> None:
    sessions = start()
    for key, preset in (("a:1", "old"), ("a:2", "old"), ("a:3", "other")):
        session = sessions.get_or_create(key)
        session.metadata[nanobots.SESSION_MODEL_PRESET_METADATA_KEY] = preset
        sessions.save(session)
    assert start().rename_model_preset("old", "new") == 2
    fresh = start()
    assert fresh.get_or_create("a:2").metadata[nanobots.SESSION_MODEL_PRESET_METADATA_KEY] == "new"


def test_private_provider_state_is_not_returned_by_reads_and_lists(
    start: Callable[[], SessionManager], store: Store
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    session.provider_state = private("do-not-show")
    sessions.save(session)
    seen = [sessions.read_session_file(KEY), sessions.read_session_metadata(KEY), sessions.list_sessions()]
    seen += [store.get(KEY).model_dump(), store.list_sessions().model_dump()]
    assert "do-not-show" not in json.dumps(seen, default=str)


@pytest.mark.parametrize("state", [None, "secret"])
def test_adapter_reads_and_lists_sessions_exactly_as_nanobots_own_store_does(
    start: Callable[[], SessionManager], files: JsonlSessionStore, state: str | None
) -> None:
    sessions = start()
    said: dict[str, list[tuple[str, Any]]] = {
        "a:words": [("assistant", "hello"), ("user", "what is <think>x</think> this\n\n" + "long " * 50)],
        "a:image": [("user", ""), ("user", [{"type": "image"}, {"type": "text", "text": "what is it?"}])],
        "a:silent": [("tool", "no"), ("assistant", "[Message Time: now]\nonly me")],
        "a:empty": [],
    }
    for key, contents in said.items():
        session = sessions.get_or_create(key)
        for role, content in contents:
            session.add_message(role, content)
        session.metadata["title"] = f"<think>hm</think>{key}"
        session.provider_state = private(state) if state else None
        sessions.save(session)
        files.save(session)
        assert sessions.read_session_file(key) == files.read(key)
        assert sessions.read_session_metadata(key) == files.read_metadata(key)

    def shown(listed: Any) -> list[dict[str, Any]]:
        return [{name: each[name] for name in each if name != "path"} for each in listed]

    assert shown(sessions.list_sessions()) == shown(files.list_sessions())


def test_list_sends_few_statements(url: str, tmp_path: Path) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        sessions = SessionManager(
            tmp_path / "workspace", store=LangoSessionStore(store), sessions_root=tmp_path / "sessions"
        )
        for number in range(20):
            session = sessions.get_or_create(f"chat:{number}")
            session.add_message("user", f"question {number}")
            sessions.save(session)
        sent.clear()
        assert len(sessions.list_sessions()) == 20
        assert len(sent) == 3
        store.create("silent", messages=[message(role="assistant", content="only me")])
        sent.clear()
        assert {each["preview"] for each in sessions.list_sessions()} > {"question 7", "only me"}
        assert len(sent) == 4


def test_nanobot_ignores_and_keeps_records(start: Callable[[], SessionManager], store: Store) -> None:
    session = start().get_or_create(KEY)
    talk(session)
    session.last_consolidated = 2
    start().save(session)
    store.append_message(KEY, message({"usd": 0.004}, role=MessageRole.RECORD))
    sessions = start()
    again = sessions.get_or_create(KEY)
    assert again.messages == session.messages
    assert again.last_consolidated == 2
    again.add_message("user", "and now?")
    store.conversation(KEY).append_messages([message(n, role=MessageRole.RECORD) for n in range(2)])
    sessions.save(again)
    assert [each.role.value for each in store.conversation(KEY).all_messages()][-4:] == ["record"] * 3 + ["user"]
    assert start().get_or_create(KEY).messages == again.messages


def test_save_detects_a_deleted_message_although_a_record_was_appended(
    start: Callable[[], SessionManager], store: Store
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    store.append_message(KEY, message("a record", role=MessageRole.RECORD))
    store.conversation(KEY).edits.delete(1)
    session.add_message("user", "and now?")
    with pytest.raises(Conflict):
        sessions.save(session)


def test_fork_does_not_copy_the_private_provider_state(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    session.provider_state = private()
    sessions.save(session)
    store.conversation(KEY).fork("telegram:fork")
    forked = start().get_or_create("telegram:fork")
    assert (forked.messages, forked.provider_state) == (session.messages, None)


def test_save_after_a_lost_acknowledgement_writes_nothing_twice(
    start: Callable[[], SessionManager], store: Store
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    session.add_message("user", "hello")
    sessions.save(session)
    twin = start().get_or_create(KEY)
    for each in (session, twin):  # the same line, as after a first try that was committed but not acknowledged
        each.messages.append({"role": "assistant", "content": "hi", "timestamp": "2026-11-21T20:36:10.610012"})
    start().save(twin)
    session.add_message("user", "more")
    sessions.save(session)
    assert [message.content for message in store.conversation(KEY).all_messages()] == ["hello", "hi", "more"]
