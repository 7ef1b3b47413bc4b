"""Exchange between nanobot on the store and nanobot on its files."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from nanobot.session import manager as nanobots
from nanobot.session.manager import JsonlSessionStore, SessionManager
from support.factories import message
from support.nanobots import CALL, KEY, exported, private, written_by_nanobot
from support.paths import DATA

from lango_store import Store, ToolCall
from lango_store.integrations.nanobot import LangoSessionStore
from lango_store.interchange import import_path

pytestmark = pytest.mark.one_database


def test_export_equals_the_file_nanobot_writes(
    start: Callable[[], SessionManager], store: Store, files: JsonlSessionStore, tmp_path: Path
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    session.add_message("user", "Grüße", media=["/tmp/a.png"], sender_id="7")
    session.add_message("assistant", "", tool_calls=[CALL], reasoning_content="hm")
    session.add_message("tool", "sun\0", tool_call_id="call_1", name="read")
    session.metadata |= {"title": "Oslo", "z": {"b": None, "a": 10**30}}
    sessions.save(session)
    assert exported(store, tmp_path / "out") == written_by_nanobot(files, session)
    session.provider_state = private()
    session.last_consolidated = 2
    session.messages[1]["reasoning_content"] = None
    session.add_message("assistant", "sunny")
    sessions.save(session)
    assert exported(store, tmp_path / "out") == written_by_nanobot(files, session)
    sessions.update_session_metadata(KEY, {"title": "Bergen", "new": [1]})
    assert exported(store, tmp_path / "out") == written_by_nanobot(files, session)
    session.clear()
    sessions.save(session)
    assert exported(store, tmp_path / "out") == written_by_nanobot(files, session)


@pytest.mark.parametrize("file", sorted((DATA / "nanobot_g2").glob("*.jsonl")), ids=lambda file: file.stem)
def test_imported_session_equals_the_one_nanobot_loads(
    start: Callable[[], SessionManager], store: Store, files: JsonlSessionStore, file: Path, tmp_path: Path
) -> None:
    shutil.copy(file, files.sessions_dir / file.name)
    (report,) = import_path(store, file, format="nanobot")
    (key,) = report.keys
    sessions = start()
    session, original = sessions.get_or_create(key), files.load(key)
    assert original is not None
    assert session == original
    assert session.provider_state == original.provider_state
    assert sessions.read_session_file(key) == files.read(key)
    for each in (session, original):
        each.messages.append({"role": "user", "content": "more", "timestamp": "2026-11-21T20:36:10.610012"})
    sessions.save(session)
    assert exported(store, tmp_path / "out", key) == written_by_nanobot(files, original)


@pytest.mark.parametrize(
    ("archived", "consolidated"), [(1, 0), (0, 2), ("1", 2), (True, 1), (None, 1), ("1", "2"), (9, 1), (-1, 1)]
)
def test_last_consolidated_round_trips_as_nanobots_last_archived(
    store: Store, files: JsonlSessionStore, tmp_path: Path, archived: object, consolidated: object
) -> None:
    head = {"_type": "metadata", "key": KEY, "last_archived": archived, "last_consolidated": consolidated}
    file = files.get_session_path(KEY)
    file.write_text("".join(json.dumps(line) + "\n" for line in (head, *[{"role": "user", "content": "hi"}] * 2)))

    def read_by_nanobot() -> int:
        found = files.load(KEY)
        assert found is not None
        return int(found.last_archived)

    import_path(store, file)
    seen = read_by_nanobot()
    assert store.conversation(KEY).info().last_consolidated == seen
    file.write_bytes(exported(store, tmp_path / "same"))
    assert read_by_nanobot() == seen
    store.append_message(KEY, message("more"))
    store.conversation(KEY).update(last_consolidated=3)
    file.write_bytes(exported(store, tmp_path / "changed"))
    assert read_by_nanobot() == 3
    written = json.loads(file.read_text().splitlines()[0])
    assert (written["last_archived"], written["last_consolidated"]) == (3, 3)


@pytest.mark.parametrize("generation", ["nanobot_g0", "nanobot_g1", "nanobot_go"])
def test_sessions_of_older_nanobot_versions_are_readable(
    start: Callable[[], SessionManager], store: Store, generation: str
) -> None:
    reports = import_path(store, DATA / generation, format="nanobot")
    sessions = start()
    for report in reports:
        for key in report.keys:
            lines = [json.loads(line) for line in Path(report.path).read_text().splitlines()]
            expected = [line for line in lines if line.get("_type") != "metadata"]
            assert sessions.get_or_create(key).messages == expected
            assert sessions.read_session_metadata(key)["key"] == key


def test_session_of_another_program_is_readable_by_nanobot(start: Callable[[], SessionManager], store: Store) -> None:
    calls = [ToolCall(id="c", name="read", arguments={"path": "a"}, output={"text": "b"})]
    store.create(KEY, title="ours", messages=[message("hello"), message(None, role="assistant", tool_calls=calls)])
    sessions = start()
    session = sessions.get_or_create(KEY)
    assert [line["role"] for line in session.messages] == ["user", "assistant", "tool"]
    assert session.metadata == {"title": "ours"}
    session.add_message("user", "more")
    sessions.save(session)
    assert [each.seq for each in store.conversation(KEY).all_messages()] == [1, 2, 3]
    session.messages[2]["content"] = "changed"
    sessions.save(session)
    assert start().get_or_create(KEY).messages == session.messages
    assert store.conversation(KEY).all_messages()[0].seq == 1


def test_adapter_has_every_method_that_nanobot_needs(store: Store) -> None:
    needed = {name for name in vars(nanobots.SessionStore) if not name.startswith("_")}
    assert needed <= {name for name in dir(LangoSessionStore(store)) if not name.startswith("_")}
