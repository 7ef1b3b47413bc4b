"""Stores with one fault each, and the checks that find it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from lango_store import Conversation, Message, Store, window


def with_verbs(**verbs: Callable[..., Any]) -> type[Store]:
    """Make a store with some of its verbs replaced."""
    return type("Faulty", (Store,), verbs)


def with_handle(**verbs: Callable[..., Any]) -> type[Store]:
    """Make a store whose handles have some of their verbs replaced."""
    handle = type("FaultyHandle", (Conversation,), {"__slots__": (), **verbs})

    def opened(self: Store, key: str, **options: Any) -> Any:
        Store.open(self, key, **options)
        return handle(self.access, key)

    return with_verbs(open=opened, conversation=lambda self, key: handle(self.access, key))


def drops_a_field(self: Store, key: str, **options: Any) -> Any:
    return Store.get(self, key, **options).model_copy(update={"metadata": {}, "expires_at": None})


def creates_what_is_there(self: Store, key: str | None = None, **options: Any) -> Any:
    options.pop("values", None)
    return Store.get_or_create(self, "always the same" if key is None else key, **options)


def creates_under_another_key(self: Store, key: str | None = None, **options: Any) -> Any:
    return Store.create(self, None if key is None else key.replace("\0", "") or None, **options)


def makes_anew(self: Store, key: str, **options: Any) -> Any:
    Store.delete(self, key)
    return Store.create(self, key, **options)


def appends_to_nothing(self: Store, key: str, message: Message, **options: Any) -> Any:
    return Store.append_message(self, key, message, **options | {"create": True})


def appends_one_by_one(self: Store, key: str, messages: list[Message], **options: Any) -> Any:
    return [Store.append_message(self, key, message, **options) for message in messages]


def appends_backwards(self: Store, key: str, messages: list[Message], **options: Any) -> Any:
    return Store.append_messages(self, key, messages[::-1], **options)[::-1]


def appends_without(*names: str) -> Callable[..., Any]:
    def append(self: Store, key: str, message: Message, **options: Any) -> Any:
        kept = {name: value for name, value in options.items() if name not in names}
        left = {name: None for name in names if name in Message.model_fields}
        return Store.append_message(self, key, message.model_copy(update=left), **kept)

    return append


def appends_in_two_steps(self: Store, key: str, message: Message, **options: Any) -> Any:
    for scope, values in (options.pop("values", None) or {}).items():
        Store.set_values(self, scope, values)
    if changes := options.pop("set", None):
        Store.update(self, key, **changes)
    return Store.append_message(self, key, message, **options)


def appends_and_changes_fields(self: Store, key: str, messages: list[Message], **options: Any) -> Any:
    stored = Store.append_messages(self, key, messages, **options)
    Store.update(self, key, title=options.get("title"))
    return stored


def cuts_before_it_looks(self: Store, key: str, messages: list[Message], **options: Any) -> Any:
    if (after := options.pop("replace_after", None)) is not None:
        Store.truncate(self, key, after=after)
    return Store.append_messages(self, key, messages, **options)


def rounds_numbers(self: Store, key: str, messages: list[Message], **options: Any) -> Any:
    rounded = [m.model_copy(update={"content": 1}) if m.content is True else m for m in messages]
    return Store.append_messages(self, key, rounded, **options)


def counts_seq_anew(self: Store, key: str, message: Message, **options: Any) -> Any:
    stored = Store.append_message(self, key, message, **options)
    return stored.model_copy(update={"seq": len(Store.all_messages(self, key))})


def loses_some() -> Callable[..., Any]:
    numbers = itertools.count(1)

    def append(self: Store, key: str, message: Message, **options: Any) -> Any:
        return Store.append_message(self, key, message, **options) if next(numbers) % 7 else message

    return append


def loses_the_last(self: Store, key: str, messages: list[Message], **options: Any) -> Any:
    return Store.append_messages(self, key, messages[:3], **options)


def shows_what_it_showed() -> Callable[..., Any]:
    shown: dict[str, Any] = {}

    def get(self: Store, key: str, **options: Any) -> Any:
        return shown.setdefault(key, Store.get(self, key, **options))

    return get


def touches_what_it_reads(self: Store, key: str, **options: Any) -> Any:
    Store.touch(self, key)
    return Store.get(self, key, **options)


def pops_the_first(self: Store, key: str, **options: Any) -> Any:
    first = Store.messages(self, key)[:1]
    for message in first:
        Store.delete_message(self, key, message.seq)
    return first[0] if first else None


def pops_a_part(self: Store, key: str, **options: Any) -> Any:
    last = Store.messages(self, key)[-1]
    Store.delete_message(self, key, last.seq)
    return last


def moves_what_it_updates(self: Store, key: str, place: Any, message: Message, **options: Any) -> Any:
    Store.delete_message(self, key, place)
    return Store.append_message(self, key, message)


def redacts_too_little(self: Store, key: str, place: Any, **options: Any) -> Any:
    return Store.update_message(self, key, place, Message.assistant(None))


def sets_alone(self: Store, scope: str, values: dict[str, Any]) -> None:
    Store.drop_values(self, scope)
    Store.set_values(self, scope, values)


def sets_what_is_true(self: Store, scope: str, values: dict[str, Any]) -> None:
    Store.set_values(self, scope, {name: value for name, value in values.items() if value})


def compacts_for_good(self: Conversation, summarizer: Callable[..., Any], **options: Any) -> Any:
    found = Conversation.messages(self)
    summary = summarizer(found)
    Conversation.clear(self)
    Conversation.append_messages(self, summary)


def keeps_what_it_should_discard(self: Conversation, summarizer: Any, **options: Any) -> Any:
    return Conversation.compact(self, summarizer)


def finishes_what_has_changed(self: Conversation, pending: Any, summary: Any, **options: Any) -> Any:
    begun = Conversation.begin_compaction(self)
    assert begun is not None
    return Conversation.finish_compaction(self, begun, summary, **options)


def saves_without(*names: str) -> Callable[..., Any]:
    def save(self: Conversation, messages: list[Message], usage: Any = None, **options: Any) -> Any:
        kept = {name: value for name, value in options.items() if name not in names}
        said = [m.model_copy(update={"id": None}) if "id" in names else m for m in messages]
        return Conversation.save_turn(self, said, usage, **kept)

    return save


def saves_in_two_steps(self: Conversation, messages: list[Message], usage: Any = None, **options: Any) -> Any:
    Conversation.append_messages(self, messages)
    return Conversation.save_turn(self, [], usage, **options)


def forks_all(self: Conversation, key: str | None = None, **options: Any) -> Any:
    return Conversation.fork(self, key)


def sets_what_nobody_has(self: Conversation, values: dict[str, Any]) -> None:
    Store(self._access.engine).set_values(self.key, values)


FAULTS: dict[str, tuple[type[Store], set[str]]] = {
    "drops a field": (with_verbs(get=drops_a_field), {"sessions.a_session_comes_back_as_it_was_made"}),
    "creates what is there": (
        with_verbs(create=creates_what_is_there),
        {
            "sessions.a_taken_key_is_refused",
            "sessions.no_key_means_a_new_one",
            "values.another_session_s_values_are_left_alone",
        },
    ),
    "creates under another key": (
        with_verbs(create=creates_under_another_key),
        {"sessions.what_cannot_be_kept_is_refused"},
    ),
    "makes anew": (
        with_verbs(get_or_create=makes_anew),
        {"sessions.get_or_create_makes_a_session_once", "concurrency.racers_on_a_new_key_make_one_session"},
    ),
    "appends to nothing": (
        with_verbs(append_message=appends_to_nothing),
        {"sessions.what_is_not_there_is_said", "expiry.an_expired_session_is_hidden_at_once"},
    ),
    "every update is activity": (
        with_verbs(update=lambda self, key, **options: Store.update(self, key, **options | {"activity": True})),
        {"sessions.an_update_changes_what_it_names"},
    ),
    "no revision": (
        with_verbs(info=lambda self, key, **o: Store.info(self, key, **o).model_copy(update={"revision": 0})),
        {"sessions.every_write_moves_the_revision", "values.values_of_a_session_need_it"},
    ),
    "expects nothing": (
        with_verbs(update=lambda self, key, expect=None, **changes: Store.update(self, key, **changes)),
        {"sessions.a_stale_write_changes_nothing", "concurrency.of_writers_that_compare_one_wins"},
    ),
    "clears what it should delete": (
        with_verbs(delete=lambda self, key, **options: bool(Store.clear(self, key))),
        {"sessions.a_deleted_session_is_gone", "values.a_session_s_own_values_go_with_it"},
    ),
    "lists from the start": (
        with_verbs(list_sessions=lambda self, cursor=None, **options: Store.list_sessions(self, **options)),
        {"sessions.a_list_is_by_last_update_and_goes_on_by_its_cursor"},
    ),
    "counts all": (with_verbs(count=lambda self, **which: Store.count(self)), {"sessions.filters_narrow_a_list_down"}),
    "forgets all": (
        with_verbs(delete_where=lambda self, **which: Store.delete_where(self, key_prefix="k")),
        {"sessions.delete_where_forgets_what_it_names"},
    ),
    "shows what it showed": (with_verbs(get=shows_what_it_showed()), {"sessions.what_is_read_is_the_reader_s"}),
    "appends without fields": (
        with_verbs(append_message=appends_without("name", "author")),
        {"messages.a_message_comes_back_equal"},
    ),
    "rounds numbers": (with_verbs(append_messages=rounds_numbers), {"messages.any_json_comes_back_equal"}),
    "appends one by one": (with_verbs(append_messages=appends_one_by_one), {"messages.what_is_not_json_is_refused"}),
    "sorts by time": (
        with_verbs(messages=lambda self, key, **o: sorted(Store.messages(self, key, **o), key=lambda m: m.created_at)),
        {"messages.messages_stand_in_the_order_of_their_seq"},
    ),
    "appends backwards": (with_verbs(append_messages=appends_backwards), {"messages.a_batch_lands_in_its_order"}),
    "forgets ids": (
        with_verbs(append_message=appends_without("id")),
        {"messages.an_id_is_stored_once", "concurrency.an_id_sent_by_many_at_once_is_stored_once"},
    ),
    "compares nothing": (
        with_verbs(append_message=appends_without("after")),
        {"messages.after_compares_and_appends", "concurrency.of_writers_that_compare_one_wins"},
    ),
    "appends in two steps": (
        with_verbs(append_message=appends_in_two_steps),
        {"messages.fields_change_with_an_append", "values.values_land_with_a_message_or_not_at_all"},
    ),
    "changes fields": (
        with_verbs(append_messages=appends_and_changes_fields),
        {"messages.an_append_makes_its_session"},
    ),
    "cuts before it looks": (
        with_verbs(append_messages=cuts_before_it_looks),
        {"messages.replace_after_drops_and_appends"},
    ),
    "counts seq anew": (with_verbs(append_message=counts_seq_anew), {"messages.no_seq_is_given_out_twice"}),
    "reads on": (
        with_verbs(all_messages=lambda self, key, before=None, **which: Store.all_messages(self, key, **which)),
        {"messages.parts_of_the_log_can_be_read"},
    ),
    "finds anything": (
        with_verbs(find_message=lambda self, key, id: next(reversed(Store.messages(self, key)), None)),
        {"messages.a_message_is_found_by_its_id"},
    ),
    "moves what it updates": (
        with_verbs(update_message=moves_what_it_updates),
        {"messages.a_message_is_changed_where_it_stands"},
    ),
    "redacts what it should delete": (
        with_verbs(delete_message=lambda self, key, place, **options: Store.redact_message(self, key, place)),
        {"messages.a_message_is_deleted_wherever_it_is"},
    ),
    "redacts too little": (
        with_verbs(redact_message=redacts_too_little),
        {"messages.a_redacted_message_keeps_its_place_only"},
    ),
    "pops the first": (with_verbs(pop_message=pops_the_first), {"messages.a_pop_takes_the_last_message"}),
    "pops records": (
        with_verbs(pop_message=lambda self, key, **options: Store.pop_message(self, key, records=True)),
        {"windows.a_pop_passes_records_by"},
    ),
    "pops a part": (with_verbs(pop_message=pops_a_part), {"windows.what_a_summary_replaced_comes_back_with_its_end"}),
    "cuts too little": (
        with_verbs(truncate=lambda self, key, after: Store.truncate(self, key, after=after + 1)),
        {"messages.a_cut_takes_what_comes_after_it"},
    ),
    "counts no tokens": (
        with_verbs(
            append_messages=lambda self, key, messages, **options: Store.append_messages(
                self, key, [m.model_copy(update={"tokens": m.tokens or 0}) for m in messages], **options
            )
        ),
        {"messages.tokens_are_counted_where_none_are_given"},
    ),
    "begins where it should end": (
        with_verbs(messages=lambda self, key, last=None: Store.messages(self, key)[:last]),
        {"windows.last_is_the_end_of_the_window"},
    ),
    "shows records": (
        with_verbs(messages=lambda self, key, last=None: Store.all_messages(self, key, last=last)),
        {"windows.records_are_in_the_log_only"},
    ),
    "compacts for good": (
        with_handle(compact=compacts_for_good),
        {
            "windows.a_summary_stands_in_the_place_of_what_it_sums_up",
            "windows.what_comes_in_meanwhile_stays_after_the_summary",
        },
    ),
    "finishes what has changed": (
        with_handle(finish_compaction=finishes_what_has_changed),
        {"windows.a_summary_of_what_has_changed_is_refused"},
    ),
    "discards nothing": (
        with_handle(compact=keeps_what_it_should_discard),
        {"windows.discarding_leaves_the_summary_and_what_was_spent"},
    ),
    "a history from anywhere": (
        with_handle(history=lambda self, last=None, **_: window.as_prompt(Conversation.messages(self, last=last))),
        {"windows.a_history_begins_with_no_orphan"},
    ),
    "a history above its budget": (
        with_handle(history=lambda self, max_tokens=0, **o: Conversation.history(self, max_tokens=max_tokens + 10)),
        {"windows.a_history_keeps_to_its_budget"},
    ),
    "saves without metadata": (
        with_handle(save_turn=saves_without("metadata")),
        {"turns.a_turn_lands_with_what_it_cost"},
    ),
    "saves without ids": (with_handle(save_turn=saves_without("id")), {"turns.a_turn_is_saved_once"}),
    "saves without fields": (with_handle(save_turn=saves_without("title", "ttl")), {"turns.a_turn_makes_its_session"}),
    "saves in two steps": (with_handle(save_turn=saves_in_two_steps), {"turns.a_turn_lands_whole_or_not_at_all"}),
    "the last usage": (
        with_handle(total_usage=lambda self: ([{}, *(turn.usage for turn in Conversation.turns(self))])[-1]),
        {"turns.usage_adds_up"},
    ),
    "forks all": (
        with_handle(fork=forks_all),
        {"turns.a_fork_is_a_copy_of_its_own", "turns.a_fork_may_end_before_a_question"},
    ),
    "sets what is true": (with_verbs(set_values=sets_what_is_true), {"values.any_json_is_a_value"}),
    "sets alone": (
        with_verbs(set_values=sets_alone),
        {"values.other_names_stay", "concurrency.writers_of_different_names_lose_nothing"},
    ),
    "drops all": (
        with_verbs(drop_values=lambda self, scope, names=None: Store.drop_values(self, scope)),
        {"values.values_are_dropped_by_name"},
    ),
    "sets what nobody has": (with_handle(set_values=sets_what_nobody_has), {"values.values_of_a_session_need_it"}),
    "touches what it reads": (
        with_verbs(get=touches_what_it_reads),
        {"expiry.an_append_moves_the_expiry", "expiry.an_expired_session_can_be_looked_at"},
    ),
    "revives nothing": (
        with_verbs(touch=lambda self, key, **options: (Store.info(self, key), Store.touch(self, key, **options))[1]),
        {"expiry.a_touch_revives"},
    ),
    "renews nothing": (
        with_verbs(get_or_create=lambda self, key, renew=False, **options: Store.get_or_create(self, key, **options)),
        {"expiry.an_expired_session_is_replaced_on_purpose"},
    ),
    "purges in earnest": (
        with_verbs(expire=lambda self, dry_run=False, **options: Store.expire(self, **options)),
        {"expiry.a_purge_takes_what_is_past_and_nothing_else"},
    ),
    "purges whatever is idle": (
        with_verbs(expire=lambda self, agent_id=None, **options: Store.expire(self, **options)),
        {"expiry.a_purge_takes_what_is_idle_if_told_to"},
    ),
    "no default": (
        with_verbs(create=lambda self, key, ttl=None, **options: Store.create(self, key, ttl=ttl, **options)),
        {"expiry.the_default_ttl_is_for_new_sessions"},
    ),
    "loses some": (with_verbs(append_message=loses_some()), {"concurrency.writers_at_once_lose_nothing"}),
    "loses the last": (with_verbs(append_messages=loses_the_last), {"concurrency.batches_at_once_do_not_mix"}),
}
