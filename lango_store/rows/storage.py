"""Operations on stored sessions over an open connection, for imports, exports and salvage."""

from lango_store._dialect.driver_errors import translated
from lango_store._engine.engine import database_file
from lango_store._engine.untrusted_files import guard, guard_fault
from lango_store._operations.log import changes, counters, payloads, removals, turns
from lango_store._operations.log.appends import Batch
from lango_store._operations.log.messages import MAX_SEQ
from lango_store._operations.session import levels, lists, sessions
from lango_store._operations.session.lists import Filter, Order
from lango_store._operations.session.sessions import NewSession

__all__ = ["MAX_SEQ", "Batch", "Filter", "NewSession", "Order", "changes", "counters", "database_file", "guard"]
__all__ += ["guard_fault", "levels", "lists", "payloads", "removals", "sessions", "translated", "turns"]
