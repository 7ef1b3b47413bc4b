"""Messages: append, read, iterate; they are ordered by `seq`."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from support.databases import MakeDatabase
from support.factories import contents, message, messages, seqs
from support.session_checks import assert_sound
from support.statements import watched
from support.turns import messages_of

from lango_store import Conflict, DamagedMessage, InvalidMessage, Message, MessageRole, SessionNotFound, Store, ToolCall
from lango_store.testing import Clock


def test_message_is_returned_as_stored(store: Store, clock: Clock) -> None:
    store.create("k")
    stored = store.append_message(
        "k",
        Message(
            role=MessageRole.TOOL,
            content=[{"type": "text", "text": "−3 °C"}],
            author="lango-orchestrator",
            name="get_weather",
            tool_call_id="call_1",
            tool_calls=[ToolCall(id="call_1", name="get_weather", arguments='{"a": 1}', output={"celsius": -3})],
            tokens=12,
            id="update-1",
            extra={"thinking_blocks": None},
            model="claude-opus-5-5",
            provider="bedrock",
            request="a1b2",
        ),
    )
    assert (stored.seq, stored.created_at, stored.replayed) == (1, clock.time, False)
    (loaded,) = store.get("k").messages
    assert loaded == stored
    assert type(loaded.role) is MessageRole
    assert loaded.tool_calls[0].arguments == '{"a": 1}'
    assert loaded.tool_calls[0].answered


def test_tool_call_with_an_output_of_none_is_answered(store: Store) -> None:
    store.create("k")
    calls = [ToolCall(id="a", name="n", output=None), ToolCall(id="b", name="n", extra={"signature": "s"})]
    store.append_message("k", message(tool_calls=calls))
    loaded = store.conversation("k").messages()[0].tool_calls
    assert [call.answered for call in loaded] == [True, False]
    assert [call.model_dump() for call in loaded] == [call.model_dump() for call in calls]
    assert loaded[1].extra == {"signature": "s"}


@pytest.mark.parametrize("role", list(MessageRole))
def test_each_role_is_stored(store: Store, role: MessageRole) -> None:
    store.create("k")
    store.append_message("k", message(role=role))
    assert store.conversation("k").all_messages()[0].role is role


def test_messages_stay_in_order_of_seq_if_the_clock_stops_or_goes_back(store: Store, clock: Clock) -> None:
    store.create("k")
    for n in range(5):
        store.append_message("k", message(n))
        clock.move(seconds=-10 * (n % 2))
    store.conversation("k").append_messages([message(5), message(6)])
    assert contents(store.conversation("k").messages()) == list(range(7))
    assert seqs(store.conversation("k").messages()) == list(range(1, 8))


def test_messages_are_in_order_of_seq_even_without_an_index_and_despite_concurrent_deletes(
    make_postgres: MakeDatabase,
) -> None:
    def delete_pending(_: str, __: float) -> None:
        while to_delete:
            store.conversation("k").truncate(after=to_delete.pop() - 1)

    to_delete: list[int] = []
    url = f"{make_postgres()}&options=-cenable_indexscan%3Doff%20-cenable_bitmapscan%3Doff"
    with Store(url) as store, Store(url, on_statement=delete_pending) as reader:
        conversation = reader.open("k")
        turn = conversation.save_turn(messages(4))
        with store.engine.begin() as connection:  # moves its row after the others
            connection.exec_driver_sql("UPDATE lango_message SET text = 'new' WHERE seq = 1")
        for read in (
            conversation.messages(),
            conversation.all_messages(),
            list(conversation.iter_messages()),
            messages_of(conversation, turn),
        ):
            assert seqs(read) == [1, 2, 3, 4]
        assert [each["content"] for each in conversation.history(last=4)] == ["new", *contents(turn.messages)[1:]]
        assert seqs(conversation.messages(last=1)) == [4]
        to_delete.append(4)  # between two statements of a load
        assert seqs(conversation.get().messages) == [1, 2, 3]


@pytest.mark.slow
def test_created_at_is_stored_to_the_microsecond_in_utc(store: Store) -> None:
    created_at = datetime(2026, 4, 1, 10, 0, 0, 123456, tzinfo=timezone(timedelta(hours=9)))
    new = message(created_at=created_at)
    conversation = store.open("k", messages=[new])
    conversation.append_message(new)
    conversation.append_messages([new, message(created_at=created_at, id="one")])
    conversation.append_messages([message(created_at=created_at, id="one"), new])
    conversation.save_turn([new])
    stored = [each.created_at for each in conversation.all_messages()]
    assert stored == [created_at] * 6
    assert {each.tzinfo for each in stored if each is not None} == {UTC}
    assert_sound(store)


def test_token_counter_is_not_called_for_invalid_messages(url: str) -> None:
    with Store(url, token_counter=lambda m: len(str(m.content))) as store:
        store.create("k")
        with pytest.raises(InvalidMessage, match="not a Message"):
            store.append_message("k", "hello")  # type: ignore[arg-type]


def test_append_with_one_invalid_message_stores_no_message(store: Store) -> None:
    store.create("k")
    with pytest.raises(InvalidMessage, match="tokens"):
        store.conversation("k").append_messages([message("valid"), message().model_copy(update={"tokens": -1})])
    assert store.conversation("k").messages() == []
    assert store.conversation("k").info().last_seq == 0


def test_token_counter_counts_messages_without_tokens(url: str) -> None:
    with Store(url, token_counter=lambda m: len(str(m.content))) as store:
        store.create("k", messages=[message("four")])
        assert store.append_message("k", message("12345")).tokens == 5
        assert store.append_message("k", message("12345", tokens=0)).tokens == 0
        assert store.conversation("k").info().token_count == 9


@pytest.mark.parametrize("number", [0, 1, 2, 1000])
def test_batch_is_stored_whole_and_in_order(store: Store, number: int) -> None:
    store.create("k", messages=[message("first")])
    batch = messages(number, tokens=1, tool_calls=[ToolCall(id="c", name="n")], extra={"n": 1})
    stored = store.conversation("k").append_messages(batch)
    assert seqs(stored) == list(range(2, number + 2))
    assert store.conversation("k").all_messages(after=1) == stored
    assert contents(stored) == contents(batch)


# Conditional appends


def test_append_raises_conflict_if_after_is_not_the_last_seq(store: Store) -> None:
    store.create("k")
    first = store.append_message("k", message("a"), after=0)
    store.conversation("k").append_messages(messages(2), after=first.seq)
    with pytest.raises(Conflict, match="after=3") as raised:
        store.append_message("k", message("late"), after=1)
    assert (raised.value.last_seq, raised.value.expected, raised.value.key) == (3, 1, "k")
    with pytest.raises(Conflict):
        store.conversation("k").append_messages([], after=1)
    assert store.conversation("k").append_messages([], after=3) == []
    assert store.conversation("k").info().last_seq == 3


# Reading


def test_parts_of_the_log_are_selected_by_the_arguments_last_limit_after_and_before(store: Store) -> None:
    store.create("k")
    store.conversation("k").append_messages(messages(10))
    assert seqs(store.conversation("k").messages(last=3)) == [8, 9, 10]
    assert seqs(store.conversation("k").messages(last=0)) == []
    assert seqs(store.conversation("k").messages(last=99)) == list(range(1, 11))
    assert seqs(store.conversation("k").all_messages(after=7)) == [8, 9, 10]
    assert seqs(store.conversation("k").all_messages(before=3)) == [1, 2]
    assert seqs(store.conversation("k").all_messages(after=2, before=6, limit=2)) == [3, 4]
    assert seqs(store.conversation("k").all_messages(after=2, before=6, last=2)) == [4, 5]
    assert seqs(store.conversation("k").all_messages(after=10)) == []
    assert seqs(store.conversation("k").all_messages(limit=2**70)) == list(range(1, 11))
    assert seqs(store.conversation("k").all_messages(seqs=[9, 2, 99])) == [2, 9]
    assert seqs(store.conversation("k").all_messages(seqs=[])) == []
    invalid_options: list[dict[str, Any]] = [{"last": -1}, {"after": -1}, {"before": -1}, {"limit": -1}]
    invalid_options += [{"seqs": [-1]}, {"seqs": [1], "id_prefix": "a"}]
    for options in (*invalid_options, {"last": 1, "limit": 1}, {"damaged": "skip"}):
        with pytest.raises(ValueError):
            store.conversation("k").all_messages(**options)


def test_entries_whose_ids_start_with_a_text_are_in_the_order_of_their_ids(store: Store) -> None:
    store.create("k")
    conversation = store.conversation("k")
    conversation.append_messages([Message.user(id, id=id) for id in ("a2", "b1", "a1", "a3", "A1", "é1")])

    def ids(**options: Any) -> list[str | None]:
        return [message.id for message in conversation.all_messages(**options)]

    assert ids(id_prefix="a") == ["a1", "a2", "a3"]
    assert ids(id_prefix="a", last=2) == ["a2", "a3"]
    assert ids(id_prefix="a", limit=2) == ["a1", "a2"]
    assert ids(id_prefix="a", after=1) == ["a1", "a3"]
    assert ids(id_prefix="é") == ["é1"]
    assert ids(id_prefix="c") == []
    with pytest.raises(SessionNotFound):
        store.conversation("missing").all_messages(id_prefix="a")


@pytest.mark.parametrize("page_size", [1, 3, 10, 11])
def test_iter_messages_yields_the_log(either_store: Store, page_size: int) -> None:
    conversation = either_store.open("k")
    stored = conversation.append_messages(messages(10))
    assert list(conversation.iter_messages(page_size=page_size)) == stored
    assert seqs(list(conversation.iter_messages(after=2, before=9, page_size=page_size))) == list(range(3, 9))


@pytest.mark.parametrize("page_size", [0, -1])
def test_iter_messages_refuses_page_size_below_one(store: Store, page_size: int) -> None:
    store.create("k", messages=messages(1))
    with pytest.raises(ValueError, match="page_size"):
        list(store.conversation("k").iter_messages(page_size=page_size))


def test_iter_messages_sees_messages_appended_during_iteration(store: Store) -> None:
    store.create("k", messages=messages(4))
    seqs_read = []
    for each in store.conversation("k").iter_messages(page_size=2):
        seqs_read.append(each.seq)
        if each.seq < 6:
            store.append_message("k", message())
    assert seqs_read[:6] == [1, 2, 3, 4, 5, 6]


def test_result_of_a_write_is_unchanged_when_an_argument_changes_later(store: Store) -> None:
    value: Any = {"a": [1]}
    new = message([value], extra=value, tool_calls=[ToolCall(id="c", name="f", arguments=value, output=value)])
    stored = store.create("k", settings=value, metadata=value, tools=[value])
    appended = store.append_message("k", new)
    turn = store.conversation("k").save_turn([new], value)
    expected = store.get("k").messages
    value["a"].append(2)
    new.content.append(2)
    assert (stored.settings, stored.metadata, stored.tools, turn.usage) == (
        {"a": [1]},
        {"a": [1]},
        [{"a": [1]}],
        {"a": [1]},
    )
    assert [appended, *turn.messages] == expected


def test_empty_append_changes_nothing(store: Store, clock: Clock) -> None:
    before = store.create("k", ttl=timedelta(hours=1), messages=messages(2))
    clock.move(minutes=1)
    assert store.conversation("k").append_messages([]) == store.conversation("k").append_messages([], after=2) == []
    assert store.conversation("k").info().model_dump() == before.model_dump(exclude={"messages"})
    with pytest.raises(Conflict):
        store.conversation("k").append_messages([], after=1)


@pytest.mark.slow
def test_content_of_ten_megabytes_is_stored(store: Store) -> None:
    store.create("k")
    big = "Ünïcödé " * 1_310_720
    store.append_message("k", message(big))
    store.conversation("k").append_messages([message(big), message({"output": big})])
    stored = store.conversation("k").messages()
    assert stored[0].content == stored[1].content == stored[2].content["output"] == big


def test_get_of_many_messages_takes_two_statements(store: Store) -> None:
    store.create("k")
    for _ in range(3):
        store.conversation("k").append_messages(messages(1_000))
    store.append_message("k", message(role="record"))
    with watched(store.engine) as statements:
        session = store.get("k")
    assert len(session.messages) == 3_000
    assert len([each for each in statements if each.startswith("SELECT")]) == 2


@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
def test_created_at_outside_years_1_to_9999_in_utc_is_refused(store: Store, moment: datetime) -> None:
    store.create("k")
    offset = timezone(timedelta(hours=1 if moment is datetime.min else -1))
    with pytest.raises(InvalidMessage, match=r"created_at.*years 1 to 9999"):
        store.append_message("k", message(created_at=moment.replace(tzinfo=offset)))
    assert store.conversation("k").info().last_seq == 0


@pytest.mark.parametrize("tokens", [-1, 2**53, "x"])
def test_invalid_token_count_is_refused(store: Store, tokens: Any) -> None:
    store.create("k")
    with pytest.raises(InvalidMessage, match="tokens"):
        store.append_message("k", message().model_copy(update={"tokens": tokens}))
    store.append_message("k", message(tokens=2**53 - 1))
    assert store.conversation("k").info().token_count == 2**53 - 1


def test_unset_message_fields_are_stored_as_null(store: Store) -> None:
    store.create("k", messages=[message()])
    with store.engine.connect() as connection:
        columns = "turn_no, id, author, name, tool_call_id, content, tool_calls, tokens, extra"
        assert set(connection.exec_driver_sql(f"SELECT {columns} FROM lango_message").one()) == {None}


# Several sessions


def test_messages_of_several_sessions_are_the_ends_of_each_log(store: Store, clock: Clock) -> None:
    large = "x" * 70_000
    for key, number in (("b", 5), ("a", 1), ("empty", 0)):
        logged = [Message.user(f"{large if n == 0 else ''}{key}{n}") for n in range(number)]
        store.create(key, messages=[*logged, Message(role="record", content="r")][: number + (number > 1)])
    store.conversation("b").truncate(after=4)
    store.append_message("b", Message.user("last"))
    store.create("expired", ttl=timedelta(hours=1), messages=[Message.user("old")])
    clock.move(hours=1)
    keys = ["b", "missing", "empty", "expired", "a"]
    for number in (1, 2, 3, 100):
        logs = {key: store.conversation(key) for key in ("b", "empty", "a")}
        assert store.messages_of(keys, last=number) == {k: c.all_messages(last=number) for k, c in logs.items()}
        assert store.messages_of(keys, first=number) == {k: c.all_messages(limit=number) for k, c in logs.items()}
    assert [*store.messages_of(["empty", "b"], last=1)] == ["empty", "b"]


def test_messages_of_needs_one_positive_number(store: Store) -> None:
    for numbers in ({}, {"first": 1, "last": 1}, {"first": 0}, {"last": True}, {"last": 1.5}):
        with pytest.raises(ValueError, match="give"):
            store.messages_of(["k"], **numbers)


def test_messages_of_several_sessions_are_two_statements(url: str) -> None:
    sent: list[str] = []
    with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
        for number in range(4):
            store.create(f"k{number}", messages=[Message.user("x" * 70_000), Message.user("small")])
        sent.clear()
        assert len(store.messages_of([f"k{number}" for number in range(4)], last=1)) == 4
        assert len(sent) == 1
        assert len(store.messages_of([f"k{number}" for number in range(4)], first=1)) == 4
        assert len(sent) == 3


def test_messages_of_returns_damaged_messages_if_asked(either_store: Store) -> None:
    either_store.create("k", messages=[Message.user("a"), Message.user("b")])
    with either_store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_message SET tool_calls = '[5]' WHERE seq = 1")
    read = either_store.messages_of(["k"], first=2, damaged="return")["k"]
    assert [type(each) for each in read] == [DamagedMessage, Message]
    with pytest.raises(DamagedMessage):
        either_store.messages_of(["k"], first=1)
