"""Reminders, budgets and calls that wait outside at once, with workers that are killed and frozen.

LANGO_STORE_WORK_SECONDS sets how long processes are killed and frozen, and LANGO_STORE_WORK_SEED which ones.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from support.budget_worker import used_by
from support.capped_worker import ANSWER, LEASE, LIMIT, RESERVE, is_answer, needs_job, scope_of
from support.counting_model import CountingModel, counting_model
from support.counting_tool import CountingTool, counting_tool
from support.jobs import Jobs
from support.paths import TESTS
from support.polling import until
from support.shared_clock import SharedClock
from support.soak import WORKERS, Soak

from lango_store import Message, Store

pytestmark = pytest.mark.slow

SECONDS: Final = float(os.environ.get("LANGO_STORE_WORK_SECONDS", "4"))
DAY: Final = 2.0
"""Seconds after which the clock is moved by a day."""
PAUSE: Final = 0.05
SOURCE: Final = (TESTS / "support" / "capped_worker.py").read_text()
TIMED_OUT: Final = "TimeoutError: the call has waited too long for its result"


class CappedSoak(Soak):
    """Workers with budgets that open again each day of a clock, some questions for later, and jobs.

    Attributes:
        due: The time of each reminder.
        spent: What was last seen to be spent, by scope and day.
        taken: The most that was spent and reserved at one time, by scope and day.
    """

    def __init__(self, store: Store, url: str, clock: SharedClock, days: Path, model: str, tool: str) -> None:
        super().__init__(store, SOURCE, LEASE, url, model, tool, str(days))
        self.clock, self.moved = clock, time.monotonic()
        self.began = clock()
        self.due: dict[str, datetime] = {}
        self.spent: dict[tuple[str, str], float] = {}
        self.taken: dict[tuple[str, str], float] = {}
        self.put_again = 0
        self.past = Store(url, clock=lambda: self.began)  # it lists the budgets of all days since the beginning

    def send(self) -> None:
        """Put a question into an inbox, for now or for later, and perhaps an earlier one again."""
        key = self.choose.choice([*self.sent])
        texts, inbox = self.sent[key], self.store.conversation(key).inbox
        if self.choose.random() < 0.3:
            text = f"{key}-later-{len(self.due)}"
            pause = self.choose.choice([timedelta(seconds=self.choose.random() * 3), timedelta(days=1, seconds=1)])
            stored = inbox.put(Message.user(text, id=text), in_=pause)
            assert stored.due_at is not None
            self.due[text] = stored.due_at
        else:
            texts.append(f"{key}-{len(texts)}")
            inbox.put(Message.user(texts[-1], id=texts[-1]))
        again = [*texts[-2:], *[text for text in [*self.due][-5:] if text.startswith(f"{key}-")]]
        for text in self.choose.choices(again, k=self.choose.randrange(2)) if again else ():
            in_ = None if self.choose.random() < 0.5 else timedelta(seconds=1)
            assert inbox.put(Message.user(text, id=text), in_=in_).replayed
            self.put_again += 1

    def sample(self) -> None:
        """Read what was spent on each day; when the day ends, move the clock, and retry what was given up."""
        for state in self.past.budgets.list(limit=1_000).items:
            place = state.scope, state.period or ""
            assert state.limit == LIMIT
            assert state.spent >= self.spent.get(place, 0)
            self.spent[place] = state.spent
        for state in self.store.budgets.list().items:
            place = state.scope, state.period or ""
            self.taken[place] = max(self.taken.get(place, 0), state.spent + state.reserved)
        if time.monotonic() > self.moved + DAY:
            self.clock.move()
            self.moved = time.monotonic()
            self.retry()

    def retry(self) -> None:
        """Retry by hand what was given up, so that its questions do not pile up."""
        for each in self.store.owed(limit=1_000).items:
            if each.given_up:
                self.store.conversation(each.key).turns.retry()

    def is_idle(self) -> bool:
        """Retry what was given up, and return True if everything is answered."""
        self.sample()
        self.retry()
        return not self.is_owed() and all(map(self.is_answered, self.sent)) and not self.is_owed()

    def is_answered(self, key: str) -> bool:
        """Return True if the inbox is empty, and the last message is an answer."""
        conversation = self.store.conversation(key)
        # In this order: a turn moves messages from the inbox to the log.
        return not conversation.inbox.list() and all(map(is_answer, conversation.messages(last=1)))

    def is_owed(self) -> bool:
        """Return True if a turn is in progress, or owed now or later."""
        with self.store.snapshot() as view:  # a turn can end, and its calls can wait, between two reads
            return bool(view.owed(future=True, limit=1).items or view.turns.list_in_progress(limit=1).items)


@pytest.fixture
def days(tmp_path: Path) -> Path:
    return tmp_path / "days"


@pytest.fixture
def clock(days: Path) -> SharedClock:
    return SharedClock(days)


@pytest.fixture
def store(url: str, clock: SharedClock) -> Iterator[Store]:
    """Yield a store with the clock of the processes."""
    with Store(url, clock=clock) as store:
        yield store


@pytest.mark.timeout(300 + 3 * SECONDS)
def test_reminders_caps_and_waiting_calls_hold_with_killed_and_frozen_workers(
    url: str, store: Store, clock: SharedClock, days: Path
) -> None:
    with counting_model() as model, counting_tool() as tool:
        soak = CappedSoak(store, url, clock, days, model.url, tool.url)
        jobs = Jobs(store, tool, unreported=0.2)
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            soak.send()
            soak.disturb()
            soak.sample()
            time.sleep(PAUSE)
        for timer in [*soak.frozen.values()]:
            timer.join()
        until(lambda: soak.is_idle() and soak.is_idle(), 120)  # a turn can begin between the reads of two lists
        jobs.end()
        soak.stop()
    assert not soak.is_owed()
    soak.sample()
    soak.past.close()
    messages = sum(map(len, soak.sent.values())) + len(soak.due)
    print(f"{messages} questions, {len(soak.due)} for later, {soak.put_again} put again, {clock.days} days, ", end="")
    print(f"{soak.kills} kills, {soak.freezes} freezes, {soak.errors} errors")
    check_answers(store, soak)
    check_calls(store, jobs, tool)
    check_budgets(store, soak, model)
    assert [each for each in store.maintenance.examine() if each.name != "settings"] == []


def check_answers(store: Store, soak: CappedSoak) -> None:
    """Check that each question was answered once and in order, and no reminder came before its time."""
    reminders: list[str] = []
    for key, texts in soak.sent.items():
        conversation = store.conversation(key)
        log = conversation.all_messages()
        questions = [each for each in log if each.role == "user"]
        assert [each.content for each in questions if each.content not in soak.due] == texts
        answers = [str(each.content).removeprefix(ANSWER) for each in log if is_answer(each)]
        assert ", ".join(answers) == ", ".join(str(each.content) for each in questions)
        assert all(each.turn_no is not None for each in log if each.role != "tool")
        # A turn has taken the message before the handler reads the log.
        read: dict[int | None, str] = {each.turn_no: each.metadata["read"] for each in conversation.turns.list()}
        for each in questions:
            if (due := soak.due.get(str(each.content))) is not None:
                assert datetime.fromisoformat(read[each.turn_no]) >= due
                reminders.append(str(each.content))
    assert sorted(reminders) == sorted(soak.due)


def check_calls(store: Store, jobs: Jobs, tool: CountingTool) -> None:
    """Check that each question that needs a job has one call with one result, and each job was started once."""
    results, expected = Counter[str](), 0
    for info in store.list_sessions(limit=100).items:
        conversation = store.conversation(info.key)
        log, calls = conversation.all_messages(), conversation.calls.list()
        needed = sorted(str(each.content) for each in log if each.role == "user" and needs_job(str(each.content)))
        assert sorted(each.tool_calls[0].id for each in log if each.tool_calls) == needed
        assert sorted(str(each.tool_call_id) for each in log if each.role == "tool") == needed
        assert {each.state for each in calls} <= {"finished"}
        expected += len(calls)
        assert len(calls) == len(needed)
        for call in calls:
            content = str(log[(call.result_seq or 0) - 1].content)
            is_stored = jobs.stored[call.effect_key] == 1
            assert content == f"done {call.effect_key}" if is_stored else content in (TIMED_OUT, "lost")
            results["done" if is_stored else content] += 1
    assert set(tool.runs.values()) <= {1}
    assert max(jobs.stored.values(), default=0) <= 1
    assert store.calls.waiting().items == []
    print(f"{expected} calls: {dict(results)}, {jobs.repeated.total()} repeated, {jobs.late.total()} late")


def check_budgets(store: Store, soak: CappedSoak, model: CountingModel) -> None:
    """Check that the budgets agree with the usage, the limits and the model."""
    used, late, late_turns = (Counter[tuple[str, str]]() for _ in range(3))
    paid = 0
    for row in store.usage(["key", "day"]):
        used[scope_of(row.key or ""), row.day or ""] += row.input_tokens
    assert +Counter(soak.spent) == +used
    for key in soak.sent:
        for turn in store.conversation(key).turns.list():
            if not (tokens := turn.usage.get("input_tokens", 0)):
                continue
            paid += 1
            assert tokens == used_by(turn.id or "")
            assert model.calls[turn.id or ""] >= 1
            # The reservation of a turn counts until its lease ends, by the clock, which the test has moved.
            began = datetime.fromisoformat(turn.metadata["began"])
            if began.date() != turn.created_at.date() or turn.created_at - began > LEASE:
                place = scope_of(key), f"{turn.created_at:%Y-%m-%d}"
                late[place] += tokens
                late_turns[place] += 1
    for place, spent in soak.spent.items():
        # A worker that was frozen while it saved a turn has committed it after another turn got its reservation.
        assert spent <= LIMIT + RESERVE + late[place], place
    for place, taken in soak.taken.items():
        # When the clock is moved, all leases end. Turns that continue are reserved in addition to those that begin now,
        # and may be killed or fail before they are seen to be late.
        assert taken <= 2 * LIMIT + RESERVE * (1 + late_turns[place]), place
    tokens = sum(calls * used_by(turn_id) for turn_id, calls in model.calls.items())
    ended = soak.kills + soak.freezes + soak.errors + WORKERS * soak.clock.days
    assert used.total() <= tokens <= used.total() + RESERVE * ended
    full = sum(spent > LIMIT - RESERVE for spent in soak.spent.values())
    print(f"{paid} paid turns, {model.calls.total()} model calls, {used.total()} tokens used, {tokens} of the model")
    most = max(soak.taken.values())
    print(f"{full} of {len(soak.spent)} caps reached, at most {most} spent and reserved, {late.total()} late")
    assert most > LIMIT - RESERVE  # another turn did not fit
