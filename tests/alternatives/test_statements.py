"""The statements of alternatives: their number depends neither on the session nor on the number of alternatives."""

import sqlalchemy as sa
from support.factories import messages
from support.statements import watched

from lango_store import Conversation, Store


def branched(store: Store, key: str, size: int, alternatives: int) -> Conversation:
    conversation = store.open(key)
    conversation.append_messages(messages(size))
    for _ in range(alternatives):
        conversation.append_messages(messages(2), replace_after=size - 1, keep=True)
    return conversation


def test_list_of_alternatives_is_one_statement_without_contents(engine: sa.Engine) -> None:
    with Store(engine) as store:
        conversation = branched(store, "k", 3, 5)
        with watched(engine) as statements:
            assert len(conversation.alternatives()) == 6
            assert len(conversation.alternatives(limit=2)) == 3
        sent = [each for each in statements if "SELECT" in each]
    assert len(sent) == 2
    assert not any(f".{name}" in each for each in sent for name in ("content", "payloads", "tool_calls"))


def test_switch_takes_as_many_statements_for_any_session(engine: sa.Engine) -> None:
    counts = set[tuple[int, int]]()
    with Store(engine) as store:
        for key, size, alternatives in (("a", 3, 1), ("b", 200, 1), ("c", 3, 20)):
            conversation = branched(store, key, size, alternatives)
            with watched(engine) as statements:
                assert conversation.switch(size) is True
                switched = len(statements)
                conversation.append_messages(messages(2), replace_after=size - 1, keep=True)
            counts.add((switched, len(statements) - switched))
    assert len(counts) == 1
