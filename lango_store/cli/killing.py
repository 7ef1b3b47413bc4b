"""`lango-store demo --kill`: a worker is killed in the middle of an answer, and another one finishes it.

The command starts three processes, each of which prints lines of JSON: two workers and a reader of the session.
"""

import json
import os
import sys
import threading
import time
from datetime import timedelta
from queue import SimpleQueue
from subprocess import PIPE, Popen
from typing import IO, Any, Final

from lango_store._rooms.tail.values import Appended, Piece
from lango_store._rooms.turns_in_progress.running_turn import RunningTurn
from lango_store._values.model import Message
from lango_store.conversation import Conversation
from lango_store.store import Store

KEY: Final = "demo:kill"
QUESTION: Final = Message.user("I have Saturday free. Oslo or Bergen?", id="question-1")
ANSWER: Final = ("Oslo: ", "cold, ", "but ", "clear. ", "Bergen ", "will ", "drown ", "in ", "rain.")
LEASE: Final = timedelta(seconds=2)
_KILLED_AFTER: Final = 4
_LABEL: Final = 11
_READING: Final = "lango_store_demo_"
_PAUSE: Final = 0.3
"""Seconds that the model of the demo takes for a word."""


def run(url: str) -> bool:
    """Show on a new session how a turn survives its process; return False if the log is not as it should be."""
    with Store(url) as store:
        conversation = store.open(KEY, title="A killed worker")
        events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        processes = {name: start(name, url, events, __name__) for name in ("reader", "worker 1", "worker 2")}
        try:
            for _ in processes:
                events.get(timeout=60)  # each says that it is ready
            started = time.monotonic()
            conversation.inbox.put(QUESTION)
            _show(processes, events)
            while not conversation.turns.list() and time.monotonic() < started + 60:
                time.sleep(0.05)  # the worker saves the turn after its answer
        finally:
            for each in processes.values():
                end(each)
            for thread in threading.enumerate():
                if thread.name.startswith(_READING):
                    thread.join()
        log, turns = conversation.messages(), conversation.turns.list()
    is_complete = [each.content for each in log] == [QUESTION.content, "".join(ANSWER)] and len(turns) == 1
    verdict = "nothing lost" if is_complete else "not what was expected"
    print(f"{len(log)} messages, {len(turns)} turn, {verdict}, {time.monotonic() - started:.0f} s after the question")
    return is_complete


def start(name: str, url: str, events: "SimpleQueue[dict[str, Any]]", module: str) -> "Popen[str]":
    """Start a process that runs `main` of a module, and collect its events."""
    program = [sys.executable, "-c", f"from {module} import main; main()", name, url]
    process = Popen(program, stdin=PIPE, stdout=PIPE, text=True, encoding="utf-8", start_new_session=True)

    assert process.stdout is not None

    def read(lines: IO[str]) -> None:
        with lines:
            for line in lines:
                events.put(json.loads(line))

    threading.Thread(target=read, args=[process.stdout], daemon=True, name=f"{_READING}{process.pid}").start()
    return process


def end(process: "Popen[str]") -> None:
    """Kill a process."""
    process.kill()
    process.wait()
    assert process.stdin is not None
    process.stdin.close()


def end_with_parent() -> None:
    """End this process when the process that has started it ends, however it ends."""

    def wait() -> None:
        os.read(sys.stdin.fileno(), 1)  # until the pipe is closed
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _show(processes: "dict[str, Popen[str]]", events: "SimpleQueue[dict[str, Any]]") -> None:
    """Print what the processes do until the answer is in the log; kill the first worker in the middle of it."""
    pieces, worker, is_open = 0, "", False

    def show(who: str, what: str) -> None:
        nonlocal is_open
        print("\n" * is_open + f"{who:{_LABEL}}{what}", flush=True)
        is_open = False

    while True:
        event = events.get(timeout=60)
        match event["event"]:
            case "begins":
                worker = event["name"]
                show(worker, f"begins attempt {event['attempt']} of the answer (pid {processes[worker].pid})")
            case "piece":
                print(event["text"] if is_open else f"{'reader':{_LABEL}}{event['text']}", end="", flush=True)
                is_open, pieces = True, pieces + 1
                if pieces == _KILLED_AFTER:
                    processes[worker].kill()
                    show("", f"kill -9 {processes[worker].pid}: {worker} is dead, its lease ends in 2 seconds")
            case "message":
                show("reader", f"{event['role']}: {event['content']}")
                if event["role"] == "assistant":
                    return


def say(event: str, **fields: Any) -> None:
    """Send an event to the process that has started this one."""
    print(json.dumps({"event": event, **fields}), flush=True)


def _work(store: Store, name: str) -> None:
    def answer(conversation: Conversation, turn: RunningTurn) -> None:
        time.sleep(_PAUSE)
        say("begins", name=name, attempt=turn.attempt)
        for piece in ANSWER:
            time.sleep(_PAUSE)
            turn.write(piece)
        turn.flush()
        time.sleep(_PAUSE)  # until the reader has the last piece too
        turn.append(Message.assistant(turn.draft_text))

    say("ready")
    store.work(answer, concurrency=1, lease=LEASE, poll=timedelta(seconds=0.25))


def _read(store: Store) -> None:
    say("ready")
    for event in store.conversation(KEY).tail():
        if isinstance(event, Piece) and event.text:
            say("piece", text=event.text)
        for message in event.messages if isinstance(event, Appended) else ():
            say("message", role=message.role, content=message.content)


def main() -> None:
    """Be one of the processes."""
    name, url = sys.argv[1:]
    end_with_parent()
    with Store(url) as store:
        _read(store) if name == "reader" else _work(store, name)
