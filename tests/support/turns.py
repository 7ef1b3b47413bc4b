"""The messages of a stored turn."""

from lango_store import Conversation, Message, Turn


def messages_of(conversation: Conversation, turn: Turn) -> list[Message]:
    """Read the messages of a stored turn again."""
    stored = conversation.turns.find(turn.turn_no)
    assert stored is not None
    return stored.messages
