"""The core names no room, and a room imports only the rooms that it builds on."""

import pytest
from support import rooms
from support.paths import PACKAGE

from lango_store._rooms.composition import ROOMS


def test_core_does_not_grow() -> None:
    assert rooms.size(*rooms.CORE) <= 7_946


def test_every_room_is_listed() -> None:
    found = {path.parent.name for path in (PACKAGE / "_rooms").glob("*/__init__.py")}
    assert found == {*ROOMS}


@pytest.mark.parametrize("room", ROOMS)
def test_core_does_not_name_the_room(room: str) -> None:
    assert [*rooms.mentions(room, rooms.files(*rooms.CORE))] == []


@pytest.mark.parametrize("room", ROOMS)
def test_room_imports_only_the_rooms_that_it_builds_on(room: str) -> None:
    assert rooms.imports(room) <= {*ROOMS[room]}
