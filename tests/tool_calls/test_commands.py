"""`lango-store calls` and `lango-store suspensions`."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.commands import run, run_on_terminal

from lango_store import AlreadyAnswered, BegunCall, Message, Store, Suspension, ToolCall

pytestmark = pytest.mark.one_database

HOUR = timedelta(hours=1)


@pytest.fixture
def unknown(url: str) -> BegunCall:
    with Store(url, clock=lambda: datetime.now(UTC) - HOUR) as store:
        conversation = store.open("tab\tkey")
        conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="call_0", name="pay")]))
        conversation.calls.begin(1, 0)
    with Store(url) as store:
        (call,) = store.calls.list_unknown().items
    return call


def call_of(url: str) -> BegunCall:
    with Store(url) as store:
        (call,) = store.conversation("tab\tkey").calls.list()
    return call


@pytest.mark.slow
def test_unknown_calls_are_written_to_a_pipe_as_tab_separated_lines(url: str, unknown: BegunCall) -> None:
    done = run("calls", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"tab\\tkey\t1\t0\tpay\t{unknown.effect_key}\t{unknown.begun_at.isoformat()}\n"


def test_unknown_calls_are_printed_as_json_lines(url: str, unknown: BegunCall) -> None:
    done = run("calls", "--json", "--url", url)
    assert BegunCall.model_validate_json(done.stdout) == unknown


@pytest.mark.slow
def test_unknown_calls_are_shown_on_a_terminal_as_a_table(url: str, unknown: BegunCall) -> None:
    shown, code = run_on_terminal("calls", "--url", url)
    header, line = shown.splitlines()
    assert (code, header.split()[:4]) == (0, ["key", "seq", "position", "tool"])
    assert line.split()[:4] == ["tab␉key", "1", "0", "pay"]


def test_calls_command_reports_that_no_call_is_unknown(url: str) -> None:
    done = run("calls", "--url", url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no call is unknown\n")


@pytest.mark.parametrize(
    "words", [("--output", "FILE"), ("--failed", "refused"), ("--retry",)], ids=lambda words: words[0]
)
def test_resolve_command_stores_the_given_outcome_of_the_call(
    url: str, unknown: BegunCall, tmp_path: Path, words: tuple[str, ...]
) -> None:
    file = tmp_path / "result.json"
    file.write_text('{"paid": 40}')
    given = [str(file) if word == "FILE" else word for word in words]
    done = run("calls", "resolve", unknown.key, "1", "0", *given, "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    with Store(url) as store:
        results = store.conversation(unknown.key).messages()[1:]
    if words == ("--retry",):
        assert (done.stdout, results) == ("the call may begin again\n", [])
        assert call_of(url).state == "retry"
    else:
        assert done.stdout == "stored the result as message 2\n"
        assert [each.tool_calls[0].output if each.tool_calls else each.content for each in results] == [
            {"paid": 40} if words[0] == "--output" else "refused"
        ]
        assert call_of(url).state == "finished"


@pytest.mark.parametrize("words", [(), ("--retry", "--failed", "x")])
def test_resolve_command_needs_exactly_one_of_output_failed_and_retry(
    url: str, unknown: BegunCall, words: tuple[str, ...]
) -> None:
    done = run("calls", "resolve", unknown.key, "1", "0", *words, "--url", url)
    assert done.returncode == 2
    assert "exactly one of --output, --failed and --retry" in done.stderr
    assert call_of(url).state == "unknown"


@pytest.mark.parametrize("text", ["", "{", "[1,]", "NaN", '{"a":1,"a":2}', None])
def test_resolve_command_refuses_a_missing_or_invalid_output_file(
    url: str, unknown: BegunCall, tmp_path: Path, text: str | None
) -> None:
    file = tmp_path / "result.json"
    if text is not None:
        file.write_text(text)
    done = run("calls", "resolve", unknown.key, "1", "0", "--output", str(file), "--url", url)
    assert done.returncode == 2
    assert "result.json" in done.stderr
    assert call_of(url).state == "unknown"


def test_resolve_command_exits_1_if_the_call_was_never_begun(url: str, unknown: BegunCall) -> None:
    done = run("calls", "resolve", unknown.key, "1", "5", "--retry", "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: there is no call 5 of message 1")


# Suspensions


@pytest.fixture
def suspended(url: str) -> Suspension:
    with Store(url) as store:
        store.open("other", user_id="bob").suspensions.create()
        conversation = store.open("tab\tkey", user_id="ann")
        conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="", name="pay")]))
        return conversation.suspensions.create([(1, 0)], state=[1], reason="Pay 40 €?", ttl=HOUR)


def test_suspensions_are_written_to_a_pipe_as_tab_separated_lines(url: str, suspended: Suspension) -> None:
    done = run("suspensions", "--user", "ann", "--url", url)
    assert (done.returncode, done.stderr) == (0, "")
    times = [each.isoformat() for each in (suspended.created_at, suspended.due_at) if each is not None]
    assert done.stdout.split("\t") == ["tab\\tkey", "1/0", "Pay 40 €?", times[0], f"{times[1]}\n"]


def test_suspensions_are_printed_as_json_lines_without_tokens(url: str, suspended: Suspension) -> None:
    done = run("suspensions", "--json", "--url", url)
    other, one = map(Suspension.model_validate_json, done.stdout.splitlines())
    assert (other.key, one) == ("other", suspended.model_copy(update={"token": None}))
    assert str(suspended.token) not in done.stdout


def test_suspensions_command_prints_nothing_for_an_agent_without_suspensions(url: str, suspended: Suspension) -> None:
    done = run("suspensions", "--agent", "nobody", "--url", url)
    assert (done.returncode, done.stdout) == (0, "")


def test_resume_command_refuses_a_second_answer_and_keeps_the_first(
    url: str, suspended: Suspension, tmp_path: Path
) -> None:
    file = tmp_path / "answer.json"
    file.write_text(json.dumps({"approved": True}))
    words = ("suspensions", "answer", str(suspended.token), "--json", str(file), "--url", url)
    done = run(*words, "--by", "ann", "--why", "It is cheap.")
    assert (done.returncode, done.stdout, done.stderr) == (0, "answered a suspension of session 'tab\\tkey'\n", "")
    again = run(*words)
    assert (again.returncode, again.stdout) == (1, "")
    assert "was answered at" in again.stderr
    with Store(url) as store:
        with pytest.raises(AlreadyAnswered) as raised:
            store.suspensions.answer(str(suspended.token), "late")
        (stored,) = store.conversation(suspended.key).suspensions.list()
    assert raised.value.answer == {"approved": True}
    assert (stored.answered_by, stored.answered_why) == ("ann", "It is cheap.")


def test_resume_command_with_an_unknown_token_exits_1(url: str, tmp_path: Path) -> None:
    file = tmp_path / "answer.json"
    file.write_text("true")
    done = run("suspensions", "answer", "nothing", "--json", str(file), "--url", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not the token of a suspension" in done.stderr
