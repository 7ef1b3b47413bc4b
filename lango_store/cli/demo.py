"""`lango-store demo`: store, load and print a conversation; with `--kill` or `--web`, kill a process that answers."""

from typing import Annotated

import typer

from lango_store._values.model import Message, MessageRole, ToolCall
from lango_store.cli import killing, web_demo
from lango_store.cli.options import flag, option
from lango_store.cli.output import console, print_table
from lango_store.cli.rendering import render_message
from lango_store.cli.sessions import COLUMNS
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
        tool_calls=[
            ToolCall(id="call_1", name="get_weather", output={"celsius": -3, "sky": "clear"}),
            ToolCall(id="call_2", name="get_weather", output={"celsius": 4, "sky": "rain", "mm": 22.5}),
        ],
        tokens=40,
    ),
    Message(role=MessageRole.ASSISTANT, author="planner", content="Oslo: cold, but clear. Bergen drowns. ⛷", tokens=14),
]


def demo(
    file: Annotated[str, option("FILE", "SQLite file to write to.", "--file")] = "demo.db",
    kill: Annotated[bool, flag("--kill", "Kill a process in the middle of an answer.")] = False,
    web: Annotated[
        bool, flag("--web", "Serve a chat page, with a button that kills the process that answers.")
    ] = False,
    port: Annotated[
        int, option("NUMBER", "With --web: the port to listen on. 0 selects a free port.", min=0, max=65_535)
    ] = 8322,
    budget: Annotated[
        int | None, option("WORDS", "With --web: the words that all answers of a day may have.", min=web_demo.LONGEST)
    ] = None,
) -> None:
    """Store a conversation with tool calls in a SQLite file, load it and print it.

    With --kill, two worker processes wait for a question, and a third
    process follows the session. The worker that answers is killed, and the
    other one finishes the answer. This takes about 10 seconds.

    With --web, two worker processes answer the questions of a chat page at
    http://127.0.0.1:8322/, from a temporary database. No model is needed.
    Requires the extra `web` of the package. Ctrl-C ends it. With --budget 100,
    the second answer has to wait for the next day.

    An earlier session of the demo is replaced. A file that contains other
    sessions is refused.
    """
    if web:
        web_demo.run(port, budget)
        return
    with Store(f"sqlite:///{file}", migrate=True) as store:
        demos = (KEY, killing.KEY)
        if store.count(expired=None) > sum(map(store.exists, demos)):
            raise typer.BadParameter(f"{file} contains other sessions: give another file", param_hint="--file")
        for key in demos:
            store.delete(key)
        if kill:
            if not killing.run(str(store.engine.url)):
                raise typer.Exit(1)
            return
        store.create(KEY, agent_id="planner", title="A free Saturday", model="gpt-x", settings={"thinking": "high"})
        for message in CONVERSATION:
            store.append_message(KEY, message)
        session = store.get(KEY)
        console().print(*map(render_message, session.messages), sep="\n")
        print_table(COLUMNS, [store.list_sessions().items])
    loaded = [(each.role, each.content, each.tool_calls) for each in session.messages]
    if loaded != [(each.role, each.content, each.tool_calls) for each in CONVERSATION]:
        raise typer.Exit(1)
    print(f"{session.message_count} messages, {session.token_count} tokens, stored and loaded back equal: {file}")
