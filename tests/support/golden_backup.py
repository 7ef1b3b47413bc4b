"""`PYTHONPATH=.:tests python tests/support/golden_backup.py` writes a backup into `tests/data`."""

from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

from support.paths import DATA
from support.working import fail

from lango_store import Budget, Message, MessageRole, Store, ToolCall
from lango_store.interchange import export
from lango_store.tables import SCHEMA_REVISION

BACKUPS = DATA / "backups"
CONTENTS = ["", 'say "hé"\n\x7f', "null", "[1]", None, True, 1.0, "a\0b", "\ud83d", {"b": 1, "a": [None]}, ["x"]]
DRAFT, INBOX = "It is\0 -3 \ud83d", ["a\0b", "\ud83d", None, 1.0]
LONG = "a long text, of which a session stores one copy: " * 2
IMAGE = "data:image/png;base64," + "iVBORw0KGgo" * 8
BEGAN = datetime(2026, 11, 21, 12, 0, 0, 123456, tzinfo=UTC)


def fill(store: Store) -> None:
    """Write sessions that set every column."""
    said = {"agent_id": "support", "user_id": "ann", "title": "Oslo", "model": "gpt-x"}
    store.create("plain", **said, settings={"thinking": "high"}, metadata={"é": [1, 2.5]}, tools=[{"name": "f"}])  # type: ignore[arg-type]
    store.append_message(
        "plain", Message.user("Weather in Oslo?", id="m-1", tokens=5, sent=["Weather in Oslo?", "Ann"])
    )
    call = ToolCall(id="call_1", name="get_weather", output={"celsius": -3})
    answer = Message.tool(author="lango-orchestrator", tool_call_id="call_1", tool_calls=[call], extra={"x": "\n"})
    store.conversation("plain").append_messages(
        [answer, Message(role=MessageRole.RECORD, content={"cost": 0.25}, tokens=7)]
    )
    store.append_message("plain", Message.assistant("-3 °C", model="gpt-x", provider="azure", request="a1b2"))
    store.conversation("plain").values.set({"state": {"step": 2}, "cursor": None})
    store.shared_values("user:ann").set({"name": "Ann", "é": "a\0\ud83d"})
    plain = store.conversation("plain")
    turn = plain.turn("t-0").begin()
    turn.write(DRAFT)
    turn.abandon()
    plain.inbox.put(Message.user(INBOX, id="m-2", author="ann", tokens=3, sent=["in Rome?"], extra={"x": 1}))
    plain.share(upto=1, tools=True, until=BEGAN + timedelta(hours=1), by="ann")
    plain.share()
    plain.update(hold="case 17")
    store.create("expiring", user_id="bob", ttl=timedelta(hours=1))
    store.conversation("expiring").append_messages([Message.user(f"message {n}", tokens=n) for n in range(3)])
    turns = store.open("turns", ttl=timedelta(hours=2))
    turns.save_turn([Message.user("Hello"), Message.assistant("Hi!")], {"input_tokens": 10}, id="t-1")
    turns.compact(lambda window: Message.assistant(f"We said {len(window)} things."))
    turns.save_turn([Message.user("gone")])
    turns.pop_message()
    turns.share()
    calls = store.open("unfinished")
    call = ToolCall(id="call_0", name="pay", arguments={"euros": 40})
    asking = calls.append_message(Message.assistant(tool_calls=[call, call]))
    calls.calls.finish(calls.calls.begin(asking.seq, 0), {"paid": True})
    calls.calls.begin(asking.seq, 1)
    calls.suspensions.answer(
        calls.suspensions.create([(asking.seq, 1)], state=CONTENTS, reason="Pay 40 €?", ttl=timedelta(hours=1)).id,
        CONTENTS,
        by="bob",
        why="It is cheap.",
    )
    calls.suspensions.create(state={"run": 7})
    taken = store.open("taken")
    taken.inbox.put(Message.user("Are you there?", id="m-3"))
    turn = taken.turn("t-1").begin()
    turn.take_inbox()
    turn.abandon()
    turns.fork("fork")
    limit = Budget("user:ann", 1_000, per="month", reserve=400)
    with store.open("spent").turn("t-1", budget=limit) as turn:
        turn.usage = {"input_tokens": 150, "output_tokens": 20}
    store.conversation("spent").turn("t-2", budget=limit).begin()
    store.open("timed").inbox.put(Message.user("Wake up.", id="m-5"), at=BEGAN + timedelta(minutes=1))
    branches = store.open("with branches")
    branches.save_turn([Message.user("A name?", id="m-6"), Message.assistant("Tom", id="m-7")])
    branches.append_messages([], replace_after=1, keep=True)
    branches.save_turn([Message.assistant("Felix"), Message.user("Thanks")], {"tokens": 3}, id="t-2")
    branches.append_messages([Message.user({"x": [LONG]})], replace_after=4, keep=True)
    branches.append_messages([Message.user("Another name?")], replace_after=0, keep=True)
    job = store.open("waits")
    asking = job.append_message(Message.assistant(tool_calls=[ToolCall(id="call_0", name="report")]))
    with job.turn("t-2") as turn, turn.call(asking, 0) as effect:
        effect.wait({"mcp_task": "t-1", "é": [1.0]}, until=timedelta(minutes=2))
    store.open("failing").inbox.put(Message.user("Are you there?", id="m-4"))
    store.work(fail, once=True, key_prefix="failing")
    store.create("payloads", ttl=timedelta(hours=3), messages=large_messages())
    store.create("contents", ttl=timedelta(hours=3), messages=[Message.user(content) for content in CONTENTS])


def large_messages() -> list[Message]:
    """Return messages with strings that become payloads, in each field that can have them."""
    call = ToolCall(id="call_1", name="search", arguments={"query": LONG}, output=[LONG, {"image": IMAGE}])
    return [
        Message.user(LONG),
        Message.user([{"type": "text", "text": LONG}, {"type": "image_url", "image_url": {"url": IMAGE}}]),
        Message.assistant(None, tool_calls=[call], extra={"raw": {"é": LONG}}),
        Message.user(LONG + "\0"),  # stays in the row
    ]


def main() -> None:
    """Write the file."""
    with (
        TemporaryDirectory() as folder,
        Store(
            f"sqlite:///{folder}/s.db",
            migrate=True,
            clock=lambda: BEGAN,
            payload_threshold=64,
            keep_removed=timedelta(days=1),
        ) as store,
    ):
        fill(store)
        written = export(store, BACKUPS / f"{SCHEMA_REVISION}.jsonl", "backup", everything=True, replace=True)
        assert [each.error for each in written if each.error] == []


if __name__ == "__main__":
    main()
