"""Payloads of turns in progress, inboxes, drafts and tool calls."""

from datetime import timedelta

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import contents, message
from support.payloads import LARGE, bodies, large_message, row
from support.session_checks import assert_sound
from support.statements import watched
from support.turns import messages_of

from lango_store import Message, Store, ToolCall
from lango_store._rooms.turns_in_progress.tables import INBOX
from lango_store.testing import Clock


@pytest.mark.slow
def test_turn_stores_large_strings_as_payloads_and_returns_whole_messages(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.append(message(LARGE))
        turn.append_messages([large_message(LARGE), message([LARGE])])
        assert bodies(store) == [LARGE]
    assert turn.stored is not None
    assert contents(turn.stored.messages) == [LARGE, large_message(LARGE).content, [LARGE]]
    assert conversation.messages() == turn.stored.messages == messages_of(conversation, turn.stored)
    assert_sound(store)


def test_next_attempt_of_a_turn_recognizes_messages_with_large_strings(store: Store) -> None:
    conversation = store.open("k")
    sent = [message(LARGE), large_message(LARGE, "short")]
    first = conversation.turn("t").begin()
    stored = first.append_messages(sent)
    first.abandon()
    with conversation.turn("t") as again:
        assert again.messages == stored
        repeated = again.append_messages(sent)
        assert [each.replayed for each in repeated] == [True, True]
        assert contents(repeated) == contents(stored)
    assert len(conversation.all_messages()) == 2
    with conversation.turn("t") as replayed:
        assert replayed.replayed
        assert contents(replayed.messages) == contents(stored)


def test_large_strings_stay_in_the_inbox_row_until_a_turn_takes_them(store: Store) -> None:
    conversation = store.open("k")
    conversation.inbox.put(message([LARGE], id="a"))
    conversation.inbox.put(message(LARGE))
    with store.engine.connect() as connection:
        rows = connection.execute(sa.select(INBOX.c.message).order_by(INBOX.c.n)).scalars()
        assert [each["content"] for each in rows] == [[LARGE], LARGE]
    assert (bodies(store), contents(conversation.inbox.list())) == ([], [[LARGE], LARGE])
    assert conversation.inbox.put(message("again", id="a")).content == [LARGE]
    with conversation.turn() as turn:
        assert contents(turn.take_inbox()) == [[LARGE], LARGE]
    assert bodies(store) == [LARGE]
    assert contents(conversation.messages()) == [[LARGE], LARGE]
    assert conversation.inbox.put(message("again", id="a")).content == [LARGE]
    assert_sound(store)


def test_long_text_of_a_kept_draft_becomes_a_payload(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t", flush=timedelta(0)).begin()
    turn.write(LARGE[:4_000])
    turn.write(LARGE[4_000:])
    turn.abandon()
    (draft,) = conversation.drafts.list()
    assert bodies(store) == []
    assert conversation.drafts.keep(draft.id).content == LARGE
    assert conversation.drafts.keep(draft.id).content == LARGE
    assert bodies(store) == [LARGE]
    assert row(store)["text"] == ""


def test_long_text_of_an_interrupted_answer_becomes_a_payload(store: Store) -> None:
    with store.open("k").turn("t") as turn:
        turn.write(LARGE)
        turn.interrupt()
    assert (bodies(store), contents(store.conversation("k").messages())) == ([LARGE], [LARGE])


@pytest.mark.parametrize("output", [LARGE, {"pages": [LARGE, "short"]}], ids=["text", "object"])
def test_large_result_of_a_call_becomes_a_payload(store: Store, output: object) -> None:
    conversation = store.open("k")
    call = ToolCall(id="c", name="f", arguments={"text": LARGE})
    asking = conversation.append_message(Message.assistant(tool_calls=[call, call]))
    effect = conversation.calls.begin(asking.seq, 0)
    assert effect.call == call
    result = conversation.calls.finish(effect, output)
    assert output in (result.content, *(each.output for each in result.tool_calls))
    again = conversation.calls.begin(asking.seq, 0).result
    assert again == result.model_copy(update={"replayed": True})
    assert conversation.messages() == [asking, result]
    assert bodies(store) == [LARGE]
    assert not any(LARGE in str(value) for value in row(store, result.seq).values())


def test_large_output_of_a_resolved_call_becomes_a_payload(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    asking = conversation.append_message(Message.assistant(tool_calls=[ToolCall(id="c", name="f")]))
    conversation.calls.begin(asking.seq, 0)
    clock.move(days=1)
    stored = conversation.calls.resolve(asking.seq, 0, output=LARGE)
    assert stored is not None
    assert (stored.content, bodies(store)) == (LARGE, [LARGE])


def test_calls_lists_the_tool_name_of_a_call_with_large_arguments(store: Store) -> None:
    conversation = store.open("k")
    call = ToolCall(id="c", name="f", arguments={"text": LARGE})
    conversation.append_message(Message.assistant(tool_calls=[call]))
    conversation.calls.begin(1, 0)
    assert [each.name for each in conversation.calls.list()] == ["f"]


def test_end_of_a_turn_reads_payloads_in_the_transaction_that_saves_the_turn(make_postgres: MakeDatabase) -> None:
    with Store(make_postgres(), payload_threshold=100) as store:
        conversation = store.open("k")
        with watched(store.engine) as statements:
            with conversation.turn("t") as turn:
                turn.append(message("x" * 200))
                statements.clear()
            assert turn.stored is not None
            assert contents(turn.stored.messages) == ["x" * 200]
        words = [each.split()[0] for each in statements]
        (read,) = (position for position, each in enumerate(statements) if each.startswith("SELECT lango_payload"))
        assert words.index("BEGIN") < read < words.index("COMMIT")
