"""Drafts whose stored pieces are damaged."""

import pytest

from lango_store import DamagedMessage, Store


def test_drafts_raises_damaged_message_if_a_stored_piece_is_not_text(store: Store) -> None:
    conversation = store.open("k")
    turn = conversation.turn("t1")
    turn.begin()
    turn.write("answer")
    turn.flush()
    with store.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_draft SET piece = '5'")
    with pytest.raises(DamagedMessage, match="draft 1: is not text"):
        conversation.drafts.list()
