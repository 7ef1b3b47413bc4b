"""Tool calls that wait for their result from outside, such as of a job."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.awaiting import awaiting
from support.commands import run
from support.factories import contents, message
from support.session_checks import assert_sound
from support.working import work

from lango_store import (
    AsyncStore,
    CallInProgress,
    Conflict,
    Conversation,
    InvalidState,
    InvalidValue,
    Message,
    MessageNotFound,
    RunningTurn,
    SessionNotFound,
    Store,
    SuspensionExpired,
    SuspensionNotFound,
    ToolCall,
)
from lango_store.interchange import export, import_path
from lango_store.testing import Clock

HOUR = timedelta(hours=1)
TIMED_OUT = "TimeoutError: the call has waited too long for its result"


def asking(number: int = 1) -> Message:
    return Message.assistant(tool_calls=[ToolCall(id=f"call_{n}", name="report", arguments={}) for n in range(number)])


class Agent:
    """A handler that asks for calls, starts a job for each, and answers when no call waits any more."""

    def __init__(self, until: Any = HOUR, calls: int = 1) -> None:
        self.until, self.calls, self.jobs = until, calls, list[str]()

    def __call__(self, conversation: Conversation, turn: RunningTurn) -> None:
        log = conversation.all_messages()
        if log[-1].role == "user":
            log.append(turn.append(asking(self.calls)))
        request = next(each for each in reversed(log) if each.role == "assistant")
        for call in request.tool_calls:
            with turn.call(request, call) as effect:
                if not effect.replayed:
                    self.jobs.append(f"{conversation.key} {call.id}")
                    effect.wait({"job": self.jobs[-1]}, until=self.until)
        if all(each.state == "finished" for each in conversation.calls.list()):
            results = [each.content for each in conversation.all_messages() if each.role == "tool"]
            turn.append(Message.assistant(f"answer to {results}"))


def waiting(store: Store, key: str = "k", *, calls: int = 1, until: Any = HOUR) -> Agent:
    """Run a turn whose calls wait."""
    agent = Agent(until, calls)
    store.open(key).inbox.put(message("report"))
    assert work(store, agent) == 1
    return agent


def handles(store: Store) -> list[Any]:
    return [each.handle for each in store.calls.waiting().items]


@pytest.fixture(params=["sync", "async"])
def either(request: pytest.FixtureRequest, store: Store) -> Any:
    """Yield the store, or an asynchronous one with its interface."""
    if request.param == "sync":
        yield store
    else:
        with awaiting(AsyncStore(store)) as asynchronous:
            yield asynchronous


def test_waiting_call_ends_its_turn_and_its_result_begins_the_next_one(either: Store, clock: Clock) -> None:
    agent = waiting(either)
    conversation = either.conversation("k")
    assert (either.owed().items, len(conversation.turns.list()), work(either, agent)) == ([], 1, 0)
    (item,) = either.calls.waiting().items
    assert (item.key, item.calls, item.handle, item.state) == ("k", [(2, 0)], {"job": "k call_0"}, None)
    assert (item.created_at, item.due_at) == (clock.time, clock.time + HOUR)
    assert [(each.state, each.result_seq) for each in conversation.calls.list()] == [("waiting", None)]
    clock.move(minutes=59)
    result = either.calls.finish({"job": "k call_0"}, "12 pages")
    assert (result.content, result.role, result.tool_call_id, result.replayed) == ("12 pages", "tool", "call_0", False)
    assert [each.due_at for each in either.owed().items] == [clock.time]
    assert either.calls.waiting().items == []
    assert work(either, agent) == 1
    log = conversation.all_messages()
    assert contents(log) == ["report", None, "12 pages", "answer to ['12 pages']"]
    assert [each.turn_no for each in log] == [1, 1, 2, 2]
    assert [(each.state, each.result_seq) for each in conversation.calls.list()] == [("finished", 3)]
    clock.move(days=1)
    assert (either.owed(future=True).items, work(either, agent), agent.jobs) == ([], 0, ["k call_0"])


def test_result_is_stored_once(store: Store, clock: Clock) -> None:
    agent, handle = waiting(store), {"job": "k call_0"}
    item = store.calls.waiting().items[0]
    names: list[Any] = [item, handle]
    assert not store.calls.finish(item, {"pages": 12}).replayed
    for is_taken in (False, True):
        for name in names:
            again = store.calls.finish(name, failed="no")
            assert (again.replayed, again.tool_calls[0].output, bool(again.seq)) == (True, {"pages": 12}, is_taken)
        assert work(store, agent) == (not is_taken)
    assert [each.role for each in store.conversation("k").all_messages()] == ["user", "assistant", "tool", "assistant"]
    store.conversation("k").edits.delete(3)
    with pytest.raises(MessageNotFound):
        store.calls.finish(handle, "12 pages")


def test_failure_of_a_job_is_the_result(store: Store) -> None:
    agent = waiting(store)
    store.calls.finish({"job": "k call_0"}, failed="no paper")
    assert work(store, agent) == 1
    result = store.conversation("k").all_messages()[2]
    assert (result.content, result.extra) == ("no paper", {"failed": True})


@pytest.mark.parametrize("is_taken", [True, False])
def test_call_that_has_waited_too_long_fails_for_the_model(store: Store, clock: Clock, is_taken: bool) -> None:
    agent = waiting(store, until=clock.time + HOUR)
    due_at = store.calls.waiting().items[0].due_at
    assert [(each.key, each.due_at) for each in store.owed(future=True).items] == [("k", due_at)]
    clock.move(minutes=60)
    if is_taken:
        assert work(store, agent) == 1
        clock.move(minutes=-30)
    names: list[Any] = [{"job": "k call_0"}, *store.calls.waiting().items]
    for name in names:
        with pytest.raises(SuspensionExpired, match="the call has failed"):
            store.calls.finish(name, "12 pages")
    clock.move(minutes=60)
    assert work(store, agent) == (not is_taken)
    log = store.conversation("k").all_messages()
    assert contents(log) == ["report", None, TIMED_OUT, f"answer to ['{TIMED_OUT}']"]
    assert log[2].extra == {"failed": True}
    assert (agent.jobs, store.calls.waiting().items, work(store, agent)) == (["k call_0"], [], 0)
    assert_sound(store)


def test_calls_of_one_message_wait_for_their_own_results(store: Store, clock: Clock) -> None:
    agent = waiting(store, calls=3)
    assert sorted(map(str, handles(store))) == [str({"job": f"k call_{n}"}) for n in range(3)]
    store.calls.finish({"job": "k call_1"}, "b")
    assert work(store, agent) == 1
    clock.move(minutes=30)
    store.calls.finish({"job": "k call_0"}, "a")
    assert [each.state for each in store.conversation("k").calls.list()] == ["waiting", "finished", "waiting"]
    clock.move(minutes=30)
    assert work(store, agent) == 1
    assert contents(store.conversation("k").messages())[-1] == f"answer to {['b', TIMED_OUT, 'a']}".replace(
        "'a'", "'a'"
    )
    assert agent.jobs == [f"k call_{n}" for n in range(3)]


def test_call_that_waits_does_not_run_again(store: Store, clock: Clock) -> None:
    waiting(store)
    conversation = store.conversation("k")
    for idempotent in (False, True):
        for move in (HOUR / 2, 2 * HOUR):
            clock.time += move
            effect = conversation.calls.begin(2, 0, idempotent=idempotent)
            assert (effect.replayed, effect.waiting, effect.result) == (True, True, None)
            with pytest.raises(InvalidState, match=r"calls\.finish"):
                conversation.calls.finish(effect, "12 pages")
            with pytest.raises(InvalidState):
                effect.wait({"job": 2}, until=HOUR)
    for outcome in ({"output": 1}, {"failed": "no"}, {"retry": True}):
        with pytest.raises(CallInProgress):
            conversation.calls.resolve(2, 0, **outcome)
    assert store.calls.list_unknown().items == []


def test_turn_that_fails_after_the_wait_does_not_run_the_call_again(store: Store, clock: Clock) -> None:
    agent = Agent()

    def fails(conversation: Conversation, turn: RunningTurn) -> None:
        agent(conversation, turn)
        raise ZeroDivisionError

    store.open("k").inbox.put(message("report"))
    assert work(store, fails) == 0
    assert handles(store) == [{"job": "k call_0"}]
    clock.move(minutes=10)
    assert work(store, agent) == 1
    assert (agent.jobs, handles(store)) == (["k call_0"], [{"job": "k call_0"}])
    assert [len(store.owed(future=each).items) for each in (False, True)] == [0, 1]


def test_wait_is_stored_after_its_turn_has_lost_the_lease(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    request = conversation.append_message(asking())
    turn = conversation.turn("t").begin()
    with turn.call(request, 0) as effect:
        conversation.turns.release()
        effect.wait({"job": 1}, until=HOUR)
    assert handles(store) == [{"job": 1}]


def test_wait_of_a_call_that_was_resolved_is_refused(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    request = conversation.append_message(asking())
    turn = conversation.turn("t", lease=timedelta(days=1)).begin()
    effect = turn._begin_call(request, 0, limit=HOUR)
    clock.move(hours=2)
    conversation.calls.resolve(request.seq, 0, output="12 pages")
    effect.wait({"job": 1}, until=HOUR)
    with pytest.raises(Conflict):
        turn._end_call(effect)
    assert (handles(store), conversation.inbox.list()) == ([], [])


def test_output_is_preferred_to_a_wait(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn, turn.call(turn.append(asking()), 0) as effect:
        effect.wait({"job": 1}, until=HOUR)
        effect.output = "12 pages"
    assert (contents(conversation.messages())[1:], handles(store)) == (["12 pages"], [])


def test_result_that_is_stored_in_the_block_ends_the_wait(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn, turn.call(turn.append(asking()), 0) as effect:
        effect.wait({"job": 1}, until=HOUR)
        conversation.calls.finish(effect, "12 pages")
        with pytest.raises(InvalidState):
            effect.wait({"job": 2}, until=HOUR)
    assert (handles(store), conversation.inbox.list()) == ([], [])
    assert [each.state for each in conversation.calls.list()] == ["finished"]


@pytest.mark.parametrize("repeats", [True, False])
def test_wait_whose_response_was_lost_is_stored_once(store: Store, repeats: bool) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        effect = turn._begin_call(turn.append(asking()), 0)
        effect.wait({"job": 1}, until=HOUR)
        turn._end_call(effect)
        effect.waiting = False
        effect._wait = effect._wait if repeats else None
        turn._end_call(effect)
    assert (handles(store), len(conversation.inbox.list())) == ([{"job": 1}], 1)
    assert [each.state for each in conversation.calls.list()] == ["waiting"]


@pytest.mark.parametrize(
    ("handle", "until", "error"),
    [
        ({}, HOUR, TypeError),
        ("t-1", HOUR, TypeError),
        ({"a": {1, 2}}, HOUR, InvalidValue),
        ({1: 2}, HOUR, InvalidValue),
        ({"a": 1}, None, TypeError),
        ({"a": 1}, 60, TypeError),
        ({"a": 1}, timedelta(seconds=-1), ValueError),
        ({"a": 1}, datetime(2026, 1, 1), ValueError),
        ({"a": 1}, datetime(9999, 1, 1, tzinfo=UTC), ValueError),
    ],
)
@pytest.mark.one_database
def test_wait_refuses_what_it_cannot_store(store: Store, handle: Any, until: Any, error: type[Exception]) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t").begin()
    with pytest.raises(error) as raised, turn.call(turn.append(asking()), 0) as effect:
        effect.wait(handle, until=until)
    assert until == HOUR or "until" in str(raised.value)
    assert [each.state for each in conversation.calls.list()] == ["unknown"]


def test_only_a_call_in_its_block_can_wait(store: Store) -> None:
    conversation = store.open("k")
    effect = conversation.calls.begin(conversation.append_message(asking()).seq, 0)
    with pytest.raises(InvalidState, match=r"turn\.call"):
        effect.wait({"job": 1}, until=HOUR)


def test_handle_that_several_calls_wait_with_needs_an_item_of_the_list(store: Store) -> None:
    for key in "ab":
        conversation = store.open(key)
        with conversation.turn() as turn, turn.call(turn.append(asking()), 0) as effect:
            effect.wait({"deploy": 7, "to": "x"}, until=HOUR)
    with pytest.raises(InvalidState, match="several calls"):
        store.calls.finish({"to": "x", "deploy": 7}, "done")
    first, second = store.calls.waiting().items
    store.calls.finish(first, "done")
    assert [each.key for each in store.owed().items] == [first.key]
    store.calls.finish({"to": "x", "deploy": 7}, "done")
    assert store.calls.finish(second, "again").replayed


def test_unknown_handle_is_not_found(store: Store) -> None:
    waiting(store)
    question = store.conversation("k").suspensions.create()
    for name in ({"job": 2}, question):
        with pytest.raises(SuspensionNotFound):
            store.calls.finish(name, "12 pages")
    with pytest.raises(TypeError, match="JSON object"):
        store.calls.finish("k call_0", "12 pages")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="output"):
        store.calls.finish({"job": "k call_0"})
    assert handles(store) == [{"job": "k call_0"}]


def test_question_is_not_listed_as_a_waiting_call_and_a_wait_is_not_answered_as_a_question(store: Store) -> None:
    waiting(store)
    conversation = store.conversation("k")
    question = conversation.suspensions.create(reason="Pay?")
    (item,) = store.calls.waiting().items
    assert [each.id for each in store.suspensions.list().items] == [question.id]
    assert {each.id for each in conversation.suspensions.list()} == {item.id, question.id}
    assert store.stats().unanswered_suspensions == 1
    with pytest.raises(SuspensionNotFound):
        conversation.suspensions.answer(item.id, "forged")
    assert not conversation.suspensions.delete(item.id)


def test_waiting_calls_are_listed_in_pages_with_filters(store: Store, clock: Clock) -> None:
    for number in range(5):
        store.create(f"k{number}", user_id="ann" if number % 2 else "bob")
        waiting(store, f"k{number}")
        clock.move(seconds=1)
    page = store.calls.waiting(limit=2)
    keys = [each.key for each in page.items]
    while page.next is not None:
        page = store.calls.waiting(limit=2, cursor=page.next)
        keys += [each.key for each in page.items]
    assert keys == [f"k{number}" for number in range(5)]
    assert [each.key for each in store.calls.waiting(user_id="ann").items] == ["k1", "k3"]
    store.conversation("k1").update(user_id="bob")
    assert [each.key for each in store.calls.waiting(user_id="ann", key_prefix="k").items] == ["k3"]


def test_user_reaches_only_own_waiting_calls(store: Store) -> None:
    for user in ("ann", "bob"):
        store.open(user, user_id=user)
        waiting(store, user)
    ann = store.for_user("ann")
    (bobs,) = store.calls.waiting(user_id="bob").items
    assert handles(ann) == [{"job": "ann call_0"}]
    with pytest.raises(SuspensionNotFound):
        ann.calls.finish({"job": "bob call_0"}, "forged")
    with pytest.raises(SessionNotFound):
        ann.calls.finish(bobs, "forged")
    ann.calls.finish({"job": "ann call_0"}, "done")
    assert [each.key for each in store.owed().items] == ["ann"]


@pytest.mark.parametrize("is_due", [True, False])
def test_result_of_a_call_whose_message_was_deleted_is_not_stored(store: Store, clock: Clock, is_due: bool) -> None:
    agent = waiting(store)
    if is_due:
        clock.move(hours=1)
    else:
        store.calls.finish({"job": "k call_0"}, "12 pages")
    store.conversation("k").truncate(after=1)
    assert work(store, agent) == 0
    assert (contents(store.conversation("k").all_messages()), store.conversation("k").inbox.list()) == (["report"], [])
    assert store.owed(future=True).items == []
    with pytest.raises(SuspensionNotFound):
        store.calls.finish({"job": "k call_0"}, "12 pages")
    assert_sound(store)


def test_undo_does_not_let_the_call_wait_again(store: Store) -> None:
    kept = Store(store.engine, clock=store._context.clock_time, keep_removed=timedelta(days=1))
    agent = waiting(kept)
    conversation = kept.conversation("k")
    conversation.edits.delete(2)
    conversation.versions.undo()
    assert (conversation.calls.list(), handles(kept), work(kept, agent)) == ([], [], 0)
    assert contents(conversation.all_messages()) == ["report", None]


@pytest.mark.parametrize("keep", [False, True])
def test_failure_survives_an_edited_question(store: Store, clock: Clock, keep: bool) -> None:
    """An edit empties the inbox, but a call of an earlier question still waits."""
    agent = waiting(store)
    conversation = store.conversation("k")
    conversation.inbox.put(message("and?", id="q"))
    assert work(store, agent) == 1
    clock.move(hours=1)
    conversation.inbox.put_messages([message("or?")], replace_after=2, keep=keep)
    assert work(store, agent) == 1
    assert TIMED_OUT in contents(conversation.all_messages())
    assert [each.state for each in conversation.calls.list()] == ["finished", "waiting"]


def test_redacted_request_still_gets_its_result(store: Store) -> None:
    agent = waiting(store)
    (item,) = store.calls.waiting().items
    store.conversation("k").edits.redact(2)
    assert handles(store) == [{}]
    store.calls.finish(item, "12 pages")
    turn = store.conversation("k").turn()
    with turn:
        (result,) = turn.take_inbox()
    assert (result.content, result.tool_call_id) == ("12 pages", None)
    assert agent.jobs == ["k call_0"]


def test_call_whose_result_was_deleted_can_wait_again(store: Store) -> None:
    agent = waiting(store)
    store.calls.finish({"job": "k call_0"}, "12 pages")
    work(store, agent)
    conversation = store.conversation("k")
    conversation.truncate(after=2)
    assert [each.state for each in conversation.calls.list()] == ["unknown"]
    conversation.calls.resolve(2, 0, retry=True)
    assert [each.state for each in conversation.calls.list()] == ["retry"]
    with conversation.turn() as turn:
        agent(conversation, turn)
    assert handles(store) == [{"job": "k call_0"}]
    store.calls.finish({"job": "k call_0"}, "13 pages")
    assert work(store, agent) == 1
    assert contents(conversation.all_messages())[2] == "13 pages"


def test_failure_of_a_waiting_call_cannot_be_dropped(store: Store, clock: Clock) -> None:
    agent = waiting(store)
    inbox = store.conversation("k").inbox
    (failure,) = inbox.list()
    for refused in (lambda: inbox.delete(str(failure.id)), lambda: inbox.update(message("other", id=failure.id))):
        with pytest.raises(InvalidState, match=r"is the result of a call that waits: Store\.calls\.finish"):
            refused()
    assert inbox.list() == [failure]
    clock.move(hours=1)
    assert work(store, agent) == 1
    assert [each.state for each in store.conversation("k").calls.list()] == ["finished"]


def test_resolve_of_a_waiting_call_says_what_ends_the_wait(store: Store) -> None:
    waiting(store)
    with pytest.raises(CallInProgress, match=r"waits for its result from outside: store it with Store\.calls\.finish"):
        store.conversation("k").calls.resolve(2, 0, output="pages")


def test_fork_has_no_waiting_call(store: Store) -> None:
    waiting(store)
    fork = store.conversation("k").fork("fork")
    assert (fork.calls.list(), fork.inbox.list(), [each.key for each in store.calls.waiting().items]) == ([], [], ["k"])


@pytest.mark.parametrize("how", ["backup", "archive"])
def test_moved_session_still_waits(store: Store, clock: Clock, tmp_path: Path, how: str) -> None:
    agent = waiting(store)
    if how == "backup":
        export(store, tmp_path / "b.jsonl", "backup", keys=["k"])
        store.delete("k")
        assert [each.error for each in import_path(store, tmp_path / "b.jsonl")] == [None]
    else:
        clock.move(milliseconds=1)
        store.expire(older_than=timedelta(0), archive=tmp_path / "a.db")
        assert handles(store) == []
        store.restore("k", tmp_path / "a.db")
    store.calls.finish({"job": "k call_0"}, "12 pages")
    assert work(store, agent) == 1
    assert contents(store.conversation("k").all_messages())[2] == "12 pages"
    assert_sound(store)


def test_stop_of_the_owed_turn_keeps_the_result(store: Store) -> None:
    waiting(store)
    store.calls.finish({"job": "k call_0"}, "12 pages")
    turn = store.conversation("k").turns.stop(owed=True)
    assert turn is not None
    assert contents(turn.messages) == ["12 pages"]
    assert [each.state for each in store.conversation("k").calls.list()] == ["finished"]


def test_finish_in_the_transaction_of_the_application(store: Store) -> None:
    agent = waiting(store)
    for commits in (False, True):
        with store.engine.connect() as connection, connection.begin() as transaction:
            store.using(connection).calls.finish({"job": "k call_0"}, "12 pages")
            if not commits:
                transaction.rollback()
        assert work(store, agent) == commits


@pytest.mark.one_database
def test_document_shows_what_a_call_waits_for(store: Store) -> None:
    waiting(store)
    conversation = store.conversation("k")

    def shown() -> str:
        return store.get("k").to_html(suspensions=conversation.suspensions.list())

    assert "waiting for {&quot;job&quot;: &quot;k call_0&quot;}" in shown()
    store.calls.finish({"job": "k call_0"}, "12 pages")
    assert "has waited for" in shown()


@pytest.mark.one_database
def test_command_lists_waiting_calls(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        waiting(store, "tab\tkey")
        (item,) = store.calls.waiting().items
    assert item.due_at is not None
    done = run("calls", "--waiting", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f'tab\\tkey\t2\t0\t{{"job": "tab\\\\tkey call_0"}}\t{item.due_at.isoformat()}\n'
    assert run("calls", "--waiting", "--user", "ann", "--url", url).stderr == "no call waits\n"


@pytest.mark.one_database
def test_asynchronous_block_stores_the_wait(url: str) -> None:
    async def main() -> None:
        async with AsyncStore(url) as store:
            conversation = await store.open("k")
            async with conversation.turn("t") as turn:
                request = await turn.append(asking())
                async with turn.call(request, 0) as effect:
                    effect.wait({"job": 1}, until=HOUR)
            assert effect.waiting
            result = await store.calls.finish({"job": 1}, "12 pages")
            assert result.content == "12 pages"
            assert (await store.calls.waiting()).items == []

    asyncio.run(main())
