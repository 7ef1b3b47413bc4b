"""The checker of `benchmarks.proof`: each violation is found in a history written by hand."""

from typing import Any

import pytest

from benchmarks.proof.adapter import LEASE
from benchmarks.proof.checker import PROPERTIES, check
from benchmarks.proof.worker import Record

ALL = frozenset(needed for needed, _ in PROPERTIES.values() if needed)
SECOND = 1_000_000_000

Line = tuple[int, str, str, Any]
"""The number of an operation, its name, what happened, and the data."""


def judged(*lines: Line, seconds: float = 0.001) -> dict[str, str]:
    """Return the violations in a history whose records are that many seconds apart."""
    records = [Record(int(n * seconds * SECOND), "a", *line) for n, line in enumerate(lines)]
    return {name: text for name, text in check(records, ALL).items() if text is not None}


def done(op: int, do: str, *data: Any, result: Any = None, state: str = "ok") -> list[Line]:
    """Return the records of an operation that nothing interrupted."""
    return [(op, do, "call", list(data)), (op, do, state, result)]


def append(op: int, *texts: str, state: str = "ok") -> list[Line]:
    return done(op, "append", [*texts], state=state)


def read(op: int, *texts: str) -> list[Line]:
    return [*done(op, "read", result=[*texts]), *done(op + 1, "follow", None, result=[[], "cursor"])]


def final(op: int, *texts: str) -> list[Line]:
    return [*done(op, "read", result=[*texts]), *done(op + 1, "follow", None, result=[[*texts], "cursor"])]


def paid(op: int, kind: str, who: str = "a") -> Line:
    return op, "turn", kind, ["t1", f"{kind} of {who} to t1"]


def test_checker_accepts_a_history_with_all_properties() -> None:
    turn: list[Line] = [(3, "turn", "call", ["t1"]), paid(3, "tool"), paid(3, "model"), (3, "turn", "ok", None)]
    end = final(6, "m1", "m2", "m3", "t1", "model of a to t1")
    assert (
        judged(*append(1, "m1"), *read(8, "m1"), *append(2, "m2", "m3"), *turn, *done(4, "answer", "yes"), *end) == {}
    )


def test_checker_finds_an_acknowledged_message_that_is_missing() -> None:
    assert judged(*append(1, "m1"), *append(2, "m2"), *final(3, "m2")) == {
        "acknowledged is kept": "m1 was acknowledged, and is missing"
    }


def test_checker_accepts_that_a_message_without_acknowledgement_is_missing() -> None:
    assert judged(*append(1, "m1", state="error"), (2, "append", "call", [["m2"]]), *final(3)) == {}


def test_checker_finds_a_message_that_was_changed() -> None:
    assert judged(*append(1, "m1", state="error"), *final(3, "M1")) == {
        "acknowledged is kept": "'M1' was read, and was never sent"
    }


def test_checker_finds_an_id_that_is_stored_twice() -> None:
    assert judged(*append(1, "m1"), *append(2, "m1"), *final(3, "m1", "m1")) == {
        "an id is stored once": "m1 is stored 2 times"
    }


def test_checker_finds_a_read_that_is_not_the_beginning_of_the_final_order() -> None:
    begun: Line = (1, "append", "call", [["m1"]])
    lines = [begun, *append(2, "m2"), *read(3, "m2"), (1, "append", "ok", None), *final(5, "m1", "m2")]
    assert judged(*lines) == {"one order": "a reader has seen [m2], and the final order is [m1, m2]"}


def test_checker_finds_a_message_that_precedes_one_acknowledged_before_it_was_sent() -> None:
    assert judged(*append(1, "m1"), *append(2, "m2"), *final(3, "m2", "m1")) == {
        "one order": "m1 was acknowledged before m2 was sent, and follows it"
    }


def test_checker_finds_a_part_of_a_batch() -> None:
    assert judged(*append(1, "m1", "m2", state="error"), *final(3, "m1")) == {
        "a batch is whole": "of the batch [m1, m2], a reader has seen [m1]"
    }


@pytest.mark.parametrize(("kind", "name"), [("model", "a turn is paid once"), ("tool", "a tool call runs once")])
def test_checker_finds_a_call_after_its_result_was_stored(kind: str, name: str) -> None:
    first: list[Line] = [(1, "turn", "call", ["t1"]), paid(1, kind), (1, "turn", f"{kind} stored", ["t1"])]
    killed: list[Line] = [(1, "turn", "killed", None), (2, "turn", "call", ["t1"]), paid(2, kind, "b")]
    found = judged(*first, *killed, *final(3, "t1", "model of b to t1"))
    assert found[name] == f"the {kind} was called for t1 again after its result was stored"


@pytest.mark.parametrize(("kind", "name"), [("model", "a turn is paid once"), ("tool", "a tool call runs once")])
def test_checker_finds_two_calls_at_the_same_time(kind: str, name: str) -> None:
    lines: list[Line] = [(1, "turn", "call", ["t1"]), paid(1, kind), (2, "turn", "call", ["t1"]), paid(2, kind, "b")]
    found = judged(*lines, *final(3, "t1", "model of b to t1"))
    assert found[name] == f"the {kind} was called for t1 twice at the same time"


@pytest.mark.parametrize("state", ["killed", "error"])
def test_checker_accepts_a_second_call_after_the_first_was_interrupted(state: str) -> None:
    first: list[Line] = [(1, "turn", "call", ["t1"]), paid(1, "model"), (1, "turn", state, None)]
    second: list[Line] = [(2, "turn", "call", ["t1"]), paid(2, "model", "b"), (2, "turn", "ok", None)]
    assert judged(*first, *second, *final(3, "t1", "model of b to t1")) == {}


def test_checker_accepts_a_second_call_after_the_lease_of_the_first_has_ended() -> None:
    first: list[Line] = [(1, "turn", "call", ["t1"]), paid(1, "model"), (1, "turn", "stopped", None)]
    second: list[Line] = [(2, "turn", "call", ["t1"]), paid(2, "model", "b"), (2, "turn", "ok", None)]
    assert judged(*first, *second, *final(3, "t1", "model of b to t1"), seconds=LEASE) == {}


def test_checker_accepts_a_call_of_a_process_that_was_stopped_longer_than_its_lease() -> None:
    stopped = [Record(n, "a", 1, "turn", state, ["t1"]) for n, state in enumerate(("call", "stopped"))]
    now = int(2 * LEASE * SECOND)
    calls: list[Line] = [(2, "turn", "call", ["t1"]), paid(2, "model"), (1, "turn", "continued", None)]
    lines = [*calls, paid(1, "model", "b"), *final(3, "t1", "model of a to t1")]
    records = [*stopped, *(Record(now + n, "a", *line) for n, line in enumerate(lines))]
    assert [name for name, text in check(records, ALL).items() if text is not None] == []


def test_checker_finds_a_turn_without_an_answer() -> None:
    lines: list[Line] = [(1, "turn", "call", ["t1"]), paid(1, "tool"), (1, "turn", "killed", None)]
    assert judged(*lines, *final(2, "t1")) == {
        "an interrupted turn is finished": "turn t1 was begun, and has 0 answers in the end"
    }


def test_checker_finds_two_accepted_answers() -> None:
    assert judged(*done(1, "answer", "yes"), *done(2, "answer", "no"), *final(3)) == {
        "an answer is used once": "the answers [yes, no] were both accepted"
    }


def test_checker_finds_a_follower_that_missed_a_message() -> None:
    lines = [*append(1, "m1"), *done(2, "read", result=["m1"]), *done(3, "follow", None, result=[[], "cursor"])]
    assert judged(*lines) == {"a follower sees all once": "the follower has seen [], and the final order is [m1]"}


def test_checker_leaves_out_what_a_store_does_not_support() -> None:
    records = [Record(n, "a", *line) for n, line in enumerate(final(1, "m1", "m1"))]
    assert [*check(records, frozenset())] == ["acknowledged is kept", "one order"]
