"""The shared parts of state machines: their settings, and processes that do the same with a store and with a model.

LANGO_STORE_MACHINE_EXAMPLES and LANGO_STORE_MACHINE_STEPS set longer runs.
"""

import copy
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, TypeVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test
from support.session_checks import assert_sound, unexplained
from support.turn_model import ModelAttempt, ModelSessionWithTurns

from lango_store import Conversation, LangoStoreError, Message, RunningTurn, Store, Turn
from lango_store.testing import Clock

R = TypeVar("R")

SHRINKS = "LANGO_STORE_MACHINE_EXAMPLES" in os.environ  # shrinking takes minutes
PROCESSES = 3
LEASE = timedelta(seconds=100)

limited = pytest.mark.timeout(0 if SHRINKS else 300)
processes = st.integers(0, PROCESSES - 1)


def run_machine(
    machine: Callable[[], RuleBasedStateMachine], store: Store, *, examples: int = 8, steps: int = 40
) -> None:
    """Run the machines that a function creates; PostgreSQL runs half of the examples."""
    examples = int(os.environ.get("LANGO_STORE_MACHINE_EXAMPLES", examples))
    run_state_machine_as_test(
        cast(Any, machine),  # a function that creates a machine is accepted
        settings=settings(
            max_examples=-(-examples // (2 if store.engine.dialect.name == "postgresql" else 1)),
            stateful_step_count=int(os.environ.get("LANGO_STORE_MACHINE_STEPS", steps)),
            deadline=None,
            phases=[Phase.explicit, Phase.reuse, Phase.generate] + [Phase.shrink] * SHRINKS,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


class Process:
    """A process that runs at most one attempt of a turn."""

    def __init__(self, store: Store) -> None:
        self.conversation = store.conversation("k")
        self.turn: RunningTurn | None = None
        self.attempt: ModelAttempt | None = None

    def forget(self) -> None:
        self.turn = self.attempt = None


class ProcessesBesideModel(RuleBasedStateMachine):
    """Does everything twice, in the stores of several processes and in the model; subclasses add the rules."""

    model: ClassVar[type[ModelSessionWithTurns]] = ModelSessionWithTurns
    refusals: ClassVar[tuple[type[LangoStoreError], ...]] = (LangoStoreError,)

    session: ModelSessionWithTurns
    conversation: Conversation

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__()
        self.store, self.clock = store, clock
        self.processes = [Process(Store(store.engine, clock=clock)) for _ in range(PROCESSES)]
        self.create()

    def create(self) -> None:
        self.store.delete("k")
        self.conversation = self.store.open("k")
        self.session = self.model("k", self.clock.time)

    def compare(self, call: Callable[[], R], model: Callable[[R | None], R], *, outside_log: bool = False) -> R | None:
        """Call a store and the model, which gets the result of the store; both must return or raise the same.

        With `outside_log`, the call must change nothing in the session's row except the lease.
        """
        self.clock.move(milliseconds=1)
        before = self.conversation.info()
        result, refused = None, None
        try:
            result = call()
        except self.refusals as error:
            refused = error
        if refused is None:
            assert model(result) == result
        else:
            with pytest.raises(LangoStoreError) as raised:
                model(None)
            assert type(raised.value) is type(refused), refused
            assert public(raised.value) == public(refused)
        if refused is not None or outside_log:
            assert self.conversation.info() == before
        return result

    def begin_attempt(self, process: Process, id: str, **options: Any) -> ModelAttempt:
        """Begin an attempt of a turn. An earlier attempt of the process is forgotten, as after a crash."""
        turn = process.conversation.turn(id, lease=LEASE, **options)
        attempt = ModelAttempt(id, f"{turn.lease.token:016x}", LEASE)
        process.forget()

        def model(_: Turn | None) -> Turn | None:
            return self.session.begin(self.clock.time, attempt)

        stored = self.compare(lambda: turn.begin().stored, model, outside_log=True)
        if stored is not None:
            assert turn.replayed
            assert turn.messages == stored.messages
        elif self.session.holder is attempt:
            process.turn, process.attempt = turn, attempt
        return attempt

    def add(self, conversation: Conversation, new: list[Message]) -> None:
        """Append messages without a turn."""

        def model(_: list[Message] | None) -> list[Message]:
            return self.session.append(self.clock.time, new)

        self.compare(lambda: conversation.append_messages(new), model)

    def add_in_turn(self, turn: RunningTurn, attempt: ModelAttempt, new: list[Message]) -> None:
        def model(got: list[Message] | None) -> list[Message]:
            return self.session.append_in_turn(self.clock.time, attempt, new, [each.id for each in got or new])

        self.compare(lambda: turn.append_messages(new), model)

    def change_log(self, kind: str) -> None:
        """Clear, compact or replace the session, or pop its last message; do nothing for any other word."""
        session, conversation = self.session, self.conversation
        match kind:
            case "clear":
                self.compare(conversation.clear, lambda _: session.clear(keep_system=False))
            case "pop":
                self.compare(conversation.pop_message, lambda _: session.pop(records=False))
            case "compact" | "discard" if session.window:
                begun, summary, discard = copy.deepcopy(session), [Message.assistant("summary")], kind == "discard"
                self.compare(
                    lambda: conversation.compact(lambda window: summary, discard=discard),
                    lambda _: session.compact(self.clock.time, begun, summary, discard=discard),
                )
            case "delete and create":
                self.clock.move(milliseconds=1)
                self.create()

    @invariant()
    def attempts_match(self) -> None:
        for process in self.processes:
            if process.turn is not None and process.attempt is not None:
                assert process.turn.messages == process.attempt.messages
                assert process.turn.draft_text == "".join(process.attempt.texts)

    def teardown(self) -> None:
        assert_explained(self.store)


def assert_explained(store: Store) -> None:
    """Check the whole store, and that messages and changes explain each seq of session "k"."""
    with store.engine.connect() as connection:
        assert unexplained(connection, "k") == set()
    assert_sound(store)


def public(error: LangoStoreError) -> dict[str, Any]:
    return {name: value for name, value in vars(error).items() if not name.startswith("_")}
