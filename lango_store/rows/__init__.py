"""Portable rows: the stored rows of sessions, to copy them to other databases and to files.

`portable` decodes rows and validates them before they are stored elsewhere; `transfer` reads and inserts them. Formats
and backups use the names of this package, not those of the private packages. They may change in each release.
"""

from lango_store._dialect import Moment, dialect_of
from lango_store._operations.binds import (
    CHANGE,
    IS_COMPACTION,
    MESSAGE,
    PAYLOAD,
    SESSION,
    SHARED_VALUE,
    TURN,
    VALUE,
    key_column,
    of_session,
)
from lango_store._operations.paging import Pages
from lango_store._operations.rows import MESSAGE_COLUMNS, WAITING_FIELDS, encode_message, encode_session, turn_json
from lango_store._operations.session_tables import CHILDREN, SHARED, TABLES, SessionTable
from lango_store._rows.columns import RoleColumn, as_stored
from lango_store._rows.encoding import (
    MAX_LEVELS,
    checked_key,
    decode_time,
    encode_id,
    encode_json,
    encode_text,
    encode_time_text,
    reject_constant,
)
from lango_store._values.json_faults import levels_within
from lango_store._values.model import as_asked
from lango_store._values.value import Value
from lango_store.rows.foreign import is_storable_text, key_level, mapping, storable_id, storable_text
from lango_store.rows.portable import Fields, RowEncoder, decode_row
from lango_store.rows.transfer import Row

__all__ = ["CHANGE", "IS_COMPACTION", "MESSAGE", "PAYLOAD", "SESSION", "SHARED_VALUE", "TURN", "VALUE"]
__all__ += ["CHILDREN", "SHARED"]
__all__ += ["MESSAGE_COLUMNS", "TABLES", "WAITING_FIELDS", "RoleColumn", "SessionTable", "key_column"]
__all__ += [
    "Fields",
    "Moment",
    "Pages",
    "Row",
    "RowEncoder",
    "Value",
    "as_asked",
    "as_stored",
    "decode_row",
    "dialect_of",
]
__all__ += ["encode_message", "encode_session", "of_session", "turn_json"]
__all__ += ["MAX_LEVELS", "checked_key", "decode_time", "encode_id", "encode_json", "encode_text", "encode_time_text"]
__all__ += ["levels_within", "reject_constant"]
__all__ += ["is_storable_text", "key_level", "mapping", "storable_id", "storable_text"]
