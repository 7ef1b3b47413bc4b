"""Drafts: the pieces of an answer that a turn streams, until the answer is in the log."""

from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from support.databases import MakeDatabase, not_on_a_cluster
from support.factories import contents, message, messages, summary
from support.searches import found
from support.statements import watched

from lango_store import (
    Conflict,
    Conversation,
    Draft,
    DraftNotFound,
    InvalidMessage,
    LangoStoreError,
    Message,
    RunningTurn,
    SessionNotFound,
    Store,
    ToolCall,
    TurnInProgress,
    create_engine,
    interchange,
    schema,
)
from lango_store.tables import Base
from lango_store.testing import Clock

AT_ONCE = timedelta(0)
AT_THE_END = timedelta(hours=1)
"""Only the first piece is stored at once."""


def begun(conversation: Conversation, id: str = "t", *pieces: str) -> RunningTurn:
    """Begin a turn that streams these pieces, and that a process never ends."""
    turn = conversation.turn(id, flush=AT_ONCE).__enter__()
    for piece in pieces:
        turn.write(piece)
    return turn


def fail(conversation: Conversation, id: str, *pieces: str) -> Draft:
    """Stream these pieces in an attempt of a turn that fails; return its draft."""
    before = {draft.id for draft in conversation.drafts.list()}
    with suppress(ZeroDivisionError), conversation.turn(id) as turn:
        for piece in pieces:
            turn.write(piece)
        raise ZeroDivisionError
    (draft,) = [each for each in conversation.drafts.list() if each.id not in before]
    return draft


def texts(conversation: Conversation) -> list[str]:
    return [draft.text for draft in conversation.drafts.list()]


# Write


def test_drafts_lists_the_text_that_a_turn_has_streamed(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    with conversation.turn("t", flush=AT_ONCE) as turn:
        assert (turn.draft_text, conversation.drafts.list()) == ("", [])
        turn.write("Hel")
        first = clock.time
        clock.move(seconds=1)
        turn.write("lo")
        (draft,) = conversation.drafts.list()
        assert (draft.turn_id, draft.text, turn.draft_text) == ("t", "Hello", "Hello")
        assert (draft.created_at, draft.updated_at) == (first, clock.time)
        open_turn = conversation.turns.in_progress()
        assert open_turn is not None
        assert open_turn.draft_id == draft.id
    assert conversation.drafts.list() == []


def test_pieces_after_the_first_are_collected_until_flush(either_store: Store) -> None:
    conversation = either_store.open("k")
    with conversation.turn("t", flush=AT_THE_END) as turn:
        turn.write("first")
        assert texts(conversation) == ["first"]
        turn.write(" second")
        turn.write(" third")
        assert (turn.draft_text, texts(conversation)) == ("first second third", ["first"])
        turn.flush()
        assert texts(conversation) == ["first second third"]
        turn.flush()
        turn.write(" fourth")
        assert texts(conversation) == ["first second third"]


def test_collected_pieces_are_stored_after_the_flush_interval(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t", flush=timedelta(milliseconds=30)) as turn:
        turn.write("0")
        pieces = 1
        while texts(conversation) == ["0"]:  # for 30 ms
            turn.write(f" {pieces}")
            pieces += 1
            assert pieces < 100_000
        assert texts(conversation) == [turn.draft_text]


def test_flush_of_zero_stores_each_piece_although_no_time_passes(
    either_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lango_store._rooms.turns_in_progress.running_turn.monotonic", lambda: 100.0)
    conversation = either_store.open("k")
    with conversation.turn("t", flush=AT_ONCE) as turn:
        for text in ("a", "ab"):
            turn.write(text[-1])
            assert [each.text for each in conversation.drafts.list()] == [text]


def test_append_of_the_answer_deletes_the_draft(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t", flush=AT_THE_END) as turn:
        turn.write("first ")
        turn.write("answer")
        turn.append(message("a question", role="user"))
        turn.append(message("a result", role="tool"))
        assert (turn.draft_text, texts(conversation)) == ("first answer", ["first "])
        turn.append(message(turn.draft_text, role="assistant"))
        assert (turn.draft_text, conversation.drafts.list()) == ("", [])
        turn.write("second")
        assert (turn.draft_text, texts(conversation)) == ("second", ["second"])
        turn.append_messages([message("second", role="model"), message("result", role="tool")])
        assert (turn.draft_text, conversation.drafts.list()) == ("", [])
    assert conversation.info().message_count == 5


def test_append_of_an_answer_that_an_earlier_attempt_stored_deletes_the_draft(store: Store) -> None:
    conversation = store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("t") as turn:
        turn.append(message("answer", role="assistant"))
        raise ZeroDivisionError
    with conversation.turn("t") as turn:
        turn.write("answer")
        assert turn.append(message("answer", role="assistant")).replayed
        assert (turn.draft_text, conversation.drafts.list()) == ("", [])


def test_append_of_an_invalid_answer_keeps_the_draft(store: Store) -> None:
    conversation = store.open("k")
    with conversation.turn("t") as turn:
        turn.write("piece")
        with pytest.raises(InvalidMessage):
            turn.append(message(object(), role="assistant"))
        assert (turn.draft_text, texts(conversation)) == ("piece", ["piece"])


@pytest.mark.parametrize("pieces", [[""], ["", ""], []])
def test_empty_pieces_are_not_stored(either_store: Store, pieces: list[str]) -> None:
    conversation = either_store.open("k")
    with conversation.turn("t", flush=AT_ONCE) as turn:
        for piece in pieces:
            turn.write(piece)
        turn.flush()
        assert (turn.interrupt(), conversation.drafts.list()) == (None, [])


@pytest.mark.parametrize(
    "pieces",
    [
        ["a\0", "\0b"],
        ["\ud800", "x"],
        ["\udfff\ud800"],
        ["\ud83d", "\ude00"],
        ["x\ud83d", "", "\ude00\ud83d", "\ude00"],
        ["ä", "\u2028", "\ufffe", "👩\u200d", "🚀"],
        ["x" * 1_000_000, "🚀" * 250_000],
    ],
)
@pytest.mark.parametrize("flush", [AT_ONCE, AT_THE_END])
def test_turn_write_accepts_any_text(store: Store, pieces: list[str], flush: timedelta) -> None:
    text = "".join(pieces).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    conversation = store.open("k")
    with suppress(ZeroDivisionError), conversation.turn("t", flush=flush) as turn:
        for piece in pieces:
            turn.write(piece)
        assert turn.draft_text == text
        raise ZeroDivisionError
    (draft,) = conversation.drafts.list()
    assert draft.text == text
    assert conversation.drafts.keep(draft.id).content == text
    with conversation.turn("t", flush=flush) as turn:
        for piece in pieces:
            turn.write(piece)
        interrupted = turn.interrupt()
        assert interrupted is not None
        assert interrupted.content == text
    assert contents(conversation.messages()) == [text, text]


@pytest.mark.slow
@given(pieces=st.lists(st.text(st.characters(exclude_categories=())), min_size=1), data=st.data())
def test_draft_is_the_concatenation_of_all_written_pieces(store: Store, pieces: list[str], data: st.DataObject) -> None:
    store.delete("k")
    conversation = store.open("k")
    with conversation.turn("t", flush=AT_THE_END) as turn:
        for piece in pieces:
            turn.write(piece)
            if data.draw(st.booleans()):
                turn.flush()
        turn.flush()
        assert "".join(texts(conversation)) == turn.draft_text


def test_draft_of_a_failed_attempt_stays(store: Store) -> None:
    conversation = store.open("k")
    first = fail(conversation, "t", "first ", "attempt")
    second = fail(conversation, "t", "second")
    other = fail(conversation, "other", "third")
    assert [(each.turn_id, each.text) for each in conversation.drafts.list()] == [
        ("t", "first attempt"),
        ("t", "second"),
        ("other", "third"),
    ]
    assert len({first.id, second.id, other.id}) == 3


def test_saving_a_turn_deletes_the_drafts_of_all_attempts_of_the_turn(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    fail(conversation, "t", "first")
    fail(conversation, "other", "of another turn")
    begun(conversation, "t", "of a process that died")
    clock.move(minutes=2)
    with conversation.turn("t") as turn:
        turn.write("last")
        assert texts(conversation) == ["first", "of another turn", "of a process that died", "last"]
    assert texts(conversation) == ["of another turn"]


def test_draft_of_a_turn_stays_after_another_turn_took_over_the_lease(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    begun(conversation, "t1", "of the old holder")
    clock.move(minutes=2)
    with conversation.turn("t2") as turn:
        turn.write("new")
        turn.append(message("new", role="assistant"))
    assert [(each.turn_id, each.text) for each in conversation.drafts.list()] == [("t1", "of the old holder")]


# Interrupt


def test_interrupt_appends_the_draft_as_an_interrupted_answer(either_store: Store) -> None:
    conversation = either_store.open("k")
    with conversation.turn("t", flush=AT_THE_END) as turn:
        turn.append(message("question"))
        turn.write("Once upon ")
        turn.write("a time")
        answer = turn.interrupt()
        assert answer is not None
        assert (answer.role, answer.content, answer.extra) == ("assistant", "Once upon a time", {"interrupted": True})
        assert (turn.draft_text, conversation.drafts.list(), turn.interrupt()) == ("", [], None)
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["question", "Once upon a time"]


# Keep and drop


def test_keep_draft_appends_the_draft_as_an_interrupted_answer(store: Store, clock: Clock) -> None:
    conversation = store.open("k", messages=[message("question")])
    draft = fail(conversation, "t", "Once upon ", "a time")
    clock.move(seconds=1)
    answer = conversation.drafts.keep(draft.id)
    assert (answer.role, answer.content, answer.extra) == ("assistant", "Once upon a time", {"interrupted": True})
    assert (answer.seq, answer.turn_no, answer.created_at, answer.replayed) == (2, None, clock.time, False)
    assert conversation.messages()[-1] == answer
    assert conversation.drafts.list() == []


def test_token_counter_counts_the_tokens_of_a_kept_draft(url: str) -> None:
    with Store(url, token_counter=lambda each: len(str(each.content))) as store:
        conversation = store.open("k")
        assert conversation.drafts.keep(fail(conversation, "t", "four").id).tokens == 4
        assert conversation.info().token_count == 4


def test_second_keep_draft_returns_the_stored_message(store: Store) -> None:
    conversation = store.open("k")
    draft = fail(conversation, "t", "text")
    first = conversation.drafts.keep(draft.id)
    again = conversation.drafts.keep(draft.id)
    assert again == first.model_copy(update={"replayed": True})
    assert contents(conversation.messages()) == ["text"]
    assert not conversation.drafts.delete(draft.id)


def test_drop_draft_deletes_one_draft(store: Store) -> None:
    conversation = store.open("k")
    draft = fail(conversation, "t", "first")
    fail(conversation, "t", "second")
    before = conversation.info()
    assert conversation.drafts.delete(draft.id)
    assert not conversation.drafts.delete(draft.id)
    assert texts(conversation) == ["second"]
    assert conversation.info() == before


@pytest.mark.parametrize("method", ["keep", "delete"])
def test_draft_of_a_running_turn_can_be_neither_kept_nor_dropped(store: Store, clock: Clock, method: str) -> None:
    conversation = store.open("k")
    begun(conversation, "t", "text")
    (draft,) = conversation.drafts.list()
    with pytest.raises(TurnInProgress) as raised:
        getattr(conversation.drafts, method)(draft.id)
    assert (raised.value.key, raised.value.turn_id) == ("k", "t")
    assert raised.value.until == clock.time + timedelta(minutes=2)
    assert (texts(conversation), conversation.messages()) == (["text"], [])
    clock.move(minutes=2)
    assert getattr(conversation.drafts, method)(draft.id)
    assert conversation.drafts.list() == []


def test_draft_of_an_earlier_attempt_can_be_kept_or_dropped_while_the_turn_runs(store: Store) -> None:
    conversation = store.open("k")
    draft = fail(conversation, "t", "first")
    dropped = fail(conversation, "t", "dropped")
    with conversation.turn("t") as turn:
        turn.write("second")
        kept = conversation.drafts.keep(draft.id)
        assert conversation.drafts.delete(dropped.id)
        turn.append(message("second", role="assistant"))
    assert kept.seq == 1
    assert turn.stored is not None
    assert contents(turn.stored.messages) == ["second"]


def test_turn_whose_draft_was_kept_can_still_append_the_whole_answer(store: Store, clock: Clock) -> None:
    conversation = store.open("k")
    turn = begun(conversation, "t", "first ")
    (draft,) = conversation.drafts.list()
    clock.move(minutes=2)
    conversation.drafts.keep(draft.id)
    turn.write("second")
    turn.append(message(turn.draft_text, role="assistant"))
    turn.save()
    assert contents(conversation.messages()) == ["first ", "first second"]
    assert conversation.drafts.list() == []


def test_keep_draft_refuses_a_draft_that_does_not_exist(store: Store) -> None:
    conversation = store.open("k")
    saved = fail(conversation, "t", "text")
    with conversation.turn("t"):
        pass
    for id in (saved.id, "0" * 16):
        with pytest.raises(DraftNotFound, match=r"has no draft .*drafts\.list\(\)"):
            conversation.drafts.keep(id)
        assert not conversation.drafts.delete(id)
    assert conversation.messages() == []


@pytest.mark.parametrize("id", ["", "t", "0x1", " 1", "-1", "1_0", "f" * 16, "F" * 15 + "1", "f" * 40, "\0", 17, None])
@pytest.mark.parametrize("method", ["keep", "delete"])
def test_invalid_draft_id_is_refused(store: Store, method: str, id: Any) -> None:
    conversation = store.open("k")
    with pytest.raises(ValueError, match=r"id=.*Draft\.id"):
        getattr(conversation.drafts, method)(id)


def test_drop_draft_refuses_alternative_spellings_of_the_id_of_a_running_draft(store: Store) -> None:
    conversation = store.open("k")
    begun(conversation, "t", "text")
    (draft,) = conversation.drafts.list()
    for id in (f"0x{draft.id}", f" {draft.id}", f"0{draft.id}"):
        with pytest.raises(ValueError, match=r"Draft\.id"):
            conversation.drafts.delete(id)
    assert texts(conversation) == ["text"]


def test_draft_methods_raise_session_not_found_for_a_missing_session(store: Store) -> None:
    conversation = store.conversation("k")
    calls: list[Callable[[], object]] = [
        conversation.drafts.list,
        lambda: conversation.drafts.keep("0" * 16),
        lambda: conversation.drafts.delete("0" * 16),
    ]
    for call in calls:
        with pytest.raises(SessionNotFound):
            call()


def test_keep_draft_and_drop_draft_are_rolled_back_with_the_callers_transaction(store: Store) -> None:
    conversation = store.open("k")
    kept, dropped = fail(conversation, "t", "kept"), fail(conversation, "t", "dropped")
    with store.engine.connect() as connection:
        inside = store.using(connection).conversation("k")
        inside.drafts.keep(kept.id)
        inside.drafts.delete(dropped.id)
        assert inside.drafts.list() == []
        connection.rollback()
    assert texts(conversation) == ["kept", "dropped"]
    assert conversation.messages() == []


# Outside of the log


def test_draft_is_not_in_the_window_the_counters_or_exports_to_other_systems(store: Store, tmp_path: Path) -> None:
    conversation = store.open("k", messages=[message("question")])
    with conversation.turn("t") as turn:
        turn.write("oak")
        assert contents(conversation.messages()) == contents(conversation.all_messages()) == ["question"]
        assert [each["content"] for each in conversation.history()] == ["question"]
        assert contents(conversation.get().messages) == ["question"]
        assert [each.message_count for each in store.list_sessions().items] == [1]
        for name in interchange.writable():
            if name not in ("backup", "openai"):  # backups contain drafts, and files for fine-tuning need an answer
                (report,) = interchange.export(store, tmp_path / name, name, keys=["k"])
                assert report.path is not None
                exported = Path(report.path).read_bytes()
                assert b"question" in exported
                assert b"oak" not in exported


@pytest.mark.slow
@not_on_a_cluster("a search index is refused on distributed tables")
def test_search_finds_neither_drafts_nor_inbox_messages(store: Store, url: str) -> None:
    schema.enable_search(url)
    conversation = store.open("k", messages=[message("oak")])
    draft = fail(conversation, "t", "oak")
    conversation.inbox.put(message("oak"))
    assert found(store, "oak") == [("k", 1)]
    conversation.drafts.keep(draft.id)
    with conversation.turn("t") as turn:
        turn.take_inbox()
    assert found(store, "oak") == [("k", 1), ("k", 2), ("k", 3)]


@pytest.mark.parametrize("method", ["clear", "truncate", "compact", "discard"])
def test_cuts_and_compactions_do_not_change_drafts_and_inbox(store: Store, method: str) -> None:
    conversation = store.open("k", messages=messages(2))
    fail(conversation, "t", "text")
    conversation.inbox.put(message("waiting"))
    match method:
        case "clear":
            conversation.clear()
        case "truncate":
            conversation.truncate(after=0)
        case _:
            conversation.compact(lambda window: summary(), discard=method == "discard")
    assert texts(conversation) == ["text"]
    assert contents(conversation.inbox.list()) == ["waiting"]


@pytest.mark.parametrize("method", ["delete", "delete_where", "expire", "expire into archive", "replace"])
def test_deleting_purging_or_renewing_a_session_deletes_drafts_and_inbox(
    store: Store, clock: Clock, tmp_path: Any, method: str
) -> None:
    conversation = store.open("k", ttl=timedelta(hours=1))
    store.open("other").inbox.put(message("stays"))
    fail(conversation, "t", "text")
    conversation.inbox.put(message("waiting"))
    match method:
        case "delete":
            store.delete("k")
        case "delete_where":
            store.delete_where(key_prefix="k")
        case "expire" | "expire into archive":
            clock.move(hours=1)
            store.expire(archive=tmp_path / "cold.db" if method != "expire" else None)
        case _:
            clock.move(hours=1)
            store.open("k", renew=True)
    with store.engine.connect() as connection:
        for name in ("lango_draft", "lango_inbox"):
            table = Base.metadata.tables[name]
            keys = connection.execute(sa.select(table.c.session_key)).scalars().all()
            assert keys == ([] if name == "lango_draft" else ["other"])


# Durability: storing a piece does not wait for the disk


def synced(url: str) -> sa.URL:
    """Return the URL with commits that wait for the disk, which those of the tests on PostgreSQL do not."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "sqlite":
        return parsed
    return parsed.update_query_dict({"options": "-csynchronous_commit=on"})


def test_storing_a_piece_does_not_wait_for_the_disk(make_postgres: MakeDatabase) -> None:
    with Store(synced(make_postgres())) as store:
        conversation = store.open("k")
        with store.engine.begin() as connection:
            for statement in (
                "CREATE TABLE levels (level text, name text)",
                "CREATE FUNCTION note_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                "INSERT INTO levels VALUES (current_setting('synchronous_commit'), TG_TABLE_NAME); RETURN NULL; END $$",
                "CREATE TRIGGER noting AFTER INSERT ON lango_draft FOR EACH ROW EXECUTE FUNCTION note_level()",
                "CREATE TRIGGER noting AFTER INSERT ON lango_message FOR EACH ROW EXECUTE FUNCTION note_level()",
            ):
                connection.exec_driver_sql(statement)
        with conversation.turn("t") as turn:
            turn.write("piece")
            turn.append(message("answer", role="assistant"))
        with store.engine.connect() as connection:
            levels = connection.exec_driver_sql("SELECT level, name FROM levels").all()
            assert levels == [("off", "lango_draft"), ("on", "lango_message")]


LEVELS = {"sqlite": "PRAGMA synchronous", "postgresql": "SHOW synchronous_commit"}
SYNCED = {"sqlite": 2, "postgresql": "on"}


def level(engine: sa.Engine) -> Any:
    with engine.connect() as connection:
        return connection.exec_driver_sql(LEVELS[engine.dialect.name]).scalar_one()


@pytest.mark.parametrize("error", [None, Conflict, KeyboardInterrupt, "statement"])
def test_durability_of_a_connection_is_restored_after_storing_a_piece(url: str, error: Any) -> None:
    engine = create_engine(synced(url), pool_size=1, max_overflow=0)
    raising: list[type[BaseException]] = []

    def observe(text: str, _: float) -> None:
        if "lango_draft" in text and raising:
            raise raising.pop()

    with Store(engine, on_statement=observe) as store:
        conversation = store.open("k")
        turn = conversation.turn("t", flush=AT_ONCE).begin()
        assert level(engine) == SYNCED[engine.dialect.name]
        if error is None:
            turn.write("piece")
        elif error is Conflict:
            conversation.turns.release()
            with pytest.raises(Conflict):
                turn.write("piece")
        elif error is KeyboardInterrupt:
            raising.append(KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt):
                turn.write("piece")
        else:
            with engine.begin() as connection:
                connection.exec_driver_sql("ALTER TABLE lango_draft RENAME TO elsewhere")
            with pytest.raises(LangoStoreError):
                turn.write("piece")
        assert level(engine) == SYNCED[engine.dialect.name]
    engine.dispose()


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_storing_a_piece_lowers_durability_only_for_its_transaction(make_sqlite: MakeDatabase, before: int) -> None:
    engine = create_engine(make_sqlite(), pool_size=1, max_overflow=0)
    with watched(engine) as statements, Store(engine) as store, store.open("k").turn(flush=AT_ONCE) as turn:
        with engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            driver.execute(f"PRAGMA synchronous = {before}")
        statements.clear()
        turn.write("piece")
        names = ("PRAGMA synchronous =", "BEGIN", "INSERT INTO lango_draft", "COMMIT")
        sent = [each for each in statements if each.startswith(names)]
        begin, insert, commit = [each for each in sent if not each.startswith("PRAGMA")]
        assert (begin, insert[:23], commit) == ("BEGIN IMMEDIATE", "INSERT INTO lango_draft", "COMMIT")
        lowered = ["PRAGMA synchronous = 1", begin, insert, commit, f"PRAGMA synchronous = {before}"]
        assert sent == (lowered if before > 1 else [begin, insert, commit])
        assert level(engine) == before
    engine.dispose()


# History


def answers(conversation: Conversation, **options: Any) -> list[tuple[str, str]]:
    return [(each["role"], each["content"]) for each in conversation.history(**options)]


INTERRUPTED = ("user", "(The answer was interrupted.)")


def interrupted(text: str = "half", **fields: Any) -> Message:
    return Message.assistant(text, extra={"interrupted": True}, **fields)


def test_history_adds_a_note_after_an_interrupted_answer_at_the_end(store: Store) -> None:
    conversation = store.open("k", messages=[message("question")])
    conversation.drafts.keep(fail(conversation, "t", "half").id)
    assert answers(conversation) == [("user", "question"), ("assistant", "half"), INTERRUPTED]
    assert answers(conversation, unanswered="keep") == [("user", "question"), ("assistant", "half")]
    assert answers(conversation, last=2) == [("user", "question"), ("assistant", "half"), INTERRUPTED]
    assert conversation.info().message_count == 2
    conversation.append_message(message("next"))
    assert answers(conversation) == [("user", "question"), ("assistant", "half"), ("user", "next")]


def test_history_adds_a_note_between_an_interrupted_answer_and_the_next_answer(store: Store) -> None:
    conversation = store.open("k", messages=[message("question"), interrupted("a"), interrupted("b")])
    conversation.append_message(message("c", role="assistant"))
    assert answers(conversation) == [
        ("user", "question"),
        ("assistant", "a"),
        INTERRUPTED,
        ("assistant", "b"),
        INTERRUPTED,
        ("assistant", "c"),
    ]


def test_history_adds_no_note_if_a_record_and_a_user_message_follow_the_interrupted_answer(store: Store) -> None:
    conversation = store.open("k", messages=[message("q"), interrupted(), message("note", role="record"), message()])
    assert answers(conversation) == [("user", "q"), ("assistant", "half"), ("user", "hello")]


@pytest.mark.parametrize("role", ["assistant", "model"])
def test_history_adds_a_note_after_interrupted_messages_of_the_roles_assistant_and_model(
    store: Store, role: str
) -> None:
    conversation = store.open("k", messages=[message("q"), message("half", role=role, extra={"interrupted": True})])
    assert answers(conversation)[-1] == INTERRUPTED


@pytest.mark.parametrize(
    "last",
    [
        message("half", role="assistant", extra={"interrupted": False}),
        message("half", role="assistant", extra={"interrupted": "yes"}),
        message("half", role="user", extra={"interrupted": True}),
        message("half", role="system", extra={"interrupted": True}),
    ],
)
def test_history_adds_no_note_after_a_message_that_is_not_an_interrupted_answer(store: Store, last: Message) -> None:
    conversation = store.open("k", messages=[message("q"), last])
    assert INTERRUPTED not in answers(conversation)


def test_history_adds_a_result_for_each_call_of_an_interrupted_answer(store: Store) -> None:
    calls = interrupted(tool_calls=[ToolCall(id="c", name="f", arguments={})])
    conversation = store.open("k", messages=[message("q"), calls])
    assert [each["role"] for each in conversation.history()] == ["user", "assistant", "tool"]
