"""A downgrade past the revision of payloads loses no part of a message."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message
from support.locks import until_one_waits

from lango_store import LangoStoreError, Message, Store, create_engine, schema

LARGE = "x" * 70_000
BEFORE_PAYLOADS = "0104"


def read_with_sql(store: Store) -> list[str]:
    with store.engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT text FROM lango_message ORDER BY seq").scalars())


def test_downgrade_is_refused_until_payloads_are_moved_back(url: str) -> None:
    with Store(url) as store:
        store.create("k", messages=[message(LARGE), message("short")])
        with pytest.raises(LangoStoreError, match="lango-store payloads move --back"):
            schema.downgrade(url, BEFORE_PAYLOADS)
        assert [each.content for each in store.conversation("k").messages()] == [LARGE, "short"]
        assert store.maintenance.move_payloads(threshold=None) == 1
        assert schema.downgrade(url, BEFORE_PAYLOADS) == BEFORE_PAYLOADS
        assert read_with_sql(store) == [LARGE, "short"]
        assert schema.features(url) == []


def test_downgrade_drops_payloads_of_removed_messages(url: str) -> None:
    with Store(url, keep_removed=timedelta(days=1)) as store:
        store.create("k", messages=[message(LARGE), message("y" * 70_000)])
        store.conversation("k").pop_message()
        assert store.maintenance.move_payloads(threshold=None) == 1
        assert schema.downgrade(url, BEFORE_PAYLOADS) == BEFORE_PAYLOADS
        assert read_with_sql(store) == [LARGE]


def test_downgrade_waits_for_a_transaction_that_appends_a_payload(make_postgres: MakeDatabase) -> None:
    url = make_postgres()
    with Store(url) as store:
        store.create("k")
    assert schema.downgrade(url, "0105") == "0105"
    engine = create_engine(url)
    with engine.connect() as host, ThreadPoolExecutor(1) as pool:
        host.exec_driver_sql(
            "INSERT INTO lango_message (session_key, seq, role, text, payloads, created_at) "
            "VALUES ('k', 1, 'user', '', '{\"text\":[\"digest\",19]}', now())"
        )
        downgrading = pool.submit(schema.downgrade, url, BEFORE_PAYLOADS)
        until_one_waits(engine)
        host.commit()
        with pytest.raises(LangoStoreError, match="lango-store payloads move --back"):
            downgrading.result()
        assert schema.current(url) == "0105"
    engine.dispose()


def test_downgrade_to_base_is_not_refused_if_there_are_payloads(url: str) -> None:
    with Store(url) as store:
        store.create("k", messages=[message(LARGE)])
    assert schema.downgrade(url, "base") is None
    assert schema.current(url) is None


@pytest.mark.slow
def test_refused_downgrade_exits_1_and_names_the_payloads_move_command(tmp_path: Path) -> None:
    at = ("--url", f"sqlite:///{tmp_path}/store.db")
    with Store(at[1], migrate=True) as store:
        store.create("k", messages=[Message.user(LARGE)])
    done = run("db", "downgrade", BEFORE_PAYLOADS, "--yes", *at)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    assert "run `lango-store payloads move --back` first" in done.stderr
    assert run("payloads", "move", "--back", *at).stdout == "changed 1 message\n"
    assert run("db", "downgrade", BEFORE_PAYLOADS, "--yes", *at).stdout == f"at revision {BEFORE_PAYLOADS}\n"
