"""Random changes of a session whose removed messages are kept, compared with all states that the session has had."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.machines import assert_explained, limited, run_machine

from lango_store import LangoStoreError, Message, Session, Store, Turn
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

LEAST = 8
REDACTED = ("content", "tool_calls", "extra", "sent")

ids = st.sampled_from([None, None, "i1", "i2", "i3"])
roles = st.sampled_from(["user", "user", "assistant", "tool", "system", "record"])
texts = st.sampled_from(["oak", "a string that is moved", "another one that is moved"])
one_message = st.builds(
    Message,
    role=roles,
    content=texts,
    id=ids,
    tokens=st.sampled_from([None, 3]),
    sent=st.sampled_from([None, "sent"]),
    extra=st.sampled_from([{}, {"note": "a string that is moved"}]),
)
batches = st.lists(one_message, max_size=3, unique_by=lambda message: message.id or id(message))


class State:
    """The visible state of a session after a call."""

    def __init__(self, session: Session, log: list[Message], turns: list[Turn]) -> None:
        self.session, self.log, self.turns = session, log, turns

    def shown(self) -> tuple[Any, ...]:
        """Return the state that undo has to restore."""
        session = self.session
        counters = (session.message_count, session.record_count, session.token_count, session.turn_count)
        summary = (session.summary_turn, session.summarized_upto, session.last_consolidated)
        return counters, summary, session.messages, self.log, self.turns


def without_turns(messages: list[Message]) -> list[Message]:
    """Return messages without the number of their turn, which a turn that is saved later sets without a change."""
    return [each.model_copy(update={"turn_no": None}) for each in messages]


class Machine(RuleBasedStateMachine):
    """Changes a session, and keeps every state that it had."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__()
        store.delete("k")
        self.store, self.clock = store, clock
        self.conversation = store.open("k")
        self.states = {0: self.state()}
        self.redacted: dict[int, tuple[int, Message]] = {}

    def state(self) -> State:
        conversation = self.conversation
        return State(conversation.get(), conversation.all_messages(), conversation.turns.list())

    def call(self, change: Callable[[], object]) -> None:
        """Run a change that may be refused, and keep the state after it."""
        self.clock.move(milliseconds=1)
        try:
            change()
        except (LangoStoreError, LookupError):
            return
        state = self.state()
        self.states[state.session.last_seq] = state

    @rule(new=batches)
    def append(self, new: list[Message]) -> None:
        self.call(lambda: self.conversation.append_messages(new))

    @rule(new=batches, id=st.sampled_from([None, "t1", "t2"]))
    def save_turn(self, new: list[Message], id: str | None) -> None:
        self.call(lambda: self.conversation.save_turn(new, {"input": 1}, id=id))

    @rule(depth=st.integers(0, 9), number=st.integers(0, 5))
    def consolidate(self, depth: int, number: int) -> None:
        count = self.conversation.info().message_count
        self.call(lambda: self.conversation.update(last_consolidated=min(number, count)))

    def change(self, kind: str, depth: int, new: Message, batch: list[Message]) -> Callable[[], object]:
        conversation = self.conversation
        seqs = [each.seq for each in conversation.all_messages()] or [1]
        seq = seqs[-1 - depth % len(seqs)]
        changes: dict[str, Callable[[], object]] = {
            "update": lambda: conversation.edits.update(seq, new),
            "delete": lambda: conversation.edits.delete(seq),
            "pop": conversation.pop_message,
            "pop record": lambda: conversation.pop_message(records=True),
            "truncate": lambda: conversation.truncate(after=seq - 1),
            "clear": lambda: conversation.clear(keep_system=depth % 2 == 0),
            "compact": lambda: conversation.compact(lambda window: Message.system(f"summary of {len(window)}")),
            "discard": lambda: conversation.compact(lambda window: [Message.system("all")], discard=True),
            "replace": lambda: conversation.append_messages(batch, replace_after=seq - 1),
        }
        return changes[kind]

    kinds = st.sampled_from(
        ["update", "delete", "pop", "pop record", "truncate", "clear", "compact", "discard", "replace"]
    )
    changes = st.lists(st.tuples(kinds, st.integers(0, 9), one_message, batches), min_size=1, max_size=4)

    @rule(wanted=changes)
    def change_at_random(self, wanted: list[tuple[str, int, Message, list[Message]]]) -> None:
        for each in wanted:
            self.call(self.change(*each))

    @rule(wanted=changes)
    def take_back_and_redo(self, wanted: list[tuple[str, int, Message, list[Message]]]) -> None:
        before = [self.state()]
        for each in wanted:
            number = len(self.conversation.versions.changes())
            self.call(self.change(*each))
            if len(self.conversation.versions.changes()) > number:
                before.append(self.state())
            else:
                before = [self.state()]  # a replacement that removes nothing is an append, which undo keeps
        for state in reversed(before[:-1]):
            self.call(self.conversation.versions.undo)
            assert self.state().shown() == state.shown()
        for state in before[1:]:
            self.call(self.conversation.versions.redo)
            assert self.state().shown() == state.shown()

    @rule()
    def undo(self) -> None:
        self.call(self.conversation.versions.undo)

    @rule()
    def redo(self) -> None:
        self.call(self.conversation.versions.redo)

    @rule(depth=st.integers(0, 9))
    def redact(self, depth: int) -> None:
        seqs = sorted({each.seq for state in self.states.values() for each in state.log}) or [1]
        seq = seqs[-1 - depth % len(seqs)]

        def redact() -> None:
            message = self.conversation.edits.redact(seq)
            self.redacted[seq] = self.conversation.info().last_seq, message

        self.call(redact)

    def expected(self, messages: list[Message], at: int) -> list[Message]:
        """Return the messages of an earlier state as they are shown now, because redactions reach earlier versions."""
        return [self.hidden(each, at) for each in without_turns(messages)]

    def hidden(self, message: Message, at: int) -> Message:
        redacted_at, redacted = self.redacted.get(message.seq, (0, message))
        if redacted_at < at:
            return message
        values: dict[str, Any] = {name: getattr(redacted, name) for name in REDACTED}
        return message.model_copy(update=values | {"tokens": None if message.tokens is None else 0})

    @invariant()
    def last_states_can_be_read(self) -> None:
        self.read_again(list(self.states)[-3:])

    def read_again(self, seqs: list[int]) -> None:
        for seq in seqs:
            state = self.states[seq]
            earlier = self.conversation.get(as_of=seq, records=True)
            log = self.conversation.versions.diff(0, seq).added
            assert without_turns(log) == self.expected(state.log, seq), seq
            said = [each for each in earlier.messages if each.role != "record"]
            assert without_turns(said) == self.expected(state.session.messages, seq), seq
            assert earlier.last_seq == seq
            assert earlier.summarized_upto == state.session.summarized_upto

    def teardown(self) -> None:
        self.read_again(list(self.states))
        assert_explained(self.store)


@limited
def test_every_past_state_can_be_read_and_changes_can_be_undone(url: str, clock: Clock) -> None:
    with Store(url, clock=clock, payload_threshold=LEAST, keep_removed=timedelta(days=1)) as store:
        run_machine(lambda: Machine(store, clock), store, examples=4)
