"""Sessions: create, get, update, touch and delete; keys and fields."""

import uuid
from datetime import timedelta
from typing import Any

import pytest
from support.factories import message, messages

from lango_store import InvalidKey, InvalidValue, SessionExists, SessionNotFound, Store, ToolCall
from lango_store.testing import Clock


def test_create_stores_all_fields(store: Store, clock: Clock) -> None:
    created = store.create(
        "telegram:12345678",
        agent_id="support",
        user_id="u1",
        title="Wetter ☀",
        model="gpt-x",
        settings={"thinking": "high"},
        metadata={"channel": {"id": 7}},
        tools=[{"name": "get_weather"}],
    )
    loaded = store.get("telegram:12345678")
    assert loaded == created
    assert (loaded.agent_id, loaded.user_id, loaded.title, loaded.model) == ("support", "u1", "Wetter ☀", "gpt-x")
    assert (loaded.settings, loaded.metadata) == ({"thinking": "high"}, {"channel": {"id": 7}})
    assert loaded.tools == [{"name": "get_weather"}]
    assert loaded.created_at == loaded.updated_at == clock.time
    assert (loaded.last_seq, loaded.message_count, loaded.token_count) == (0, 0, 0)
    assert (loaded.expires_at, loaded.ttl_seconds, loaded.messages) == (None, None, [])


def test_create_stores_first_messages(store: Store) -> None:
    created = store.create("k", messages=[message("a", tokens=3), message("b", tokens=4, id="x"), message("b", id="x")])
    assert created == store.get("k")
    assert [m.content for m in created.messages] == ["a", "b"]
    assert (created.last_seq, created.message_count, created.token_count) == (2, 2, 7)


def test_create_treats_none_as_an_omitted_argument(store: Store) -> None:
    created = store.create("k", agent_id=None, title=None, settings=None, metadata=None, tools=None)
    assert created == store.get("k")
    assert (created.settings, created.metadata, created.tools) == ({}, {}, [])


def test_create_without_key_uses_a_sortable_uuid7(store: Store, clock: Clock) -> None:
    keys = []
    for _ in range(3):
        keys.append(store.create().key)
        clock.move(seconds=1)
    assert [uuid.UUID(key).version for key in keys] == [7, 7, 7]
    assert {uuid.UUID(key).variant for key in keys} == {uuid.RFC_4122}
    assert keys == sorted(keys)
    assert len(set(keys)) == 3


def test_create_with_existing_key_raises_and_changes_nothing(store: Store) -> None:
    created = store.create("k", title="first", messages=[message()])
    with pytest.raises(SessionExists, match=r"use open\(\)") as raised:
        store.create("k", title="second", messages=messages(2))
    assert (raised.value.key, raised.value.expired) == ("k", False)
    assert store.get("k") == created


def test_calls_on_a_missing_session_raise_session_not_found(store: Store) -> None:
    for call in (
        lambda: store.get("missing"),
        lambda: store.conversation("missing").info(),
        lambda: store.conversation("missing").messages(),
        lambda: store.conversation("missing").messages(last=3),
        lambda: store.conversation("missing").all_messages(),
        lambda: list(store.conversation("missing").iter_messages()),
        lambda: store.conversation("missing").find_message("x"),
        lambda: store.append_message("missing", message()),
        lambda: store.append_message("missing", message(id="x")),
        lambda: store.append_message("missing", message(), after=0),
        lambda: store.conversation("missing").append_messages(messages(2)),
        lambda: store.conversation("missing").append_messages([]),
        lambda: store.conversation("missing").append_messages(messages(2), replace_after=1),
        lambda: store.conversation("missing").update(title="x"),
        lambda: store.touch("missing"),
        lambda: store.conversation("missing").clear(),
        lambda: store.conversation("missing").truncate(after=0),
        lambda: store.conversation("missing").turns.list_compactions(),
    ):
        with pytest.raises(SessionNotFound, match="missing"):
            call()
    assert store.exists("missing") is False
    assert store.delete("missing") is False


def test_get_or_create_creates_a_missing_session_and_loads_an_existing_one(store: Store) -> None:
    first = store.open("k", title="first", messages=[message("a")]).get()
    again = store.open("k", title="second", messages=messages(3)).get()
    assert first == again == store.get("k")
    assert again.title == "first"


def test_info_returns_the_session_without_messages(store: Store) -> None:
    store.create("k", title="t", messages=messages(3))
    assert store.conversation("k").info().model_dump() == store.get("k").model_dump(exclude={"messages"})


def test_update_changes_only_the_given_fields(store: Store, clock: Clock) -> None:
    store.create("k", agent_id="a", title="t", settings={"thinking": "low", "x": 1}, ttl=timedelta(hours=1))
    expires_at = store.conversation("k").info().expires_at
    clock.move(minutes=5)
    updated = store.conversation("k").update(settings={"thinking": "high"}, model="m")
    assert updated == store.conversation("k").info()
    assert (updated.settings, updated.model, updated.agent_id, updated.title) == ({"thinking": "high"}, "m", "a", "t")
    assert updated.expires_at == expires_at


def test_update_changes_updated_at_only_with_activity_true_and_touch_never_changes_it(
    store: Store, clock: Clock
) -> None:
    store.create("old", ttl=timedelta(days=300))
    clock.move(days=100)
    store.create("new")
    before = store.conversation("old").info().updated_at
    assert store.conversation("old").update(title="renamed").updated_at == before
    assert store.open("old").update(metadata={"read": True}).updated_at == before
    assert store.touch("old").updated_at == before
    assert store.touch("old", ttl=None).updated_at == before
    assert store.conversation("old").update().updated_at == before
    assert [info.key for info in store.list_sessions().items] == ["new", "old"]

    assert store.conversation("old").update(title="back", activity=True).updated_at == clock.time
    assert [info.key for info in store.list_sessions().items] == ["old", "new"]
    clock.move(days=100)
    assert store.open("old").update(activity=True).updated_at == clock.time


def test_update_with_none_clears_fields(store: Store) -> None:
    store.create("k", agent_id="a", title="t", settings={"x": 1}, metadata={"y": 2}, tools=[{"name": "n"}])
    cleared = store.conversation("k").update(agent_id=None, title=None, settings=None, metadata=None, tools=None)
    assert cleared == store.conversation("k").info()
    assert (cleared.agent_id, cleared.title, cleared.settings, cleared.metadata, cleared.tools) == (
        None,
        None,
        {},
        {},
        [],
    )


def test_last_consolidated_is_at_most_the_number_of_messages(store: Store) -> None:
    store.create("k", messages=messages(3))
    assert store.conversation("k").update(last_consolidated=3).last_consolidated == 3
    for invalid in (4, -1, 2**63, 2**70, True, 1.5, "2", None):
        with pytest.raises((TypeError, ValueError), match="last_consolidated"):
            store.conversation("k").update(last_consolidated=invalid)  # type: ignore[arg-type]
    assert store.conversation("k").info().last_consolidated == 3
    store.conversation("k").truncate(after=2)
    assert store.conversation("k").info().last_consolidated == 2
    store.conversation("k").clear()
    assert store.conversation("k").info().last_consolidated == 0


def test_delete_removes_the_session_and_its_messages(store: Store) -> None:
    store.create("k", messages=messages(3))
    store.create("other", messages=messages(2))
    assert store.delete("k") is True
    assert store.exists("k") is False
    store.create("k")
    assert store.conversation("k").messages() == []
    assert len(store.conversation("other").messages()) == 2


@pytest.mark.parametrize("key", ["k" * 512, "🙂" * 512, " ", "a/b\\c", "\n", "Ångström:7", "'; DROP TABLE x; --", "%_"])
def test_any_text_of_up_to_512_characters_is_a_key(store: Store, key: str) -> None:
    store.create(key)
    store.append_message(key, message("x", id="i" * 512))
    assert store.get(key).key == key
    assert [info.key for info in store.list_sessions().items] == [key]
    assert store.delete(key)


@pytest.mark.parametrize("key", ["", "k" * 513, "a\0b", "a\ud800", 5, b"k"])
def test_invalid_key_is_refused_by_every_call(store: Store, key: str) -> None:
    for call in (store.create, store.get, store.open, store.conversation, store.exists, store.delete, store.touch):
        with pytest.raises(InvalidKey):
            call(key)
    for new in ([], [message()], [message(id="new")], [message(id="twice"), message(id="twice")]):
        with pytest.raises(InvalidKey):
            store.conversation(key).append_messages(new)
    with pytest.raises(InvalidKey):
        store.open(key)
    with pytest.raises(InvalidKey):
        store.conversation(key)
    assert store.count() == 0


@pytest.mark.parametrize("field", ["agent_id", "user_id", "title", "model"])
@pytest.mark.parametrize("text", ["a\0b", "\udfff", 5])
def test_session_field_that_is_a_number_or_has_nul_or_a_surrogate_is_refused(
    store: Store, field: str, text: object
) -> None:
    with pytest.raises(InvalidValue, match=field) as raised:
        store.create("k", **{field: text})  # type: ignore[arg-type]
    assert raised.value.field == field
    assert not store.exists("k")
    store.create("k")
    with pytest.raises(InvalidValue, match=field):
        store.conversation("k").update(**{field: text})  # type: ignore[arg-type]


def test_changing_a_loaded_session_does_not_change_the_stored_one(store: Store) -> None:
    store.create("k", settings={"a": [1]}, messages=[message({"deep": [1]}, tool_calls=[ToolCall(id="c", name="n")])])
    session = store.get("k")
    session.settings["a"].append(2)
    session.messages[0].content["deep"].append(2)
    session.messages[0].tool_calls.clear()
    session.messages.clear()
    again = store.get("k")
    assert again.settings == {"a": [1]}
    assert again.messages[0].content == {"deep": [1]}
    assert len(again.messages[0].tool_calls) == 1


def test_creating_a_conversation_object_creates_no_session(store: Store) -> None:
    handle = store.conversation("k")
    assert not store.exists("k")
    with pytest.raises(SessionNotFound):
        handle.append_message(message())
    store.create("k")
    assert handle.append_message(message()).seq == 1
    assert handle.key == "k"
    store.delete("k")
    with pytest.raises(SessionNotFound):
        store.conversation("k").get()
    with pytest.raises(InvalidKey):
        store.conversation("")


def test_creating_a_conversation_object_needs_no_database() -> None:
    with Store("postgresql://nobody@127.0.0.1:1/none") as store:
        assert store.conversation("k").key == "k"


def test_unknown_field_is_refused(store: Store) -> None:
    unknown: dict[str, Any] = {"titel": "misspelt"}
    for call in (store.create, store.open):
        with pytest.raises(TypeError, match=r"'titel': give agent_id, user_id, title"):
            call("k", **unknown)
    assert not store.exists("k")
    store.create("k")
    with pytest.raises(TypeError, match=r"'titel'.*last_consolidated"):
        store.conversation("k").update(**unknown)
    for list_or_count in (store.list_sessions, store.count, lambda **filters: list(store.iter_sessions(**filters))):
        with pytest.raises(TypeError, match="'titel'"):
            list_or_count(**unknown)
