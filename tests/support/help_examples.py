"""A store in which the examples of the help can be run."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from lango_store import Message, Store, ToolCall, schema
from lango_store.interchange import export

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)


def prepare(folder: Path) -> None:
    """Create the databases `agent.db` and `cold.db`, and a backup of one session."""
    with Store(f"sqlite:///{folder}/cold.db", migrate=True, clock=lambda: NOW) as store:
        store.create("guest:1", user_id="eve", messages=[Message.user("Hello"), Message.assistant("Hi")])
        export(store, folder / "backup", "backup", everything=True)
    with Store(
        f"sqlite:///{folder}/agent.db", migrate=True, clock=lambda: NOW, keep_removed=timedelta(days=30)
    ) as store:
        store.ping()
        schema.enable_search(store.engine)
        ann = store.open("telegram:42", user_id="ann", agent_id="support", title="Weather", model="gpt-x")
        usage = {"input_tokens": 1200, "output_tokens": 40, "cost_usd": 0.02}
        ann.save_turn([Message.user("Oslo weather?"), Message.assistant("Cold: -3.")], usage)
        ann.append_message(Message.user("Pay Ann"))
        ann.pop_message()
        asking = ann.append_message(
            Message.assistant(tool_calls=[ToolCall(id="c", name="pay", arguments={"to": "Ann"})])
        )
        ann.calls.begin(asking.seq, 0)
        ann.suspensions.create(reason="May it pay?")
        ann.turn("answer").begin()
        ann.update(hold="case 17")
        ann.share(by="ann")
        store.open("chat-42", agent_id="sales", title="Invoice").inbox.put(Message.user("Hi"))
        store.create("guest:2", ttl=timedelta(hours=1))
        store.search("weather")  # indexes the messages
