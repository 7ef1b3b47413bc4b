"""Each table states what backups, copies and forks do with its rows."""

import pytest
import sqlalchemy as sa

from lango_store._operations.session_tables import CHILDREN, TABLES, describe
from lango_store.tables import BASELINE, SCHEMA_REVISION, Base


def test_table_that_does_not_state_what_happens_to_its_rows_is_refused() -> None:
    metadata = sa.MetaData()
    sa.Table("lango_note", metadata, sa.Column("session_key", sa.Text))
    with pytest.raises(TypeError, match="lango_note"):
        describe(metadata)


def test_every_table_with_rows_of_sessions_is_described_or_only_for_this_database() -> None:
    with_sessions = {table for table in Base.metadata.tables.values() if "session_key" in table.c}
    left_out = {table.name for table in with_sessions - {each.table for each in CHILDREN}}
    assert left_out == {"lango_removed_message", "lango_removed_turn"}


def test_descriptions_name_existing_columns_and_revisions() -> None:
    for described in TABLES.values():
        stored, columns = described.stored, {*described.table.c.keys()}
        assert {*stored.unset, *stored.ids, *stored.types, *stored.redacted} <= columns
        assert stored.of_message in columns if stored.redacted else stored.of_message in (columns | {""})
        assert all(described.table.c[name].nullable for name in stored.redacted)
        assert BASELINE <= stored.since <= SCHEMA_REVISION
        assert stored.embedded in (columns | {""})
        assert stored.name.format_map(dict.fromkeys(columns, "x")) != stored.name or "{" not in stored.name
