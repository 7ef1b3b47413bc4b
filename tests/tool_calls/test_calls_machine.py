"""Random tool calls and suspensions in several processes, compared with a model made of dicts.

All calls have the same id.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, cast

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from support.call_model import Begun, ModelCall, ModelSessionWithCalls, Place
from support.machines import LEASE, Process, ProcessesBesideModel, limited, processes, run_machine
from support.turn_model import ModelAttempt

from lango_store import (
    UNSET,
    Effect,
    Message,
    RunningTurn,
    Store,
    Suspension,
    ToolCall,
)
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

LIMIT = timedelta(seconds=10)

names = st.sampled_from([None, "ann", "bob é"])
REMOVALS = [*["delete"] * 6, *["truncate"] * 2, "redact", "clear", "pop", "discard", "delete and create"]

latest = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5])
"""An item of a list, counted from its end."""

pauses = st.sampled_from([0, 0, 1, 9.999, 10, 100])
"""The seconds that pass before a step; calls end after 10 seconds, leases after 100."""

rarely = st.sampled_from([False, False, True])

positions = st.sampled_from([*[0] * 6, *[1] * 3, 2])
"""A position in a message that asks for one or two calls."""

outputs = st.sampled_from(["oak", "oak", {"tree": "elm"}, None])


def asking(number: int) -> Message:
    calls = [ToolCall(id="call_0", name=f"pay {n}", arguments={}) for n in range(number)]
    return Message.assistant(tool_calls=calls)


def result(call: ToolCall, output: Any, failed: bool) -> Message:
    """Return the message that the store makes of an output or of a failure."""
    named: Any = {"tool_call_id": call.id or None, "name": call.name or None}
    if failed:
        return Message.tool(str(output), extra={"failed": True}, **named)
    if isinstance(output, str):
        return Message.tool(output, **named)
    return Message.tool(tool_calls=[ToolCall(id=call.id, name=call.name, output=output)], **named)


def outcome(output: Any, failed: bool) -> dict[str, Any]:
    return {"failed": str(output)} if failed else {"output": output}


@dataclass
class Call:
    """A call to begin, and whether to finish it in the same step."""

    seconds: float
    depth: int
    position: int
    limit: timedelta
    idempotent: bool
    ends: bool


calls = st.builds(
    Call, pauses, latest, positions, st.sampled_from([LIMIT, LIMIT, LEASE]), st.booleans(), ends=st.booleans()
)


@dataclass
class Held:
    """A call that a process runs, in a turn or without one. It may try to finish it at any time."""

    effect: Effect
    place: Place
    turn: RunningTurn | None
    attempt: ModelAttempt | None


class Machine(ProcessesBesideModel):
    """Begins, finishes and resolves calls, in turns and without one, and suspends and resumes the session."""

    model: ClassVar = ModelSessionWithCalls
    session: ModelSessionWithCalls

    def __init__(self, store: Store, clock: Clock) -> None:
        self.held: list[Held] = []
        self.suspended: list[Suspension] = []
        super().__init__(store, clock)

    def create(self) -> None:
        super().create()
        self.ask(0, 2)

    # Messages and turns

    @rule(number=processes, calls=st.sampled_from([0, 1, 2, 2]))
    def ask(self, number: int, calls: int) -> None:
        """Append a message that asks for calls, or one that equals the result of a call."""
        process = self.processes[number]
        new = [asking(calls) if calls else result(asking(1).tool_calls[0], "oak", False)]
        if process.turn is None or process.attempt is None:
            self.add(process.conversation, new)
        else:
            self.add_in_turn(process.turn, process.attempt, new)

    @rule(number=processes, seconds=pauses, id=st.sampled_from(["t1", "t1", "t2"]))
    def begin_turn(self, number: int, seconds: float, id: str) -> None:
        self.clock.move(seconds=seconds)
        self.begin_attempt(self.processes[number], id)

    @rule(number=processes, saves=st.booleans())
    def end_turn(self, number: int, saves: bool) -> None:
        """Save the turn of a process, or release its lease for others."""
        process = self.processes[number]
        turn, attempt = process.turn, process.attempt
        if not saves:
            self.conversation.turns.release()
            self.session.release_turn()
        elif turn is not None and attempt is not None:
            self.compare(turn.save, lambda _: self.session.save(self.clock.time, attempt, {}))
            process.forget()

    # Calls

    def has_asking(self) -> bool:
        return any(each.role == "assistant" for each in self.session.log)

    def place(self, depth: int, position: int) -> Place:
        """Return a call of one of the last messages that ask for calls; position 2 has no call."""
        seqs = [each.seq for each in self.session.log if each.role == "assistant"]
        return seqs[-1 - depth % len(seqs)], position

    @precondition(has_asking)
    @rule(call=calls)
    def call(self, call: Call) -> None:
        """Begin a call without a turn."""
        self.clock.move(seconds=call.seconds)
        self.run(Process(self.store), call)

    @precondition(has_asking)
    @rule(number=processes, call=calls)
    def call_in_turn(self, number: int, call: Call) -> None:
        """Begin a call in the turn of a process, perhaps after its lease was lost."""
        self.clock.move(seconds=call.seconds)
        process = self.processes[number]
        if process.turn is None:
            self.begin_turn(number, 0, "t1")
        self.run(process, call)

    def run(self, process: Process, call: Call) -> None:
        """Begin a call, and finish it at once if `call.ends`."""
        place = self.place(call.depth, call.position)
        number = len(self.held)
        self.begin(process, place, call.limit, call.idempotent)
        if len(self.held) > number and call.ends:
            self.finish_call(0, "oak", False)

    def begin(self, process: Process, place: Place, limit: timedelta, idempotent: bool) -> None:
        """Begin a call in the turn of a process, or without a turn if it has none."""
        turn, attempt = process.turn, process.attempt
        message = self.session.at(place[0])
        effects: list[Effect] = []

        def call() -> Begun:
            if turn is None:
                effect = process.conversation.calls.begin(*place, limit=limit, idempotent=idempotent)
            else:
                effect = turn._begin_call(message, place[1], limit=limit, idempotent=idempotent)
            assert effect.replayed == (effect.result is not None)
            effects.append(effect)
            return effect.call, effect.key, effect.result

        def model(_: Begun | None) -> Begun:
            key, token = (effects[0].key, effects[0]._token) if effects else ("", None)
            now = self.clock.time
            new = ModelCall(key, token, now, now + limit)
            return self.session.begin_call(now, place, new, attempt, idempotent=idempotent)

        self.compare(call, model, outside_log=True)
        self.held += [Held(effect, place, turn, attempt) for effect in effects if not effect.replayed]

    @precondition(lambda self: self.held)
    @rule(depth=latest, output=outputs, failed=rarely)
    def finish_call(self, depth: int, output: Any, failed: bool) -> None:
        """Finish a call, perhaps late, or again."""
        held = self.held[-1 - depth % len(self.held)]
        effect, turn = held.effect, held.turn if held.effect.result is None else None
        attempt = held.attempt if turn is not None else None

        def call() -> Message:
            if turn is None:
                return self.conversation.calls.finish(effect, **outcome(output, failed))
            effect.output, effect.failed = (UNSET, str(output)) if failed else (output, None)
            turn._end_call(effect)
            return cast(Message, effect.result)

        def model(got: Message | None) -> Message:
            new, id = result(effect.call, output, failed), None if got is None else got.id
            return self.session.finish_call(self.clock.time, held.place, effect._token, new, attempt, id)

        self.compare(call, model)

    @precondition(lambda self: any(held.turn for held in self.held))
    @rule(depth=latest)
    def leave_call(self, depth: int) -> None:
        in_turns = [held for held in self.held if held.turn is not None]
        held = in_turns[-1 - depth % len(in_turns)]
        turn = cast(RunningTurn, held.turn)
        held.effect.output, held.effect.failed = UNSET, None

        def model(_: None) -> None:
            if held.effect.result is None:
                self.session.leave_call(self.clock.time, held.place, held.effect._token)

        self.compare(lambda: turn._end_call(held.effect), model, outside_log=True)

    @precondition(lambda self: self.session.calls)
    @rule(
        seconds=pauses,
        depth=latest,
        position=positions,
        output=outputs,
        how=st.sampled_from(["output", "failed", "retry"]),
    )
    def resolve_call(self, seconds: float, depth: int, position: int, output: Any, how: str) -> None:
        self.clock.move(seconds=seconds)
        places = list(self.session.calls)
        place = places[-1 - depth % len(places)] if position < 2 else self.place(depth, 0)
        options = {"retry": True} if how == "retry" else outcome(output, how == "failed")

        def model(_: Message | None) -> Message | None:
            call = self.session.call_or_empty(place)
            new = None if how == "retry" else result(call, output, how == "failed")
            return self.session.resolve_call(self.clock.time, place, new)

        self.compare(lambda: self.conversation.calls.resolve(*place, **options), model, outside_log=how == "retry")

    # Suspensions

    @precondition(has_asking)
    @rule(
        depth=latest,
        positions=st.sampled_from([[], [0], [1], [0, 1]]),
        state=st.sampled_from([None, {"step": 1}]),
        ttl=st.sampled_from([None, LIMIT]),
    )
    def suspend(self, depth: int, positions: list[int], state: Any, ttl: timedelta | None) -> None:
        calls = [self.place(depth, position) for position in positions]

        def model(got: Suspension | None) -> Suspension:
            id, token = ("", None) if got is None else (got.id, got.token)
            assert id not in [each.id for each in self.suspended]
            return self.session.suspend(self.clock.time, calls, state, ttl, id, token)

        new = self.compare(
            lambda: self.conversation.suspensions.create(calls, state=state, ttl=ttl), model, outside_log=True
        )
        self.suspended += [] if new is None else [new]

    @precondition(lambda self: self.suspended)
    @rule(
        seconds=pauses,
        depth=latest,
        answer=st.sampled_from([True, {"ok": False}, None]),
        by_id=st.booleans(),
        by=names,
        why=names,
    )
    def resume(self, seconds: float, depth: int, answer: Any, by_id: bool, by: str | None, why: str | None) -> None:
        self.clock.move(seconds=seconds)
        given = self.suspended[-1 - depth % len(self.suspended)]

        def call() -> Suspension:
            if by_id:
                return self.conversation.suspensions.answer(given.id, answer, by=by, why=why)
            return self.store.suspensions.answer(str(given.token), answer, by=by, why=why)

        self.compare(call, lambda _: self.session.resume(self.clock.time, given.id, answer, by, why), outside_log=True)

    # Removals

    @rule(depth=st.integers(0, 5), kind=st.sampled_from(REMOVALS))
    def remove(self, depth: int, kind: str) -> None:
        """Remove or redact messages, which may ask for calls or be the result of one."""
        session, conversation = self.session, self.conversation
        seq = session.log[-1 - depth % len(session.log)].seq if session.log else 1
        match kind:
            case "delete":
                self.compare(lambda: conversation.edits.delete(seq), lambda _: session.delete_message(seq))
            case "truncate":
                self.compare(lambda: conversation.truncate(after=seq), lambda _: session.truncate(seq))
            case "redact":
                self.compare(lambda: conversation.edits.redact(seq), lambda _: session.redact_message(seq, None))
            case _:
                self.change_log(kind)

    # Invariants

    @invariant()
    def log_and_turns_match(self) -> None:
        assert self.conversation.all_messages() == self.session.log
        assert self.conversation.turns.list() == self.session.turns
        assert self.conversation.info().last_seq == self.session.last_seq

    @invariant()
    def calls_match(self) -> None:
        expected = self.session.begun_calls(self.clock.time)
        assert self.conversation.calls.list() == expected
        unknown = [call for call in expected if call.state == "unknown" and call.result_seq is None]
        assert self.store.calls.list_unknown().items == unknown

    @invariant()
    def suspensions_match(self) -> None:
        stored = list(self.session.suspensions.values())
        assert self.conversation.suspensions.list() == stored
        waiting = [each for each in stored if each.answered_at is None]
        page = self.store.suspensions.list(limit=2)
        found = page.items
        while page.next is not None:
            page = self.store.suspensions.list(limit=2, cursor=page.next)
            found += page.items
        assert found == waiting
        due = [each for each in waiting if each.due_at is not None and each.due_at < self.clock.time]
        assert self.store.suspensions.list(due_before=self.clock.time).items == due


@limited
def test_random_calls_and_suspensions_give_the_same_results_as_a_model_of_dicts(store: Store, clock: Clock) -> None:
    run_machine(lambda: Machine(store, clock), store)
