"""Types of the arguments of public verbs, for annotations in your code.

`DefaultTTL`, `Clock`, `TokenCounter`, `Observer` and `Durability` are options of a `Store`, all of them together are
`StoreOptions`. `MessageFields` are the fields of `Message.user`, `OwnFields` those of a session that `save_turn` makes.
`Summarizer` and what it returns, `Summary`, are for `compact`; `Damaged` is for `all_messages`.
"""

from lango_store._connections.context import Clock, DefaultTTL, TokenCounter
from lango_store._dialect.statement import Observer
from lango_store._engine.engine import Durability
from lango_store._operations.messages import Damaged
from lango_store._values.model import MessageFields, OwnFields
from lango_store._values.summarizer import Summarizer, Summary
from lango_store.aio import StoreOptions

__all__ = [
    "Clock",
    "Damaged",
    "DefaultTTL",
    "Durability",
    "MessageFields",
    "Observer",
    "OwnFields",
    "StoreOptions",
    "Summarizer",
    "Summary",
    "TokenCounter",
]
