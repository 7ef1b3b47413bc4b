"""A real store beside a model of plain lists: one answer or one refusal, in transactions of the caller's too."""

import copy
import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
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


class StoreBesideModel(RuleBasedStateMachine):
    """Does everything twice, in the store and in the model, and compares what came of it; subclasses say what."""

    def __init__(self, store: Store, clock: Clock) -> None:
        super().__init__()
        self.store = self.face = store
        self.clock = clock
        self.sessions: dict[str, ModelSession] = {}
        self.connection: sa.Connection | None = None
        self.before: dict[str, ModelSession] = {}
        self.numbers = itertools.count(1)
        self.touched = "a"
        for key in "ab":
            store.delete(key)
        self.handles = {key: store.open(key) for key in "ab"}
        for key in "ab":
            store.delete(key)

    def handle(self, key: str) -> Conversation:
        return self.handles[key] if self.connection is None else self.face.conversation(key)

    def made(self, drawn: Sequence[tuple[str, str | None, int | None, str]]) -> list[Message]:
        return [message_of(f"m{next(self.numbers)}", *each) for each in drawn]

    def act(self, key: str, call: Callable[[Conversation], Any], model: Callable[[ModelSession], Any]) -> Any:
        """Ask the store and the model: one answer, or one refusal."""
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

    # What holds after each step

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

    def teardown(self) -> None:
        if self.connection is not None:
            self.end(commit=True)
        assert_sound(self.store)
