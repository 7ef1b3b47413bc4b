"""Migrations of a store that has a search index: it stays as it was, or says that it has to be made anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import MakeDatabase, not_on_a_cluster
from factories import message
from revisions import LATER, add_later_revisions
from searches import found

from lango_store import SearchUnavailable, Store, schema
from lango_store.tables import SCHEMA_REVISION

pytestmark = not_on_a_cluster("a search index is refused on distributed tables")


def test_revisions_that_add_columns_leave_the_index_in_use(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(url) as store:
        store.create("a", messages=[message("oslo"), message("bergen")])
        schema.enable_search(url)
        store.search("oslo")
        add_later_revisions(tmp_path / "later", monkeypatch)
        assert schema.upgrade(url) == LATER[-1]
        store.append_message("a", message("oslo again"))
        assert found(store, "oslo") == [("a", 1), ("a", 3)]
        store.truncate("a", after=1)
        assert found(store, "oslo") == [("a", 1)]
        assert [each for each in store.examine() if each.name == "search index"] == []


def test_a_revision_that_makes_the_messages_table_anew_detaches_the_index(
    make_sqlite: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_sqlite()
    add_later_revisions(tmp_path / "later", monkeypatch)
    with Store(url) as store:
        store.create("a", messages=[message("oslo"), message("bergen")])
        schema.upgrade(url)
        schema.enable_search(url)
        store.pop_message("a")
        assert schema.downgrade(url, SCHEMA_REVISION) == SCHEMA_REVISION
        store.append_message("a", message("oslo again"))
        with pytest.raises(SearchUnavailable, match="search rebuild"):
            store.search("oslo")
        schema.rebuild_search(url)
        assert found(store, "oslo") == [("a", 1), ("a", store.info("a").last_seq)]


def test_a_revision_of_postgresql_that_drops_a_column_leaves_the_index_in_use(
    make_postgres: MakeDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_postgres()
    add_later_revisions(tmp_path / "later", monkeypatch)
    with Store(url) as store:
        store.create("a", messages=[message("oslo")])
        schema.upgrade(url)
        schema.enable_search(url)
        assert schema.downgrade(url, SCHEMA_REVISION) == SCHEMA_REVISION
        store.append_message("a", message("oslo again"))
        assert found(store, "oslo") == [("a", 1), ("a", 2)]
