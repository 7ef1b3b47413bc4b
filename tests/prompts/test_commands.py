"""`lango-store sessions prompt`."""

import json

import pytest
from support.commands import run
from support.databases import MakeDatabase

from lango_store import Message, Store

pytestmark = pytest.mark.one_database


@pytest.fixture
def url(make_sqlite: MakeDatabase) -> str:
    url = make_sqlite()
    with Store(url) as store:
        for number in range(20):
            store.append_message("k", Message.user(f"question {number}"), create=True)
            store.append_message("k", Message.assistant(f"answer {number}"))
    return url


def test_prompt_command_prints_the_messages_that_history_returns(url: str) -> None:
    done = run("sessions", "prompt", "k", "--last", "4", "--step", "8", "--url", url)
    with Store(url) as store:
        expected = store.conversation("k").history(last=4, step=8)
    assert [json.loads(line) for line in done.stdout.splitlines()] == expected
    assert len(expected) == 8


def test_prompt_command_reports_more_reused_characters_with_step_and_last_than_with_last_alone(url: str) -> None:
    shares: list[float] = []
    for options in ((), ("--last", "8"), ("--last", "8", "--step", "8")):
        done = run("sessions", "prompt", "k", "--reuse", *options, "--url", url)
        assert done.stdout.endswith("characters reused in 21 prompts\n")
        shares.append(float(done.stdout.partition("%")[0]))
    whole, plain, stepped = shares
    assert plain < 30 < 60 < stepped < whole


def test_prompt_command_counts_the_note_that_history_adds_after_an_interrupted_answer(
    make_sqlite: MakeDatabase,
) -> None:
    url = make_sqlite()
    with Store(url) as store:
        conversation = store.open("k", messages=[Message.user("question")])
        with conversation.turn() as turn:
            turn.write("half an ans")
            turn.interrupt()
        after = conversation.history()
    before = after[:1]
    done = run("sessions", "prompt", "k", "--reuse", "--url", url)
    first, second = (len(json.dumps(prompt)) - 1 for prompt in (before, after))
    assert len(after) == 3
    assert done.stdout == f"{first / (first + second):.1%} of {first + second:,} characters reused in 2 prompts\n"


def test_prompt_command_refuses_step_without_last(url: str) -> None:
    done = run("sessions", "prompt", "k", "--step", "8", "--url", url)
    assert done.returncode == 2
    assert "give last as well" in " ".join(done.stderr.replace("│", " ").split())


def test_commands_print_the_thinking_that_is_left_out_and_list_its_sessions(make_sqlite: MakeDatabase) -> None:
    url = make_sqlite()
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "text", "text": "Hello"}]
    with Store(url) as store:
        for key in ("edited", "sound"):
            conversation = store.open(key, messages=[Message.user("Hi")])
            request = conversation.history(model="claude-opus-5-5", system="Be kind.")
            conversation.append_message(Message.assistant(blocks), request=request)
        store.conversation("edited").edits.update(1, Message.user("Hello?"))
    model = ("--model", "claude-opus-5-5", "--url", url)
    done = run("sessions", "prompt", "edited", "--check", *model)
    assert (done.returncode, done.stdout.count("message 3: thinking: ")) == (1, 1)
    done = run("sessions", "check", *model)
    assert (done.returncode, done.stdout) == (1, "edited\tthinking: 1\n")
    assert run("sessions", "check", "--prefix", "sound", *model).returncode == 0
    done = run("sessions", "check", "--provider", "bedrock", *model)
    assert sorted(done.stdout.splitlines()) == ["edited\tthinking: 1", "sound\tthinking: 1"]
