"""One process of test_conversation_races: it calls random methods of a session and checks the results."""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise

from lango_store import (
    Conflict,
    Conversation,
    InvalidCut,
    InvalidMessage,
    Message,
    MessageNotFound,
    MessageRole,
    Store,
    Turn,
)


class Racer:
    """A writer of the session `k`, with a separate random generator."""

    def __init__(self, store: Store, number: int) -> None:
        self.store = store
        self.conversation = store.open("k")
        self.number = number
        self.random = random.Random(number)
        self.written = 0
        self.last_seq = 0
        self.done: Counter[str] = Counter()
        self.mine: dict[str, int] = {}

    def run(self, seconds: float) -> None:
        methods: dict[Callable[[], None], int] = {
            self.append: 30,
            self.append_after: 10,
            self.save_turn: 20,
            self.compact: 10,
            self.pop: 5,
            self.update_message: 5,
            self.delete_message: 3,
            self.redact_message: 3,
            self.truncate: 5,
            self.replace: 5,
            self.fork: 5,
            self.set_values: 5,
            self.set_shared_values: 5,
            self.drop_values: 2,
            self.clear: 1,
        }
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (method,) = self.random.choices(list(methods), list(methods.values()))
            try:
                method()
                self.done[method.__name__] += 1
            except (Conflict, InvalidCut):
                self.done["conflict"] += 1
            self.look(self.conversation)

    # Calls

    def message(self, role: str | None = None, id: str | None = None) -> Message:
        """Make a message of a role, by default a user message or a record at random."""
        self.written += 1
        role = role or self.random.choice(["user", "user", "record"])
        return Message(role=role, content=f"{self.number}:{self.written}", tokens=self.random.randrange(9), id=id)

    def append(self) -> None:
        # Ids that all racers send: the first racer that sends an id stores its message.
        id = f"id{self.random.randrange(50)}" if self.random.random() < 0.3 else None
        stored = self.conversation.append_message(self.message(id=id))
        assert stored.seq > 0

    def append_after(self) -> None:
        last_seq = self.conversation.info().last_seq
        stored = self.conversation.append_messages([self.message(), self.message("assistant")], after=last_seq)
        assert [m.seq for m in stored] == [last_seq + 1, last_seq + 2]

    def save_turn(self) -> None:
        id = f"turn{self.random.randrange(20)}" if self.random.random() < 0.3 else None
        new = [self.message(), self.message("assistant"), self.message("record")][: self.random.randrange(4)]
        turn = self.conversation.save_turn(new, {"tokens": 1}, id=id)
        if not turn.replayed:
            assert [m.seq for m in turn.messages] == list(range(turn.first_seq, turn.last_seq + 1))
            assert all(m.turn_no == turn.turn_no for m in turn.messages)

    def set_values(self) -> None:
        self.mine[f"{self.number}.{self.random.randrange(5)}"] = self.written
        self.conversation.values.set(self.mine)
        self.look_at_values()

    def set_shared_values(self) -> None:
        names = self.random.sample(["a", "b", "c", "d"], 4)
        self.store.shared_values("app").set(dict.fromkeys(names, self.number))

    def drop_values(self) -> None:
        self.store.shared_values("app").delete()
        assert self.conversation.values.delete(list(self.mine)) == len(self.mine)
        self.mine.clear()
        self.look_at_values()

    def look_at_values(self) -> None:
        """Check the values of this racer, which no other racer sets or drops."""
        assert self.conversation.values.get(f"{self.number}.") == self.mine

    def compact(self) -> None:
        def summarize(window: list[Message]) -> list[Message]:
            assert window
            if self.random.random() < 0.5:
                self.append()
            return [Message(role="system", content=f"summary of {len(window)}", tokens=1), *window[-1:]]

        self.conversation.compact(summarize, discard=self.random.random() < 0.3)

    def pop(self) -> None:
        self.conversation.pop_message(records=self.random.random() < 0.3)

    def update_message(self) -> None:
        def update(found: Message) -> None:
            with suppress(InvalidMessage):  # a message of a summary cannot become a record
                assert self.conversation.edits.update(found.seq, self.message()).seq == found.seq

        self.edit(update)

    def delete_message(self) -> None:
        self.edit(lambda found: self.conversation.edits.delete(found.seq))

    def redact_message(self) -> None:
        def redact(found: Message) -> None:
            assert self.conversation.edits.redact(found.id or found.seq, reason="secret").content in (
                None,
                "(redacted)",
            )

        self.edit(redact)

    def edit(self, change: Callable[[Message], None]) -> None:
        """Change one of the last messages, which another writer may have removed."""
        found = self.conversation.all_messages(last=8)
        for one in self.random.sample(found, min(len(found), 1)):
            with suppress(MessageNotFound):
                change(one)

    def truncate(self) -> None:
        self.conversation.truncate(after=max(self.conversation.info().last_seq - self.random.randrange(8), 0))

    def replace(self) -> None:
        last_seq = self.conversation.info().last_seq
        self.conversation.append_messages([self.message()], replace_after=max(last_seq - 2, 0))

    def clear(self) -> None:
        self.conversation.clear(keep_system=self.random.random() < 0.5)

    def fork(self) -> None:
        upto = self.conversation.info().last_seq - 3 if self.random.random() < 0.5 else None
        forked = self.conversation.fork(upto=None if upto is None else max(upto, 0))
        self.look(forked)
        session = forked.get()
        turns, log = forked.turns.list(), forked.all_messages()
        said = [m for m in log if m.role is not MessageRole.RECORD]
        assert (session.message_count, session.turn_count) == (len(said), len(turns))
        assert session.record_count == len(log) - len(said)
        assert session.token_count == sum(m.tokens or 0 for m in said)
        self.look_at_turns(turns, log)
        self.store.delete(forked.key)

    # Properties of one load, independent of other writers

    def look(self, conversation: Conversation) -> None:
        session = conversation.get()
        window = session.messages
        assert all(m.role is not MessageRole.RECORD for m in window)
        summary = [m for m in window if session.summary_turn is not None and m.turn_no == session.summary_turn]
        later = window[len(summary) :]
        assert window == summary + later
        for part in (summary, later):
            assert all(one.seq < next_.seq for one, next_ in pairwise(part))
        assert all(session.summarized_upto < m.seq <= session.last_seq for m in window)
        assert len(window) <= session.message_count <= session.last_seq
        if session.summary_turn is None:
            assert len(window) == session.message_count
            assert sum(m.tokens or 0 for m in window) == session.token_count
        assert 0 <= session.last_consolidated <= session.message_count
        if conversation is self.conversation:
            assert session.last_seq >= self.last_seq
            self.last_seq = session.last_seq

    def look_at_turns(self, turns: list[Turn], log: list[Message]) -> None:
        numbers = {turn.turn_no for turn in turns}
        assert all(m.turn_no is None or m.turn_no in numbers for m in log)
        for turn in turns:
            assert all(turn.first_seq <= m.seq <= turn.last_seq for m in log if m.turn_no == turn.turn_no)


if __name__ == "__main__":
    url, number, seconds = sys.argv[1:]
    with Store(url) as store:
        racer = Racer(store, int(number))
        racer.run(float(seconds))
    print(json.dumps(racer.done))
