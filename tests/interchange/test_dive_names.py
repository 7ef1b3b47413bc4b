"""Keys of sessions and names of Dive's files: each is read back as it was, what cannot be one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from interchange.dive_files import file, header, lines, read

from lango_store.errors import InvalidFile, InvalidKey
from lango_store.interchange.dive import DIVE
from lango_store.interchange.dive.names import id_fault, id_of, key_of
from lango_store.interchange.draft import Draft


@pytest.mark.parametrize("id", ["", ".", "..", "a..b", "a/b", "a\\b", None, 7])
def test_an_id_that_dive_refuses_is_refused(id: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match="id"):
        read(file(tmp_path, header(id=id)))


@pytest.mark.parametrize(
    ("key", "id"),
    [
        (".", "%2E"),
        ("...", ".%2E%2E"),
        ("a..b", "a.%2Eb"),
        ("../a/b", ".%2E%2Fa%2Fb"),
        ("a\\b", "a%5Cb"),
        ("100%", "100%"),
        ("%2F", "%252F"),
        ("%/%25", "%%2F%2525"),
    ],
)
def test_a_key_that_no_file_can_be_named_is_escaped_and_read_back(key: str, id: str, tmp_path: Path) -> None:
    path = DIVE.write(Draft(key, [], forked_from=key), tmp_path)
    assert path == tmp_path / f"{id}.jsonl"
    assert (lines(path)[0]["data"]["id"], lines(path)[0]["data"]["forked_from"]) == (id, id)
    draft = read(path)
    assert (draft.key, draft.forked_from) == (key, key)
    again = DIVE.write(draft, tmp_path / "again")
    assert (again.name, again.read_bytes()) == (path.name, path.read_bytes())


@given(st.text("%2F5CE./\\a", min_size=1, max_size=12))
def test_every_key_has_an_id_of_its_own_that_dive_takes(key: str) -> None:
    id = id_of(key)
    assert key_of(id) == key
    assert id_fault(id) is None


@pytest.mark.parametrize("id", ["50%", "%2f", "a%2", "%252", "%2E%2E"])
def test_an_id_with_a_percent_sign_of_dives_own_stays_as_it_is(id: str, tmp_path: Path) -> None:
    path = file(tmp_path, header(id=id))
    draft = read(path)
    assert draft.key == id
    assert DIVE.write(draft, tmp_path / "out").name == f"{id}.jsonl"
    assert lines(tmp_path / "out" / f"{id}.jsonl")[0] == lines(path)[0]


def test_an_id_that_no_key_can_be_is_refused(tmp_path: Path) -> None:
    for id in ("a\0b", "x" * 513, "\ud83d"):
        with pytest.raises(InvalidFile, match="key"):
            read(file(tmp_path, header(id=id)))
    with pytest.raises(InvalidKey, match="too long"):
        DIVE.write(Draft("é" * 130, []), tmp_path)
