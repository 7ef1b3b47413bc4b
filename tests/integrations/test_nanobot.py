"""nanobot itself, the real package, on our store instead of its files."""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from conftest import Clock, watched
from factories import message
from nanobot.providers.base import ProviderConversationState
from nanobot.session import manager as nanobots
from nanobot.session.manager import JsonlSessionStore, Session, SessionManager

from lango_store import Conflict, InvalidMessage, MessageRole, Store, ToolCall
from lango_store.integrations.nanobot import LangoSessionStore
from lango_store.interchange import export, import_path

KEY = "telegram:12345678"
DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own, so that nobody's nanobot is touched."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def store(url: str, clock: Clock) -> Iterator[Store]:
    with Store(url, clock=clock) as opened:
        yield opened


@pytest.fixture
def start(store: Store, tmp_path: Path) -> Callable[[], SessionManager]:
    """Start nanobot's session manager, as at the start of a process."""

    def started() -> SessionManager:
        ours = LangoSessionStore(store)
        sessions = SessionManager(tmp_path / "workspace", store=ours, sessions_root=tmp_path / "sessions")
        ours.on_conflict = sessions.invalidate
        return sessions

    return started


@pytest.fixture
def files(tmp_path: Path) -> JsonlSessionStore:
    """nanobot's own store."""
    return JsonlSessionStore(tmp_path / "other workspace", sessions_root=tmp_path / "files")


CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "ä.txt"}'}}


def talk(session: Session) -> None:
    """A turn with everything that nanobot writes into a session."""
    session.add_message("user", "Weather in Oslo? 😀", media=["/tmp/a.png"], sender_id="7")
    session.add_message("assistant", "", tool_calls=[CALL], reasoning_content="hm", thinking_blocks=[{"type": "x"}])
    session.add_message("tool", "sun\0\ud83d", tool_call_id="call_1", name="read")
    session.add_message("assistant", None, unknown={"b": 1, "a": [None, 1.0, 10**30]})
    session.metadata["title"] = "Oslo"
    session.metadata["goal_state"] = {"z": 1, "a": None}


def private(text: str = "secret") -> ProviderConversationState:
    return ProviderConversationState("responses", "openai", "gpt-x", 1, {"encrypted": text}, [{"role": "user"}])


def written_by_nanobot(files: JsonlSessionStore, session: Session) -> bytes:
    files.save(session)
    return bytes(files.get_session_path(session.key).read_bytes())


def exported(store: Store, folder: Path, key: str = KEY) -> bytes:
    shutil.rmtree(folder, ignore_errors=True)
    (done,) = export(store, folder, "nanobot", keys=[key])
    assert done.error is None
    return Path(str(done.path)).read_bytes()


# A life


def test_a_session_is_the_same_after_a_restart(start: Callable[[], SessionManager]) -> None:
    session = start().get_or_create(KEY)
    talk(session)
    session.last_consolidated = 2
    session.provider_state = private()
    start().save(session)
    again = start().get_or_create(KEY)
    assert again == session
    assert again.provider_state == private()
    assert again.get_history() == session.get_history()
    assert [list(line) for line in again.messages] == [list(line) for line in session.messages]


def test_a_session_that_is_not_there_is_new_and_unsaved(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    assert sessions.get_or_create(KEY).messages == []
    assert sessions.read_session_file(KEY) is None
    assert sessions.read_session_metadata(KEY) is None
    assert sessions.update_session_metadata(KEY, {"a": 1}) is False
    assert sessions.delete_session(KEY) is False
    assert store.count() == 0


def test_a_message_saved_by_nanobot_is_a_message_of_ours(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    user, asking, answer, _ = store.messages(KEY)
    assert (user.role, user.content) == (MessageRole.USER, "Weather in Oslo? 😀")
    assert asking.tool_calls[0] == ToolCall(id="call_1", name="read", arguments='{"path": "ä.txt"}')
    assert (answer.tool_call_id, answer.name, answer.content) == ("call_1", "read", "sun\0\ud83d")
    info = store.info(KEY)
    assert (info.title, info.metadata["goal_state"], info.last_consolidated) == ("Oslo", {"z": 1, "a": None}, 0)
    assert info.updated_at.astimezone().replace(tzinfo=None) == session.updated_at


def test_many_sessions_and_their_eviction_from_the_cache(
    start: Callable[[], SessionManager], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nanobots, "SESSION_CACHE_MAX_SIZE", 3)
    sessions = start()
    for turn in range(3):
        for number in range(8):
            session = sessions.get_or_create(f"cli:{number}")
            session.add_message("user", f"turn {turn} of {number}")
            sessions.save(session)
        del session
        gc.collect()
    fresh = start()
    for number in range(8):
        assert [line["content"] for line in fresh.get_or_create(f"cli:{number}").messages] == [
            f"turn {turn} of {number}" for turn in range(3)
        ]


def test_a_fork_is_a_session_of_its_own(start: Callable[[], SessionManager]) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(3):
        session.add_message("user", f"question {number}")
        session.add_message("assistant", f"answer {number}")
    sessions.save(session)
    fork = sessions.fork_session_before_user_index(KEY, "telegram:fork", 2)
    assert fork is not None
    fork.add_message("user", "another question")
    sessions.save(fork)
    fresh = start()
    assert [line["content"] for line in fresh.get_or_create("telegram:fork").messages][3:] == [
        "answer 1",
        "another question",
    ]
    assert len(fresh.get_or_create(KEY).messages) == 6


def test_a_deleted_session_is_gone_and_may_begin_anew(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    for content in ("first life", "second life"):
        session = sessions.get_or_create(KEY)
        assert session.messages == []
        session.add_message("user", content)
        sessions.save(session)
        assert sessions.delete_session(KEY) is True
    assert store.count(expired=None) == 0


def test_a_cleared_session_stays_empty_after_a_restart(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    session.provider_state = private()
    sessions.save(session)
    session.clear()
    sessions.save(session)
    again = start().get_or_create(KEY)
    assert (again.messages, again.provider_state, again.metadata["title"]) == ([], None, "Oslo")
    again.add_message("user", "again")
    start().save(session)  # nothing of it changed
    assert store.info(KEY).message_count == 0


def test_a_summary_put_into_the_middle_is_kept_where_it_is(start: Callable[[], SessionManager]) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(6):
        session.add_message("user", f"message {number}")
    sessions.save(session)
    session.commit_summary_checkpoint("so far", insert_at=4)
    sessions.save(session)
    again = start().get_or_create(KEY)
    assert again == session
    assert again.last_archived == 4


def test_metadata_is_updated_alone(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    before = store.info(KEY)
    assert sessions.update_session_metadata(KEY, {"title": "Bergen", "new": {"a": 1}}) is True
    after = store.info(KEY)
    assert (after.title, after.updated_at, after.last_seq) == ("Bergen", before.updated_at, before.last_seq)
    session.add_message("user", "more")
    sessions.save(session)
    again = start().get_or_create(KEY)
    assert again == session
    assert (again.metadata["title"], again.metadata["new"], again.metadata["goal_state"]) == (
        "Bergen",
        {"a": 1},
        {"z": 1, "a": None},
    )


def test_a_model_preset_is_renamed_in_all_sessions(start: Callable[[], SessionManager]) -> None:
    sessions = start()
    for key, preset in (("a:1", "old"), ("a:2", "old"), ("a:3", "other")):
        session = sessions.get_or_create(key)
        session.metadata[nanobots.SESSION_MODEL_PRESET_METADATA_KEY] = preset
        sessions.save(session)
    assert start().rename_model_preset("old", "new") == 2
    fresh = start()
    assert fresh.get_or_create("a:2").metadata[nanobots.SESSION_MODEL_PRESET_METADATA_KEY] == "new"


def test_the_providers_private_state_shows_in_no_read_and_no_list(
    start: Callable[[], SessionManager], store: Store
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    session.provider_state = private("do-not-show")
    sessions.save(session)
    seen = [sessions.read_session_file(KEY), sessions.read_session_metadata(KEY), sessions.list_sessions()]
    seen += [store.get(KEY).model_dump(), store.list_sessions().model_dump()]
    assert "do-not-show" not in json.dumps(seen, default=str)


@pytest.mark.parametrize("state", [None, "secret"])
def test_reads_and_lists_say_what_nanobots_own_store_says(
    start: Callable[[], SessionManager], files: JsonlSessionStore, state: str | None
) -> None:
    sessions = start()
    said: dict[str, list[tuple[str, Any]]] = {
        "a:words": [("assistant", "hello"), ("user", "what is <think>x</think> this\n\n" + "long " * 50)],
        "a:image": [("user", ""), ("user", [{"type": "image"}, {"type": "text", "text": "what is it?"}])],
        "a:silent": [("tool", "no"), ("assistant", "[Message Time: now]\nonly me")],
        "a:empty": [],
    }
    for key, contents in said.items():
        session = sessions.get_or_create(key)
        for role, content in contents:
            session.add_message(role, content)
        session.metadata["title"] = f"<think>hm</think>{key}"
        session.provider_state = private(state) if state else None
        sessions.save(session)
        files.save(session)
        assert sessions.read_session_file(key) == files.read(key)
        assert sessions.read_session_metadata(key) == files.read_metadata(key)

    def shown(listed: Any) -> list[dict[str, Any]]:
        return [{name: each[name] for name in each if name != "path"} for each in listed]

    assert shown(sessions.list_sessions()) == shown(files.list_sessions())


# What is written


def rows_written(statements: list[str]) -> int:
    return sum("INSERT INTO lango_message" in statement for statement in statements)


def test_a_new_message_in_a_long_session_writes_one_row(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(1_000):
        session.add_message("user", f"message {number}")
    sessions.save(session)
    before = store.info(KEY).last_seq
    session.add_message("user", "one more")
    with watched(store.engine) as statements:
        sessions.save(session)
    assert rows_written(statements) == 1
    assert not any("DELETE" in statement for statement in statements)
    assert len(statements) <= 12
    assert store.info(KEY).last_seq == before + 1


def test_a_save_of_what_is_saved_asks_the_database_nothing(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    loaded = start()
    again = loaded.get_or_create(KEY)
    with watched(store.engine) as statements:
        sessions.save(session)
        loaded.save(again, fsync=True)
        assert sessions.flush_all() == 1
    assert statements == []


def test_a_change_is_rewritten_from_there_on_and_not_before(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    for number in range(100):
        session.add_message("user", f"message {number}")
    sessions.save(session)
    session.messages[90]["content"] = "changed"
    session.add_message("user", "one more")
    sessions.save(session)
    assert [each.seq for each in store.all_messages(KEY)] == [*range(1, 91), *range(102, 113)]
    assert start().get_or_create(KEY) == session


def test_metadata_alone_writes_no_message(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    session.metadata["runtime_checkpoint"] = {"pending": True}
    before = store.info(KEY).last_seq
    sessions.save_runtime_checkpoint(session)
    assert store.info(KEY).last_seq == before
    assert start().get_or_create(KEY).metadata["runtime_checkpoint"] == {"pending": True}


def test_what_cannot_be_kept_is_refused_and_nothing_is_written(
    start: Callable[[], SessionManager], store: Store
) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    session.add_message("user", "fine")
    session.add_message("user", float("nan"))
    with pytest.raises(InvalidMessage):
        sessions.save(session)
    assert store.info(KEY).message_count == 4
    del session.messages[-1]
    sessions.save(session)
    assert store.info(KEY).message_count == 5


# Several processes


def test_what_another_process_wrote_is_not_overwritten(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.add_message("user", "hello")
    ours.save(session)
    other = theirs.get_or_create(KEY)
    other.add_message("assistant", "hi")
    theirs.save(other)
    session.add_message("user", "are you there?")
    with pytest.raises(Conflict) as conflict:
        ours.save(session)
    assert (conflict.value.expected, conflict.value.last_seq) == (1, 2)
    assert [each.content for each in store.messages(KEY)] == ["hello", "hi"]
    session = ours.get_or_create(KEY)  # the cache has forgotten what was out of date
    session.add_message("user", "are you there?")
    ours.save(session)
    assert [each.content for each in store.messages(KEY)] == ["hello", "hi", "are you there?"]


def test_two_that_begin_the_same_session_at_once_do_not_overwrite_each_other(
    start: Callable[[], SessionManager], store: Store
) -> None:
    ours, theirs = start(), start()
    session, other = ours.get_or_create(KEY), theirs.get_or_create(KEY)
    session.add_message("user", "first")
    other.add_message("user", "second")
    ours.save(session)
    with pytest.raises(Conflict):
        theirs.save(other)
    assert [each.content for each in store.messages(KEY)] == ["first"]


def test_a_stale_copy_read_later_does_not_hide_a_conflict(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.add_message("user", "hello")
    ours.save(session)
    other = theirs.get_or_create(KEY)
    other.add_message("assistant", "hi")
    theirs.save(other)
    snapshot = ours.read_session_snapshot(KEY)
    assert snapshot is not None
    assert len(snapshot.messages) == 2
    session.add_message("user", "stale")
    with pytest.raises(Conflict):
        ours.save(session)
    assert store.info(KEY).message_count == 2


def test_metadata_of_two_processes_is_put_together(start: Callable[[], SessionManager], store: Store) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.metadata |= {"a": 1, "b": 1, "c": 1}
    ours.save(session)
    other = theirs.get_or_create(KEY)
    other.metadata["b"] = 2
    del other.metadata["c"]
    other.add_message("user", "hello")
    theirs.save(other)
    session.metadata["a"] = 3
    ours.save(session)
    assert store.info(KEY).metadata == {"a": 3, "b": 2}
    assert store.info(KEY).message_count == 1
    session.metadata["d"] = 4
    ours.save(session)
    assert store.info(KEY).metadata == {"a": 3, "b": 2, "d": 4}
    session.metadata["b"] = 5
    with pytest.raises(Conflict, match="metadata 'b'"):
        ours.save(session)
    assert store.info(KEY).metadata == {"a": 3, "b": 2, "d": 4}


WRITER = """
import sys
from pathlib import Path
from lango_store import Conflict, Store
from lango_store.integrations.nanobot import LangoSessionStore
from nanobot.session.manager import SessionManager

url, folder, name = sys.argv[1:]
ours = LangoSessionStore(Store(url))
sessions = SessionManager(Path(folder) / "workspace", store=ours, sessions_root=Path(folder) / "sessions")
ours.on_conflict = sessions.invalidate
for number in range(25):
    while True:
        session = sessions.get_or_create("shared")
        session.add_message("user", f"{name} {number}")
        try:
            sessions.save(session)
            break
        except Conflict:
            del session
"""


def test_two_processes_on_one_key_lose_nothing(url: str, store: Store, tmp_path: Path) -> None:
    running = [
        subprocess.Popen([sys.executable, "-c", WRITER, url, str(tmp_path / name), name]) for name in ("ann", "bob")
    ]
    assert [process.wait(120) for process in running] == [0, 0]
    contents = [each.content for each in store.all_messages("shared")]
    for name in ("ann", "bob"):
        assert [each for each in contents if each.startswith(name)] == [f"{name} {number}" for number in range(25)]
    assert len(contents) == 50


def test_a_session_deleted_elsewhere_is_written_anew(start: Callable[[], SessionManager], store: Store) -> None:
    sessions = start()
    session = sessions.get_or_create(KEY)
    talk(session)
    sessions.save(session)
    store.delete(KEY)
    session.add_message("user", "still here")
    sessions.save(session)
    assert start().get_or_create(KEY) == session


def test_a_session_deleted_and_begun_anew_elsewhere_is_a_conflict(
    start: Callable[[], SessionManager], store: Store
) -> None:
    ours, theirs = start(), start()
    session = ours.get_or_create(KEY)
    session.add_message("user", "first life")
    ours.save(session)
    theirs.delete_session(KEY)
    other = theirs.get_or_create(KEY)
    other.add_message("user", "second life")
    theirs.save(other)
    session.add_message("user", "late")
    with pytest.raises(Conflict):
        ours.save(session)
    assert [each.content for each in store.messages(KEY)] == ["second life"]


# Expiry


def test_an_expired_session_is_not_there_for_nanobot(url: str, clock: Clock, tmp_path: Path) -> None:
    with Store(url, clock=clock, default_ttl=timedelta(hours=1)) as store:
        sessions = LangoSessionStore(store)
        session = Session(KEY)
        session.add_message("user", "hello")
        sessions.save(session)
        clock.move(minutes=50)
        session.add_message("user", "slides")
        sessions.save(session)
        clock.move(minutes=50)
        assert sessions.read(KEY) is not None
        clock.move(minutes=20)
        assert sessions.load(KEY) is None
        assert sessions.list_sessions() == []
        fresh = Session(KEY)
        fresh.add_message("user", "a new life")
        sessions.save(fresh)
        assert [each.content for each in store.messages(KEY)] == ["a new life"]


# To and from files


def test_what_nanobot_wrote_is_exported_as_nanobot_itself_would_have_written_it(
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
def test_what_was_imported_is_what_nanobot_reads_from_the_file(
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
def test_of_the_two_names_of_the_archive_count_that_which_nanobot_reads_comes_in_and_goes_out(
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
    assert store.info(KEY).last_consolidated == seen
    file.write_bytes(exported(store, tmp_path / "same"))
    assert read_by_nanobot() == seen
    store.append_message(KEY, message("more"))
    store.update(KEY, last_consolidated=3)
    file.write_bytes(exported(store, tmp_path / "changed"))
    assert read_by_nanobot() == 3
    written = json.loads(file.read_text().splitlines()[0])
    assert (written["last_archived"], written["last_consolidated"]) == (3, 3)


@pytest.mark.parametrize("generation", ["nanobot_g0", "nanobot_g1", "nanobot_go"])
def test_sessions_of_older_generations_are_readable(
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


def test_a_session_that_nanobot_did_not_make_is_readable_too(start: Callable[[], SessionManager], store: Store) -> None:
    calls = [ToolCall(id="c", name="read", arguments={"path": "a"}, output={"text": "b"})]
    store.create(KEY, title="ours", messages=[message("hello"), message(None, role="assistant", tool_calls=calls)])
    sessions = start()
    session = sessions.get_or_create(KEY)
    assert [line["role"] for line in session.messages] == ["user", "assistant", "tool"]
    assert session.metadata == {"title": "ours"}
    session.add_message("user", "more")
    sessions.save(session)
    assert [each.seq for each in store.all_messages(KEY)] == [1, 2, 3]
    session.messages[2]["content"] = "changed"
    sessions.save(session)
    assert start().get_or_create(KEY).messages == session.messages
    assert store.all_messages(KEY)[0].seq == 1


def test_the_store_has_all_that_nanobot_asks_of_one(store: Store) -> None:
    needed = {name for name in vars(nanobots.SessionStore) if not name.startswith("_")}
    assert needed <= {name for name in dir(LangoSessionStore(store)) if not name.startswith("_")}
