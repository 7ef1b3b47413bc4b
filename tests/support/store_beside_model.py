"""A store and its model: both must return equal results or errors, in transactions of the caller too."""

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
)
from support.archive_model import ModelArchive
from support.factories import message_of
from support.session_checks import assert_alike, assert_sound, unexplained
from support.session_model import ModelSession

from lango_store import (
    Conflict,
    Conversation,
    Message,
    SessionExpired,
    SessionNotFound,
    Store,
)
from lango_store.testing import Clock

WORDS = ("oak", "elm", "fir")
"""The words of messages: each has a number, and one of these."""


class StoreBesideModel(RuleBasedStateMachine):
    """Does everything twice, in the store and in the model, and compares the results; subclasses add the rules."""

    def __init__(self, store: Store, clock: Clock, archive: Path, whole: Store | None = None) -> None:
        super().__init__()
        self.store = self.face = store
        self.whole = store if whole is None else whole
        self.clock = clock
        self.archive, self.archived = archive, ModelArchive()
        self.sessions: dict[str, ModelSession] = {}
        self.connection: sa.Connection | None = None
        self.before: dict[str, ModelSession] = {}
        self.numbers = itertools.count(1)
        self.steps = 0
        self.touched = "a"
        for key in "ab":
            store.delete(key)
        self.handles = {key: store.open(key) for key in "ab"}
        for key in "ab":
            store.delete(key)

    def handle(self, key: str) -> Conversation:
        return self.handles[key] if self.connection is None else self.face.conversation(key)

    def made(self, drawn: Sequence[tuple[str, str | None, int | None, str]]) -> list[Message]:
        numbers = itertools.islice(self.numbers, len(drawn))
        return [message_of(f"m{n} {WORDS[n % 3]}", *each) for n, each in zip(numbers, drawn, strict=True)]

    def act(self, key: str, call: Callable[[Conversation], Any], model: Callable[[ModelSession], Any]) -> Any:
        """Call the store and the model, and check that results or errors are equal."""
        self.clock.move(milliseconds=1)
        self.touched = key
        refused, revision = self.refusal(key), self.revision_of(key, 0)
        before, expected = copy.deepcopy(self.sessions.get(key)), None
        if refused is None:
            try:
                expected = model(self.sessions[key])
            except (Conflict, LookupError, ValueError) as error:
                refused = type(error)
        if refused is None:
            got = call(self.handle(key))
            assert got == expected
            moved = (self.revision_of(key, 0) or 0) - (revision or 0)
            assert moved > 0 if self.sessions[key] != before else moved >= 0
            return got
        with pytest.raises((LookupError, Conflict, ValueError)) as raised:
            call(self.handle(key))
        assert raised.type is refused
        assert self.revision_of(key, 0) == revision
        if isinstance(raised.value, Conflict):
            assert raised.value.last_seq == self.sessions[key].last_seq
        return None

    def refusal(self, key: str) -> type[Exception] | None:
        if key not in self.sessions:
            return SessionNotFound
        return SessionExpired if self.sessions[key].expired(self.clock.time) else None

    def seq_of(self, key: str, place: int | None) -> int | None:
        session = self.sessions.get(key)
        return None if place is None or session is None else max(session.last_seq + place, 0)

    def revision_of(self, key: str, place: int | None) -> int | None:
        return None if place is None or self.refusal(key) else self.handle(key).info().revision + place

    def window(self, key: str) -> list[Message]:
        return self.handle(key).messages() if self.refusal(key) is None else []

    # The caller's transaction

    @precondition(lambda self: self.connection is None)
    @rule()
    def begin(self) -> None:
        self.connection = self.store.engine.connect()
        self.before = copy.deepcopy(self.sessions)
        self.face = self.store.using(self.connection)

    @precondition(lambda self: self.connection is not None)
    @rule(commit=st.booleans())
    def end(self, commit: bool) -> None:
        assert self.connection is not None
        if commit:
            self.connection.commit()
        else:
            self.connection.rollback()
            self.sessions = self.before
        self.connection.close()
        self.connection, self.face = None, self.store

    # Invariants after each step

    @invariant()
    def the_session_is_as_the_rules_say(self) -> None:
        key = self.touched
        if (refused := self.refusal(key)) is not None:
            assert not self.face.exists(key)
            with pytest.raises(SessionNotFound) as raised:
                self.handle(key).get()
            assert raised.type is refused
            return
        assert_alike(self.handle(key), self.sessions[key])
        with nullcontext(self.connection) if self.connection is not None else self.store.engine.connect() as connection:
            assert unexplained(connection, key) == set()

    @invariant()
    def messages_are_found_by_their_words(self) -> None:
        """Search after every third step, so that changes wait in the queue of the index."""
        self.steps += 1
        turn, waits = divmod(self.steps, 3)
        if not waits:
            self.search(WORDS[turn % 3], None if turn % 2 else self.touched)

    def search(self, word: str, key: str | None) -> None:
        if key is not None and (refused := self.refusal(key)) is not None:
            with pytest.raises(SessionNotFound) as raised:
                self.handle(key).search(word)
            assert raised.type is refused
            return
        page = (self.face if key is None else self.handle(key)).search(word, limit=1_000)
        live = [s for s in self.sessions.values() if key in (None, s.key) and not s.expired(self.clock.time)]
        expected = {(s.key, m.seq) for s in live for m in s.messages if word in str(m.content)}
        found = {(hit.key, hit.seq) for hit in page.items}
        assert found <= expected
        assert found == expected or page.waiting or page.newest is not None  # `newest` is set on a slow machine
        assert self.connection is not None or page.waiting == 0

    def teardown(self) -> None:
        if self.connection is not None:
            self.end(commit=True)
        self.archive.unlink(missing_ok=True)
        assert_sound(self.whole)
