"""`lango_store.testing`: its checks hold of our stores, and each of them finds a fault."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from conftest import MakeDatabase
from faulty_stores import FAULTS
from processes import PYTEST, run_program

from lango_store import AsyncStore, Conflict, Message, Store
from lango_store.testing import Check, checks, run_async_store_checks, run_store_checks

every_check = pytest.mark.parametrize("check", checks(), ids=str)


@every_check
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_store_keeps_its_promises(make_database: MakeDatabase, check: Check, kind: str) -> None:
    if kind == "sync":
        check.run(lambda **options: Store(make_database(), **options))
    else:
        asyncio.run(check.run_async(lambda **options: AsyncStore(make_database(), **options)))


def test_each_check_has_a_name_and_a_promise_of_its_own() -> None:
    names = [check.name for check in checks()]
    assert len(names) == len(set(names)) == len({check.promise for check in checks()})
    assert all(check.promise.endswith(".") for check in checks())
    subjects = {"sessions", "messages", "windows", "turns", "values", "expiry", "concurrency"}
    assert {check.subject for check in checks()} == subjects


def test_checks_are_chosen_by_name_or_subject() -> None:
    chosen = checks("values", "messages.an_id_is_stored_once")
    assert [check.name for check in chosen] == [
        check.name for check in checks() if check.subject == "values" or str(check) == "messages.an_id_is_stored_once"
    ]
    with pytest.raises(ValueError, match=r"'nothing'.*checks\(\) lists them"):
        checks("nothing")


# Faults


@pytest.mark.parametrize(("faulty", "found_by"), FAULTS.values(), ids=list(FAULTS))
def test_a_fault_is_found(make_sqlite: MakeDatabase, faulty: type[Store], found_by: set[str]) -> None:
    with pytest.raises(ExceptionGroup) as failed:
        run_store_checks(lambda **options: faulty(make_sqlite(), **options), *found_by)
    notes = {error.__notes__[0] for error in failed.value.exceptions}
    assert notes == {f"{check.name}: {check.promise}" for check in checks(*found_by)}


def test_every_check_finds_a_fault() -> None:
    assert {check.name for check in checks()} == set().union(*(found_by for _, found_by in FAULTS.values()))


# How they are run


def run(*words: str, folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run Python from its very start, which is what tells of its imports."""
    paths = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    return subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment | paths, capture_output=True, text=True, timeout=100
    )


def test_the_checks_that_were_run_are_returned(make_sqlite: MakeDatabase) -> None:
    names = run_store_checks(lambda **options: Store(make_sqlite(), **options), "values", "turns.usage_adds_up")
    assert names == [check.name for check in checks("values", "turns.usage_adds_up")]


def test_a_report_has_every_failure(make_sqlite: MakeDatabase) -> None:
    class Silent(Store):
        def exists(self, key: str) -> bool:
            raise Conflict(key, expected=0, last_seq=1)

    with pytest.raises(ExceptionGroup, match=r"^2 of 3 checks failed") as failed:
        run_store_checks(
            lambda **options: Silent(make_sqlite(), **options),
            "sessions.what_is_not_there_is_said",
            "sessions.a_deleted_session_is_gone",
            "turns.usage_adds_up",
        )
    assert [type(error) for error in failed.value.exceptions] == [Conflict, Conflict]


def test_a_fault_of_an_awaited_store_is_found(make_sqlite: MakeDatabase) -> None:
    class Forgetful(AsyncStore):
        async def append_message(self, key: str, message: Message, **options: Any) -> Message:
            return await AsyncStore.append_message(self, key, message.model_copy(update={"id": None}), **options)

    closed: list[Forgetful] = []

    def make(**options: Any) -> Forgetful:
        closed.append(Forgetful(make_sqlite(), **options))
        return closed[-1]

    with pytest.raises(ExceptionGroup, match=r"^1 of 2 checks failed") as failed:
        asyncio.run(run_async_store_checks(make, "messages.an_id_is_stored_once", "turns.usage_adds_up"))
    assert "messages.an_id_is_stored_once" in failed.value.exceptions[0].__notes__[0]
    assert [store._threads.is_closed for store in closed] == [True, True]


def test_they_need_no_pytest_and_hold_without_assertions(tmp_path: Path) -> None:
    program = """
import itertools, sys
from lango_store import Store
from lango_store.testing import checks, run_store_checks
numbers = itertools.count()
def make(**options):
    return Store(f"sqlite:///{next(numbers)}.db", migrate=True, **options)
class Faulty(Store):
    def count(self, **which):
        return 0
print(len(run_store_checks(make, "values")) == len(checks("values")), "pytest" in sys.modules)
try:
    checks("sessions.filters_narrow_a_list_down")[0].run(lambda **o: Faulty("sqlite://", migrate=True, **o))
except AssertionError as error:
    print("found")
"""
    done = run("-OO", "-c", program, folder=tmp_path, environment=dict(os.environ))
    assert (done.stdout, done.stderr) == ("True False\nfound\n", "")


PLUGGED = """
import pytest
from lango_store import Message
from lango_store.testing import checks

pytest_plugins = ["lango_store.testing.fixtures"]

def test_a_store_on_an_empty_database(lango_store, lango_clock):
    assert lango_store.count() == 0
    lango_clock.move(days=1)
    assert lango_store.create("k", messages=[Message.user("hello")]).created_at == lango_clock.time

@pytest.mark.parametrize("check", checks("values")[:3], ids=str)
def test_checks(make_lango_store, check):
    check.run(make_lango_store)

def test_two_stores_share_nothing(make_lango_store):
    make_lango_store().create("k")
    assert not make_lango_store().exists("k")
"""


@pytest.mark.parametrize("server", [False, True], ids=["without a server", "with a server"])
def test_the_fixtures_have_a_database_each_and_leave_none(
    tmp_path: Path, make_postgres: MakeDatabase, server: bool
) -> None:
    (tmp_path / "test_plugged.py").write_text(PLUGGED)
    url = make_postgres(migrated=False)
    environment = {name: value for name, value in os.environ.items() if name != "LANGO_STORE_TEST_POSTGRES"}
    if server:
        environment["LANGO_STORE_TEST_POSTGRES"] = url
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = run_program(
        PYTEST, "-q", "-p", "no:cacheprovider", "test_plugged.py", folder=tmp_path, environment=environment
    )
    tests = (3 + 2) * (2 if server else 1)
    assert f"{tests} passed" in done.stdout, done.stdout
    engine = sa.create_engine(sa.make_url(url))
    with engine.connect() as connection:
        left = connection.exec_driver_sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'lango%%'").scalar()
    engine.dispose()
    assert left == 0
