"""Messages of a thread that are redacted, replaced or deleted in the log, and the state of the graph."""

from typing import Any

import pytest
from frameworks.langgraph.graphs import asked, built, config, weather_turn, with_messages, with_tool
from langchain_core.messages import AIMessage, ChatMessage, HumanMessage, SystemMessage, ToolMessage

from lango_store import DamagedMessage, Message, MessageRole, Store
from lango_store.integrations.langgraph import LangoSaver

REDACTED = [
    HumanMessage("(redacted)"),
    AIMessage("(redacted)"),
    ToolMessage("(redacted)", tool_call_id="call-1", name="get_weather"),
    AIMessage("(redacted)"),
    SystemMessage("(redacted)"),
]


def facts(messages: list[Any]) -> list[Any]:
    return [(each.type, each.content, each.name, getattr(each, "tool_call_id", None)) for each in messages]


def state(store: Store) -> list[Any]:
    messages: list[Any] = with_messages(LangoSaver(store)).get_state(config()).values["messages"]
    return messages


def fill(store: Store) -> Any:
    graph = with_messages(LangoSaver(store))
    graph.update_state(config(), {"messages": [*weather_turn(), SystemMessage("Be brief.", id="s1")]})
    return graph


def redact_all(store: Store) -> None:
    conversation = store.conversation("t")
    for message in conversation.all_messages():
        if message.name != "checkpoint" and message.author != "langgraph":
            conversation.edits.redact(message.seq)


def test_redacted_message_keeps_its_type(store: Store) -> None:
    fill(store)
    redact_all(store)
    assert facts(state(store)) == facts(REDACTED)


@pytest.mark.parametrize("is_new_process", [True, False])
def test_run_after_a_redaction_appends_only_its_own_messages(store: Store, is_new_process: bool) -> None:
    graph = fill(store)
    redact_all(store)
    before = store.conversation("t").messages()
    if is_new_process:
        graph = with_messages(LangoSaver(store))
    graph.invoke({"messages": [asked("Thanks", "q2")]}, config())
    after = store.conversation("t").messages()
    assert after[:5] == before
    assert [(each.role, each.content) for each in after[5:]] == [("user", "Thanks"), ("assistant", "Hello")]
    assert facts(state(store))[:5] == facts(REDACTED)


def test_run_from_an_earlier_checkpoint_after_a_redaction_hides_and_shows_messages(store: Store) -> None:
    graph = fill(store)
    early = graph.get_state(config()).config
    late = graph.update_state(config(), {"messages": [AIMessage("Anything else?", id="a3")]})
    redact_all(store)

    graph.update_state(early, {"messages": [asked("Another branch", "q9")]})
    texts = [(each.role, each.content) for each in store.conversation("t").messages()]
    roles = ["user", "assistant", "tool", "assistant", "system"]
    assert texts == [*((role, "(redacted)") for role in roles), ("user", "Another branch")]

    with_messages(LangoSaver(store)).update_state(late, {"messages": [asked("Back again", "q10")]})
    texts = [(each.role, each.content) for each in store.conversation("t").messages()]
    assert texts == [*((role, "(redacted)") for role in [*roles, "assistant"]), ("user", "Back again")]


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
def test_redacted_message_of_a_hidden_branch_keeps_its_type(store: Store, role: str) -> None:
    graph = fill(store)
    full = graph.get_state(config()).config
    start = graph.update_state(config(), {"messages": [HumanMessage("Also", id="q1")]})
    assert start != full
    hidden = [each for each in store.conversation("t").all_messages() if each.author == role]
    assert [each.role for each in hidden] == [MessageRole.RECORD] * len(hidden)
    assert hidden
    for message in hidden:
        store.conversation("t").edits.redact(message.seq)
    shown = [each for each in facts(graph.get_state(full).values["messages"]) if each[1] == "(redacted)"]
    assert shown == [
        each for each in facts(REDACTED) if {"human": "user", "ai": "assistant"}.get(each[0], each[0]) == role
    ]

    graph.update_state(full, {"messages": [asked("Back", "q7")]})
    again = [each for each in store.conversation("t").messages() if each.content == "(redacted)"]
    assert [(each.role, each.author) for each in again] == [(role, None)] * len(hidden)


def test_redacted_record_of_an_earlier_release_is_a_user_message_or_a_result(store: Store) -> None:
    """Earlier releases stored no role in hidden messages."""
    graph = fill(store)
    full = graph.get_state(config()).config
    graph.update_state(config(), {"messages": [HumanMessage("Also", id="q1")]})
    conversation = store.conversation("t")
    for message in conversation.all_messages():
        if message.author in [*MessageRole]:
            conversation.edits.update(message.seq, message.model_copy(update={"author": None}))
    assert facts(graph.get_state(full).values["messages"]) == facts([*weather_turn(), SystemMessage("Be brief.")])
    for message in conversation.all_messages():
        if message.role is MessageRole.RECORD and message.author is None:
            conversation.edits.redact(message.seq)
    kinds = [each.type for each in graph.get_state(full).values["messages"]]
    assert kinds == ["human", "human", "tool", "human", "human"]


def test_replaced_message_has_the_new_content_in_the_state(store: Store) -> None:
    graph = fill(store)
    conversation = store.conversation("t")
    question, call, result, answer, system = conversation.messages()
    conversation.edits.update(question.seq, Message.user("How warm is it in Rome?"))
    conversation.edits.update(call.seq, call.model_copy(update={"content": "Let me look."}))
    openai = {"id": "call-1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}
    conversation.edits.update(
        call.seq, Message.from_openai({"role": "assistant", "content": "", "tool_calls": [openai]})
    )
    conversation.edits.update(result.seq, result.model_copy(update={"content": "20 degrees"}))
    conversation.edits.update(answer.seq, Message.user("It has 20 degrees."))
    conversation.edits.delete(system.seq)
    assert facts(state(store)) == [
        ("human", "How warm is it in Rome?", None, None),
        ("ai", "", None, None),
        ("tool", "20 degrees", "get_weather", "call-1"),
        ("human", "It has 20 degrees.", None, None),
    ]
    assert state(store)[1].tool_calls[0]["args"] == {"city": "Rome"}
    before = conversation.messages()
    graph.invoke({"messages": [asked("Thanks", "q2")]}, config())
    assert conversation.messages()[:4] == before


def test_role_that_an_edit_changes_is_the_new_type(store: Store) -> None:
    fill(store)
    conversation = store.conversation("t")
    answer = conversation.messages()[3]
    conversation.edits.update(answer.seq, answer.model_copy(update={"role": MessageRole.USER}))
    assert facts(state(store))[3] == ("human", "It has -3 degrees.", None, None)


def test_edit_of_a_message_that_json_cannot_hold_changes_the_state(store: Store) -> None:
    graph = with_messages(LangoSaver(store))
    original = ChatMessage(content="d", id="3", role="critic")
    graph.update_state(config(), {"messages": [original]})
    conversation = store.conversation("t")
    [message] = conversation.messages()
    assert state(store) == [original]
    conversation.edits.update(message.seq, message.model_copy(update={"content": "e"}))
    assert state(store) == [original.model_copy(update={"content": "e"})]


def test_message_redacted_during_a_run_is_not_stored_again(store: Store) -> None:
    saver = LangoSaver(store)

    def redact() -> None:
        conversation = store.conversation("t")
        conversation.edits.redact(conversation.messages()[0].seq)
        with_messages(saver).get_state(config())  # a page that shows the thread during the run

    graph = with_tool(saver, redact)
    graph.invoke({"messages": [asked("a secret", "q1")]}, config(), durability="sync")
    saver.prune(["t"])
    texts = [message.content for message in store.conversation("t").messages()]
    assert texts == ["(redacted)", "thought 0", "Done"]
    assert "a secret" not in str(store.conversation("t").all_messages())
    assert facts(state(store))[0][:2] == ("human", "(redacted)")


def test_message_deleted_during_a_run_is_not_stored_again(store: Store) -> None:
    def delete() -> None:
        conversation = store.conversation("t")
        conversation.edits.delete(conversation.messages()[0].seq)

    graph = with_tool(LangoSaver(store), delete)
    graph.invoke({"messages": [asked("a secret", "q1")]}, config(), durability="sync")
    assert [message.content for message in store.conversation("t").messages()] == ["thought 0", "Done"]
    assert [each.content for each in state(store)] == ["thought 0", "Done"]


def test_prune_deletes_redacted_messages_that_no_checkpoint_has(store: Store) -> None:
    graph = fill(store)
    redact_all(store)
    graph.update_state(config(), {"messages": [HumanMessage("Anew", id="n")]})
    ids = [each.id for each in graph.get_state(config()).values["messages"]]
    from langchain_core.messages import RemoveMessage

    graph.update_state(config(), {"messages": [RemoveMessage(id=id) for id in ids[:-1]]})
    LangoSaver(store).prune(["t"])
    rows = store.conversation("t").all_messages()
    assert [each.content for each in rows if each.author != "langgraph"] == ["Anew"]


@pytest.mark.parametrize("redacted", ["checkpoints", "writes", "last"])
def test_redacted_records_leave_a_readable_thread_or_a_documented_error(store: Store, redacted: str) -> None:
    saver = LangoSaver(store)
    graph = built(saver)
    graph.invoke({"messages": [asked("one", "h1")], "plan": "tool"}, config())
    before = graph.get_state(config())
    conversation = store.conversation("t")
    rows = [each for each in conversation.all_messages() if each.author == "langgraph"]
    chosen = {
        "checkpoints": [each for each in rows if each.name == "checkpoint"],
        "writes": [each for each in rows if each.name == "writes"],
        "last": rows[-1:],
    }[redacted]
    for each in chosen:
        conversation.edits.redact(each.seq)

    for reader in (graph, built(LangoSaver(store))):
        try:
            states = [*reader.get_state_history(config())]
        except DamagedMessage:
            states = []
        assert [each.values for each in states if each.config == before.config] in ([], [before.values])
    if redacted == "checkpoints":
        assert graph.get_state(config()).values == {}
    saver.prune(["t"])
    again = built(saver).invoke({"messages": [asked("two", "h2")], "plan": ""}, config())
    assert again["messages"][-2].content == "two"


def test_put_that_trims_messages_is_one_change_with_a_fixed_number_of_statements(url: str) -> None:
    from langchain_core.messages import RemoveMessage

    sent: list[str] = []
    counts: list[int] = []
    for number in (5, 51):
        with Store(url, on_statement=lambda statement, _: sent.append(statement)) as store:
            key, graph = f"trim {number}", with_messages(LangoSaver(store))
            thread = {"configurable": {"thread_id": key}}
            graph.update_state(thread, {"messages": [HumanMessage(f"{n}", id=f"{n}") for n in range(60)]})
            sent.clear()
            graph.update_state(thread, {"messages": [RemoveMessage(id=f"{n}") for n in range(number)]})
            counts.append(len(sent))
            (change,) = store.conversation(key).versions.changes()
            assert (change.kind, len(store.conversation(key).messages())) == ("update", 60 - number)
    assert counts == ([26, 26] if url.startswith("sqlite") else [25, 25])
