"""The state of sessions, apps and users: values that an adoption replaces as long as only the source changes them."""

from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from lango_store import Values, errors
from lango_store._operations.session.values import encode_values
from lango_store.interchange.adoption.source import Shared, mark_of
from lango_store.rows import SHARED_VALUE, VALUE
from lango_store.store import Store

MARK: Final = "adopted"
"""The name in the metadata of a session, and the scope of shared values, that says what was adopted."""

EMPTY: Final = mark_of({})


def fault_of(owner: str, new: Mapping[str, Any], table: sa.Table = VALUE) -> str | None:
    """Return why values cannot be stored, None if they can."""
    try:
        encode_values(owner, dict(new), table)
    except (errors.InvalidKey, errors.InvalidValue) as error:
        return str(error)
    return None


def replace_values(values: Values, new: Mapping[str, Any], adopted: str) -> str:
    """Replace values that have not changed since they were adopted. Return the mark of the adopted values.

    Raises `Conflict` if both the source and the store have new values.
    """
    mark = mark_of(new)
    if mark == adopted or mark == (current := mark_of(values.get())):
        return mark
    if current != adopted:
        message = "values have changed in the source and in the store: those of the store were kept"
        raise errors.Conflict(values.key or "", expected=0, last_seq=0, message=message)
    values.delete()
    values.set(dict(new))
    return mark


def adopt_shared(store: Store, scope: Shared, *, dry_run: bool) -> bool:
    """Adopt the values of a scope, unless `dry_run`. Return False if they were adopted before.

    Raises `InvalidValue` or `InvalidKey` if they cannot be stored; nothing was written.
    """
    encode_values(scope.key, scope.values, SHARED_VALUE)

    def write(tx: Store) -> bool:
        marks = tx.shared_values(MARK)
        adopted = str(marks.get(prefix=scope.key).get(scope.key, EMPTY))
        marks.set({scope.key: (mark := replace_values(tx.shared_values(scope.key), scope.values, adopted))})
        return mark != adopted

    return not dry_run and store.transact(write)
