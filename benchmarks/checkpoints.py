"""`python -m benchmarks.checkpoints`: threads of LangGraph in `LangoSaver` and in LangGraph's own savers.

A turn appends a question, a call, its result of 2 kB and an answer to the state, with a graph of one node. The savers
run their turns alternately in one process. The processor time is that of the graph and the saver together, without that
of a PostgreSQL server.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, TypedDict

import sqlalchemy as sa
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import _messages_delta_reducer
from rich.console import Console
from rich.table import Table

from benchmarks.peers.contender import own_file
from benchmarks.peers.langgraph import postgres_saver, sqlite_saver
from benchmarks.turns import databases
from lango_store import Store
from lango_store.integrations.langgraph import LangoSaver

TURNS: Final = 100
WORDS: Final = [f"{random.Random(number).randrange(36**5):x}" for number in range(2_000)]
THREAD: Final[Any] = {"configurable": {"thread_id": "t"}}


class DeltaState(TypedDict):
    """Messages in a delta channel, which stores what each step wrote."""

    messages: Annotated[list[Any], DeltaChannel(_messages_delta_reducer)]


class Contender:
    """A graph with a saver, and the numbers of its statements."""

    def __init__(self, saver: Any, state: type, size: Callable[[], int], sent: list[str], watch: Any) -> None:
        builder: Any = StateGraph(state)
        builder.add_node("agent", _answer)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", END)
        self._graph = builder.compile(checkpointer=saver)
        self._sent = sent
        self._watch = watch
        self.size = size
        self.times: list[float] = []

    def turn(self, number: int) -> None:
        """Run a turn, and measure it."""
        start = time.process_time()
        self._graph.invoke({"messages": [HumanMessage(f"question {number}", id=f"q{number}")]}, THREAD)
        self.times.append(time.process_time() - start)

    def count_statements(self, number: int) -> int:
        """Run a turn, and return the number of its statements."""
        self._watch()
        self._sent.clear()
        self.turn(number)
        return sum(not sent.startswith(("BEGIN", "COMMIT")) for sent in self._sent)


def _answer(state: Any) -> dict[str, list[BaseMessage]]:
    number = len(state["messages"])
    result = " ".join(random.Random(number).choices(WORDS, k=280))
    call = {"name": "look", "args": {"number": number}, "id": f"call-{number}", "type": "tool_call"}
    return {
        "messages": [
            AIMessage("", id=f"c{number}", tool_calls=[call]),
            ToolMessage(result, tool_call_id=call["id"], id=f"r{number}"),
            AIMessage(f"answer {number}", id=f"a{number}"),
        ]
    }


@contextmanager
def ours(url: str, state: type) -> Iterator[Contender]:
    """Open a `LangoSaver`."""
    sent: list[str] = []
    with Store(url, migrate=True, on_statement=lambda statement, _: sent.append(statement)) as store:
        size = _sizes(url, url.removeprefix("sqlite:///"), "lango_%")
        yield Contender(LangoSaver(store), state, size, sent, lambda: None)


@contextmanager
def theirs(url: str, state: type) -> Iterator[Contender]:
    """Open a saver of LangGraph."""
    sent: list[str] = []
    opened = sqlite_saver(url) if url.startswith("sqlite") else postgres_saver(url)
    saver = opened.saver

    def watch() -> None:  # only for the last turn, because SQLite writes the values into the text of each statement
        if url.startswith("sqlite"):
            saver.conn.set_trace_callback(sent.append)
        else:
            saver.conn.cursor_factory = _counting(saver.conn.cursor_factory, sent)

    yield Contender(saver, state, _sizes(url, own_file(url, "langgraph"), "checkpoint%"), sent, watch)
    opened.close()


def _counting(factory: Any, sent: list[str]) -> Any:
    class Counting(factory):  # type: ignore[misc]
        def execute(self, query: Any, *words: Any, **options: Any) -> Any:
            sent.append(str(query))
            return super().execute(query, *words, **options)

        def executemany(self, query: Any, rows: Any, **options: Any) -> Any:
            rows = list(rows)
            sent.extend(str(query) for _ in rows)
            return super().executemany(query, rows, **options)

    return Counting


def _sizes(url: str, path: str, tables: str) -> Callable[[], int]:
    def file() -> int:
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(path).stat().st_size

    def relations() -> int:
        engine = sa.create_engine(url)
        with engine.connect() as connection:
            query = "SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind = 'r' AND relname LIKE :name"
            return int(connection.scalar(sa.text(query), {"name": tables}) or 0)

    return file if url.startswith("sqlite") else relations


def main() -> None:
    """Print a table for each database."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.checkpoints", description=__doc__)
    parser.add_argument("--rounds", type=int, default=40, help="measured turns after the first 100")
    options = parser.parse_args()
    for name in ("SQLite", "PostgreSQL"):
        table = Table("", "size", "statements", "processor time", "ours", title=f"LangGraph, 400 messages, {name}")
        for kind, state in (("list", MessagesState), ("DeltaChannel", DeltaState)):
            with databases([name.lower()]) as urls, ours(urls[name], state) as mine, theirs(urls[name], state) as other:
                for number in range(TURNS):
                    mine.turn(number)
                    other.turn(number)
                sizes = mine.size(), other.size()
                for number in range(TURNS, TURNS + options.rounds):
                    for each in (mine, other) if number % 2 else (other, mine):
                        each.turn(number)
                times = [statistics.median(each.times[TURNS:]) for each in (mine, other)]
                for who, each, size, spent in zip(("ours", "theirs"), (mine, other), sizes, times, strict=True):
                    ratio = f"{times[0] / spent:.2f}"
                    row = f"{size / 1e6:.2f} MB", str(each.count_statements(1_000)), f"{spent * 1e3:.1f} ms", ratio
                    table.add_row(f"{kind}, {who}", *row)
        Console().print(table)


if __name__ == "__main__":
    main()
