"""The exceptions of lango_store.

All exceptions are subclasses of `LangoStoreError`. The text of an exception says what happened and, where that is not
obvious, what to do next. It quotes no stored content, and at most 200 characters of an argument.

A method that raises one of these exceptions has rolled back its transaction, except in four cases:

- A method that works in batches, such as `expire`, has committed the earlier batches.
- On PostgreSQL, `update` and `touch` have stored their change if they raise `DamagedMessage` for a field that they do
  not change.
- If a write raises `DatabaseUnavailable` because the connection was lost, it may have been committed.
- In your own transaction (`store.using(connection)`), you decide between commit and rollback.
"""

from lango_store._rooms.prompts.errors import *
from lango_store._rooms.search.errors import *
from lango_store._rooms.shares.errors import *
from lango_store._rooms.tool_calls.errors import *
from lango_store._rooms.turns_in_progress.errors import *
from lango_store._rooms.versions.errors import *
from lango_store.errors.core import *

for _public in list(globals().values()):  # tracebacks and pickles show the public name
    if getattr(_public, "__module__", "").startswith("lango_store."):
        _public.__module__ = __name__
