"""A call of every public method, or several if they send different statements."""

import inspect
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path

from support.awaiting import Awaiting
from support.factories import message, messages
from support.working import work

from lango_store import (
    Budget,
    Calls,
    Conversation,
    Drafts,
    Edits,
    Inbox,
    Maintenance,
    Message,
    Payload,
    PendingCompaction,
    Store,
    StoreBudgets,
    StoreCalls,
    StoreShares,
    StoreSuspensions,
    StoreTurns,
    Suspensions,
    ToolCall,
    Turn,
    Turns,
    Values,
    Versions,
    aio,
)
from lango_store._operations.session.lists import cursor_after
from lango_store._parts.twins import AsyncPart

FIRST_CURSOR = cursor_after("0" * 64, datetime(2026, 11, 21, tzinfo=UTC), "k")

OWED_CURSOR = cursor_after("owed", datetime(2026, 11, 21, tzinfo=UTC), "k")

CallsByMethod = dict[type, dict[str, list[Callable[[], object]]]]

KINDS = (
    *(Store, Maintenance, StoreBudgets, StoreCalls, StoreShares, StoreSuspensions, StoreTurns),
    *(Conversation, Calls, Drafts, Edits, Inbox, PendingCompaction, Suspensions, Turns, Values, Versions),
)
"""The classes whose methods have an asynchronous version."""


def twin_of(kind: type) -> type:
    """Return the asynchronous class of a class."""
    named = {each.__name__: each for each in (aio.AsyncStore, aio.AsyncRunningTurn, *AsyncPart.__subclasses__())}
    return named[f"Async{kind.__name__}"]


def members_of(kind: type) -> dict[str, object]:
    """Return the members of a class, with those that rooms add to it."""
    own = [each for each in kind.__mro__ if each.__module__.startswith("lango_store")]
    return {name: value for each in reversed(own) for name, value in vars(each).items()}


def methods_of(kind: type) -> set[str]:
    """Return the names of the methods of a class that have an asynchronous version."""
    named = {name for name, each in members_of(twin_of(kind)).items() if inspect.isfunction(each) and name[0] != "_"}
    return named - {"close", "conversation", "run_sync", "shared_values"}


def prepare(store: Store, cold: Path) -> None:
    """Create what the calls need: sessions, an archive, a payload, a draft, calls, an open turn, changes."""
    if not cold.exists():
        store.create("old")
        store.expire(older_than=timedelta(0), archive=cold)
    store.create("k", messages=[message("x" * 65_536, tokens=1), message(tokens=1)])
    store.create("k/child")
    k = store.conversation("k")
    k.save_turn([message(id="one", tokens=1)], {"tokens": 1}, id="turn")
    given_up = k.turn("given up").begin()
    asking = given_up.append(Message.assistant(tool_calls=[ToolCall(id="", name="f")] * 5, id="asking", tokens=1))
    for position in range(3):
        with given_up.call(asking, position):
            pass  # without an output, so that the call is unknown
    given_up.write("half of an ans")
    given_up.abandon()
    k.inbox.put(message(id="waiting"))
    k.suspensions.create([(asking.seq, 1)], reason="May it run?")
    k.share()
    wait(store, "waits")
    store.open("busy").turn("open", budget=Budget("user:ann", 9, reserve=1)).begin()
    changed = Store(store.engine, clock=store._context.clock_time, keep_removed=timedelta(days=1)).open("changed")
    changed.append_messages(messages(3))
    for seq in (1, 2):
        changed.edits.update(seq, message("edited"))
    changed.versions.undo()
    branched = store.open("branched")
    branched.append_messages(messages(2))
    for _ in range(2):
        branched.append_messages(messages(2), replace_after=1, keep=True)


def wait(store: Store, job: str) -> None:
    """Run a turn with a call that waits for a job."""
    conversation = store.open(f"of {job}")
    with conversation.turn() as turn:
        asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="", name="f")]))
        with turn.call(asking, 0) as effect:
            effect.wait({"job": job}, until=timedelta(days=1))


def run_turn(conversation: Conversation) -> Turn | None:
    """Run a turn that calls each of its methods."""
    with conversation.turn("running") as turn:
        turn.take_inbox()
        turn.append(message(id="asked"))
        turn.write("half of an ans")
        turn.flush()
        turn.append_messages([message(id="answered", role="assistant")])
        with turn.call(turn.append(Message.assistant(tool_calls=[ToolCall(id="", name="f")])), 0) as effect:
            effect.output = "done"
        turn.write("half of an")
        turn.interrupt()
    return turn.stored


def run_capped_turn(conversation: Conversation) -> Turn | None:
    """Run a turn with a budget."""
    with conversation.turn("capped", budget=Budget("user:ann", 9, reserve=1)) as turn:
        turn.append(message(id="capped"))
    return turn.stored


def stable_repr(result: object) -> str:
    """Return the `repr` of a result without random parts: keys, ids, revisions, handles, cursors and positions."""
    if isinstance(result, Store | aio.AsyncStore | Awaiting | Conversation | AsyncPart | PendingCompaction):
        return "handle"
    text = re.sub(r"(revision|incarnation|seconds)=[0-9.]+|cursor='[^']+'", "…", repr(result))
    return re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27}|0x[0-9a-f]+|[0-9a-f]{16,}|'[0-9A-F]+/[0-9A-F]+'|bytes\w*=\d+", "…", text)


def calls_of(store: Store, cold: Path, finder: Store | None = None) -> CallsByMethod:
    """Return the calls by class and method; none of them depends on another one.

    `finder` finds the ids and tokens that the calls name, by default `store` itself.
    """
    k, busy, changed, branched = (store.conversation(key) for key in ("k", "busy", "changed", "branched"))
    found = k if finder is None else finder.conversation("k")
    (draft,) = found.drafts.list()
    (payload,) = [each.content for each in found.messages(payloads="reference") if isinstance(each.content, Payload)]
    pending = found.turns.begin_compaction()
    asking = found.find_message("asking")
    assert asking is not None
    suspension, *_ = found.suspensions.list()
    share, *_ = found.shares().items
    assert pending is not None
    made = None if finder is None else found.suspensions.create()
    policy = cold.with_name("retention.toml")
    policy.write_text('[[rules]]\nname = "k"\nprefix = "k"\nidle = "0s"\ndescendants = true\n')
    shared = None if finder is None else found.share()
    calls: CallsByMethod = {
        Store: {
            "ping": [store.ping],
            "transact": [lambda: store.transact(lambda tx: tx.touch("k"))],
            "position": [store.position],
            "at": [lambda: store.at(None)],
            "for_user": [lambda: store.for_user("ann")],
            "create": [store.create, lambda: store.create("new", messages=[message()])],
            "get": [lambda: store.get("k")],
            "open": [lambda: store.open("k"), store.open],
            "exists": [lambda: store.exists("k")],
            "touch": [lambda: store.touch("k")],
            "delete": [lambda: store.delete("k"), lambda: store.delete("k", descendants=True)],
            "append_message": [
                lambda: store.append_message("k", message()),
                lambda: store.append_message("new", message(), create=True),
            ],
            "iter_sessions": [lambda: list(store.iter_sessions())],
            "list_sessions": [store.list_sessions],
            "count": [store.count],
            "messages_of": [lambda: store.messages_of(["k"], first=1), lambda: store.messages_of(["k"], last=1)],
            "values_of": [lambda: store.values_of(["k"])],
            "shared_values_of": [lambda: store.shared_values_of(["app"])],
            "search": [lambda: store.search("hello")],
            "stats": [store.stats],
            "usage": [store.usage, lambda: store.usage(["user_id", "model", "day"], key_prefix="k")],
            "expire": [
                lambda: store.expire(older_than=timedelta(0)),
                lambda: store.expire(dry_run=True),
                lambda: store.expire(older_than=timedelta(0), descendants=True),
                lambda: store.expire(dry_run=True, descendants=True),
            ],
            "hide": [lambda: store.hide("k")],
            "delete_where": [
                lambda: store.delete_where(key_prefix="k"),
                lambda: store.delete_where(key_prefix="k", descendants=True),
            ],
            "erase": [
                lambda: store.erase(
                    "ann", archives=[cold], scopes=["user:ann"], authors=True, keys=["k"], dry_run=True
                ),
                lambda: store.erase(
                    "ann", archives=[cold], scopes=["user:ann"], authors=True, keys=["k"], digests=True
                ),
            ],
            "export_user": [
                lambda: store.export_user(
                    "ann", BytesIO(), archives=[cold], scopes=["user:ann"], authors=True, keys=["k"]
                )
            ],
            "restore": [lambda: store.restore("old", cold, descendants=True)],
            "in_turn": [lambda: store.in_turn(k.turn())],
            "owed": [store.owed, lambda: store.owed(key_prefix="k", cursor=OWED_CURSOR)],
            "work": [lambda: work(store, lambda own, turn: None, key_prefix="k")],
        },
        Conversation: {
            "get": [k.get, lambda: changed.get(as_of=3), lambda: branched.get(alternative=2)],
            "info": [k.info],
            "update": [lambda: k.update(title="new")],
            "append_message": [lambda: k.append_message(message())],
            "append_messages": [
                lambda: k.append_messages(messages(2)),
                lambda: k.append_messages(messages(2), replace_after=1),
                lambda: k.append_messages(messages(2), replace_after=1, keep=True),
                lambda: branched.append_message(message(id="one")),
                lambda: k.append_messages([message(id="one"), message(id="two")]),
            ],
            "messages": [
                k.messages,
                lambda: k.messages(last=1),
                lambda: k.messages(payloads="reference"),
            ],
            "all_messages": [
                k.all_messages,
                lambda: k.all_messages(payloads="reference"),
                lambda: k.all_messages(seqs=[1]),
                lambda: k.all_messages(id_prefix="o"),
            ],
            "iter_messages": [lambda: list(k.iter_messages())],
            "tail": [lambda: list(k.tail(follow=False))],
            "payload": [lambda: k.payload(payload.digest)],
            "find_message": [lambda: k.find_message("one")],
            "pop_message": [k.pop_message],
            "search": [lambda: k.search("hello"), lambda: k.search("hello", alternatives=True)],
            "truncate": [lambda: k.truncate(after=1)],
            "clear": [k.clear],
            "save_turn": [lambda: k.save_turn([message()]), lambda: k.save_turn([message()], id="another")],
            "total_usage": [k.total_usage, lambda: k.total_usage(descendants=True)],
            "turn": [lambda: run_turn(k), lambda: run_capped_turn(k)],
            "child": [lambda: k.child("new"), lambda: k.child("child")],
            "children": [k.children],
            "fork": [k.fork, lambda: changed.fork(as_of=3)],
            "history": [k.history, lambda: k.history(max_tokens=1)],
            "share": [k.share, lambda: k.share(upto=1, by="ann")],
            "shares": [k.shares],
            "unshare": [lambda: k.unshare(share.id), k.unshare],
            "alternatives": [k.alternatives, branched.alternatives],
            "switch": [lambda: branched.switch(2)],
            "drop_alternative": [lambda: branched.drop_alternative(2)],
            "compact": [lambda: k.compact(lambda window: message("summary"))],
        },
        StoreBudgets: {
            "list": [store.budgets.list, lambda: store.budgets.list("user:ann", cursor=OWED_CURSOR)],
            "reset": [lambda: store.budgets.reset("user:ann")],
        },
        StoreTurns: {
            "list_in_progress": [store.turns.list_in_progress],
        },
        Maintenance: {
            "move_payloads": [
                lambda: store.maintenance.move_payloads(threshold=1),
                lambda: store.maintenance.move_payloads(threshold=None),
            ],
            "examine": [store.maintenance.examine],
            "apply_policy": [lambda: store.maintenance.apply_policy(policy)],
        },
        StoreCalls: {
            "list_unknown": [store.calls.list_unknown],
            "waiting": [store.calls.waiting],
            "finish": [lambda: store.calls.finish({"job": "waits"}, "done")],
        },
        StoreSuspensions: {
            "list": [store.suspensions.list, lambda: store.suspensions.list(user_id="ann", cursor=FIRST_CURSOR)],
            "answer": [lambda: store.suspensions.answer(str((made or k.suspensions.create()).token), 1)],
        },
        StoreShares: {
            "list": [store.shares.list, lambda: store.shares.list(user_id="ann", cursor=FIRST_CURSOR)],
            "document": [lambda: store.shares.document(str((shared or k.share()).token))],
        },
        Turns: {
            "list": [k.turns.list],
            "list_compactions": [k.turns.list_compactions],
            "begin_compaction": [k.turns.begin_compaction],
            "find": [lambda: k.turns.find("turn"), lambda: k.turns.find(1)],
            "in_progress": [k.turns.in_progress, busy.turns.in_progress],
            "release": [busy.turns.release],
            "stop": [lambda: busy.turns.stop(by="ann", reason="too long")],
            "retry": [k.turns.retry],
        },
        Calls: {
            "begin": [
                lambda: k.calls.begin(asking.seq, 2, idempotent=True),
                lambda: k.calls.begin(asking.seq, 3),
            ],
            "finish": [lambda: k.calls.finish(k.calls.begin(asking.seq, 4), "done")],
            "list": [k.calls.list],
            "resolve": [
                lambda: k.calls.resolve(asking.seq, 0, output="done"),
                lambda: k.calls.resolve(asking.seq, 1, retry=True),
            ],
        },
        Suspensions: {
            "create": [lambda: k.suspensions.create([(asking.seq, 1)], state={"a": 1})],
            "list": [k.suspensions.list],
            "answer": [lambda: k.suspensions.answer(suspension.id, True)],
            "delete": [lambda: k.suspensions.delete(suspension.id)],
        },
        Drafts: {
            "list": [k.drafts.list],
            "keep": [lambda: k.drafts.keep(draft.id)],
            "delete": [lambda: k.drafts.delete(draft.id)],
        },
        Inbox: {
            "put": [lambda: k.inbox.put(message()), lambda: k.inbox.put(message(id="new"))],
            "put_messages": [
                lambda: k.inbox.put_messages([message(), message(id="new")]),
                lambda: busy.inbox.put_messages([message(id="edited")], replace_after=0),
            ],
            "list": [k.inbox.list],
            "delete": [lambda: k.inbox.delete("unknown")],
            "redact": [lambda: k.inbox.redact("waiting")],
            "update": [lambda: k.inbox.update(message(id="waiting"))],
        },
        Edits: {
            "update": [lambda: k.edits.update(1, message())],
            "delete": [lambda: k.edits.delete(1)],
            "update_all": [lambda: k.edits.update_all(found.all_messages())],
            "delete_all": [lambda: k.edits.delete_all([1])],
            "redact": [lambda: k.edits.redact(1)],
            "drop_sent": [lambda: k.edits.drop_sent(before=3)],
        },
        Versions: {
            "changes": [changed.versions.changes],
            "undo": [changed.versions.undo],
            "redo": [changed.versions.redo],
            "diff": [lambda: changed.versions.diff(3, 4)],
        },
        Values: {
            "get": [k.values.get, store.shared_values("app").get],
            "set": [lambda: k.values.set({"a": 1}), lambda: store.shared_values("app").set({"a": 1})],
            "delete": [k.values.delete, lambda: k.values.delete(["a"]), store.shared_values("app").delete],
        },
        PendingCompaction: {
            "finish": [lambda: pending.finish(message("summary"))],
        },
    }
    assert {kind: set(methods) for kind, methods in calls.items()} == {kind: methods_of(kind) for kind in calls}
    return calls
