"""A SQLite file with every kind of row, ways to damage it, and methods that read it."""

import functools
import os
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from lango_store import Conversation, DamagedMessage, LangoStoreError, Message, Store, ToolCall, create_engine

ROUNDS = int(os.environ.get("LANGO_STORE_DAMAGE_ROUNDS", 9))
SESSIONS = 20
KEYS = [f"telegram:{number}" for number in range(SESSIONS)]
PAGE = 4_096

Damage = Callable[[bytearray, random.Random], None]


def fill(path: Path) -> None:
    """Write 20 sessions with 235 messages: tool calls, turns, a summary, drafts, an inbox, long texts in payloads."""
    with Store(
        f"sqlite:///{path}",
        migrate=True,
        token_counter=lambda message: len(str(message.content)),
        payload_threshold=300,
    ) as store:
        for number in range(SESSIONS):
            key = f"telegram:{number}"
            store.create(
                key,
                agent_id="assistant",
                user_id=f"user {number % 3}",
                title=f"Session {number}",
                settings={"temperature": 0.5},
                metadata={"number": number},
                tools=[{"name": "get_weather"}],
                ttl=timedelta(days=30) if number % 4 == 0 else None,
            )
            store.conversation(key).values.set({"state": number, "plan": ["ü" * number]})
            store.shared_values(f"user {number % 3}").set({key: "grün"})
            talk = [_message(number, place) for place in range(11)]
            store.conversation(key).append_messages(talk[:6])
            conversation = store.open(key)
            conversation.save_turn(talk[6:], {"input_tokens": 7, "details": {"cached": 1}}, id=f"turn-{number}")
            turn = conversation.turn("given up").begin()
            turn.write("grün und " * number + "bl")
            turn.abandon()
            conversation.inbox.put(Message.user(f"Oslo, message {number}", id="m-waiting"))
            if number < 15:
                conversation.compact(lambda window: Message(role="assistant", content=f"a summary of {len(window)}"))


@pytest.fixture(scope="session")
def sound_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("damage") / "sound.db"
    fill(path)
    return path


@pytest.fixture
def damaged_file(sound_file: Path, tmp_path: Path) -> Path:
    """A copy of the file, not damaged yet."""
    path = tmp_path / "damaged.db"
    path.write_bytes(sound_file.read_bytes())
    return path


def _message(number: int, place: int) -> Message:
    if place % 4 == 1:
        call = ToolCall(id=f"call_{place}", name="get_weather", arguments={"city": "Oslo", "day": place})
        return Message(role="assistant", tool_calls=[call], extra={"model": "m", "note": "ü" * place})
    if place % 4 == 2:
        return Message(role="tool", tool_call_id=f"call_{place - 1}", name="get_weather", content={"degrees": place})
    text = f"message {place} of {number}: " + "grün und blau " * (30 if place % 5 == 0 else 2)
    return Message(role="user", content=text, id=f"m-{place}" if place % 2 else None, author="somebody")


def flip(data: bytearray, chance: random.Random) -> None:
    """Flip bits anywhere."""
    for _ in range(chance.choice((1, 2, 8, 40))):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_text(data: bytearray, chance: random.Random) -> None:
    """Turn some bytes of messages and keys into invalid UTF-8, or into other text."""
    for _ in range(chance.choice((1, 3, 10))):
        place = data.find(
            chance.choice((b"gr\xc3", b"Oslo", b"assist", b"+00:00", b"telegram")), chance.randrange(len(data))
        )
        if place >= 0:
            data[place + chance.randrange(4)] = chance.choice((0x80, 0xFF, 0xC3, 0x00, 0x22, 0x5B))


def flip_schema(data: bytearray, chance: random.Random) -> None:
    """Flip bits in the schema of the file."""
    for _ in range(chance.choice((1, 2, 5))):
        data[chance.randrange(PAGE)] ^= 1 << chance.randrange(8)


def cut(data: bytearray, chance: random.Random) -> None:
    """Cut off the end of the file."""
    del data[chance.randrange(len(data)) :]


def lose_pages(data: bytearray, chance: random.Random) -> None:
    """Fill pages with zeros, as a failing disk does; never the first one."""
    for _ in range(chance.choice((1, 2))):
        page = chance.randrange(1, max(len(data) // PAGE, 2))
        data[page * PAGE : (page + 1) * PAGE] = bytes(len(data[page * PAGE : (page + 1) * PAGE]))


def garble_page(data: bytearray, chance: random.Random) -> None:
    """Overwrite a part of a page."""
    page = chance.randrange(1, max(len(data) // PAGE, 2))
    start = page * PAGE + chance.randrange(PAGE)
    end = min(start + chance.choice((8, 100, 1_000)), len(data))
    data[start:end] = chance.randbytes(max(end - start, 0))


DAMAGES: tuple[Damage, ...] = (flip, flip_text, flip_text, flip_schema, cut, lose_pages, garble_page)


@functools.cache
def engine_of(path: Path) -> sa.Engine:
    """Return the same engine for all files at one path, so that statements are compiled once."""
    return create_engine(f"sqlite:///{path}")


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    engine = engine_of(path)
    try:
        with Store(engine) as store:
            yield store
    finally:
        engine.dispose()


def said(sql: str, path: Path, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = bytes
        return connection.execute(sql, values).fetchall()


def leaves_of(table: str, path: Path) -> list[int]:
    """The numbers of the pages that hold a table's rows, the last page first."""
    data = path.read_bytes()
    ((root,),) = said("SELECT rootpage FROM sqlite_master WHERE name = ?", path, table)
    header = data[(root - 1) * PAGE :]
    assert header[0] == 5  # an interior page of a table
    cells = int.from_bytes(header[3:5], "big")
    starts = [int.from_bytes(header[12 + 2 * n : 14 + 2 * n], "big") for n in range(cells)]
    return [int.from_bytes(header[8:12], "big"), *(int.from_bytes(header[s : s + 4], "big") for s in starts)]


def lose(path: Path, *pages: int) -> None:
    data = bytearray(path.read_bytes())
    for page in pages:
        data[(page - 1) * PAGE : page * PAGE] = bytes(PAGE)
    path.write_bytes(data)


def unreadable(found: list[Message | DamagedMessage]) -> list[int]:
    return [each.seq for each in found if isinstance(each, DamagedMessage)]


def reading(store: Store, key: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every method that reads a session."""
    yield "get", lambda: store.get(key)
    yield "info", lambda: store.conversation(key).info()
    yield "exists", lambda: store.exists(key)
    yield "messages", lambda: store.conversation(key).messages()
    yield "messages last", lambda: store.conversation(key).messages(last=3)
    yield "all_messages", lambda: store.conversation(key).all_messages()
    yield "iter_messages", lambda: list(store.conversation(key).iter_messages(page_size=3))
    yield "all_messages with damage", lambda: store.conversation(key).all_messages(damaged="return")
    yield "find_message", lambda: store.conversation(key).find_message("m-3")
    conversation = store._at(key)
    yield "turns", lambda: conversation.turns.list()
    yield "total_usage", lambda: conversation.total_usage()
    yield "compactions", lambda: conversation.turns.list_compactions()
    yield "values", lambda: store.conversation(key).values.get()
    yield "open_turn", lambda: conversation.turns.in_progress()
    yield "drafts", lambda: conversation.drafts.list()
    yield "inbox", lambda: conversation.inbox.list()
    yield "history", lambda: conversation.history(max_tokens=100_000)
    yield "begin_compaction", lambda: conversation.turns.begin_compaction()


def summing_up(store: Store) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every method that reads the whole store."""
    yield "ping", lambda: store.ping()
    yield "list_sessions", lambda: store.list_sessions(limit=3)
    yield "list_sessions of both", lambda: store.list_sessions(expired=None, key_prefix="telegram:")
    yield "count", lambda: store.count(user_id="user 1")
    yield "stats", lambda: store.stats()
    yield "open_turns", lambda: store.turns.list_in_progress().items
    yield "expire", lambda: store.expire(dry_run=True)
    yield "examine", lambda: store.maintenance.examine()


def _run_turn(conversation: Conversation) -> None:
    with conversation.turn("given up") as turn:
        turn.write("Oslo")
        turn.take_inbox()
        turn.append(Message.assistant("Oslo"))


def writing(store: Store, key: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every method that writes to a session."""
    message = Message(role="user", content="still there?", id="m-new")
    conversation = store._at(key)
    yield "append_message", lambda: store.append_message(key, Message(role="user", content="hello"))
    yield "append with an id", lambda: store.append_message(key, message)
    yield "append again", lambda: store.append_message(key, message)
    yield "replace", lambda: store.conversation(key).append_messages([message], replace_after=5)
    yield "update", lambda: store.conversation(key).update(title="another")
    yield "set_values", lambda: store.conversation(key).values.set({"state": 2})
    yield "drop_values", lambda: store.conversation(key).values.delete(["state"])
    yield "touch", lambda: store.touch(key, ttl=timedelta(days=1))
    yield "save_turn", lambda: conversation.save_turn([message], id="turn-new")
    yield "save_turn again", lambda: conversation.save_turn([message], id="turn-new")
    yield "turn", lambda: _run_turn(conversation)
    yield "keep_draft", lambda: [conversation.drafts.keep(draft.id) for draft in conversation.drafts.list()]
    yield "enqueue", lambda: conversation.inbox.put(Message.user("hello", id="m-waiting"))
    yield "fork", lambda: conversation.fork()
    yield "compact", lambda: conversation.compact(lambda window: Message(role="assistant", content="short"))
    yield "edits.update", lambda: store.conversation(key).edits.update(3, message)
    yield "edits.redact", lambda: store.conversation(key).edits.redact("m-new")
    yield "edits.delete", lambda: store.conversation(key).edits.delete(2)
    yield "pop", lambda: store.conversation(key).pop_message()
    yield "truncate", lambda: store.conversation(key).truncate(after=2)
    yield "clear", lambda: store.conversation(key).clear(keep_system=True)
    yield "repair", lambda: store.maintenance.examine(repair=True)
    yield "create", lambda: store.create(messages=[message])
    yield "get_or_create", lambda: store.open(key, renew=True).get()
    yield "delete", lambda: store.delete(key)
    yield "expire", lambda: store.expire(older_than=timedelta(days=3_000))
    yield "delete_where", lambda: store.delete_where(user_id="user 0")


def only_our_errors(what: str, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LangoStoreError as error:
        return error
    except Exception as error:
        raise AssertionError(what) from error
