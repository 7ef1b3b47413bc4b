"""Types of arguments, for annotations in your code.

- Options of a `Store`: `DefaultTTL`, `TimeSource`, `TokenCounter`, `Observer` and `Durability`. `StoreOptions` has them
  all.
- Fields of a message: `MessageFields`. Fields of a session that `Conversation.save_turn` creates: `OwnFields`.
- Argument of `Conversation.compact`: `Summarizer`, a function whose result is a `Summary`.
- Argument of `Conversation.all_messages`: `Damaged`.
- Argument of `Conversation.turn` and `Store.work`: `TurnLimit`, which is a `Budget`.
"""

from lango_store._connections.context import DefaultTTL, TimeSource, TokenCounter
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import Durability
from lango_store._operations.log.messages import Damaged
from lango_store._rooms.turns_in_progress.running import TurnLimit
from lango_store._values.model import MessageFields, OwnFields
from lango_store._values.summarizer import Summarizer, Summary
from lango_store.aio import StoreOptions

__all__ = [
    "Damaged",
    "DefaultTTL",
    "Durability",
    "MessageFields",
    "Observer",
    "OwnFields",
    "StoreOptions",
    "Summarizer",
    "Summary",
    "TimeSource",
    "TokenCounter",
    "TurnLimit",
]
MessageFields.__module__ = OwnFields.__module__ = TurnLimit.__module__ = __name__  # tracebacks show the public name
