"""Suspensions: requests for an answer from outside the program, each answered once, with its token."""

from base64 import urlsafe_b64encode
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.factories import contents, message

from lango_store import (
    AlreadyAnswered,
    CallNotFound,
    Conversation,
    InvalidCursor,
    InvalidValue,
    Message,
    SessionNotFound,
    Store,
    Suspension,
    SuspensionExpired,
    SuspensionNotFound,
    ToolCall,
)
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
CALLS = [ToolCall(id="call_0", name="pay", arguments={"euros": 40})] * 2


def asks(conversation: Conversation) -> int:
    return conversation.append_message(Message.assistant(tool_calls=CALLS)).seq


def token_of(suspension: Suspension) -> str:
    assert suspension.token is not None
    return suspension.token


def test_resume_returns_the_state_of_the_suspension_and_the_answer(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    seq = asks(conversation)
    asked = conversation.suspensions.create([(seq, 0), (seq, 1)], state={"run": [1]}, reason="Pay 40 €?", ttl=HOUR)
    assert (asked.key, asked.calls, asked.state, asked.reason) == ("k", [(seq, 0), (seq, 1)], {"run": [1]}, "Pay 40 €?")
    assert (asked.created_at, asked.due_at, asked.answered_at) == (clock.time, clock.time + HOUR, None)
    clock.move(minutes=5)
    resumed = store.suspensions.answer(token_of(asked), {"approved": True})
    assert (resumed.state, resumed.answer, resumed.answered_at) == ({"run": [1]}, {"approved": True}, clock.time)
    assert conversation.suspensions.list() == [resumed]


def test_second_answer_to_a_suspension_raises_already_resumed_with_the_first_answer(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    asked = conversation.suspensions.create()
    first = store.suspensions.answer(token_of(asked), "yes")
    clock.move(minutes=1)
    for by_token in (True, False):
        with pytest.raises(AlreadyAnswered) as raised:
            store.suspensions.answer(token_of(asked), "no") if by_token else conversation.suspensions.answer(
                asked.id, "no"
            )
        error = raised.value
        assert (error.key, error.id, error.answer, error.answered_at) == ("k", asked.id, "yes", first.answered_at)
    assert conversation.suspensions.list() == [first]


def test_conversation_resume_answers_a_suspension_by_id_without_the_token(store: Store) -> None:
    conversation = store.open("k")
    asked = conversation.suspensions.create(state=1)
    assert conversation.suspensions.answer(asked.id, None).answer is None
    with pytest.raises(AlreadyAnswered):
        store.suspensions.answer(token_of(asked), "yes")
    with pytest.raises(SuspensionNotFound):
        store.open("another").suspensions.answer(asked.id, "yes")


def test_delete_suspension_deletes_one_suspension_whose_token_then_answers_nothing(store: Store) -> None:
    conversation = store.open("k")
    answered, asked, another = (conversation.suspensions.create(state=number) for number in range(3))
    conversation.suspensions.answer(answered.id, "yes")
    assert not store.open("other").suspensions.delete(asked.id)
    assert [conversation.suspensions.delete(each.id) for each in (answered, asked, asked)] == [True, True, False]
    assert [each.id for each in conversation.suspensions.list()] == [another.id]
    with pytest.raises(SuspensionNotFound):
        store.suspensions.answer(token_of(asked), "yes")
    with pytest.raises(SessionNotFound):
        store.conversation("missing").suspensions.delete(asked.id)


def test_suspension_cannot_be_answered_after_due_at(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    asked = conversation.suspensions.create(ttl=HOUR)
    clock.move(hours=1)
    with pytest.raises(SuspensionExpired) as raised:
        store.suspensions.answer(token_of(asked), "yes")
    assert (raised.value.key, raised.value.due_at) == ("k", clock.time)
    assert [each.answer for each in conversation.suspensions.list()] == [None]
    assert [each.id for each in store.suspensions.list().items] == [asked.id]


def test_resume_refuses_a_wrong_token(store: Store) -> None:
    conversation = store.open("k")
    token = token_of(conversation.suspensions.create())
    key, secret = token.split(".")
    other = urlsafe_b64encode(b"other").decode()
    store.create("other")
    wrong = [
        "",
        "x",
        secret,
        f"{key}.",
        f"{key}.{'A' * 43}",
        f"{other}.{secret}",
        f"{token} ",
        f"{token}\n",
        f"..{token}",
    ]
    for text in (*wrong, None, 5):
        with pytest.raises(SuspensionNotFound):
            store.suspensions.answer(text, "yes")  # type: ignore[arg-type]
    missing = urlsafe_b64encode(b"missing").decode()
    with pytest.raises(SuspensionNotFound, match="no session 'missing'"):
        store.suspensions.answer(f"{missing}.{secret}", "yes")
    assert store.suspensions.answer(token, "yes").answer == "yes"


@pytest.mark.slow
@given(
    key=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=512),
    state=st.text(),
)
def test_token_works_for_any_session_key(store: Store, key: str, state: str) -> None:
    store.delete(key)
    conversation = store.open(key)
    assert store.suspensions.answer(token_of(conversation.suspensions.create(state=state)), state).state == state


def test_resume_refuses_a_token_made_from_the_id(store: Store) -> None:
    asked = store.open("k").suspensions.create()
    key, _ = token_of(asked).split(".")
    with pytest.raises(SuspensionNotFound):
        store.suspensions.answer(f"{key}.{asked.id}", "yes")


@pytest.mark.parametrize(
    "calls", [[(1, 2)], [(1, -1)], [(2, 0)], [(7, 0)], [(1, 0), (1, 5)]], ids=lambda calls: str(calls)
)
def test_suspend_refuses_a_call_that_no_message_asks_for(store: Store, calls: list[tuple[int, int]]) -> None:
    conversation = store.open("k")
    asks(conversation)
    conversation.append_message(message())
    with pytest.raises(CallNotFound, match="there is no call"):
        conversation.suspensions.create(calls)
    assert conversation.suspensions.list() == []


@pytest.mark.parametrize("calls", [[1], [(1,)], CALLS])
def test_suspend_refuses_calls_that_are_not_pairs_of_seq_and_position(store: Store, calls: Any) -> None:
    with pytest.raises(TypeError, match="calls are pairs"):
        store.open("k").suspensions.create(calls)


def test_suspend_stores_a_call_once_if_the_call_is_passed_twice(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation)
    assert conversation.suspensions.create([(seq, 1), (seq, 1)]).calls == [(seq, 1)]


def test_suspend_refuses_calls_of_several_messages(store: Store) -> None:
    conversation = store.open("k")
    with pytest.raises(ValueError, match="several messages"):
        conversation.suspensions.create([(asks(conversation), 0), (asks(conversation), 0)])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"state": {1}}, InvalidValue),
        ({"reason": "a\0b"}, InvalidValue),
        ({"ttl": 5}, TypeError),
        ({"ttl": -HOUR}, ValueError),
    ],
)
def test_suspend_refuses_arguments_that_cannot_be_stored(store: Store, given: Any, error: type[Exception]) -> None:
    conversation = store.open("k")
    with pytest.raises(error):
        conversation.suspensions.create(**given)
    assert conversation.suspensions.list() == []


def test_resume_with_an_answer_that_cannot_be_stored_changes_nothing(store: Store) -> None:
    token = token_of(store.open("k").suspensions.create())
    with pytest.raises(InvalidValue):
        store.suspensions.answer(token, {1, 2})
    assert store.suspensions.answer(token, [1, 2]).answer == [1, 2]


def test_secret_of_a_token_is_neither_stored_nor_listed(store: Store) -> None:
    token = token_of(store.open("k").suspensions.create(state="the state"))
    with store.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT * FROM lango_suspension").all()
    assert "the state" in str(rows)
    assert token.split(".")[1] not in str(rows)
    assert "token" not in store.suspensions.list().items[0].model_dump()
    assert "token" not in repr(store.conversation("k").suspensions.list())


# Lists


def test_suspensions_are_listed_in_pages_from_the_oldest(store: Store, clock: Clock) -> None:
    suspended = []
    for number in range(5):
        suspended.append(store.open(f"k{4 - number}").suspensions.create())
        clock.move(seconds=number % 2)
    found, cursor = [], None
    for _ in range(3):
        page = store.suspensions.list(limit=2, cursor=cursor)
        found += page.items
        cursor = page.next
    assert cursor is None
    assert [each.key for each in found] == ["k3", "k4", "k1", "k2", "k0"]  # by time, then by key
    assert {each.id for each in found} == {each.id for each in suspended}


def test_suspensions_can_be_filtered_by_user_agent_and_due_time(store: Store, clock: Clock) -> None:
    of_ann = store.open("a", user_id="ann", agent_id="x").suspensions.create(ttl=HOUR).id
    of_bob = store.open("b", user_id="bob", agent_id="x").suspensions.create().id
    gone = store.open("c", ttl=HOUR)
    gone.suspensions.create()
    store.suspensions.answer(token_of(store.open("d", user_id="ann").suspensions.create()), "answered")
    clock.move(hours=1)

    def ids(**which: Any) -> set[str]:
        return {each.id for each in store.suspensions.list(**which).items}

    assert ids() == {of_ann, of_bob}
    assert ids(user_id="ann") == {of_ann}
    assert ids(agent_id="x") == {of_ann, of_bob}
    assert ids(agent_id="x", user_id="bob") == {of_bob}
    assert ids(due_before=clock.time) == set()
    assert ids(due_before=clock.time + timedelta(seconds=1)) == {of_ann}


@pytest.mark.parametrize("cursor", ["", "x", "W10", 5])
def test_suspensions_refuses_a_text_that_is_not_a_cursor(store: Store, cursor: Any) -> None:
    with pytest.raises(InvalidCursor, match=r"Store\.suspensions"):
        store.suspensions.list(cursor=cursor)


def test_suspensions_refuses_a_cursor_of_list_sessions(store: Store) -> None:
    for key in ("a", "b"):
        store.create(key)
    with pytest.raises(InvalidCursor, match="another list"):
        store.suspensions.list(cursor=store.list_sessions(limit=1).next)


@pytest.mark.parametrize("limit", [0, 1_001])
def test_suspensions_refuses_a_page_size_out_of_range(store: Store, limit: int) -> None:
    with pytest.raises(ValueError, match="limit="):
        store.suspensions.list(limit=limit)


# The session changes


def test_suspension_is_deleted_with_the_message_that_asks_for_the_calls(store: Store) -> None:
    conversation = store.open("k", messages=[message()])
    asked = conversation.suspensions.create([(asks(conversation), 0)])
    without_call = conversation.suspensions.create()
    conversation.truncate(after=1)
    assert [each.id for each in conversation.suspensions.list()] == [without_call.id]
    with pytest.raises(SuspensionNotFound):
        store.suspensions.answer(token_of(asked), "yes")
    assert store.suspensions.answer(token_of(without_call), "yes").answer == "yes"


def test_suspension_of_an_expired_session_cannot_be_answered(store: Store, clock: Clock) -> None:
    conversation = store.open("k", ttl=HOUR)
    token = token_of(conversation.suspensions.create(ttl=2 * HOUR))
    clock.move(hours=1)
    with pytest.raises(SuspensionNotFound, match="expired"):
        store.suspensions.answer(token, "yes")
    assert store.suspensions.list().items == []
    store.touch("k")
    assert store.suspensions.answer(token, "yes").answer == "yes"


def test_suspension_changes_neither_revision_nor_log(store: Store) -> None:
    conversation = store.open("k")
    before = conversation.info()
    store.suspensions.answer(token_of(conversation.suspensions.create()), "yes")
    assert conversation.info() == before
    assert conversation.messages() == []


def test_fork_has_no_suspensions(store: Store) -> None:
    conversation = store.open("k")
    conversation.suspensions.create([(asks(conversation), 0)])
    assert conversation.fork("fork").suspensions.list() == []


def test_history_adds_a_result_for_a_suspended_call(store: Store) -> None:
    conversation = store.open("k", messages=[message("pay")])
    conversation.suspensions.create([(asks(conversation), 0)])
    roles = [each["role"] for each in conversation.history()]
    assert roles == ["user", "assistant", "tool", "tool"]


def test_approved_call_runs_once_even_if_two_processes_continue(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation)
    resumed = store.suspensions.answer(token_of(conversation.suspensions.create([(seq, 1)])), True)
    runs = 0
    for _ in range(2):  # the process died after the answer, and another one continues
        ((seq, position),) = resumed.calls
        effect = conversation.calls.begin(seq, position)
        if not effect.replayed:
            runs += 1
            conversation.calls.finish(effect, "paid")
    assert (runs, contents(conversation.messages())) == (1, [None, "paid"])


def test_answer_to_a_suspension_is_rolled_back_with_the_callers_transaction(store: Store) -> None:
    token = token_of(store.open("k").suspensions.create())

    def answer(tx: Store) -> None:
        tx.suspensions.answer(token, "no")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.transact(answer)
    assert store.suspensions.answer(token, "yes").answer == "yes"


def test_answer_stores_who_has_decided_and_why(store: Store) -> None:
    conversation = store.open("k")
    by_token, by_id, unknown = (conversation.suspensions.create() for _ in range(3))
    store.suspensions.answer(token_of(by_token), True, by="ann", why="It is cheap. é")
    conversation.suspensions.answer(by_id.id, False, by="bob")
    conversation.suspensions.answer(unknown.id, True)
    decided = {each.id: (each.answered_by, each.answered_why) for each in conversation.suspensions.list()}
    assert decided == {by_token.id: ("ann", "It is cheap. é"), by_id.id: ("bob", None), unknown.id: (None, None)}
    with pytest.raises(AlreadyAnswered, match="by 'bob'") as raised:
        conversation.suspensions.answer(by_id.id, True, by="ann", why="late")
    assert raised.value.answered_by == "bob"


def test_answer_refuses_a_decider_or_a_reason_that_cannot_be_stored(store: Store) -> None:
    conversation = store.open("k")
    asked = conversation.suspensions.create()
    refused: list[dict[str, Any]] = [{"by": "a\0"}, {"by": 1}, {"why": "\ud800"}]
    for values in refused:
        with pytest.raises(InvalidValue):
            store.suspensions.answer(token_of(asked), True, **values)
    assert conversation.suspensions.list()[0].answered_at is None


def test_redaction_of_a_call_removes_why_it_was_decided_and_keeps_who(store: Store) -> None:
    conversation = store.open("k")
    seq = asks(conversation)
    asked = conversation.suspensions.create([(seq, 0)], reason="Pay?")
    conversation.suspensions.answer(asked.id, {"card": "4111"}, by="ann", why="The card 4111 is hers.")
    conversation.edits.redact(seq)
    (redacted,) = conversation.suspensions.list()
    assert (redacted.answer, redacted.answered_why, redacted.answered_by) == (None, None, "ann")
    assert redacted.answered_at is not None
