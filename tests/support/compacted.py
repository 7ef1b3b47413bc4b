"""Sessions with a summary, to cut or to copy."""

from typing import Any

from support.factories import contents, message, messages
from support.rows import MessageRowFactory, SessionRowFactory, TurnRowFactory, put

from lango_store import Conversation, Message, Store


def compacted_session(store: Store, key: str = "k", *, discard: bool = False) -> Conversation:
    """Open a session whose question (seq 5) was appended while the summary (seq 7) was being written."""
    conversation = store.open(key, messages=[message("be kind", role="system"), *messages(3)])

    def summarize(window: list[Message]) -> list[Message]:
        conversation.append_message(message("question"))
        return [message("summary", role="assistant"), message("of all", role="assistant")]

    conversation.compact(summarize, discard=discard)
    conversation.append_message(message("answer", role="assistant"))
    assert [(m.content, m.seq) for m in conversation.messages()] == [
        ("summary", 7),
        ("of all", 8),
        ("question", 5),
        ("answer", 9),
    ]
    return conversation


def put_compacted(store: Store, *, replaced_upto: int | None, **turn: Any) -> None:
    """Write the rows of a session of two messages, a summary and another message, as an import does."""
    turn |= {"kind": "compaction", "first_seq": 3, "last_seq": 3, "replaced_upto": replaced_upto}
    counters = {"last_seq": 4, "message_count": 4, "turn_count": 1, "last_turn_no": 1, "summary_turn": 1}
    put(
        store,
        SessionRowFactory(key="k", **counters, summarized_upto=replaced_upto or 0),
        TurnRowFactory(turn_no=1, **turn),
        *(MessageRowFactory(seq=seq, content=f'"{text}"') for seq, text in ((1, "first"), (2, "second"), (4, "last"))),
        MessageRowFactory(seq=3, content='"summary"', role="assistant", turn_no=1),
    )


def assert_window(conversation: Conversation, expected: list[str]) -> None:
    """Assert that a session has a window, from the start and from the end, and that appended messages follow it."""
    assert contents(conversation.messages()) == contents(conversation.get().messages) == expected
    for last in range(5):
        assert contents(conversation.messages(last=last)) == expected[max(len(expected) - last, 0) :]
    conversation.append_message(message("later"))
    assert contents(conversation.messages()) == [*expected, "later"]
