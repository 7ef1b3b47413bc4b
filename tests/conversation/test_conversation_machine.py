"""Random sequences of calls, compared with a model of sessions made of plain lists."""

import copy
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from support.factories import seqs
from support.machines import limited, run_machine
from support.session_checks import seen_before
from support.session_model import ModelSession
from support.store_beside_model import StoreBesideModel

from lango_store import (
    Conflict,
    Conversation,
    InvalidCut,
    Message,
    SessionExists,
    SessionExpired,
    SessionNotFound,
    Store,
    schema,
)
from lango_store.testing import Clock

pytestmark = pytest.mark.slow

TTL = timedelta(seconds=50)  # never equal to a sum of the steps of the clock

# Strategies

CALLS = ("c1", "c2")

keys = st.sampled_from("aaab")
ids = st.one_of(st.none(), st.sampled_from(["i1", "i2", "i3", "i4"]))
tokens = st.one_of(st.none(), st.integers(0, 9))
kinds = st.sampled_from(["user", "assistant", "system", "call", "result", "outputs", "bare result", "record"])
one_message = st.tuples(kinds, ids, tokens, st.sampled_from(CALLS))
batches = st.lists(one_message, max_size=3)
seq_offsets = st.one_of(st.none(), st.none(), st.just(0), st.just(-1), st.just(1))
"""Offset from the session's `last_seq` for `after`: none, right, too low or too high."""
revisions = st.sampled_from([None, None, None, 0, 1])
"""Offset from the session's revision for `expect`: none, right or too high."""
depths = st.integers(0, 5)
usages = st.fixed_dictionaries(
    {}, optional={"input": st.integers(0, 9), "details": st.fixed_dictionaries({"cached": st.integers(0, 9)})}
)
names = st.sampled_from(["a", "b", "c"])
values_by_name = st.dictionaries(names, st.sampled_from([None, 1, "\0", {"x": [1.5]}]), max_size=2)
meanwhiles = st.lists(st.sampled_from(["append", "append", "turn", "empty turn"]), max_size=2)
disturbances = st.sampled_from(["pop", "edit", "truncate", "clear", "compact", "delete and create"])


class Machine(StoreBesideModel):
    """Calls the methods of sessions and conversations in random order."""

    # Sessions

    @initialize(ttl=st.sampled_from([None, None, TTL]), drawn=batches, usage=usages, open_both=st.booleans())
    def begin_with(self, ttl: timedelta | None, drawn: Any, usage: Any, open_both: bool) -> None:
        for key in "ab"[: 1 + open_both]:
            self.open(key, ttl, "create", False, drawn)
            self.save_turn(key, [("user", None, 3, "c1"), ("call", "i1", 4, "c1"), *drawn], usage, None, None)
            self.consolidate(key, 2)
            self.set_values(key, {"a": 1, "b": "\0"})

    @rule(key=keys, ttl=st.sampled_from([None, None, TTL]), how=st.sampled_from(["create", "open"]),
          renew=st.booleans(), drawn=batches)  # fmt: skip
    def open(self, key: str, ttl: timedelta | None, how: str, renew: bool, drawn: Any) -> None:
        self.clock.move(milliseconds=1)
        self.touched = key
        first, refused = self.made(drawn), self.refusal(key)
        options: dict[str, Any] = {"ttl": ttl, "messages": first}
        if how != "create":
            options["renew"] = renew
        if how == "create" and key in self.sessions:
            with pytest.raises(SessionExists) as raised:
                self.face.create(key, **options)
            assert raised.value.expired is (refused is SessionExpired)
        elif refused is SessionExpired and not renew:
            with pytest.raises(SessionExpired):
                getattr(self.face, how)(key, **options)
        else:
            getattr(self.face, how)(key, **options)
            if refused is not None:
                self.sessions[key] = ModelSession(key, self.clock.time, ttl)
                self.sessions[key].append(self.clock.time, first)

    @rule(key=keys, word=st.sampled_from(["wait", "wait longer", "touch", "delete", "summarize in vain"]))
    def go_on(self, key: str, word: str) -> None:
        match word:
            case "touch":
                self.touch(key)
            case "delete":
                self.delete("b")
            case "summarize in vain":
                self.summarize_in_vain(key)
            case _:
                self.clock.move(seconds=20 if word == "wait" else 70)

    def touch(self, key: str) -> None:
        if key not in self.sessions:
            with pytest.raises(SessionNotFound):
                self.face.touch(key)
            return
        self.face.touch(key)
        self.sessions[key].slide(self.clock.time)

    def delete(self, key: str) -> None:
        assert self.face.delete(key) is (self.sessions.pop(key, None) is not None)

    @rule(key=keys, number=st.integers(0, 4))
    def consolidate(self, key: str, number: int) -> None:
        def model(session: ModelSession) -> None:
            if number > len(session.messages):
                raise ValueError
            session.last_consolidated = number

        def call(conversation: Conversation) -> None:
            assert conversation.update(last_consolidated=number).last_consolidated == number

        self.act(key, call, model)

    # Messages

    @rule(key=keys, drawn=batches, place=seq_offsets, revision=revisions)
    def append(self, key: str, drawn: Any, place: int | None, revision: int | None = None) -> None:
        new, after, expect = self.made(drawn), self.seq_of(key, place), self.revision_of(key, revision)

        def call(conversation: Conversation) -> list[Message]:
            if len(new) == 1:
                return [conversation.append_message(new[0], after=after, expect=expect)]
            return conversation.append_messages(new, after=after, expect=expect)

        self.act(key, call, lambda s: s.append(self.clock.time, new, after, stale=bool(revision)))

    # Values

    @rule(key=keys, values=values_by_name)
    def set_values(self, key: str, values: dict[str, Any]) -> None:
        self.act(key, lambda c: c.values.set(values), lambda s: s.values.update(values))

    @rule(key=keys, names=st.one_of(st.none(), st.lists(names, max_size=2)))
    def drop_values(self, key: str, names: list[str] | None) -> None:
        self.act(key, lambda c: c.values.delete(names), lambda s: s.drop_values(names))

    @rule(key=keys, drawn=batches, usage=st.one_of(st.none(), usages), ttl=st.sampled_from([None, TTL]))
    def append_or_create(self, key: str, drawn: Any, usage: Any, ttl: timedelta | None) -> None:
        new = self.made(drawn)

        def call(conversation: Conversation) -> Any:
            if usage is None:
                return conversation.append_messages(new, create=True, ttl=ttl)
            return conversation.save_turn(new, usage, create=True, ttl=ttl)

        def model(session: ModelSession) -> Any:
            if usage is None:
                return session.append(self.clock.time, new)
            return session.save_turn(self.clock.time, new, usage)

        if self.refusal(key) is None:
            self.act(key, call, model)
            return
        self.clock.move(milliseconds=1)
        self.touched = key
        got = call(self.handle(key))
        self.sessions[key] = ModelSession(key, self.clock.time, ttl)
        assert got == model(self.sessions[key])

    @rule(key=keys, drawn=batches, depth=depths, place=seq_offsets, revision=revisions)
    def replace(self, key: str, drawn: Any, depth: int, place: int | None, revision: int | None) -> None:
        new, after, cut = self.made(drawn), self.seq_of(key, place), self.seq_of(key, -depth) or 0
        expect = self.revision_of(key, revision)
        before = self.window(key)
        self.act(
            key,
            lambda c: c.append_messages(new, after=after, expect=expect, replace_after=cut),
            lambda s: s.replace(self.clock.time, new, cut, after, stale=bool(revision)),
        )
        assert set(seen_before(before, cut)) <= set(seqs(self.window(key)))

    @rule(key=keys, drawn=batches, usage=usages, id=st.sampled_from([None, None, "t1", "t2"]), place=seq_offsets,
          revision=revisions)  # fmt: skip
    def save_turn(
        self, key: str, drawn: Any, usage: Any, id: str | None, place: int | None, revision: int | None = None
    ) -> None:
        new, after, expect = self.made(drawn), self.seq_of(key, place), self.revision_of(key, revision)
        self.act(
            key,
            lambda c: c.save_turn(new, usage, id=id, after=after, expect=expect),
            lambda s: s.save_turn(self.clock.time, new, usage, id=id, after=after, stale=bool(revision)),
        )

    @rule(key=keys, records=st.booleans())
    def pop(self, key: str, records: bool = False) -> None:
        before = self.window(key)
        gone = self.act(key, lambda c: c.pop_message(records=records), lambda s: s.pop(records=records))
        if records:
            before = [m for m in before if gone is None or m.seq != gone.seq] + before[-1:]
        assert set(seqs(before[:-1])) <= set(seqs(self.window(key)))

    @rule(key=keys, how=st.sampled_from(["update", "delete", "redact"]), depth=depths, by_id=ids, drawn=one_message,
          revision=revisions)  # fmt: skip
    def edit(self, key: str, how: str, depth: int, by_id: str | None, drawn: Any, revision: int | None) -> None:
        place, stale = by_id or max((self.seq_of(key, 0) or 0) - depth, 0), bool(revision)
        expect = self.revision_of(key, revision)
        (new,) = self.made([drawn])
        before = seqs(self.window(key))
        match how:
            case "update":
                self.act(
                    key,
                    lambda c: c.edits.update(place, new, expect=expect),
                    lambda s: s.update_message(place, new, stale=stale),
                )
            case "delete":
                self.act(
                    key,
                    lambda c: c.edits.delete(place, expect=expect),
                    lambda s: s.delete_message(place, stale=stale),
                )
            case _:
                self.act(key, lambda c: c.edits.redact(place, reason="r"), lambda s: s.redact_message(place, "r"))
        after = seqs(self.window(key))
        takes = how == "delete" or (how == "update" and new.role == "record")
        shows = how == "update" and not takes
        assert (
            after == before
            or (takes and len(set(before) - set(after)) <= 1)
            or (shows and len(after) == len(before) + 1 and set(before) < set(after))
        )

    @rule(key=keys, depth=depths)
    def truncate(self, key: str, depth: int) -> None:
        after = self.seq_of(key, -depth) or 0
        before = self.window(key)
        self.act(key, lambda c: c.truncate(after=after), lambda s: s.truncate(after))
        assert set(seen_before(before, after)) <= set(seqs(self.window(key)))

    @rule(key=keys, keep_system=st.booleans(), sure=st.integers(0, 2))
    def clear(self, key: str, keep_system: bool, sure: int) -> None:
        if not sure:
            self.act(key, lambda c: c.clear(keep_system=keep_system), lambda s: s.clear(keep_system=keep_system))

    # Compactions and forks

    @rule(key=keys, drawn=batches, repeat=st.booleans(), meanwhile=meanwhiles, discard=st.booleans(),
          awaits=st.booleans())  # fmt: skip
    def compact(self, key: str, drawn: Any, repeat: bool, meanwhile: list[str], discard: bool, awaits: bool) -> None:
        if self.refusal(key) is not None or not self.sessions[key].window:
            self.act(key, lambda c: c.compact(lambda window: pytest.fail("nothing to sum up")), lambda s: None)
            return
        begun = copy.deepcopy(self.sessions[key])
        summary = self.made(drawn)
        if repeat:
            summary += begun.window[-2:]

        def summarize(window: list[Message]) -> list[Message]:
            assert window == begun.window
            for word in meanwhile:
                self.meanwhile(key, word)
            return summary

        self.touched = key
        got = self.handle(key).compact(self.awaited(summarize) if awaits else summarize, discard=discard)
        assert got == self.sessions[key].compact(self.clock.time, begun, summary, discard=discard)
        assert {m.seq for m in self.sessions[key].messages if m.seq > begun.last_seq} <= set(seqs(self.window(key)))

    @rule(key=keys, disturbance=disturbances, discard=st.booleans())
    def compact_what_is_gone(self, key: str, disturbance: str, discard: bool) -> None:
        if self.refusal(key) is not None or not self.sessions[key].window:
            return

        def summarize(window: list[Message]) -> list[Message]:
            self.disturb(key, disturbance)
            return self.made([("user", None, 1, "c1")])

        self.touched = key
        with pytest.raises(Conflict):
            self.handle(key).compact(summarize, discard=discard)

    def summarize_in_vain(self, key: str) -> None:
        if self.refusal(key) is None and self.sessions[key].window:

            def summarize(window: list[Message]) -> list[Message]:
                window[0].content = "changed"
                raise RuntimeError("the model is tired")

            with pytest.raises(RuntimeError, match="tired"):
                self.handle(key).compact(summarize)

    @rule(
        source=keys,
        new=st.sampled_from("bbbbba"),
        depth=st.one_of(st.none(), depths),
        delete_first=st.sampled_from([True, True, False]),
    )
    def fork(self, source: str, new: str, depth: int | None, delete_first: bool) -> None:
        if delete_first and source != new == "b":
            self.delete(new)
        upto = None if depth is None else self.seq_of(source, 1 - depth)
        self.branch(source, new, upto, lambda c: c.fork(new, upto=upto))

    def branch(self, source: str, new: str, upto: int | None, call: Callable[[Conversation], Any]) -> None:
        self.clock.move(milliseconds=1)
        self.touched = new
        refused, forked = self.refusal(source), None
        try:
            forked = None if refused else self.sessions[source].fork(self.clock.time, new, upto)
        except InvalidCut:
            refused = InvalidCut
        refused = refused or (SessionExists if new in self.sessions else None)
        if refused is not None or forked is None:
            with pytest.raises((SessionNotFound, SessionExists, InvalidCut)) as raised:
                call(self.handle(source))
            assert raised.type is refused
            return
        before = self.window(source)
        assert call(self.handle(source)).key == new
        self.sessions[new] = forked
        assert set(seqs(before) if upto is None else seen_before(before, upto)) <= set(seqs(self.window(new)))

    # Archives

    @rule(key=st.sampled_from([None, None, "a", "b"]), restores=st.booleans())
    def expire(self, key: str | None, restores: bool) -> None:
        """Purge the expired sessions, or one session regardless of its TTL."""
        self.clock.move(milliseconds=1)
        self.touched = key or self.touched
        now = self.clock.time
        due = [s for s in self.sessions.values() if s.key == key or (key is None and s.expired(now))]
        chosen: dict[str, Any] = {} if key is None else {"key_prefix": key, "created_before": now}
        report = self.face.expire(archive=self.archive, **chosen)
        assert (report.sessions, report.messages) == (len(due), sum(len(s.messages) for s in due))
        for session in due:
            self.archived.add(self.sessions.pop(session.key))
        assert {info.key for info in self.face.iter_sessions(expired=None)} == self.sessions.keys()
        with Store(f"sqlite:///{self.archive}") as archive:
            logs = [archive.conversation(info.key).all_messages() for info in archive.iter_sessions()]
        assert sorted(map(str, logs)) == sorted(str(session.log) for session in self.archived.lives)
        for session in due if restores else ():
            self.restore(session.key, session.ttl)

    @precondition(lambda self: self.archive.exists())
    @rule(key=keys, ttl=st.sampled_from([None, TTL]))
    def restore(self, key: str, ttl: timedelta | None) -> None:
        self.clock.move(milliseconds=1)
        self.touched = key
        restored = self.archived.restored(self.clock.time, key, ttl)
        if restored is None or key in self.sessions:
            with pytest.raises(SessionNotFound if restored is None else SessionExists):
                self.face.restore(key, self.archive, ttl=ttl)
            return
        session = self.face.restore(key, self.archive, ttl=ttl)
        assert (session.messages, session.updated_at) == (restored.window, self.clock.time)
        self.sessions[key] = restored

    @precondition(lambda self: self.archive.exists())
    @rule(key=keys, depth=depths, by_id=ids)
    def redact_archived(self, key: str, depth: int, by_id: str | None) -> None:
        session = self.sessions.get(key)
        known = session or self.archived.latest(key)
        place = by_id or max((known.last_seq if known else 0) - depth, 0)

        def call(conversation: Conversation) -> Message:
            return conversation.edits.redact(place, reason="r", archive=self.archive)

        def model(session: ModelSession) -> Message:
            message = session.redact_message(place, "r")
            self.archived.redact_copy(session, message.seq, "r")
            return message

        life = self.archived.latest(key)
        in_store = self.refusal(key) is SessionExpired or (session and session.find(place))
        if life is None or not life.find(place) or in_store:
            self.act(key, call, model)
        else:
            assert call(self.handle(key)) == life.redact_message(place, "r")

    # Writes during a compaction

    def meanwhile(self, key: str, word: str) -> None:
        if word == "append":
            self.append(key, [("user", None, 2, "c1"), ("result", None, None, "c1")], None)
        else:
            self.save_turn(key, [("call", None, 1, "c1")][: word == "turn"], {"input": 1}, None, None)

    def disturb(self, key: str, word: str) -> None:
        match word:
            case "pop":
                self.pop(key)
            case "edit":
                last = self.sessions[key].log[-1].seq
                self.act(key, lambda c: c.edits.redact(last), lambda s: s.redact_message(last, None))
            case "truncate":
                self.act(key, lambda c: c.truncate(after=0), lambda s: s.truncate(0))
            case "clear":
                self.act(key, lambda c: c.clear(), lambda s: s.clear(keep_system=False))
            case "compact":
                self.compact(key, [("user", None, 3, "c1")], False, [], False, False)
            case _:
                ttl = self.sessions[key].ttl
                self.face.delete(key)
                del self.sessions[key]
                self.open(key, ttl, "create", False, [("user", None, 1, "c1")] * 3)

    def awaited(self, summarize: Callable[[list[Message]], list[Message]]) -> Callable[[list[Message]], Any]:
        async def summarize_later(window: list[Message]) -> list[Message]:
            return summarize(window)

        return summarize_later


@limited
def test_random_method_calls_give_the_same_results_as_a_model_of_lists(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    schema.enable_search(store.engine)
    run_machine(lambda: Machine(store, clock, tmp_path / "archive.db"), store, steps=25)


@limited
def test_store_for_one_user_equals_a_store_without_the_sessions_of_others(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    schema.enable_search(store.engine)
    for key in ("a/other", "b!", "c"):
        store.create(key, user_id="bob", messages=[Message.user("oak elm fir", id="m1")])
    others = [store.get(key) for key in ("a/other", "b!", "c")]
    run_machine(lambda: Machine(store.for_user("ann"), clock, tmp_path / "archive.db", store), store, steps=25)
    assert [store.get(key) for key in ("a/other", "b!", "c")] == others
