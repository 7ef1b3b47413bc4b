"""Work that waits, in `stats`, `stats --prometheus` and `doctor`."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from support.commands import run
from support.factories import message
from support.working import fail

from lango_store import AsyncStore, Message, Store, ToolCall
from lango_store.testing import Clock

WORK = {
    "owed_turns": 2,
    "given_up_turns": 1,
    "unknown_calls": 3,
    "unanswered_suspensions": 2,
}
HOUR = timedelta(hours=1)


def leave_work(store: Store, clock: Clock) -> None:
    """Leave work of each kind in the store, and rows that do not count; two hours pass."""
    store.open("bad").inbox.put(message())
    store.work(fail, once=True, attempts=1)
    for key in ("a", "b"):
        store.open(key).inbox.put(message())
    calling = store.open("calling")
    for number in range(5):
        asking = calling.append_message(Message.assistant(tool_calls=[ToolCall(id=f"c{number}", name="pay")]))
        if number != 3:
            calling.calls.begin(asking.seq, 0, limit=HOUR if number < 3 else 3 * HOUR)
    token = calling.suspensions.create().token
    assert token is not None
    calling.suspensions.create(ttl=HOUR)
    for _ in range(2):
        calling.suspensions.create(ttl=3 * HOUR)
    store.suspensions.answer(token, True)
    gone = store.open("gone", ttl=HOUR)
    gone.inbox.put(message())
    gone.suspensions.create()
    store.work(lambda conversation, turn: None, once=True, key_prefix="calling")
    clock.move(hours=2)
    store.open("running").inbox.put(message())
    store.conversation("running").turn("t").begin()


def counts(stats: object) -> dict[str, object]:
    return {name: getattr(stats, name) for name in WORK}


def test_stats_count_the_work_that_waits(store: Store, clock: Clock) -> None:
    assert not any(counts(store.stats()).values())
    leave_work(store, clock)
    assert counts(store.stats()) == WORK
    assert store.stats().owed_since == clock.time - 2 * HOUR
    assert store.stats() == store.stats()
    assert counts(asyncio.run(AsyncStore(store).stats())) == WORK
    store.conversation("bad").turns.retry()
    assert (store.stats().owed_turns, store.stats().given_up_turns) == (3, 0)


@pytest.mark.one_database
def test_turn_that_waits_for_its_next_attempt_is_not_due(url: str) -> None:
    clock = Clock()
    clock.time = datetime.now(UTC)
    with Store(url, clock=clock) as store:
        store.open("bad").inbox.put(message())
        store.work(fail, once=True, backoff=HOUR)
        assert (store.stats().owed_turns, store.stats().owed_since) == (1, clock.time + HOUR)
        assert "\nlango_store_oldest_owed_seconds 0.0\n" in run("stats", "--prometheus", "--url", url).stdout


@pytest.mark.slow
@pytest.mark.one_database
def test_commands_print_waiting_work_with_its_remedy(url: str) -> None:
    clock = Clock()
    clock.time = datetime.now(UTC) - 2 * HOUR - timedelta(seconds=5)
    with Store(url, clock=clock) as store:
        leave_work(store, clock)
        since = clock.time - 2 * HOUR
    remedies = {
        f"2 turns owed, the first due at {since:%Y-%m-%d %H:%M:%S} UTC": "start workers",
        "1 turn given up": "lango-store turns retry",
        "3 unknown tool calls": "lango-store calls resolve",
        "2 suspensions without an answer": "lango-store suspensions answer",
    }
    for command in (("doctor",), ("stats",)):
        done = run(*command, "--url", url)
        text = " ".join(done.stdout.split())
        assert done.returncode == 0, done
        for detail, remedy in remedies.items():
            assert remedy in text.partition(detail)[2]
    metrics = run("stats", "--prometheus", "--url", url).stdout
    for name, value in WORK.items():
        assert f"\nlango_store_{name} {value}\n" in metrics
    assert "\nlango_store_oldest_owed_seconds 72" in metrics
    assert "turns retry" in metrics


@pytest.mark.one_database
def test_doctor_says_nothing_of_work_if_none_waits(store: Store, url: str) -> None:
    store.create("k", messages=[message()])
    done = run("doctor", "--url", url)
    assert "waiting" not in done.stdout
