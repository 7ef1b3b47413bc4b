"""Turns in progress when the answer of the server to a commit is lost: nothing is written twice."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa
from support.databases import CITUS, MakeDatabase
from support.factories import contents, message
from support.relay import Relay

from lango_store import DatabaseUnavailable, Message, RunningTurn, Store, ToolCall

HALF_A_MINUTE: Final = timedelta(seconds=30)
AT_ONCE: Final = timedelta(0)
LANDED: Final = b"COMMIT" if CITUS else b"SELECT 1"
"""The server's answer to an append, or to the end of a turn: on a cluster these are several statements."""


@pytest.fixture
def url(make_postgres: MakeDatabase, relay: Relay) -> sa.URL:
    """The URL of a database that is reached through the relay."""
    return relay.url(make_postgres())


def test_begin_of_a_turn_is_retried_if_the_commit_reply_is_lost(url: sa.URL, relay: Relay) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        relay.lose(b"COMMIT")
        with conversation.turn("t") as turn:
            assert not turn.replayed
        assert [each.id for each in conversation.turns.list()] == ["t"]


APPENDS: Final[dict[str, tuple[bytes, Callable[[RunningTurn], object], list[str]]]] = {
    "append": (LANDED, lambda turn: turn.append(message("new")), ["new"]),
    "append_messages": (LANDED, lambda turn: turn.append_messages([message("new")] * 2), ["new", "new"]),
    "answer": (b"COMMIT", lambda turn: turn.append(message("streamed", role="assistant")), ["streamed"]),
    "interrupt": (b"COMMIT", lambda turn: turn.interrupt(), ["streamed"]),
}


@pytest.mark.parametrize("method", APPENDS)
def test_append_of_a_turn_is_stored_once_if_retry_repeats_the_append(url: sa.URL, relay: Relay, method: str) -> None:
    answer, append, expected = APPENDS[method]
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        with conversation.turn("t") as turn:
            turn.write("streamed")
            relay.lose(answer)
            append(turn)
            assert contents(turn.messages) == expected
        assert contents(conversation.messages()) == expected
        assert turn.stored is not None
        assert contents(turn.stored.messages) == expected
        assert conversation.drafts.list() == []


@pytest.mark.parametrize("method", APPENDS)
def test_append_of_a_turn_is_stored_once_if_the_caller_repeats_the_append(
    url: sa.URL, relay: Relay, method: str
) -> None:
    answer, append, expected = APPENDS[method]
    with Store(url) as store:
        conversation = store.open("k")
        with conversation.turn("t") as turn:
            turn.write("streamed")
            relay.lose(answer)
            with pytest.raises(DatabaseUnavailable):
                append(turn)
            append(turn)
        assert contents(conversation.messages()) == expected
        assert turn.stored is not None
        assert contents(turn.stored.messages) == expected


@pytest.mark.parametrize("in_turn", [True, False])
def test_begin_of_a_call_is_retried_if_the_commit_reply_is_lost(url: sa.URL, relay: Relay, in_turn: bool) -> None:
    """The retry finds the row that it has written, and does not take it for a rival."""
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        with conversation.turn("t") as turn:
            asking = turn.append(Message.assistant(tool_calls=[ToolCall(id="call_0", name="pay")]))
            relay.lose(b"COMMIT")
            effect = turn._begin_call(asking, 0) if in_turn else conversation.calls.begin(asking.seq, 0)
            assert not effect.replayed
            conversation.calls.finish(effect, "paid")
        assert [(call.state, call.effect_key) for call in conversation.calls.list()] == [("finished", effect.key)]


@pytest.mark.parametrize("retry", [None, HALF_A_MINUTE])
def test_piece_of_a_draft_is_stored_once_if_the_caller_goes_on_after_a_lost_commit_reply(
    url: sa.URL, relay: Relay, retry: timedelta | None
) -> None:
    with Store(url, retry=retry) as store:
        conversation = store.open("k")
        with suppress(ZeroDivisionError), conversation.turn("t", flush=AT_ONCE) as turn:
            turn.write("first ")
            relay.lose(b"COMMIT")
            with pytest.raises(DatabaseUnavailable):
                turn.write("second ")
            turn.write("third")
            assert [each.text for each in conversation.drafts.list()] == ["first second third"]
            turn.write(" fourth")
            raise ZeroDivisionError
        assert [each.text for each in conversation.drafts.list()] == ["first second third fourth"]


def test_piece_of_a_draft_is_stored_once_if_a_lost_commit_reply_ends_the_block(url: sa.URL, relay: Relay) -> None:
    with Store(url) as store:
        conversation = store.open("k")
        with suppress(DatabaseUnavailable), conversation.turn("t", flush=AT_ONCE) as turn:
            turn.write("first ")
            relay.lose(b"COMMIT")
            turn.write("second")
        assert [each.text for each in conversation.drafts.list()] == ["first second"]
        assert conversation.turns.in_progress() is None


def test_turn_is_saved_once_if_retry_repeats_the_save(url: sa.URL, relay: Relay) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        with conversation.turn("t") as turn:
            turn.append(message("answer", role="assistant"))
            turn.usage = {"tokens": 1}
            relay.lose(LANDED)
        assert turn.stored is not None
        assert contents(turn.stored.messages) == ["answer"]
        assert (conversation.info().turn_count, conversation.total_usage()) == (1, {"tokens": 1})


def test_saved_turn_whose_commit_reply_was_lost_is_replayed_by_the_next_attempt(url: sa.URL, relay: Relay) -> None:
    with Store(url) as store:
        conversation = store.open("k")
        turn = conversation.turn("t").begin()
        turn.append(message("answer", role="assistant"))
        relay.lose(LANDED)
        with pytest.raises(DatabaseUnavailable):
            turn.__exit__(None, None, None)
        with conversation.turn("t") as again:
            assert again.replayed
            assert contents(again.messages) == ["answer"]


@pytest.mark.parametrize("retry", [None, HALF_A_MINUTE])
def test_messages_taken_from_the_inbox_are_kept_if_the_commit_reply_is_lost(
    url: sa.URL, relay: Relay, retry: timedelta | None
) -> None:
    with Store(url, retry=retry) as store:
        conversation = store.open("k")
        conversation.inbox.put(message("waiting"))
        turn = conversation.turn("t").begin()
        relay.lose(b"COMMIT")
        with pytest.raises(DatabaseUnavailable):
            turn.take_inbox()
        turn.abandon()
        with conversation.turn("t") as again:
            assert contents(again.messages) == contents(conversation.messages()) == ["waiting"]
        assert conversation.inbox.list() == []


def test_enqueue_without_id_is_not_retried(url: sa.URL, relay: Relay) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        relay.lose(b"COMMIT")
        with pytest.raises(DatabaseUnavailable):
            conversation.inbox.put(message("waiting"))
        assert contents(conversation.inbox.list()) == ["waiting"]


CALLS: Final[dict[str, Callable[[Store, str], Any]]] = {
    "keep_draft": lambda store, id: store.conversation("k").drafts.keep(id),
    "enqueue": lambda store, id: store.conversation("k").inbox.put(message("waiting", id="m")),
    "release_turn": lambda store, id: store.conversation("k").turns.release(),
}


@pytest.mark.parametrize("method", CALLS)
def test_repeated_keep_draft_enqueue_or_release_turn_takes_effect_once(url: sa.URL, relay: Relay, method: str) -> None:
    with Store(url, retry=HALF_A_MINUTE) as store:
        conversation = store.open("k")
        with suppress(ZeroDivisionError), conversation.turn("t") as turn:
            turn.write("draft")
            raise ZeroDivisionError
        (draft,) = conversation.drafts.list()
        conversation.turn("t").begin()
        relay.lose(b"COMMIT")
        CALLS[method](store, draft.id)
        assert contents(conversation.messages()) == (["draft"] if method == "keep_draft" else [])
        assert contents(conversation.inbox.list()) == (["waiting"] if method == "enqueue" else [])
        assert (conversation.turns.in_progress() is None) is (method == "release_turn")
