"""Damaged files of every format: imports raise only store errors, and import a file whole or not at all.

A few seconds in the suite; `LANGO_STORE_FUZZ_SECONDS=600 pytest -s tests/interchange/test_fuzz.py` runs longer,
with another seed each time.
"""

import os
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.paths import DATA

from lango_store import Message, Store, interchange

pytestmark = pytest.mark.slow

FILES = sorted((path, name) for path in DATA.rglob("*") if path.is_file() and (name := interchange.recognize(path)))
SECONDS = float(os.environ.get("LANGO_STORE_FUZZ_SECONDS", 0))

Mutation = Callable[[bytes, random.Random], bytes]


def flip_bits(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.randint(1, 8)):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def cut(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def lose_the_middle(data: bytes, chance: random.Random) -> bytes:
    first, last = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:first] + data[last:]


def insert(*pieces: bytes) -> Mutation:
    def inserted(data: bytes, chance: random.Random) -> bytes:
        place = chance.randrange(len(data) + 1)
        return data[:place] + chance.choice(pieces) + data[place:]

    return inserted


def change_lines(data: bytes, chance: random.Random) -> bytes:
    lines = data.splitlines(keepends=True)
    place = chance.randrange(len(lines))
    return b"".join(
        chance.choice(
            (
                lines[:place] + lines[place + 1 :],
                [*lines[:place], lines[place], *lines[place:]],
                [*lines[:place], lines[place][: chance.randrange(len(lines[place]))], *lines[place + 1 :]],
                chance.sample(lines, len(lines)),
                [line.rstrip(b"\n") + b"\r\n" for line in lines],
            )
        )
    )


def swap_values(data: bytes, chance: random.Random) -> bytes:
    """Replace a value of JSON with another one."""
    found = list(re.finditer(rb'(?<=[:\[,])\s*("(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*|true|false|null|\{\}|\[\])', data))
    if not found:
        return data
    value = chance.choice(found)
    return data[: value.start()] + b" " + chance.choice(VALUES) + data[value.end() :]


VALUES = (
    b"null",
    b"true",
    b"[]",
    b"{}",
    b"-1",
    b"1e400",
    b"NaN",
    b"9" * 30,
    b"9" * 5_000,
    b'""',
    b'"\\u0000"',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'"system_note"',
    b'"9999-12-31T23:59:59.999999999+23:59"',
    b'"0001-01-01T00:00:00Z"',
    b'"' + b"k" * 600 + b'"',
    b"[" * 300 + b"]" * 300,
    b'{"":' * 300 + b"0" + b"}" * 300,
    b"[" * 100_000,
)

MUTATIONS: list[Mutation] = [
    flip_bits,
    cut,
    lose_the_middle,
    change_lines,
    swap_values,
    swap_values,
    swap_values,
    insert(b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"\xc3", b"\n", b"\r", b"\xef\xbb\xbf", b"\x1a"),
    insert(b"\\u0000", b"\\ud83d", b"\\udc00", b"\\", b'"', b"{", b"]", b",", b"[" * 5_000),
]


def mutated(data: bytes, chance: random.Random) -> bytes:
    for _ in range(chance.randint(1, 4)):
        data = chance.choice(MUTATIONS)(data, chance) if data else b"\n"
    return data


@pytest.fixture
def opened(url: str) -> Store:
    return Store(url)


@pytest.mark.timeout(120 + 2 * SECONDS)
def test_randomly_changed_file_is_imported_completely_or_not_at_all(
    opened: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = random.SystemRandom().getrandbits(32) if SECONDS else 0
    ends = time.monotonic() + (SECONDS or 2)
    tried = kept = 0
    with opened:
        while time.monotonic() < ends or tried < len(FILES):
            path, name = FILES[tried % len(FILES)]
            try:
                kept += comes_in_whole_or_not_at_all(opened, path, name, start + tried, tmp_path)
            except Exception as error:
                raise AssertionError(f"{path.name} of {name}, mutated by seed {start + tried}") from error
            tried += 1
    with capsys.disabled():
        if SECONDS:
            print(f"\n{opened.engine.dialect.name}: {tried:,} files, {kept:,} imported, from seed {start}")


def comes_in_whole_or_not_at_all(store: Store, path: Path, name: str, seed: int, folder: Path) -> bool:
    damaged = folder / path.name
    damaged.write_bytes(mutated(path.read_bytes(), random.Random(seed)))
    (planned,) = interchange.import_path(store, damaged, format=name, dry_run=True)
    (report,) = interchange.import_path(store, damaged, format=name)
    assert planned.keys == report.keys or report.error
    with store.engine.begin() as connection:
        counted = connection.execute(
            sa.text("SELECT count(*), coalesce(sum(message_count + record_count), 0) FROM lango_session")
        ).one()
        tables = ("lango_message", "lango_alternative_message")
        logged, aside = (connection.execute(sa.text(f"SELECT count(*) FROM {table}")).scalar_one() for table in tables)
    assert (counted[0], counted[1]) == (report.sessions, logged)
    counts = logged if name == "backup" else logged + aside  # a report on a tree has the messages of all its branches
    assert (report.sessions, counts) == (len(report.keys), report.messages)
    if report.error:
        assert report.sessions == 0
    comes_out_again(store, report.keys, name, folder)
    for key in report.keys:
        assert all(
            isinstance(each, Message) for each in store.conversation(key).all_messages(expired=True, damaged="return")
        )
        store.conversation(key).update(hold=None)
        store.delete(key)
    return not report.error


def comes_out_again(store: Store, keys: list[str], name: str, folder: Path) -> None:
    if name not in interchange.writable() or name == "openai":  # its lines have no keys
        return
    reports = list(interchange.export(store, folder / "out", name, keys=keys)) if keys else []
    for each in reports:
        assert (each.path is None) is bool(each.error)  # a key can make a file name invalid
    for path in {each.path for each in reports if each.path is not None}:  # a backup has all sessions in one file
        (again,) = interchange.import_path(store, path, format=name)
        assert sorted(again.already_there) == sorted(each.key for each in reports if each.path == path), again
        Path(path).unlink()
