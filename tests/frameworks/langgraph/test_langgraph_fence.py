"""Several processes write to one thread: with a lease no acknowledged step is lost, without one some are."""

import random
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from frameworks.langgraph.graphs import asked, config
from frameworks.langgraph.worker import builder, official_saver

from lango_store import Conflict, LeaseLost, Store
from lango_store.integrations.langgraph import LangoSaver
from lango_store.testing import Clock

STEPS = 3
WORKER = Path(__file__).parent / "worker.py"


def start(url: str, name: str, mode: str, folder: Path) -> subprocess.Popen[bytes]:
    with (folder / name).open("ab") as output:
        words = [sys.executable, str(WORKER), url, name, str(STEPS), mode]
        environment = {"PYTHONPATH": ":".join(path for path in sys.path if path)}
        return subprocess.Popen(words, stdout=output, env=environment)


def acknowledged(folder: Path) -> list[str]:
    lines = [line for file in sorted(folder.glob("worker*")) for line in file.read_text().splitlines(keepends=True)]
    return [line.strip() for line in lines if line.endswith("\n")]


def run_workers(url: str, mode: str, folder: Path) -> None:
    """Run the steps in eight processes, some of which are killed or paused."""
    rng = random.Random(5)
    workers = {f"worker{number}": start(url, f"worker{number}", mode, folder) for number in range(8)}
    deadline = time.monotonic() + 12
    while time.monotonic() < deadline and any(each.poll() is None for each in workers.values()):
        time.sleep(0.3)
        name, process = rng.choice([*workers.items()])
        if process.poll() is not None:
            continue
        if rng.random() < 0.4:
            process.kill()
            process.wait()
            workers[name] = start(url, name, mode, folder)
        else:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.6)  # longer than the lease
            process.send_signal(signal.SIGCONT)
    for process in workers.values():
        assert process.wait(timeout=200) == 0


def message_ids(saver: Any) -> list[str]:
    state = builder.compile(checkpointer=saver).get_state(config())
    return [str(message.id) for message in state.values["messages"]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_acknowledged_steps_of_eight_processes_are_in_the_state_once(url: str, store: Store, tmp_path: Path) -> None:
    store.open("t")
    run_workers(url, "in turns", tmp_path)
    ids, steps = message_ids(LangoSaver(store)), acknowledged(tmp_path)
    assert len(steps) >= 8 * STEPS
    assert [step for step in steps if ids.count(step) != 1 or ids.count(f"{step}-answer") != 1] == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", ["free", "official"])
def test_processes_without_turns_lose_acknowledged_steps(
    url: str, store: Store, tmp_path: Path, mode: str, capsys: pytest.CaptureFixture[str]
) -> None:
    store.open("t")
    with official_saver(url) as official:
        official.setup()
        run_workers(url, mode, tmp_path)
        ids, steps = message_ids(LangoSaver(store) if mode == "free" else official), acknowledged(tmp_path)
    lost = [step for step in steps if step not in ids]
    with capsys.disabled():
        print(f"{mode}: {len(lost)} of {len(steps)} steps are lost")
    assert lost


def test_fenced_put_after_another_writer_is_refused_and_writes_nothing(store: Store) -> None:
    saver = LangoSaver(store, fence=True)
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [asked("one", "one")]}, config())
    stale = saver.get_tuple(config())
    assert stale is not None
    graph.invoke({"messages": [asked("two", "two")]}, config())
    before = store.conversation("t").info().last_seq

    with pytest.raises(Conflict, match="load the thread again"):
        saver.put(stale.config, {**stale.checkpoint, "id": "1ffffffe"}, stale.metadata, {})
    assert store.conversation("t").info().last_seq == before


def test_run_from_an_old_checkpoint_is_refused_through_the_graph(store: Store) -> None:
    graph = builder.compile(checkpointer=LangoSaver(store, fence=True))
    graph.invoke({"messages": [asked("one", "one")]}, config())
    old = next(iter(graph.get_state_history(config()))).config
    graph.invoke({"messages": [asked("two", "two")]}, config())
    with pytest.raises(Conflict):
        graph.update_state(old, {"messages": [asked("late", "late")]})
    assert [message.id for message in graph.get_state(config()).values["messages"]] == [
        *("one", "one-answer", "two", "two-answer")
    ]


def test_run_after_a_lost_lease_is_refused_and_writes_nothing(url: str, clock: Clock) -> None:
    with Store(url, clock=clock) as store:
        conversation = store.open("t")
        late = conversation.turn("late", lease=timedelta(seconds=1)).begin()
        clock.move(seconds=5)
        with conversation.turn("next") as turn:
            builder.compile(checkpointer=LangoSaver(store).in_turn(turn)).invoke(
                {"messages": [asked("a", "a")]}, config()
            )
        before = conversation.info().last_seq
        with pytest.raises(LeaseLost):
            builder.compile(checkpointer=LangoSaver(store).in_turn(late)).invoke(
                {"messages": [asked("b", "b")]}, config()
            )
        assert conversation.info().last_seq == before
