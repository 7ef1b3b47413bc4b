"""Links to sessions: what they show, until when, and who can list and remove them."""

import hashlib
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.statements import watched

from lango_store import (
    Conversation,
    InvalidCursor,
    InvalidValue,
    Message,
    MessageNotFound,
    NotFound,
    SessionExpired,
    SessionNotFound,
    ShareNotFound,
    Store,
    ToolCall,
)
from lango_store.interchange import export, import_path
from lango_store.interchange.copying import copy
from lango_store.tables import ShareRow
from lango_store.testing import Clock

HOUR = timedelta(hours=1)


def token_of(conversation: Conversation, **options: object) -> str:
    return str(conversation.share(**options).token)  # type: ignore[arg-type]


def works(store: Store, token: str) -> bool:
    try:
        store.shares.document(token)
    except ShareNotFound:
        return False
    return True


@pytest.fixture
def trip(store: Store) -> Conversation:
    """Return a conversation in which each text has a word of its own."""
    trip = store.open("trip", user_id="planted-user", agent_id="planted-agent", title="A trip")
    trip.update(metadata={"note": "planted-metadata"}, settings={"note": "planted-settings"})
    trip.append_messages(
        [
            Message.system("planted-system"),
            Message.user("planted-question", author="planted-author", name="Ann"),
            Message(role="record", content="planted-record"),
        ]
    )
    thinking = {"type": "thinking", "thinking": "planted-thinking"}
    call = ToolCall(id="planted-id", name="planted-tool", arguments={"to": "planted-argument"})
    trip.append_messages(
        [
            Message.assistant([thinking, {"type": "text", "text": "planted-words"}], tool_calls=[call]),
            Message.tool("planted-result", tool_call_id="planted-id"),
            Message.assistant("planted-answer", extra={"note": "planted-extra"}),
        ]
    )
    trip.suspensions.create([(4, 0)], reason="planted-reason")
    trip.values.set({"note": "planted-value"})
    return trip


SPOKEN = {"planted-question", "planted-words", "planted-answer"}
OF_TOOLS = {"planted-thinking", "planted-tool", "planted-id", "planted-argument", "planted-result"}
OTHERS = {"planted-system", "planted-record", "planted-author", "planted-user", "planted-agent", "planted-metadata"}
OTHERS |= {"planted-settings", "planted-extra", "planted-reason", "planted-value"}


def planted(document: str) -> set[str]:
    return {word for word in SPOKEN | OF_TOOLS | OTHERS if word in document}


def test_document_of_a_share_shows_only_what_users_and_assistants_wrote(store: Store, trip: Conversation) -> None:
    document = store.shares.document(token_of(trip))
    assert planted(document) == SPOKEN
    assert "A trip" in document
    assert "Ann" in document
    assert "trip" not in document.replace("A trip", "")


def test_document_of_a_share_with_tools_shows_calls_results_and_thinking(store: Store, trip: Conversation) -> None:
    assert planted(store.shares.document(token_of(trip, tools=True))) == SPOKEN | OF_TOOLS


def test_document_of_a_share_ends_at_its_last_message(store: Store, trip: Conversation) -> None:
    tokens = [token_of(trip, upto=2), token_of(trip), token_of(trip, upto=100)]
    trip.append_message(Message.user("planted-value"))
    assert [planted(store.shares.document(token)) for token in tokens] == [{"planted-question"}, SPOKEN, SPOKEN]
    assert sorted(each.upto for each in trip.shares().items) == [2, 6, 6]


def test_document_of_a_share_has_no_messages_that_replaced_those_it_showed(store: Store, trip: Conversation) -> None:
    token = token_of(trip)
    trip.truncate(after=2)
    trip.append_message(Message.user("planted-value"))
    assert planted(store.shares.document(token)) == {"planted-question"}


def test_document_of_a_share_has_messages_that_an_undo_restores(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[Message.user("planted-question"), Message.assistant("planted-answer")])
    token = token_of(conversation)
    conversation.truncate(after=1)
    assert planted(keeping.shares.document(token)) == {"planted-question"}
    conversation.versions.undo()
    assert planted(keeping.shares.document(token)) == {"planted-question", "planted-answer"}


def test_document_of_a_share_has_no_message_that_was_removed_when_it_was_shared(keeping: Store) -> None:
    conversation = keeping.open("k", messages=[Message.user("planted-question"), Message.assistant("planted-answer")])
    conversation.append_messages([Message.user("planted-words")], replace_after=1)
    token = token_of(conversation)
    conversation.edits.update(1, Message.user("planted-value"))
    for _ in range(2):
        conversation.versions.undo()
    assert [each.content for each in conversation.messages()] == ["planted-question", "planted-answer"]
    assert planted(keeping.shares.document(token)) == {"planted-question"}
    conversation.versions.redo()
    assert planted(keeping.shares.document(token)) == {"planted-question", "planted-words"}


def test_document_of_a_share_has_no_alternative_that_was_set_aside_when_it_was_shared(store: Store) -> None:
    conversation = store.open("k", messages=[Message.user("planted-question"), Message.assistant("planted-answer")])
    conversation.append_messages([Message.assistant("planted-words")], replace_after=1, keep=True)
    token = token_of(conversation)
    first, shown = conversation.alternatives()
    conversation.switch(first.id)
    assert planted(store.shares.document(token)) == {"planted-question"}
    conversation.switch(shown.id)
    assert planted(store.shares.document(token)) == {"planted-question", "planted-words"}


def test_document_of_a_share_shows_edits_and_no_redacted_text(store: Store, trip: Conversation) -> None:
    token = token_of(trip, tools=True)
    trip.edits.redact(2)
    trip.edits.redact(4)
    trip.edits.redact(5)
    trip.edits.update(6, Message.assistant("planted-value"))
    assert planted(store.shares.document(token)) & (SPOKEN | OF_TOOLS) <= {"planted-tool", "planted-id"}
    assert "planted-value" in store.shares.document(token)


def test_document_of_a_share_leaves_summaries_out(store: Store, trip: Conversation) -> None:
    trip.compact(lambda window: Message.assistant("planted-value"))
    trip.compact(lambda window: Message.assistant("planted-value"))
    assert planted(store.shares.document(token_of(trip, tools=True))) == SPOKEN | OF_TOOLS


def test_share_of_an_empty_session_shows_nothing_later(store: Store) -> None:
    conversation = store.open("empty")
    share = conversation.share()
    conversation.append_message(Message.user("later"))
    assert share.upto == 0
    assert "later" not in store.shares.document(str(share.token))
    assert "Conversation" in store.shares.document(str(share.token))


def test_share_ends_at_until(store: Store, clock: Clock, trip: Conversation) -> None:
    token = token_of(trip, until=clock() + HOUR)
    assert works(store, token)
    clock.move(hours=1)
    assert not works(store, token)
    assert len(trip.shares().items) == 1
    trip.share()
    assert [each.until for each in trip.shares().items] == [None]


@pytest.mark.parametrize("until", [datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1)])
def test_share_refuses_a_time_that_has_passed_or_has_no_zone(trip: Conversation, until: datetime) -> None:
    with pytest.raises(ValueError, match="until"):
        trip.share(until=until)
    assert trip.shares().items == []


def test_share_refuses_invalid_arguments(store: Store, trip: Conversation) -> None:
    with pytest.raises(ValueError, match="upto"):
        trip.share(upto=-1)
    with pytest.raises(InvalidValue):
        trip.share(by="a\0b")
    for call in (trip.share, trip.unshare, trip.shares):
        store.delete("trip")
        with pytest.raises(SessionNotFound):
            call()


def test_share_of_a_deleted_or_expired_session_is_not_found(store: Store, clock: Clock, trip: Conversation) -> None:
    token = token_of(trip)
    store.touch("trip", ttl=HOUR)
    clock.move(hours=2)
    assert not works(store, token)
    with pytest.raises(SessionExpired):
        trip.share()
    store.touch("trip")
    assert works(store, token)
    store.delete("trip")
    store.create("trip")
    assert not works(store, token)


def test_unshare_removes_one_share_or_all_of_the_session(store: Store, trip: Conversation) -> None:
    other = store.open("other")
    shares = [trip.share() for _ in range(3)]
    kept = token_of(other)
    assert (trip.unshare(shares[1].id), trip.unshare(shares[1].id), other.unshare(shares[0].id)) == (1, 0, 0)
    assert [works(store, str(each.token)) for each in shares] == [True, False, True]
    assert (trip.unshare(), trip.unshare()) == (2, 0)
    assert [works(store, str(each.token)) for each in shares] == [False] * 3
    assert works(store, kept)


def test_shares_are_listed_in_pages_without_tokens(store: Store, clock: Clock) -> None:
    created = []
    for key, user in (("a", "ann"), ("b", "bob"), ("a", "ann")):
        created.append(store.open(key, user_id=user).share(by=user))
        clock.move(seconds=1)
    hidden = [each.model_copy(update={"token": None}) for each in created]
    first = store.shares.list(limit=2)
    assert [*first.items, *store.shares.list(limit=2, cursor=first.next).items] == hidden
    assert store.shares.list(user_id="ann").items == [hidden[0], hidden[2]]
    one = store.conversation("a").shares(limit=1)
    assert [*one.items, *store.conversation("a").shares(cursor=one.next).items] == [hidden[0], hidden[2]]
    with pytest.raises(InvalidCursor):
        store.shares.list(cursor=store.list_sessions(limit=1).next)
    with pytest.raises(ValueError, match="limit"):
        store.shares.list(limit=0)


def test_shares_created_at_the_same_time_are_each_listed_once(store: Store, clock: Clock) -> None:
    created = {store.open(key).share().id for key in ("a", "b", "a", "b", "c")}
    listed, cursor = [], None
    while True:
        page = store.shares.list(limit=1, cursor=cursor)
        listed += [each.id for each in page.items]
        if (cursor := page.next) is None:
            break
    assert (len(listed), {*listed}) == (5, created)


HOSTILE = ["", "a", "\0", "a" * 42 + "\0", "a" * 43, "a" * 43 + "=", "a" * 43 + "\n", "é" * 43, "\ud800" * 43]
HOSTILE += ["a" * 43 + "\ud800", "a" * 10_000_000, "../" * 15, "%00" * 14 + "a", "' OR 1=1 --" + "a" * 32]


@pytest.mark.parametrize("token", HOSTILE, ids=range(len(HOSTILE)))
def test_text_that_is_no_token_is_not_found(store: Store, trip: Conversation, token: str) -> None:
    trip.share()
    with pytest.raises(ShareNotFound) as caught:
        store.shares.document(token)
    with pytest.raises(ShareNotFound) as other:
        store.shares.document("b" * 43)
    assert str(caught.value) == str(other.value)
    assert isinstance(caught.value, NotFound)


def test_token_with_another_case_or_padding_is_not_found(store: Store, trip: Conversation) -> None:
    token = token_of(trip)
    assert [works(store, each) for each in (token, token.swapcase(), f"{token}=", token[:-1])] == [True] + [False] * 3


def test_database_and_backup_have_the_digest_of_a_token_only(store: Store, trip: Conversation, tmp_path: Path) -> None:
    token = token_of(trip)
    with store.engine.connect() as connection:
        stored = str(connection.execute(sa.select(ShareRow.__table__)).all())
    (done,) = export(store, tmp_path, "backup", everything=True)
    for text in (stored, Path(str(done.path)).read_text()):
        assert hashlib.sha256(token.encode()).hexdigest() in text
        assert token not in text
    assert token not in repr(trip.shares())
    assert token not in repr(trip.share())


def test_shares_are_in_backups_copies_and_archives_but_not_in_forks(
    store: Store, make_database: object, trip: Conversation, tmp_path: Path
) -> None:
    token = token_of(trip)
    (done,) = export(store, tmp_path, "backup", everything=True)
    trip.fork("fork")
    assert store.conversation("fork").shares().items == []
    copied, restored = (make_database() for _ in range(2))  # type: ignore[operator]
    with Store(copied) as target:
        copy(store, target)
        assert works(target, token)
        assert target.conversation("fork").shares().items == []
    with Store(restored) as target:
        import_path(target, Path(str(done.path)))
        assert works(target, token)
    store.expire(created_before=datetime(2100, 1, 1, tzinfo=UTC), archive=tmp_path / "cold.db")
    assert not works(store, token)
    store.restore("trip", tmp_path / "cold.db")
    assert works(store, token)


def test_store_for_one_user_reaches_only_shares_of_this_user(store: Store, trip: Conversation) -> None:
    token, own = token_of(trip), store.for_user("bob")
    mine = token_of(own.open("bobs"))
    assert works(own, mine)
    assert not works(own, token)
    assert works(store.for_user("planted-user"), token)
    assert [each.key for each in own.shares.list().items] == ["bobs"]
    for call in (own.conversation("trip").share, own.conversation("trip").unshare, own.conversation("trip").shares):
        with pytest.raises(SessionNotFound):
            call()
    assert works(store, token)


def test_erase_deletes_shares_and_names_of_those_who_shared(store: Store, trip: Conversation) -> None:
    token = token_of(trip)
    other = store.open("other", user_id="bob").share(by="planted-user")
    receipt = store.erase("planted-user", authors=True)
    assert receipt.erased["store"]["lango_share"] == 1
    assert receipt.redacted == {"store": {"lango_share": 1}}
    assert not works(store, token)
    assert [(each.id, each.shared_by) for each in store.shares.list().items] == [(other.id, None)]


def test_share_changes_neither_revision_nor_activity(store: Store, clock: Clock, trip: Conversation) -> None:
    before = trip.info()
    clock.move(hours=1)
    trip.share()
    trip.unshare()
    assert trip.info() == before


def test_append_and_load_of_a_shared_session_send_the_same_statements(store: Store, trip: Conversation) -> None:
    sent = []
    for _ in range(2):
        with watched(store.engine) as statements:
            store.append_message("trip", Message.user("again"))
            trip.get()
        sent.append([re.sub(r"\d+", "n", each) for each in statements])
        trip.share()
    assert sent[0] == sent[1]
    assert "lango_share" not in str(sent)


def test_redaction_of_a_missing_message_changes_no_share(trip: Conversation) -> None:
    trip.share()
    with pytest.raises(MessageNotFound):
        trip.edits.redact(100)
    assert len(trip.shares().items) == 1
