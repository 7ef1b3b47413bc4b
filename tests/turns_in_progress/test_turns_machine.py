"""Random sequences of turns in several processes, compared with a model made of plain lists."""

from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory
from typing import Any, ClassVar, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.call_model import ModelCall, ModelSessionWithCalls
from support.machines import LEASE, ProcessesBesideModel, limited, processes, run_machine
from support.session_model import RECORD
from support.turn_model import ModelAttempt
from support.turns import messages_of

from lango_store import (
    Budget,
    CallUnknown,
    Conversation,
    Effect,
    LangoStoreError,
    LeaseLost,
    Message,
    MessageNotFound,
    RunningTurn,
    Store,
    Suspension,
    SuspensionNotFound,
    ToolCall,
    Turn,
    TurnInProgress,
)
from lango_store.interchange import export, import_path
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

ATTEMPTS = 2
PAUSE = timedelta(seconds=1)
START = datetime(2026, 11, 30, 23, 58, tzinfo=UTC)
LARGE = Budget("s", 10**9, per="day", reserve=1)
USED_UP = Budget("s", 1, per="day", reserve=1)
"""The same budget with the least limit: each test uses one token before."""

turn_ids = st.sampled_from(["t1", "t1", "t2", "t3"])
ids = st.sampled_from([None, None, None, "i1", "i2", "i3"])
roles = st.sampled_from(["user", "user", "assistant", "model", "tool", "record"])
words = st.sampled_from(["oak", "elm"])  # few, so that messages of several attempts are equal
one_message = st.builds(Message, role=roles, content=words, id=ids, tokens=st.sampled_from([None, 3]))
batches = st.lists(one_message, max_size=3)
usages = st.fixed_dictionaries({}, optional={"input": st.integers(0, 9)})


ASKING = Message.assistant(tool_calls=[ToolCall(id="c", name="report", arguments={})])
TIMED_OUT = "TimeoutError: the call has waited too long for its result"


def of_job(id: str) -> dict[str, Any]:
    return {"id": f"lango-wait-{id}", "name": "report", "tool_call_id": "c"}


class Machine(ProcessesBesideModel):
    """Runs turns, whose owners append, stream, crash and lose their leases, and calls that wait for jobs."""

    model: ClassVar = ModelSessionWithCalls
    refusals: ClassVar = (LeaseLost, TurnInProgress, CallUnknown, SuspensionNotFound, MessageNotFound)

    session: ModelSessionWithCalls

    def __init__(self, store: Store, clock: Clock) -> None:
        clock.time = START
        super().__init__(store, clock)
        store.delete("other")
        store.budgets.reset("s")
        self.reserved: set[str] = set()
        """The ids of the drafts of turns that have reserved a part of the budget."""
        self.draft_ids: list[str] = []
        self.jobs: list[str] = []
        """The ids of the waits; their positions in the list are the numbers of the jobs."""

    # A turn

    @rule(
        number=processes,
        id=turn_ids,
        flush=st.sampled_from([timedelta(0), timedelta(hours=1)]),
        text=st.sampled_from(["", "oak", "elm"]),
    )
    def begin(self, number: int, id: str, flush: timedelta, text: str) -> None:
        """Begin an attempt, and stream a piece."""
        process = self.processes[number]
        self.draft_ids.append(self.begin_attempt(process, id, flush=flush).draft_id)
        if process.attempt is not None:
            self.write(number, text, False)

    def running(self, number: int) -> tuple[RunningTurn, ModelAttempt] | None:
        """Return the attempt of this process or, if it has none, of the next process that has one."""
        for process in self.processes[number:] + self.processes[:number]:
            if process.turn is not None and process.attempt is not None:
                return process.turn, process.attempt
        return None

    def is_running(self) -> bool:
        return self.running(0) is not None

    def end(self, turn: RunningTurn) -> None:
        for process in self.processes:
            if process.turn is turn:
                process.forget()

    @precondition(is_running)
    @rule(number=processes, new=batches)
    def append_in_turn(self, number: int, new: list[Message]) -> None:
        turn, attempt = cast(Any, self.running(number))
        self.add_in_turn(turn, attempt, new)

    @precondition(is_running)
    @rule(number=processes, text=st.sampled_from(["", "oak", "elm", "fir"]), flushes=st.booleans())
    def write(self, number: int, text: str, flushes: bool) -> None:
        turn, attempt = cast(Any, self.running(number))
        is_due = turn._flush_every == 0 or turn._draft.flushed_at < 0 or flushes

        def call() -> None:
            turn.write(text)
            if flushes:
                turn.flush()

        self.compare(
            call, lambda _: self.session.write(self.clock.time, attempt, text, flushes=is_due), outside_log=True
        )

    @precondition(is_running)
    @rule(number=processes)
    def interrupt(self, number: int) -> None:
        turn, attempt = cast(Any, self.running(number))
        text = "".join(attempt.texts)

        def model(got: Message | None) -> Message | None:
            if not text:
                return None
            new = Message.assistant(text, extra={"interrupted": True})
            return self.session.append_in_turn(self.clock.time, attempt, [new], [got.id if got else None])[0]

        self.compare(turn.interrupt, model)

    @precondition(is_running)
    @rule(number=processes)
    def take_inbox(self, number: int) -> None:
        turn, attempt = cast(Any, self.running(number))

        def model(got: list[Message] | None) -> list[Message]:
            generated = [each.id for each in got or self.session.takable(self.clock.time)]
            return self.session.take_inbox(self.clock.time, attempt, generated)

        self.compare(turn.take_inbox, model)

    @precondition(is_running)
    @rule(number=processes, seconds=st.sampled_from([0.001, 40, 100, 10**6]), is_new=st.booleans())
    def wait_for_job(self, number: int, seconds: float, is_new: bool) -> None:
        """Begin the last call that was asked for, perhaps again, and let it wait for a job."""
        turn, attempt = cast(Any, self.running(number))
        if is_new:
            self.add_in_turn(turn, attempt, [ASKING])
        seqs = [each.seq for each in self.session.log if each.tool_calls]
        if not seqs:
            return
        place, effects = (seqs[-1], 0), list[Effect]()

        def begin() -> Any:
            effects.append(turn._begin_call(*place))
            return effects[0].call, effects[0].key, effects[0].result

        def begun(_: Any) -> Any:
            key, token = (effects[0].key, effects[0]._token) if effects else ("", None)
            new = ModelCall(key, token, self.clock.time, self.clock.time + LEASE)
            return self.session.begin_call(self.clock.time, place, new, attempt, idempotent=False)

        self.compare(begin, begun, outside_log=True)
        for effect in effects:
            assert effect.replayed == (effect.result is not None or effect.waiting)
            if not effect.replayed:
                self.wait_until(turn, effect, place, timedelta(seconds=seconds))

    def wait_until(self, turn: RunningTurn, effect: Effect, place: tuple[int, int], duration: timedelta) -> None:
        handle = {"job": len(self.jobs)}
        effect.wait(handle, until=duration if duration < LEASE else self.clock.time + duration)

        def model(_: None) -> None:
            self.jobs.append(cast(Any, effect._wait).digest)
            now = self.clock.time
            due_at = now + duration if duration < LEASE else now + duration - timedelta(milliseconds=1)
            new = Suspension(key="k", id=self.jobs[-1], calls=[place], handle=handle, created_at=now, due_at=due_at)
            failure = Message.tool(TIMED_OUT, failed=True, **of_job(self.jobs[-1]))
            self.session.wait_call(now, place, effect._token, new, failure)

        self.compare(lambda: turn._end_call(effect), model)

    @precondition(lambda self: self.jobs)
    @rule(depth=st.integers(0, 3), output=words, seconds=st.sampled_from([0, 0, 39.998, 100]))
    def finish_job(self, depth: int, output: str, seconds: float) -> None:
        """Finish a call that waits, perhaps late, or again."""
        self.clock.move(seconds=seconds)
        number = max(len(self.jobs) - 1 - depth, 0)
        new = Message.tool(output, **of_job(self.jobs[number]))
        self.compare(
            lambda: self.store.calls.finish({"job": number}, output),
            lambda _: self.session.finish_wait(self.clock.time, self.jobs[number], new),
        )

    @precondition(is_running)
    @rule(number=processes, usage=usages)
    def save(self, number: int, usage: dict[str, int]) -> None:
        turn, attempt = cast(Any, self.running(number))
        turn.usage = usage

        def call() -> Turn:
            turn.__exit__(None, None, None)
            return cast(Turn, turn.stored)

        self.compare(call, lambda _: self.session.save(self.clock.time, attempt, usage))
        self.end(turn)

    @precondition(is_running)
    @rule(number=processes)
    def abandon(self, number: int) -> None:
        turn, attempt = cast(Any, self.running(number))
        self.compare(
            lambda: turn.__exit__(ZeroDivisionError, ZeroDivisionError(), None),
            lambda _: self.session.abandon(self.clock.time, attempt),
            outside_log=True,
        )
        self.end(turn)

    @precondition(is_running)
    @rule(number=processes)
    def crash(self, number: int) -> None:
        turn, _ = cast(Any, self.running(number))
        self.end(turn)

    @rule(seconds=st.sampled_from([1, 50, 60, 99.999, 150, -20]))
    def wait(self, seconds: float) -> None:
        self.clock.move(seconds=seconds)

    # Workers

    @rule(ends=st.sampled_from(["saved", "fails", "fails", "dies", "waits", "opens"]), text=words)
    def work(self, ends: str, text: str) -> None:
        """Run the owed turns that are due; the handler appends an answer, and perhaps fails or its process dies.

        Or the turn does not begin, because it waits for its budget, which perhaps opens.
        """
        session, run = self.session, list[RunningTurn]()
        self.clock.move(milliseconds=1)
        now = self.clock.time
        is_due = session.is_owed(now) and not session.given_up and (session.due_at is None or session.due_at <= now)
        is_last = session.attempts >= ATTEMPTS
        open_turn = session.open_turn
        if is_due and not is_last and open_turn is not None and session.stored_turn(open_turn) is not None:
            session.release(saved=True)
            is_last, open_turn = False, session.failed_turn
            is_due = session.is_owed(now) and not session.given_up
        if ends in ("waits", "opens"):
            self.wait_for_budget(now, is_due=is_due, is_last=is_last)
            if ends == "opens":
                self.store.budgets.reset("s")
                session.reset_budget(now)
            return
        if is_due and not is_last and session.drop_answered(now):
            is_due, open_turn = session.is_owed(now) and not session.given_up, session.failed_turn

        def is_another_due() -> bool:
            """Let the model end what a worker ends without its handler; return whether the handler is called then."""
            while session.is_owed(now) and not session.given_up and (session.due_at is None or session.due_at <= now):
                if session.open_turn is not None and session.stored_turn(session.open_turn) is not None:
                    session.release(saved=True)
                elif not session.drop_answered(now):
                    return True
            return False

        def handle(own: Conversation, turn: RunningTurn) -> None:
            if run:
                assert is_another_due()
            expected = session.open_turn if run else open_turn
            run.append(turn)
            taken = [each for each in turn.messages if each.seq > session.last_seq]
            attempt = ModelAttempt(turn.id, f"{turn.lease.token:016x}", LEASE)
            self.draft_ids.append(attempt.draft_id)
            self.reserved.add(attempt.draft_id)
            assert turn.id == (expected or turn.id)
            attempts = session.attempts
            assert session.begin(now, attempt) is None
            session.attempts = attempts + 1
            assert turn.attempt == session.attempts
            generated = (each.id for each in taken if str(each.id).startswith("turn"))
            session.take_inbox(now, attempt, [each.id or next(generated) for each in session.takable(now)])
            (answer,) = turn.append_messages([Message.assistant(text)])
            assert session.append_in_turn(now, attempt, [Message.assistant(text)], [answer.id]) == [answer]
            assert turn.messages == attempt.messages
            if ends == "dies":
                turn._abandon = lambda retry: True  # type: ignore[method-assign]
                raise ZeroDivisionError
            if ends == "fails":
                session.fail(now, ATTEMPTS, PAUSE * 4 ** (turn.attempt - 1))
                raise ZeroDivisionError
            turn.usage = {"input_tokens": 2}
            session.save(now, attempt, {"input_tokens": 2})

        def checked(own: Conversation, turn: RunningTurn) -> None:
            try:
                handle(own, turn)
            except (AssertionError, ValueError, StopIteration) as error:  # which the worker would only log
                faults.append(error)
                raise

        faults: list[Exception] = []
        store = Store(self.store.engine, clock=self.clock)
        saved = store.work(checked, once=True, lease=LEASE, attempts=ATTEMPTS, backoff=PAUSE, budget=LARGE)
        assert faults == []
        assert bool(run) == (is_due and not is_last)
        assert len(run) <= 1 or ends == "saved"
        assert saved == len(run) * (ends == "saved")
        assert not (saved and is_another_due())
        if is_due and is_last:
            session.failed_turn, session.holder = open_turn or session.failed_turn, None
            session.given_up = True

    def wait_for_budget(self, now: datetime, *, is_due: bool, is_last: bool) -> None:
        session, handled = self.session, list[RunningTurn]()
        open_turn = session.open_turn
        with self.store.open("other").turn(budget=LARGE) as turn:
            turn.usage = {"input_tokens": 1}
        store = Store(self.store.engine, clock=self.clock)
        store.work(lambda _, turn: handled.append(turn), once=True, lease=LEASE, attempts=ATTEMPTS, budget=USED_UP)
        assert handled == []
        if is_due and is_last:
            session.failed_turn, session.holder = open_turn or session.failed_turn, None
            session.given_up = True
        elif is_due:
            (owed,) = self.store.owed().items
            midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
            assert (owed.due_at, owed.error) == (midnight, "BudgetExhausted: s")
            assert owed.turn_id == open_turn
            session.wait(now, str(owed.turn_id), midnight - now)

    @rule()
    def retry(self) -> None:
        session = self.session
        if session.open_turn is None and not session.has_taken and all(each.due_at for each in session.inbox):
            return  # the time of a later message would become now, which a clock that is set back makes future again
        is_owed = session.is_owed(self.clock.time)
        assert self.conversation.turns.retry() == is_owed
        if is_owed:
            self.session.attempts, self.session.due_at, self.session.given_up = 0, None, False
            self.session.others_given_up = False

    # Others

    @rule(new=batches)
    def append(self, new: list[Message]) -> None:
        self.add(self.conversation, new)

    @rule(id=turn_ids, new=batches, sure=st.integers(0, 2))
    def save_turn(self, id: str, new: list[Message], sure: int) -> None:
        def model(_: Turn | None) -> Turn:
            return self.session.save_turn(self.clock.time, new, {}, id=id)

        if not sure:
            self.compare(lambda: self.conversation.save_turn(new, id=id), model)

    @rule(new=one_message)
    def enqueue(self, new: Message) -> None:
        revision = self.conversation.info().revision
        self.compare(lambda: self.conversation.inbox.put(new), lambda _: self.session.enqueue(self.clock.time, new))
        assert self.conversation.info().revision == revision

    @rule(new=one_message, seconds=st.sampled_from([-5, 0.001, 40, 100, 10**6]), relative=st.booleans())
    def enqueue_for_later(self, new: Message, seconds: float, relative: bool) -> None:
        def call() -> Message:
            if relative and seconds > 0:
                return self.conversation.inbox.put(new, in_=timedelta(seconds=seconds))
            return self.conversation.inbox.put(new, at=self.clock.time + timedelta(seconds=seconds))

        self.compare(
            call,
            lambda _: self.session.enqueue(self.clock.time, new, self.clock.time + timedelta(seconds=seconds)),
        )

    @rule(id=st.sampled_from(["i1", "i2", "i3"]))
    def cancel(self, id: str) -> None:
        self.clock.move(milliseconds=1)
        assert self.conversation.inbox.delete(id) == self.session.cancel(id)

    @rule()
    def release_turn(self) -> None:
        before = self.conversation.turns.in_progress()
        self.clock.move(milliseconds=1)
        released = self.conversation.turns.release()
        assert (None if released is None else released.id) == (None if before is None else before.id)
        self.session.release_turn()

    @rule(owed=st.booleans())
    def stop(self, owed: bool) -> None:
        def model(got: Turn | None) -> Turn | None:
            generated = [each.id for each in got.messages] if got else []
            return self.session.stop(self.clock.time, generated, None if got is None or not owed else str(got.id))

        self.compare(lambda: self.conversation.turns.stop(by="ann", owed=owed), model)
        self.session.given_up = self.session.given_up and self.session.others_given_up

    @rule(how=st.sampled_from(["backup", "archive", "", ""]))
    def move(self, how: str) -> None:
        """Replace the session by a copy of it, from a backup or an archive."""
        with TemporaryDirectory() as folder:
            if how == "backup":
                export(self.store, f"{folder}/b.jsonl", "backup", keys=["k"])
                self.store.delete("k")
                assert [each.error for each in import_path(self.store, f"{folder}/b.jsonl")] == [None]
            elif (
                how == "archive" and self.conversation.info().updated_at < self.clock.time
            ):  # it may have been set back
                self.store.expire(older_than=timedelta(0), archive=f"{folder}/a.db")
                self.store.restore("k", f"{folder}/a.db")
            else:
                return
        self.session.lose_lease()

    @precondition(lambda self: self.draft_ids)
    @rule(number=st.integers(0, 9))
    def keep_draft(self, number: int) -> None:
        id = self.draft_ids[-1 - number % len(self.draft_ids)]
        if id in self.session.drafts or self.session.with_id(f"draft-{id}"):
            self.compare(
                lambda: self.conversation.drafts.keep(id), lambda _: self.session.keep_draft(self.clock.time, id)
            )
        else:
            with pytest.raises(LangoStoreError):
                self.conversation.drafts.keep(id)

    @precondition(lambda self: self.draft_ids)
    @rule(number=st.integers(0, 9))
    def drop_draft(self, number: int) -> None:
        id = self.draft_ids[-1 - number % len(self.draft_ids)]
        self.compare(
            lambda: self.conversation.drafts.delete(id),
            lambda _: self.session.drop_draft(self.clock.time, id),
            outside_log=True,
        )

    @rule(depth=st.integers(0, 5))
    def truncate(self, depth: int) -> None:
        after = max(self.session.last_seq - depth, 0)
        self.compare(lambda: self.conversation.truncate(after=after), lambda _: self.session.truncate(after))

    @rule(change=st.sampled_from(["clear", "pop", "compact", "delete and create", "", "", "", ""]))
    def change(self, change: str) -> None:
        self.change_log(change)

    # Invariants

    @invariant()
    def log_and_turns_match(self) -> None:
        conversation, session = self.conversation, self.session
        assert conversation.all_messages() == session.log
        assert conversation.messages() == session.window
        assert conversation.turns.list() == session.turns
        for turn in session.turns[-2:]:
            assert messages_of(conversation, turn) == session.messages_of(turn)
        info = conversation.info()
        assert (info.last_seq, info.turn_count) == (session.last_seq, len(session.turns))
        assert info.message_count == len([each for each in session.log if each.role is not RECORD])

    @invariant()
    def lease_drafts_and_inbox_match(self) -> None:
        session, open_turn = self.session, self.conversation.turns.in_progress()
        assert self.store.turns.list_in_progress().items == ([] if open_turn is None else [open_turn])
        if session.holder is None:
            assert open_turn is None
        else:
            assert open_turn is not None
            assert (open_turn.id, open_turn.draft_id) == (session.holder.turn_id, session.holder.draft_id)
            assert (open_turn.until, open_turn.held) == (session.until, session.is_held(self.clock.time))
        drafts = self.conversation.drafts.list()
        assert [each.id for each in drafts] == list(session.drafts)
        for found, draft in zip(drafts, session.drafts.values(), strict=True):
            assert (found.turn_id, found.text) == (draft.turn_id, draft.text)
            assert (found.created_at, found.updated_at) == (draft.created_at, draft.updated_at)
        inbox = self.conversation.inbox.list()
        assert inbox == session.inbox
        assert [each.due_at for each in inbox] == [each.due_at for each in session.inbox]

    @invariant()
    def calls_match(self) -> None:
        assert self.conversation.calls.list() == self.session.begun_calls(self.clock.time)
        suspensions = sorted(self.session.suspensions.values(), key=lambda each: (each.created_at, each.id))
        assert self.conversation.suspensions.list() == suspensions
        assert self.store.calls.waiting().items == [each for each in suspensions if each.answered_at is None]

    @invariant()
    def reservation_matches(self) -> None:
        holder = self.session.holder
        is_reserved = holder is not None and holder.draft_id in self.reserved and self.session.is_held(self.clock.time)
        for state in self.store.budgets.list("s").items:
            assert state.reserved == is_reserved

    @invariant()
    def owed_turn_matches(self) -> None:
        session = self.session
        future = self.store.owed(future=True).items
        assert len(future) == session.is_owed(self.clock.time, future=True)
        owed = self.store.owed().items
        if len(future) > len(owed):
            assert [each.due_at for each in future] == [min(each.due_at for each in session.inbox if each.due_at)]
        assert len(owed) == session.is_owed(self.clock.time)
        for each in owed:
            assert (each.turn_id, each.attempts, each.given_up) == (
                session.open_turn,
                session.attempts,
                session.given_up,
            )
            assert session.due_at is None or each.due_at == session.due_at


@limited
def test_random_turns_give_the_same_results_as_a_model_of_lists(store: Store, clock: Clock) -> None:
    run_machine(lambda: Machine(store, clock), store)
