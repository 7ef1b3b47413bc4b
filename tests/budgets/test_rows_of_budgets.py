"""The rows of budgets in stores for one user, erasures, exports, backups, copies and reports, and the command."""

import asyncio
import io
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.commands import run
from support.databases import MakeDatabase
from support.factories import message

from lango_store import (
    AsyncConversation,
    AsyncRunningTurn,
    AsyncStore,
    Budget,
    BudgetExhausted,
    InvalidKey,
    InvalidState,
    Store,
)
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy
from lango_store.testing import Clock

BUDGET = Budget("user:ann", 1000, per="month", reserve=400)


@pytest.fixture(autouse=True)
def november(clock: Clock) -> None:
    clock.time = datetime(2026, 11, 21, 12, tzinfo=UTC)


@pytest.fixture
def used(store: Store) -> Store:
    """A store in which 150 tokens are used and 400 are reserved of the budget of ann."""
    store.create("k", user_id="ann")
    with store.conversation("k").turn(budget=BUDGET) as turn:
        turn.usage = {"input_tokens": 150}
    store.open("running", user_id="ann").turn(budget=BUDGET).begin()
    return store


def states(store: Store) -> list[tuple[str, float, float]]:
    return [(each.scope, each.spent, each.reserved) for each in store.budgets.list().items]


def rows(store: Store) -> list[tuple[Any, ...]]:
    with store.engine.connect() as connection:
        query = "SELECT scope, name, amount, cap, holder, token, after_turn FROM lango_budget ORDER BY scope, name"
        return [tuple(row) for row in connection.execute(sa.text(query))]


def test_store_for_one_user_sees_only_the_budget_of_the_user(used: Store) -> None:
    own, other = used.for_user("ann"), used.for_user("bob")
    assert [each.spent for each in own.budgets.list("user:ann").items] == [150]
    for refused in (own.budgets.list, lambda: other.budgets.list("user:ann"), lambda: other.budgets.reset("user:ann")):
        with pytest.raises(InvalidState):
            refused()
    assert own.budgets.reset("user:ann")


@pytest.mark.parametrize("scope", ["a\0b", "", "s" * 513])
def test_list_refuses_what_cannot_be_a_scope(store: Store, scope: str) -> None:
    with pytest.raises(InvalidKey):
        store.budgets.list(scope)


def test_turns_of_stores_for_one_user_can_share_a_budget(store: Store) -> None:
    team = Budget("team", 100, reserve=60)
    for user in ("ann", "bob"):
        store.create(user, user_id=user)
    turn = store.for_user("ann").conversation("ann").turn(budget=team).begin()
    with pytest.raises(BudgetExhausted):
        store.for_user("bob").conversation("bob").turn(budget=team).begin()
    turn.usage = {"input_tokens": 30}
    turn.save()
    with store.for_user("bob").conversation("bob").turn(budget=team):
        assert states(store) == [("team", 30, 60)]


def test_erasure_of_a_scope_deletes_its_budget(used: Store) -> None:
    assert used.erase(scopes=["user:ann"], dry_run=True).erased == {"store": {"lango_budget": 2}}
    assert used.erase(scopes=["user:ann"]).erased == {"store": {"lango_budget": 2}}
    assert rows(used) == []


def test_erasure_of_a_session_deletes_its_reservations_in_all_scopes(store: Store) -> None:
    store.open("of ann", user_id="ann").turn(budget=Budget("team", 5, reserve=5)).begin()
    store.open("of bob", user_id="bob").turn(budget=Budget("others", 5, reserve=5)).begin()
    assert store.erase("ann", dry_run=True).erased["store"]["lango_budget"] == 1
    assert store.erase("ann").erased["store"]["lango_budget"] == 1
    assert "of ann" not in str(rows(store))
    assert states(store) == [("others", 0, 5), ("team", 0, 0)]


def test_export_of_a_person_has_the_budget(used: Store) -> None:
    written = io.BytesIO()
    used.export_user("ann", written, scopes=["user:ann"])
    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    found = [line["row"] for line in lines if line["table"] == "lango_budget" and line["owner"] == "user:ann"]
    assert {row["amount"] for row in found} == {150, 400}


@pytest.mark.parametrize("how", ["backup", "copy"])
def test_backups_and_copies_keep_what_is_used(
    used: Store, how: str, make_database: MakeDatabase, clock: Clock, tmp_path: Path
) -> None:
    with Store(make_database(), clock=clock) as other:
        for _ in range(2):
            if how == "backup":
                assert [each.error for each in export(used, tmp_path / "b", "backup", everything=True)] == [None] * 2
                (report,) = import_path(other, tmp_path / "b")
                assert report.error is None
            else:
                assert copy(used, other).complete
            assert rows(other) == rows(used)
        assert states(other) == [("user:ann", 150, 0)]  # no session of a copy has a lease
        with other.conversation("k").turn(budget=BUDGET) as turn:
            turn.usage = {"input_tokens": 1}
        assert states(other) == [("user:ann", 151, 0)]
        assert copy(used, other).differing_values == [("user:ann", "tokens_2026_11")]


def test_doctor_finds_and_deletes_an_unreadable_row(used: Store) -> None:
    with used.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE lango_budget SET amount = -1 WHERE holder IS NULL")
    (finding,) = [each for each in used.maintenance.examine() if each.name == "unreadable value"]
    assert "budget 'tokens_2026_11', amount: -1" in str(finding)


def test_list_agrees_with_the_usage_of_a_month(store: Store, clock: Clock) -> None:
    for number in range(40):
        user = ("ann", "bob")[number % 2]
        limit = Budget(f"user:{user}", 10**6, per="month", reserve=10)
        with store.open(f"{user} {number % 5}", user_id=user).turn(budget=limit) as turn:
            turn.append(message())
            turn.usage = {"prompt_tokens": number, "completion_tokens": 2, "total_tokens": 99}
        clock.move(days=1)
    month = f"{clock.time:%Y-%m}"
    used = {f"user:{row.user_id}": row for row in store.usage(["user_id", "month"]) if row.month == month}
    found = {each.scope: each.spent for each in store.budgets.list().items}
    assert found == {scope: row.input_tokens + row.output_tokens for scope, row in used.items()}
    assert len(found) == 2


def test_command_lists_and_resets_budgets(url: str) -> None:
    total = Budget("team", 5, reserve=2.5, prices={})
    with Store(url) as store:
        with store.open("k").turn(budget=total) as turn:
            turn.usage = {"cost_usd": 0.75}
        store.conversation("k").turn(budget=total).begin()
    assert run("budgets", "--url", url).stdout == "team\t\tusd\t5.0\t0.75\t2.5\t1.75\t\n"
    assert run("budgets", "--scope", "user:ann", "--url", url).stderr == "no budget is in use\n"
    (shown,) = run("budgets", "--scope", "team", "--json", "--url", url).stdout.splitlines()
    assert json.loads(shown)["left"] == 1.75
    assert run("budgets", "--reset", "team", "--url", url).stderr == "reset the budget of team\n"
    assert run("budgets", "--reset", "team", "--url", url).stderr == "nothing was used by team\n"
    assert run("budgets", "--url", url).stderr == "no budget is in use\n"


def test_async_turns_and_work_have_budgets(url: str, clock: Clock) -> None:
    total = Budget("team", 100, reserve=60)

    async def limit_of(conversation: AsyncConversation) -> Budget | None:
        return total if (await conversation.info()).user_id else None

    async def handle(conversation: AsyncConversation, turn: AsyncRunningTurn) -> None:
        turn.usage = {"input_tokens": 60}

    async def main() -> None:
        async with AsyncStore(url, clock=clock) as store:
            for user in ("ann", "bob", None):
                await (await store.open(f"of {user}", user_id=user)).inbox.put(message())
            assert await store.work(handle, once=True, concurrency=1, budget=limit_of) == 2
            assert [each.error for each in (await store.owed()).items] == ["BudgetExhausted: team"]
            assert await store.work(handle, once=True, budget=total) == 0
            with pytest.raises(BudgetExhausted):
                async with (await store.open("k")).turn(budget=total):
                    raise AssertionError
            assert await store.budgets.reset("team")
            assert await store.work(handle, once=True, budget=lambda _: total) == 1
            assert [each.spent for each in (await store.budgets.list()).items] == [60]

    asyncio.run(main())
