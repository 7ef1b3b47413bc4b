"""Redactions that replace parts of texts: `edits.redact(replace=)` and `lango-store sessions redact`."""

from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import run
from support.factories import contents, message
from support.payloads import bodies
from support.session_checks import assert_sound

from lango_store import Message, Store, ToolCall, create_engine

SECRET = "sk-12345"


def replaced(text: str) -> str:
    return text.replace(SECRET, "***")


def test_redaction_replaces_texts_wherever_a_message_has_them(store: Store) -> None:
    calls = [
        ToolCall(id="1", name="f", arguments={SECRET: [f"use {SECRET}", 5, None, True]}, extra={"x": SECRET}),
        ToolCall(id="2", name="g", arguments=None, output={"deep": {"key": SECRET}}),
    ]
    secret = Message.assistant(
        [{"type": "text", "text": f"It is {SECRET}."}], tool_calls=calls, sent=SECRET, extra={"e": SECRET}, tokens=7
    )
    conversation = store.open("k", messages=[message("before"), secret])
    redacted = conversation.edits.redact(2, reason="a key", replace=replaced)
    assert redacted == conversation.messages()[1]
    assert redacted.content == [{"type": "text", "text": "It is ***."}]
    assert redacted.tool_calls == [
        ToolCall(id="1", name="f", arguments={"***": ["use ***", 5, None, True]}, extra={"x": "***"}),
        ToolCall(id="2", name="g", arguments=None, output={"deep": {"key": "***"}}),
    ]
    assert not redacted.tool_calls[0].answered
    assert (redacted.sent, redacted.extra, redacted.tokens) == ("***", {"e": "***", "redacted": "a key"}, 7)
    assert_sound(store)


def test_redaction_that_changes_no_text_writes_nothing(store: Store) -> None:
    conversation = store.open("k", messages=[message("before")])
    before = conversation.info()
    assert conversation.edits.redact(1, reason="x", replace=replaced).content == "before"
    assert conversation.info() == before


def test_redaction_of_texts_redacts_earlier_versions_as_a_whole(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[message(f"first {SECRET}")])
    conversation.edits.update(1, message(f"second {SECRET}"))
    assert conversation.edits.redact(1, replace=replaced).content == "second ***"
    assert contents(conversation.get(as_of=1).messages) == ["(redacted)"]
    assert conversation.versions.undo() is not None
    assert contents(conversation.messages()) == ["(redacted)"]


def test_redaction_of_texts_reaches_payloads(store: Store) -> None:
    conversation = store.open("k", messages=[message(f"{SECRET} " * 20_000), message("x" * 80_000)])
    assert len(bodies(store)) == 2
    assert conversation.edits.redact(1, replace=replaced).content == "*** " * 20_000
    assert conversation.messages()[0].content == "*** " * 20_000
    assert not any(SECRET in str(body) for body in bodies(store))
    assert len(bodies(store)) == 2
    assert_sound(store)


def test_redaction_of_texts_reaches_the_archive(store: Store, tmp_path: Path) -> None:
    cold = tmp_path / "cold.db"
    store.create("k", messages=[message(f"a {SECRET}")])
    store.expire(created_before=store._context.clock_time().replace(year=2100), archive=cold)
    store.restore("k", cold)
    store.conversation("k").edits.redact(1, replace=replaced, archive=cold)
    with Store(f"sqlite:///{cold}") as archive:
        assert contents(archive.get("k").messages) == ["a ***"]


def test_command_redacts_all_messages_that_match(url: str) -> None:
    with Store(url) as store:
        texts = [f"{SECRET} a" if number % 300 == 0 else f"n{number}" for number in range(1001)]
        store.open("k", messages=[message(text) for text in texts])
    at = ("sessions", "redact", "k", "--url", url)
    dry = run(*at, "--pattern", r"sk-\d+", "--dry-run")
    assert dry.stdout == "would redact 4 messages (seq 1, 301, 601, 901)\n"
    assert "add --yes" in run(*at, "--pattern", r"sk-\d+").stderr
    done = run(*at, "--pattern", r"sk-(\d+)", "--with", r"\1", "--yes")
    assert done.stdout == "redacted 4 messages (seq 1, 301, 601, 901)\n", done
    with Store(create_engine(url)) as store:
        found = contents(store.conversation("k").all_messages())
    assert found == [text.replace(SECRET, r"\1") for text in texts]
    again = run(*at, "--pattern", r"sk-\d+", "--yes")
    assert (again.returncode, again.stderr.splitlines()[-1]) == (1, "nothing matches")


@pytest.mark.parametrize("is_restored", [True, False])
def test_command_redacts_messages_that_only_the_archive_has(url: str, tmp_path: Path, is_restored: bool) -> None:
    cold = tmp_path / "cold.db"
    with Store(url) as store:
        store.create("k", ttl=timedelta(days=1), messages=[message("a"), message(f"b {SECRET}")])
        store.hide("k")
        store.expire(archive=cold)
        if is_restored:
            store.restore("k", cold)
            store.conversation("k").edits.redact(2, replace=replaced)
    at = ("sessions", "redact", "k", "--pattern", r"sk-\d+", "--archive", str(cold), "--yes", "--url", url)
    assert run(*at).stdout == "redacted 1 message (seq 2)\n"
    with Store(f"sqlite:///{cold}") as archive:
        assert contents(archive.get("k").messages) == ["a", "b (redacted)"]
    assert run(*at).stderr.splitlines()[-1] == "nothing matches"


def test_command_ignores_matches_without_a_text(url: str) -> None:
    with Store(url) as store:
        store.create("k", messages=[message(SECRET)])
    assert run("sessions", "redact", "k", "--pattern", "(?=sk-)", "--yes", "--url", url).returncode == 1


@pytest.mark.parametrize("pattern", ["(", "x*", ""])
def test_command_refuses_a_pattern_that_is_invalid_or_matches_every_text(url: str, pattern: str) -> None:
    with Store(url) as store:
        store.create("k", messages=[message("a")])
    assert run("sessions", "redact", "k", "--pattern", pattern, "--yes", "--url", url).returncode == 2
    with Store(create_engine(url)) as store:
        assert contents(store.conversation("k").messages()) == ["a"]
