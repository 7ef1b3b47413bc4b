"""Scenarios of lango's specification of its session store."""

import json
from datetime import timedelta

import pytest
import sqlalchemy as sa

from lango_store import Message, MessageRole, SessionExists, SessionExpired, SessionNotFound, Store, ToolCall
from lango_store.testing import Clock


def test_created_sessions_have_unique_keys(store: Store) -> None:
    """When a new conversation begins, a session record is created with a unique key."""
    first, second = store.create(), store.create()
    assert first.key != second.key
    with pytest.raises(SessionExists):
        store.create(first.key)


def test_session_stores_agent_id(store: Store) -> None:
    store.create("k", agent_id="lango-orchestrator")
    assert store.get("k").agent_id == "lango-orchestrator"


def test_loaded_message_role_is_an_enum(store: Store) -> None:
    store.create("k")
    for role in (MessageRole.USER, MessageRole.ASSISTANT, MessageRole.TOOL, MessageRole.FUNCTION, MessageRole.MODEL):
        store.append_message("k", Message(role=role, content=""))
    loaded = [message.role for message in store.get("k").messages]
    assert all(type(role) is MessageRole for role in loaded)
    assert loaded == ["user", "assistant", "tool", "function", "model"]


def test_role_is_text_in_the_database_and_an_enum_in_python(store: Store) -> None:
    """The database stores plain text, and the store returns the enum."""
    store.create("k", messages=[Message(role=MessageRole.MODEL, content="hi")])
    with store.engine.connect() as connection:
        kept = connection.execute(sa.text("SELECT role FROM lango_message")).scalar_one()
    assert kept == "model"
    assert type(kept) is str
    assert store.get("k").messages[0].role is MessageRole.MODEL


def test_role_is_lowercase_text_in_json(store: Store) -> None:
    store.create("k", messages=[Message(role=MessageRole.USER, content="hi")])
    assert '"role":"user"' in store.get("k").messages[0].model_dump_json()


def test_question_and_answer_are_stored_in_order(store: Store) -> None:
    store.create("k")
    store.append_message("k", Message(role=MessageRole.USER, content="What is new?"))
    store.append_message("k", Message(role=MessageRole.ASSISTANT, content="Nothing yet."))
    assert [(m.role, m.content) for m in store.get("k").messages] == [
        (MessageRole.USER, "What is new?"),
        (MessageRole.ASSISTANT, "Nothing yet."),
    ]


def test_get_returns_session_with_fields_and_messages(store: Store) -> None:
    store.create("k", title="t", metadata={"channel": "slack"}, messages=[Message(role=MessageRole.USER, content="x")])
    loaded = store.get("k")
    assert (loaded.key, loaded.title, loaded.metadata, len(loaded.messages)) == ("k", "t", {"channel": "slack"}, 1)


def test_get_and_append_of_missing_session_raise_session_not_found(store: Store) -> None:
    with pytest.raises(SessionNotFound, match="nobody"):
        store.get("nobody")
    with pytest.raises(SessionNotFound):
        store.append_message("nobody", Message(role=MessageRole.USER, content="x"))


def test_session_stores_model_and_settings(store: Store) -> None:
    store.create("k", model="gemini-x", settings={"thinking_level": "low"})
    store.conversation("k").update(model="gemini-y", settings={"thinking_level": "high"})
    loaded = store.get("k")
    assert (loaded.model, loaded.settings) == ("gemini-y", {"thinking_level": "high"})


def test_delete_removes_all_rows_of_the_session(store: Store) -> None:
    """When session deletion is requested, all session data is removed from storage."""
    conversation = store.open("k")
    conversation.save_turn([Message(role=MessageRole.USER, content="x")], {"input_tokens": 1})
    assert store.delete("k")
    with store.engine.connect() as connection:
        for table in ("lango_session", "lango_turn", "lango_message"):
            assert connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one() == 0


def test_expired_session_is_refused_and_purged(store: Store, clock: Clock) -> None:
    store.create("k", ttl=timedelta(hours=1))
    clock.move(hours=2)
    with pytest.raises(SessionExpired):
        store.get("k")
    assert store.expire().sessions == 1


def test_loaded_session_keeps_messages_after_deletion(store: Store) -> None:
    """A loaded session needs no database."""
    store.create("k", messages=[Message(role=MessageRole.USER, content="x")])
    loaded = store.get("k")
    store.delete("k")
    assert loaded.messages[0].content == "x"


def test_author_is_stored_and_included_in_json(store: Store) -> None:
    store.create("k")
    store.append_message("k", Message(role=MessageRole.ASSISTANT, content="x", author="lango-orchestrator"))
    store.append_message("k", Message(role=MessageRole.USER, content="y"))
    first, second = store.get("k").messages
    assert first.author == "lango-orchestrator"
    assert json.loads(first.model_dump_json())["author"] == "lango-orchestrator"
    assert "author" not in json.loads(second.model_dump_json())


@pytest.mark.parametrize("role", [MessageRole.TOOL, MessageRole.FUNCTION])
def test_tool_message_keeps_output_id_and_name_of_its_call(store: Store, role: MessageRole) -> None:
    """The output of a function is stored with the id and the name of its call."""
    response = json.dumps({"temperature": 22.5, "unit": "C"})
    store.create("k")
    call = ToolCall(id="call-1", name="get_weather", output=response)
    store.append_message("k", Message(role=role, tool_calls=[call]))
    (loaded,) = store.get("k").messages[0].tool_calls
    assert (loaded.id, loaded.name, loaded.output) == ("call-1", "get_weather", response)
