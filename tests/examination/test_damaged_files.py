"""Damaged SQLite files: errors are the store's, and readable rows are returned.

`LANGO_STORE_DAMAGE_ROUNDS=300` runs it for longer than the default few seconds.
"""

import functools
import itertools
import random
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.commands import run
from support.damage import (
    DAMAGES,
    KEYS,
    PAGE,
    ROUNDS,
    leaves_of,
    lose,
    only_our_errors,
    opened,
    reading,
    said,
    summing_up,
    writing,
)
from support.factories import messages

from lango_store import (
    DatabaseUnavailable,
    LangoStoreError,
    Store,
    create_engine,
)
from lango_store._operations import paging
from lango_store._operations.binds import MESSAGE

FOUND = (122, 182, 238)
"""Seeds of longer runs that found something: schemas that cannot be read, an index that leads a walk in a circle."""
pytestmark = pytest.mark.timeout(120 + 20 * ROUNDS)


@pytest.mark.slow
def test_any_damaged_file_raises_only_store_errors(sound_file: Path, tmp_path: Path) -> None:
    for seed in (*range(ROUNDS), *FOUND):
        chance = random.Random(seed)
        damaged = bytearray(sound_file.read_bytes())
        damage = DAMAGES[seed % len(DAMAGES)]
        damage(damaged, chance)
        for left in tmp_path.iterdir():
            left.unlink()
        path = tmp_path / "damaged.db"
        path.write_bytes(damaged)
        with opened(path) as store:
            calls = list(summing_up(store))
            for key in KEYS if ROUNDS > 100 else chance.sample(KEYS, 4):
                calls += reading(store, key)
            calls += writing(store, chance.choice(KEYS))
            for name, call in calls:
                only_our_errors(f"{name}, damaged by {damage.__name__} of seed {seed}", call)


def test_error_for_lost_page_names_salvage_command(damaged_file: Path) -> None:
    lose(damaged_file, leaves_of("lango_message", damaged_file)[4])
    with opened(damaged_file) as store:
        failed = [only_our_errors(key, store.conversation(key).all_messages) for key in KEYS]
        errors = [error for error in failed if isinstance(error, LangoStoreError)]
        assert errors
        for error in errors:
            assert isinstance(error, DatabaseUnavailable)
            assert "lango-store copy --salvage" in str(error)
        checks = [each for each in store.maintenance.examine() if each.name == "check failed"]
        assert checks
        assert all("--salvage" in each.detail for each in checks)


@pytest.mark.slow
def test_doctor_exits_1_for_damage_that_only_sqlite_itself_finds(damaged_file: Path) -> None:
    name = "ix_lango_session_agent_id"  # no check reads this index
    ((root,),) = said("SELECT rootpage FROM sqlite_master WHERE name = ?", damaged_file, name)
    data = bytearray(damaged_file.read_bytes())
    position = data.index(b"assistant", (root - 1) * PAGE)
    data[position] ^= 1
    damaged_file.write_bytes(data)
    with opened(damaged_file) as store:
        assert {each.name for each in store.maintenance.examine()} - {"settings"} == {"damaged file"}
    done = run("doctor", "--url", f"sqlite:///{damaged_file}")
    assert done.returncode == 1
    assert "the file is damaged" in done.stdout


@pytest.mark.slow
def test_interrupted_read_is_not_reported_as_damage(damaged_file: Path) -> None:
    engine = create_engine(f"sqlite:///{damaged_file}")
    cut = False
    sa.event.listen(engine, "connect", lambda driver, _: driver.set_progress_handler(lambda: cut, 1))
    store = Store(engine)
    assert {each.name for each in store.maintenance.examine()} <= {"settings"}
    cut = True
    for call in (
        store.maintenance.examine,
        functools.partial(store.conversation("telegram:1").all_messages, damaged="return"),
    ):
        with pytest.raises(LangoStoreError, match="interrupted"):
            call()
    engine.dispose()


@pytest.mark.slow
def test_examine_names_each_unreadable_row_once(damaged_file: Path) -> None:
    with opened(damaged_file) as store:
        store.shared_values("shared").set({f"v{n}": n for n in range(6)})
        for change in ("value = x'ff' WHERE name = 'v1'", "updated_at = 'never' WHERE name = 'v3'"):
            said(f"UPDATE lango_shared_value SET {change}", damaged_file)
        said("UPDATE lango_shared_value SET name = x'7635' WHERE name = 'v5'", damaged_file)
        first, last = min(KEYS), max(KEYS)
        for key in (first, last):
            said("UPDATE lango_message SET role = 'nobody' WHERE session_key = ? AND seq = 1", damaged_file, key)
            said("UPDATE lango_session SET settings = '{' WHERE key = ?", damaged_file, key)
        findings = store.maintenance.examine()
        for name in ("unreadable session", "unreadable message"):
            assert [each.subject for each in findings if each.name == name] == [first, last]
        named = [each.detail for each in findings if each.name == "unreadable value"]
        assert [detail.split(", ")[1] for detail in named] == ["value 'v1'", "value 'v3'", "value b'v5'"]


def test_reading_in_pages_raises_if_the_primary_key_index_is_out_of_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "circle.db"
    with Store(f"sqlite:///{path}", migrate=True) as store:
        store.create("k", messages=messages(200))
    data = path.read_bytes()
    for seq in (64, 65):  # the last index entries of the first page now contain seq 1
        entry = b"\x04\x0f\x01\x01k" + bytes([seq, seq])
        assert data.count(entry) == 1
        data = data.replace(entry, b"\x04\x0f\x01\x01k" + bytes([1, seq]))
    path.write_bytes(data)
    with opened(path) as store, store._context.snapshot() as connection:
        page = paging.Pages(MESSAGE, [MESSAGE.c.seq])
        monkeypatch.setattr(paging, "ROWS", 64)
        with pytest.raises(DatabaseUnavailable, match="out of order"):
            list(itertools.islice(page.read(connection, "k"), 10))


def test_damaged_schema_text_raises_database_unavailable(damaged_file: Path) -> None:
    data = damaged_file.read_bytes()
    place = data.index(b"CREATE TABLE lango_message")
    damaged_file.write_bytes(data[:place] + b"\xff\xfe" + data[place + 2 :])
    with opened(damaged_file) as store, pytest.raises(DatabaseUnavailable):
        store.ping()


def test_examine_reports_unreadable_table_definitions(damaged_file: Path) -> None:
    data = damaged_file.read_bytes()
    assert data.count(b"indexix_lango_session_expires_bucket") == 1
    damaged_file.write_bytes(
        data.replace(b"indexix_lango_session_expires_bucket", b"INDEXix_lango_session_expires_bucket")
    )
    with opened(damaged_file) as store:
        (failed,) = [each.detail for each in store.maintenance.examine() if each.name == "check failed"]
    assert "the definitions of the tables cannot be read" in failed
