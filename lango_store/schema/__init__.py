"""Migrations of the database schema: the commands `lango-store db` and `lango-store search` as functions.

The migration revisions are part of the package. They use a separate version table, and change only the tables of
lango_store. In one database, only one migration runs at a time.

Most functions take a `database`: a URL, an engine or a connection. If the connection has begun a transaction, the
function joins it and you commit, so you can call it in a migration of your Alembic environment. Otherwise the function
commits. These functions raise `DatabaseUnavailable` if the database cannot be reached.
"""

from lango_store._rooms.distribution.schema import distribute, undistribute
from lango_store._rooms.search.schema import disable_search, enable_search, rebuild_search, search_status
from lango_store._rooms.search.values import SearchStatus
from lango_store._values.reports import OnProgress, Progress
from lango_store.schema.core import (
    check,
    current,
    downgrade,
    features,
    head,
    include_name,
    namespace,
    releases,
    sql,
    stamp,
    upgrade,
    upgrade_in_env,
)
from lango_store.schema.running import LOCK_TIMEOUT, Database, run_from_env

__all__ = ["LOCK_TIMEOUT", "Database", "OnProgress", "Progress", "check", "current", "distribute", "downgrade"]
__all__ += ["features", "head", "include_name", "namespace", "releases", "run_from_env", "sql", "stamp", "undistribute"]
__all__ += ["upgrade", "upgrade_in_env"]
__all__ += ["SearchStatus", "disable_search", "enable_search", "rebuild_search", "search_status"]

for _name in __all__:  # pickles and tracebacks show the public name
    if isinstance(_public := globals()[_name], type):
        _public.__module__ = __name__
