"""`lango-store demo`: a conversation stored, loaded, shown and listed."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from lango_store._values.model import Message, MessageRole, SessionInfo, ToolCall
from lango_store._values.session import Session
from lango_store.store import Store

KEY = "telegram:12345678"

CONVERSATION = [
    Message(role=MessageRole.SYSTEM, content="You plan trips. Look the weather up before you promise any."),
    Message(role=MessageRole.USER, content="I have Saturday free. Oslo or Bergen?", tokens=11),
    Message(
        role=MessageRole.ASSISTANT,
        author="planner",
        content="Let me see what the weather says.",
        tool_calls=[
            ToolCall(id="call_1", name="get_weather", arguments={"city": "Oslo", "day": "Saturday"}),
            ToolCall(id="call_2", name="get_weather", arguments={"city": "Bergen", "day": "Saturday"}),
        ],
        tokens=48,
    ),
    Message(
        role=MessageRole.TOOL,
        author="planner",
        name="get_weather",
        tool_call_id="call_1",
        tool_calls=[ToolCall(id="call_1", name="get_weather", output={"celsius": -3, "sky": "clear"})],
        tokens=19,
    ),
    Message(
        role=MessageRole.TOOL,
        author="planner",
        name="get_weather",
        tool_call_id="call_2",
        tool_calls=[ToolCall(id="call_2", name="get_weather", output={"celsius": 4, "sky": "rain", "mm": 22.5})],
        tokens=21,
    ),
    Message(role=MessageRole.ASSISTANT, author="planner", content="Oslo: cold, but clear. Bergen drowns. ⛷", tokens=14),
    Message(role=MessageRole.USER, content="Oslo then. Is there a train at nine?", tokens=10),
    Message(
        role=MessageRole.ASSISTANT,
        author="planner",
        tool_calls=[ToolCall(id="call_3", name="find_train", arguments={"to": "Oslo S", "after": "09:00"})],
        tokens=22,
    ),
    Message(
        role=MessageRole.TOOL,
        author="planner",
        name="find_train",
        tool_call_id="call_3",
        tool_calls=[ToolCall(id="call_3", name="find_train", output=[{"departs": "09:04", "track": 3}])],
        tokens=17,
    ),
    Message(role=MessageRole.ASSISTANT, author="planner", content="Yes, 09:04 from track 3. Booked?", tokens=12),
]


def demo(
    file: Annotated[str, typer.Option("--file", help="The SQLite file to write.")] = "demo.db",
) -> None:
    """Store a conversation with tool calls in a SQLite file, load it back, show it, and list the sessions."""
    console = Console()
    with Store(f"sqlite:///{file}", migrate=True) as store:
        store.delete(KEY)
        store.create(KEY, agent_id="planner", title="A free Saturday", model="gpt-x", settings={"thinking": "high"})
        for message in CONVERSATION:
            store.append_message(KEY, message)
        session = store.get(KEY)
        for message in session.messages:
            console.print(_shown(message))
        console.print(_listed(store.list_sessions().items))
    same = [(m.role, m.content, m.tool_calls) for m in session.messages] == [
        (m.role, m.content, m.tool_calls) for m in CONVERSATION
    ]
    if not same:
        raise typer.Exit(1)
    console.print(f"{_counted(session)} stored and loaded back equal. The file: ", Text(file, style="bold"), sep="")


def _counted(session: Session) -> str:
    return f"{session.message_count} messages, {session.token_count} tokens,"


_STYLES = {MessageRole.USER: "cyan", MessageRole.ASSISTANT: "green", MessageRole.TOOL: "yellow"}


def _shown(message: Message) -> Panel:
    lines = [] if message.content is None else [str(message.content)]
    for call in message.tool_calls:
        lines.append(f"{call.name} → {call.output}" if call.answered else f"{call.name}({call.arguments})")
    who = message.role.value if message.author is None else f"{message.role.value} · {message.author}"
    style = _STYLES.get(message.role, "magenta")
    return Panel(Text("\n".join(lines)), title=f"{message.seq} {who}", title_align="left", border_style=style)


def _listed(found: list[SessionInfo]) -> Table:
    table = Table(title="Sessions", title_justify="left")
    for column in ("key", "title", "agent", "messages", "tokens", "updated"):
        table.add_column(column, no_wrap=column in ("key", "updated"))
    for info in found:
        values = (info.key, info.title, info.agent_id, info.message_count, info.token_count)
        table.add_row(*("" if value is None else str(value) for value in values), f"{info.updated_at:%Y-%m-%d %H:%M}")
    return table
