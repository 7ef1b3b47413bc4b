"""The interface for protocols of front ends: follow a session, and read its turns.

`lango_store.ui` uses only these names and the API. They may change in each release.
"""

from lango_store._dialect import Moment
from lango_store._operations.log.messages import load, read_by_ids
from lango_store._rooms.alternatives.reading import alternatives
from lango_store._rooms.tail.following import Reader, follow_async
from lango_store._rooms.tail.reading import Cursor, after_draft, newest
from lango_store._rooms.tool_calls.suspensions import read as suspensions
from lango_store._rooms.turns_in_progress.awaited import (
    AwaitedTurn,
    after_answer,
    budget_awaited,
    is_owed,
    next_turn,
    of_message,
)
from lango_store._rooms.turns_in_progress.inbox import read as waiting
from lango_store._rooms.turns_in_progress.running import find, id_prefix, start_of, turns_within
from lango_store._values.usage import numbers_by_path, tokens, total
from lango_store._values.value import Value

__all__ = ["AwaitedTurn", "Cursor", "Moment", "Reader", "Value", "after_answer", "after_draft", "find", "follow_async"]
__all__ += ["budget_awaited"]
__all__ += ["id_prefix", "is_owed", "load", "newest", "next_turn", "numbers_by_path", "of_message", "start_of"]
__all__ += ["alternatives", "read_by_ids", "suspensions", "tokens", "total", "turns_within", "waiting"]
