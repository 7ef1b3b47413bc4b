"""The tests that cannot hold on a Citus cluster, each with the reason."""

from __future__ import annotations

from typing import Final

EXCEPTIONS: Final[dict[str, tuple[str, ...]]] = {
    "count round trips: what is one statement on one server is a transaction there; test_distributed_store counts": (
        "test_append_or_create.py::test_it_takes_one_statement_and_one_round_trip",
        "test_hot_path.py::test_a_change_of_a_session_is_one_statement_and_one_round_trip[a clock of ours-delete",
        "test_hot_path.py::test_a_change_of_a_session_is_one_statement_and_one_round_trip[the server's clock-delete",
        "test_hot_path.py::test_an_append_is_one_statement_and_one_round_trip",
        "test_hot_path.py::test_an_edit_of_a_message_is_a_lock_and_a_statement_in_a_transaction",
        "test_cost_of_records.py::test_an_append_of_records_is_one_statement_and_one_round_trip",
        "test_revision.py::test_expecting_a_revision_takes_one_round_trip",
        "test_turns.py::test_a_turn_is_one_statement_and_one_round_trip",
        "test_named_values.py::test_values_take_one_statement_on_postgresql",
    ),
    "read plans: each part of a table has its own, and the sort on top is the coordinator's": (
        "test_cost_of_records.py::test_the_end_of_a_log_of_records_costs_no_more_the_longer_the_log_is",
        "test_lists.py::test_a_page_of_a_list_comes_from_an_index_in_its_order",
    ),
    "read the statements that one server gets; test_what_is_about_one_session_asks_one_server asks the servers": (
        "test_shapes.py::test_what_is_about_one_session_names_its_key",
    ),
    "count the looks at the schema, of which a cluster has one more: how its tables are distributed": (
        "test_hot_path.py::test_a_new_store_looks_at_the_schema_in_five_plain_statements",
    ),
    "set lock_timeout for their connection, which does not reach the workers; ALTER ROLE … SET lock_timeout does": (
        "test_concurrency.py::test_a_session_held_by_another_is_busy_where_the_server_says_so",
    ),
    "make a search index, which is refused on distributed tables": (
        "test_page_scripts.py::test_a_dump_comes_back_whole_and_searchable",
        "test_clocks.py::test_a_search_goes_by_the_servers_clock",
        "test_retry.py::test_a_verb_waits_for_a_server_that_is_away[search]",
        "test_search",
        "test_shapes.py::test_what_is_about_one_session_names_its_key",
        "test_web.py::test_words_are_searched_and_lead_to_their_place",
        "test_writing_calls.py::test_a_call_tells_that_it_writes_if_the_database_would_be_written",
    ),
    "slow a statement down by a query that calls itself, which Citus runs on one part of a table at most": (
        "test_migrations_in_use.py::test_a_batch_that_takes_too_long_is_cut_and_done_in_smaller_ones",
    ),
    "damage rows past a foreign key, or move them to another session, which nothing allows on a cluster": (
        "test_examination.py::test_what_is_wrong_is_found_and_mended",
        "test_values_that_travel.py::test_a_value_that_cannot_be_read_is_found_and_named",
        "test_values_that_travel.py::test_values_of_no_session_are_found_and_deleted",
    ),
    "have a trigger with an error of its own, which Citus allows on no distributed table": (
        "interchange/test_copy.py::test_what_comes_back_changed_is_taken_out_again_and_said",
        "test_retry.py::test_a_call_that_is_undone_at_every_try_gives_up",
        "test_using.py::test_an_append_that_fails_half_way_and_is_caught_leaves_nothing",
    ),
    "have a host's table on one node that refers to sessions, which Citus joins with no distributed table": (
        "test_holders.py::test_a_purge_goes_on_",
        "test_holders.py::test_deleting_what_is_held_names_what_holds_it",
        "test_holders.py::test_held_b",
        "test_holders.py::test_keys_written_with_their_column",
        "test_holders.py::test_only_what_would_go_is_named",
        "test_holders.py::test_rows_that_refer_to_one_another",
        "test_holders.py::test_several_foreign_keys_together",
        "test_holders.py::test_the_command_names_what_is_held",
        "test_holders.py::test_what_is_held_is_not_archived",
    ),
    "have a policy that holds a query, or is never true, which Citus refuses": (
        "test_host_engines.py::test_policies_for_rows_hold_for_every_verb",
        "test_host_engines.py::test_the_error_for_a_listener_that_leaves_a_transaction_open",
        "test_liveness.py::test_a_policy_that_hides_a_row_from_updates_ends_a_write_at_once",
    ),
}
"""How the names of tests begin that are left out on a cluster, by the reason."""


def reason_of(test: str) -> str | None:
    """Return why a test cannot hold on a cluster; None for one that has to."""
    for reason, names in EXCEPTIONS.items():
        if test.removeprefix("tests/").startswith(names):
            return reason
    return None
