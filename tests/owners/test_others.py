"""Descendants, archives, work, answers and calls of other users next to those of the user."""

import functools
import io
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from support.factories import message
from support.working import answer, work

from lango_store import (
    CallNotFound,
    InvalidState,
    Message,
    SessionNotFound,
    Store,
    SuspensionNotFound,
    ToolCall,
    schema,
)
from lango_store.interchange import export, import_path, writable
from lango_store.testing import Clock

FAMILY = {"k": "ann", "k/a": "ann", "k/a/x": "bob", "k/b": "bob", "k/c": None}
OTHERS = ["k/a/x", "k/b", "k/c"]


@pytest.fixture
def family(store: Store) -> Store:
    """A store with a session of ann that has descendants of ann, of bob and of no user."""
    for key, user in FAMILY.items():
        store.create(key, user_id=user)
        store.conversation(key).save_turn([message("oak")], {"tokens": 1})
    return store


def keys(store: Store) -> list[str]:
    return [info.key for info in store.iter_sessions(expired=None)]


@pytest.mark.parametrize(
    "remove",
    [
        lambda ann: ann.delete("k", descendants=True),
        lambda ann: ann.delete_where(key_prefix="k", descendants=True),
        lambda ann: ann.expire(older_than=timedelta(0), descendants=True),
    ],
)
def test_descendants_of_others_are_not_deleted(family: Store, clock: Clock, remove: Callable[[Store], object]) -> None:
    clock.move(seconds=1)
    remove(family.for_user("ann"))
    assert keys(family) == OTHERS


def test_delete_with_the_key_of_another_deletes_only_own_descendants(store: Store) -> None:
    for key, user in {"b": "bob", "b/a": "ann", "b/b": "bob"}.items():
        store.create(key, user_id=user)
    assert store.for_user("ann").delete("b", descendants=True)
    assert keys(store) == ["b", "b/b"]


def test_descendants_of_others_are_not_counted(family: Store, clock: Clock) -> None:
    k = family.for_user("ann").conversation("k")
    assert k.total_usage(descendants=True) == {"tokens": 2}
    assert [info.key for info in k.children()] == ["k/a"]
    clock.move(seconds=1)
    report = family.for_user("ann").expire(older_than=timedelta(0), descendants=True, dry_run=True)
    assert (report.sessions, [info.key for info in report.oldest]) == (2, ["k", "k/a"])
    (row,) = family.for_user("ann").usage()
    assert (row.turns, row.sessions) == (2, 2)


@pytest.mark.parametrize("name", ["a/x", "b", "c"])
def test_child_of_another_user_is_not_opened(family: Store, name: str) -> None:
    ann = family.for_user("ann")
    parent, _, child = f"k/{name}".rpartition("/")
    for renew in (False, True):
        with pytest.raises(SessionNotFound, match=f"no session 'k/{name}'"):
            ann.conversation(parent).child(child, renew=renew)
    assert family.conversation(f"k/{name}").info().user_id == FAMILY[f"k/{name}"]


def test_archived_sessions_of_others_are_not_restored_or_redacted(family: Store, clock: Clock, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    clock.move(seconds=1)
    family.expire(older_than=timedelta(0), archive=cold)
    ann = family.for_user("ann")
    with pytest.raises(SessionNotFound) as missing:
        ann.restore("missing", cold)
    for key in OTHERS:
        with pytest.raises(SessionNotFound) as error:
            ann.restore(key, cold, descendants=True)
        assert str(error.value) == str(missing.value).replace("missing", key)
        with pytest.raises(SessionNotFound):
            ann.conversation(key).edits.redact(1, archive=cold)
    ann.conversation("k").edits.redact(1, archive=cold)
    assert [each.content for each in ann.restore("k", cold, descendants=True).messages] == ["(redacted)"]
    assert keys(family) == ["k", "k/a"]
    assert [family.restore(key, cold).messages[0].content for key in OTHERS] == ["oak"] * 3


def test_archived_session_whose_key_another_user_has_is_not_restored(
    store: Store, clock: Clock, tmp_path: Path
) -> None:
    cold, ann = tmp_path / "cold.db", store.for_user("ann")
    ann.create("k")
    clock.move(seconds=1)
    ann.expire(older_than=timedelta(0), archive=cold)
    store.create("k", user_id="bob")
    with pytest.raises(SessionNotFound):
        ann.restore("k", cold)
    assert store.get("k").user_id == "bob"


def test_erasures_and_exports_with_keys_of_others_reach_nothing(family: Store) -> None:
    before = [family.get(key) for key in OTHERS]
    ann, file = family.for_user("ann"), io.BytesIO()
    ann.export_user(None, file, keys=OTHERS)
    assert not any(key.encode() in file.getvalue() for key in OTHERS)
    ann.erase(keys=OTHERS)
    assert keys(family) == OTHERS
    assert [family.get(key) for key in OTHERS] == before


@pytest.mark.parametrize("format", sorted({*writable()} - {"openai"}))  # which reads only the user's sessions
def test_exports_and_imports_are_refused(family: Store, tmp_path: Path, format: str) -> None:
    ann = family.for_user("ann")
    for which in ({"everything": True}, {"keys": ["k"]}, {"keys": ["k/b"]}, {"user_id": "bob"}):
        with pytest.raises(InvalidState, match="user 'ann'"):
            export(ann, tmp_path / "out", format, **which)
    export(family, tmp_path / "bob", format, keys=["k/b"])
    family.delete("k/b")
    with pytest.raises(InvalidState, match="user 'ann'"):
        import_path(ann, tmp_path / "bob", format=format)


@pytest.mark.parametrize("seconds", [60.0, 0.0], ids=["ranked", "newest"])
def test_search_finds_only_messages_of_the_user(family: Store, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("lango_store._rooms.search.hits._RANKING", seconds)
    monkeypatch.setattr("lango_store._rooms.search.hits._COMPARING", 60.0)
    monkeypatch.setattr("lango_store._rooms.search.hits._NEWEST", 4)  # fewer than the messages of the store
    schema.enable_search(family.engine)
    ann = family.for_user("ann")
    assert {hit.key for hit in ann.search("oak").items} == {"k", "k/a"}
    assert ann.search("oak", user_id="bob").items == []
    assert len(family.search("oak", user_id="bob").items) == 2


def test_worker_runs_only_turns_of_the_user(store: Store) -> None:
    for user in ("ann", "bob"):
        store.open(user, user_id=user).inbox.put(Message.user("question"))
    ann = store.for_user("ann")
    assert [owed.key for owed in ann.owed().items] == ["ann"]
    assert ann.owed(user_id="bob").items == []
    assert work(ann, answer) == 1
    assert work(ann, answer, user_id="bob") == 0
    assert [owed.key for owed in store.owed().items] == ["bob"]


def test_calls_and_suspensions_of_others_are_not_found(store: Store) -> None:
    for user in ("ann", "bob"):
        store.open(user, user_id=user).append_message(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
    bobs = store.conversation("bob")
    suspension, effect = bobs.suspensions.create([(1, 0)]), bobs.calls.begin(1, 0)
    ann = store.for_user("ann")
    with pytest.raises(SuspensionNotFound) as error:
        ann.suspensions.answer(str(suspension.token), True)
    bobs.suspensions.delete(suspension.id)
    store.delete("bob")
    with pytest.raises(SuspensionNotFound) as missing:
        ann.suspensions.answer(str(suspension.token), True)
    assert str(error.value) == str(missing.value)
    store.open("bob", user_id="bob").append_message(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
    effect = bobs.calls.begin(1, 0)
    with pytest.raises(SessionNotFound):
        ann.conversation("bob").calls.finish(effect, "done")
    with pytest.raises(ValueError, match="another session"):
        ann.conversation("ann").calls.finish(effect, "done")
    with pytest.raises(CallNotFound):
        ann.conversation("ann").calls.begin(2, 0)
    assert ann.suspensions.answer(str(ann.conversation("ann").suspensions.create().token), 1).answer == 1
    assert len(bobs.messages()) == 1


def test_key_that_equals_an_id_of_another_session_gives_no_access(store: Store) -> None:
    """A user who chooses a session's key may choose the id of something that is not a session."""
    store.open("bob", user_id="bob").append_message(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
    suspension = store.conversation("bob").suspensions.create([(1, 0)])
    ann = store.for_user("ann")
    ann.create(suspension.id)
    with pytest.raises(SuspensionNotFound):
        ann.suspensions.answer(suspension.id, True)
    with pytest.raises(SuspensionNotFound):
        ann.conversation(suspension.id).suspensions.answer(suspension.id, True)
    assert store.conversation("bob").suspensions.list()[0].answered_at is None


@pytest.mark.parametrize(
    "operation",
    [
        lambda connection, now: 1,
        lambda connection, now, after: 1,
        lambda connection, now, *args: 1,
        functools.partial(lambda connection, now, key: 1),
        print,
    ],
)
def test_operation_that_names_no_session_is_refused(store: Store, operation: Callable[..., object]) -> None:
    """An operation that forgets the user must not run."""
    store.create("ann", user_id="ann")
    context = store.for_user("ann")._context
    for run in (context.read, context.read_together, context.write, context.transact, context.transact_once):
        for arguments in ((), ("ann",), (3,)):
            with pytest.raises((InvalidState, TypeError), match="user 'ann'"):
                run(operation, *arguments)
    for opened in (context.single_read, context.single_write, context.snapshot, context.transaction):
        with pytest.raises(InvalidState, match="user 'ann'"), opened():
            pass
