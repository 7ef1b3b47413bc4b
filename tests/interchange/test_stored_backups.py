"""A stored backup of each migration revision can be read by this release."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.databases import MakeDatabase
from support.factories import message
from support.golden_backup import BEGAN, CONTENTS, DRAFT, IMAGE, INBOX, LONG, large_messages
from support.paths import DATA, ROOT

from lango_store import Budget, Store
from lango_store._operations.binds import MESSAGE
from lango_store.interchange import export, import_path

BACKUPS = DATA / "backups"
REVISIONS = sorted(path.name[:4] for path in (ROOT / "migrations/versions").glob("0*.py"))
FILES = sorted(path.stem for path in BACKUPS.glob("*.jsonl"))
NOW = datetime(2026, 11, 21, 12, 30, tzinfo=UTC)


@pytest.fixture
def target(make_database: MakeDatabase) -> Iterator[Store]:
    with Store(make_database(), clock=lambda: NOW) as opened:
        yield opened


def sound(store: Store) -> bool:
    return [finding for finding in store.maintenance.examine() if finding.name != "settings"] == []


def test_stored_backups_cover_every_migration_revision() -> None:
    assert FILES == REVISIONS


@pytest.mark.slow
@pytest.mark.parametrize("revision", FILES)
def test_backup_of_any_migration_revision_can_be_imported(target: Store, revision: str) -> None:
    (report,) = import_path(target, BACKUPS / f"{revision}.jsonl")
    assert report.error is None
    assert set(report.keys) >= {"plain", "expiring", "turns"}
    plain = target.get("plain")
    assert (plain.user_id, plain.title, plain.settings, plain.metadata) == (
        "ann",
        "Oslo",
        {"thinking": "high"},
        {"é": [1, 2.5]},
    )
    assert plain.hold == ("case 17" if revision >= "0115" else None)
    named = ["-3 °C"] if revision >= "0111" else []
    assert [m.content for m in plain.messages] == ["Weather in Oslo?", None, *named]
    assert [(m.model, m.provider, m.request) for m in plain.messages[2:]] == [("gpt-x", "azure", "a1b2") for _ in named]
    assert plain.messages[1].tool_calls[0].output == {"celsius": -3}
    assert target.conversation("expiring").info().ttl_seconds == 3600
    if revision >= "0103":
        (draft,) = target.conversation("plain").drafts.list()
        (waiting,) = target.conversation("plain").inbox.list()
        assert (draft.turn_id, draft.text) == ("t-0", DRAFT)
        assert (waiting.id, waiting.content, waiting.sent, waiting.extra) == ("m-2", INBOX, ["in Rome?"], {"x": 1})
    if revision >= "0104":
        calls = target.conversation("unfinished")
        assert [(each.position, each.state, each.result_seq) for each in calls.calls.list()] == [
            (0, "finished", 2),
            (1, "unknown", None),
        ]
        answered, open_one = sorted(calls.suspensions.list(), key=lambda each: each.answered_at is None)
        assert (answered.calls, answered.state, answered.reason) == ([(1, 1)], CONTENTS, "Pay 40 €?")
        assert (answered.answer, answered.due_at) == (CONTENTS, BEGAN + timedelta(hours=1))
        decided = ("bob", "It is cheap.") if revision >= "0112" else (None, None)
        assert (answered.answered_by, answered.answered_why) == decided
        assert (open_one.calls, open_one.state, open_one.answer, open_one.due_at) == ([], {"run": 7}, None, None)
    if revision >= "0105":
        _payloads_are_back(target, len(LONG) if revision >= "0119" else 0)
    if revision >= "0114":
        (later,) = target.conversation("timed").inbox.list()
        assert later.due_at == BEGAN + timedelta(minutes=1)
        owed = [each.key for each in target.owed(future=True).items if each.key != "waits"]
        assert owed[-2:] == ["failing", "timed"]
    if revision >= "0117":
        key = "spent" if target.exists("spent") else "budgeted"  # before 0119
        with target.conversation(key).turn("t-2", budget=Budget("user:ann", 1_000, per="month", reserve=830)):
            (state,) = target.budgets.list().items
            assert (state.period, state.spent, state.reserved) == ("2026-11", 170, 830)
    if revision >= "0118":
        (job,) = target.calls.waiting().items
        assert (job.key, job.calls, job.handle) == ("waits", [(1, 0)], {"mcp_task": "t-1", "é": [1.0]})
        assert job.due_at == BEGAN + timedelta(minutes=2)
        assert [each.state for each in target.conversation("waits").calls.list()] == ["waiting"]
    if revision >= "0119":
        _alternatives_are_back(target)
    _turns_are_back(target)
    assert sound(target)


def _alternatives_are_back(target: Store) -> None:
    conversation = target.conversation("with branches")
    assert [(each.id, each.alternatives) for each in conversation.alternatives()] == [(1, 2), (9, None)]
    conversation.switch(2)
    assert [m.content for m in conversation.messages()] == ["A name?", "Tom"]
    conversation.switch(5)
    assert [m.content for m in conversation.messages()] == ["A name?", "Felix", "Thanks"]
    assert conversation.total_usage() == {"tokens": 3}
    assert len(conversation.alternatives()) == 6


def _payloads_are_back(target: Store, elsewhere: int) -> None:
    stored = target.conversation("payloads").messages()
    assert [each.model_copy(update={"seq": 0, "created_at": None}) for each in stored] == large_messages()
    assert target.stats().payload_bytes == len(LONG) + len(IMAGE) + elsewhere


def _turns_are_back(target: Store) -> None:
    conversation = target.open("turns")
    assert [m.content for m in conversation.messages()] == ["We said 2 things."]
    assert conversation.total_usage() == {"input_tokens": 10}
    assert conversation.save_turn([message("next")]).turn_no == 4  # a third turn was saved and removed


@pytest.mark.parametrize("revision", FILES)
def test_only_content_that_is_text_is_imported_to_the_text_column(target: Store, revision: str) -> None:
    import_path(target, BACKUPS / f"{revision}.jsonl")
    assert [m.content for m in target.conversation("contents").all_messages()] == CONTENTS
    with target.engine.connect() as connection:
        query = sa.select(MESSAGE.c.text).where(MESSAGE.c.session_key == "contents").order_by(MESSAGE.c.seq)
        texts = connection.execute(query).scalars().all()
    assert texts == [*CONTENTS[:4], *[None] * 7]


@pytest.mark.parametrize("revision", FILES)
def test_export_of_an_imported_backup_has_every_row_of_the_backup(target: Store, revision: str, tmp_path: Path) -> None:
    import_path(target, BACKUPS / f"{revision}.jsonl")
    export(target, tmp_path, "backup", everything=True)
    today = (tmp_path / "lango_store.jsonl").read_text().splitlines()
    rows = [line for line in today if not line.startswith(('{"end"', '{"lango_store"'))]
    for line in (BACKUPS / f"{revision}.jsonl").read_text().splitlines()[1:]:
        if not line.startswith('{"end"'):
            assert line in rows
