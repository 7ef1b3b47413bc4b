"""The chat page in two tabs, with workers and a web server that are killed: what it shows equals the log."""

import json
import os
import random
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import pytest
from support.chat_service import Service, chat_service
from support.chromium import Browser, Tab
from support.counting_tool import CountingTool, counting_tool
from support.polling import until
from support.streaming_model import PIECES, StreamingModel, streaming_model

from lango_store import Budget, Message, Store

AXE: Final = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
ANSWER: Final = "".join(PIECES)
PICTURE: Final = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c63f8cfc0f01f0005000" + "1ff56c7c4a30000000049454e44ae426082"
)
TIME: Final = '{dateStyle: "medium", timeStyle: "short"}'
VIEW: Final = """
[...document.querySelectorAll("#log > article")].map((item) => [
  item.className,
  ...[...item.firstChild.children].map((part) => {
    const state = part.querySelector("summary span")?.className, results = part.querySelectorAll("pre");
    if (state) return [part.firstChild.firstChild.textContent, state, results.length > 1 ? results[1].textContent : ""];
    return part.tagName === "IMG" ? part.alt : part.textContent;
  }).filter((each) => each !== ""),
])
"""


@pytest.fixture
def model() -> Iterator[StreamingModel]:
    with streaming_model() as model:
        yield model


@pytest.fixture
def tool() -> Iterator[CountingTool]:
    with counting_tool(honors_key=True) as tool:
        yield tool


@pytest.fixture
def service(url: str, model: StreamingModel, tool: CountingTool) -> Iterator[Service]:
    with chat_service(url, model.port, tool.url) as service:
        yield service


@pytest.fixture
def worker(service: Service) -> None:
    service.start_worker()


@pytest.fixture
def tab(browser: Browser, service: Service) -> Tab:
    return opened(browser, service.address)


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store(url) as store:
        yield store


def versions(tab: Tab) -> list[str]:
    """Return the numbers of the versions that are shown, such as "2/3"."""
    shown: list[str] = tab.run(
        "[...document.querySelectorAll('#log nav')].map((each) => each.childNodes[1].textContent)"
    )
    return shown


def opened(browser: Browser, address: str) -> Tab:
    tab = browser.open_tab(address)
    until(lambda: tab.run("window.langoTools?.where !== undefined"))
    return tab


def view(tab: Tab) -> list[Any]:
    """Return what the page shows, with the answers to a question as one item."""
    return joined(tab.run(VIEW))


def joined(items: list[Any]) -> list[Any]:
    joined: list[Any] = []
    for name, *shown in items:
        if name.startswith("assistant") and joined and joined[-1][0].startswith("assistant"):
            joined[-1] = [name, *joined[-1][1:], *shown]
        elif shown:
            joined.append([name, *shown])
    return joined


def log(store: Store, key: str) -> list[Any]:
    """Return what the page is to show, from the log, the suspensions and the inbox."""
    conversation = store.conversation(key)
    asked = {place: each for each in conversation.suspensions.list() for place in each.calls}
    items: list[Any] = []
    calls: dict[str | None, list[Any]] = {}
    for message in conversation.messages():
        if message.role == "user":
            items.append(["user", *shown(message)])
            for known in calls.values():  # a question ends the wait for the results of earlier calls
                if known[1] in ("input-available", "approval-requested"):
                    known[1] = "unfinished"
        elif message.role == "assistant":
            item = ["assistant interrupted" if message.extra.get("interrupted") else "assistant"]
            items.append([*item, message.content] if message.content else item)
            for position, call in enumerate(message.tool_calls):
                suspension = asked.get((message.seq, position))
                calls[call.id] = [call.name, "input-available", ""]
                if suspension is not None and suspension.answered_at is None:
                    calls[call.id][1] = "approval-requested"
                elif suspension is not None:
                    calls[call.id][1] = "approved" if suspension.answer["approved"] else "denied"
                items[-1].append(calls[call.id])
        else:
            calls[message.tool_call_id or message.tool_calls[0].id][1:] = [
                "output-available",
                message.content or message.tool_calls[0].output,
            ]
    return joined(
        [*items, *(["user waiting", *shown(each)] for each in conversation.inbox.list() if each.role == "user")]
    )


def shown(message: Message) -> list[str]:
    blocks = message.content if isinstance(message.content, list) else [{"text": message.content}]
    return [each.get("text") or each["filename"] for each in blocks]


def status(tab: Tab) -> str:
    return str(tab.run("$('status').textContent"))


def ask(tab: Tab, text: str) -> None:
    tab.run(f"$('text').value = {json.dumps(text)}; $('form').requestSubmit()")
    until(lambda: tab.run("$('text').value") == "")


def click(tab: Tab, selector: str) -> None:
    tab.run(f"document.querySelector({json.dumps(selector)}).click()")


def reload(tab: Tab) -> None:
    tab.run("window.isOld = true")
    tab.reload()
    until(lambda: tab.run("window.isOld === undefined && window.langoTools?.where !== undefined"))


def shows(tab: Tab, *items: Sequence[Any]) -> None:
    """Wait until the page shows these items."""
    try:
        until(lambda: view(tab) == [*items], 30)
    except AssertionError:
        assert view(tab) == [*items]


def shows_log(tab: Tab, store: Store) -> None:
    """Wait until nothing is owed and the page is idle, and shows the log."""
    key = tab.run("chat")
    is_idle = "document.body.className !== 'busy' && !outbox.length"
    try:
        until(lambda: not store.owed().items and tab.run(is_idle) and view(tab) == log(store, key), 40)
    except AssertionError:
        assert (store.owed().items, view(tab), status(tab)) == ([], log(store, key), "")


def test_question_without_a_worker_is_shown_after_a_reload(tab: Tab, service: Service, store: Store) -> None:
    ask(tab, "Hello")
    for _ in range(2):
        shows(tab, ["user waiting", "Hello"])
        until(lambda: status(tab) == "Waiting for a worker…")
        reload(tab)
    service.start_worker()
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    shows_log(tab, store)


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("pieces", range(1, len(PIECES) + 1))
def test_reload_in_the_middle_of_an_answer_shows_the_rest(
    tab: Tab, model: StreamingModel, store: Store, pieces: int
) -> None:
    model.hold(pieces)
    ask(tab, "Hello")
    for _ in range(2):
        shows(tab, ["user", "Hello"], ["assistant", "".join(PIECES[:pieces])])
        assert status(tab) == "Answering…"
        reload(tab)
    model.release()
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    shows_log(tab, store)
    reload(tab)
    shows_log(tab, store)
    assert model.calls == {"Hello": 1}


def test_question_that_waits_for_its_budget_says_so(tab: Tab, service: Service, store: Store) -> None:
    total = Budget("user:ann", 5, reserve=5)
    with store.open("spent").turn(budget=total) as turn:
        turn.usage = {"input_tokens": 5}
    ask(tab, "Hello")
    until(lambda: len(store.owed().items) == 1)
    assert store.work(lambda own, turn: None, once=True, budget=total) == 0
    until(lambda: status(tab).startswith("The budget of user:ann is used up. The next try is on "))
    store.budgets.reset("user:ann")
    service.start_worker()
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    until(lambda: status(tab) == "")


def test_reminder_is_shown_with_its_time_and_can_be_dropped(tab: Tab, service: Service, store: Store) -> None:
    ask(tab, "Hello")
    until(lambda: tab.run("chat") is not None)
    until(lambda: bool(store.owed().items))
    inbox = store.conversation(tab.run("chat")).inbox
    for text, hours in (("Call Bob", 1), ("Call Ann", 2)):
        inbox.put(Message.user(text, id=text), at=datetime(2030, 1, 1, hours, 30, tzinfo=UTC))
    service.start_worker()
    times = [tab.run(f"new Date('2030-01-01T0{n}:30Z').toLocaleString([], {TIME})") for n in (1, 2)]
    reminders = [
        ["user waiting", f"Reminder for {time}Drop", text]
        for time, text in zip(times, ["Call Bob", "Call Ann"], strict=True)
    ]
    shows(tab, ["user", "Hello"], ["assistant", ANSWER], *reminders)
    until(lambda: tab.run("!$('again').hidden"))
    click(tab, "#log small button")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER], reminders[1])
    assert [each.id for each in inbox.list()] == ["Call Ann"]


@pytest.mark.usefixtures("worker")
def test_page_runs_its_tools_while_a_reminder_waits(tab: Tab, store: Store) -> None:
    store.open("k", user_id="ann").inbox.put(Message.user("Call Bob"), in_=timedelta(days=1))
    tab.run("location.hash = 'k'")
    until(lambda: len(view(tab)) == 1)
    ask(tab, "Where")
    until(
        lambda: [each.role for each in store.conversation("k").messages()] == ["user", "assistant", "tool", "assistant"]
    )


@pytest.mark.usefixtures("worker")
def test_two_tabs_follow_one_conversation(
    browser: Browser, tab: Tab, service: Service, model: StreamingModel, store: Store
) -> None:
    model.hold()
    ask(tab, "Hello")
    shows(tab, ["user", "Hello"], ["assistant", PIECES[0]])
    second = opened(browser, tab.run("location.href"))
    shows(second, ["user", "Hello"], ["assistant", PIECES[0]])
    ask(second, "More")
    waiting = [["user", "Hello"], ["assistant", PIECES[0]], ["user waiting", "More"]]
    shows(second, *waiting)
    model.release()
    for each in (tab, second):
        shows(each, ["user", "Hello"], ["assistant", ANSWER], ["user", "More"], ["assistant", ANSWER])
        shows_log(each, store)
    assert model.calls == {"Hello": 1, "More": 1}


def test_killed_worker_is_replaced_by_another(tab: Tab, service: Service, model: StreamingModel, store: Store) -> None:
    service.start_worker()
    model.hold(2)
    ask(tab, "Hello")
    begun: list[Any] = [["user", "Hello"], ["assistant", "".join(PIECES[:2])]]
    shows(tab, *begun)
    service.kill_workers()
    model.hold(1)
    service.start_worker()
    until(lambda: model.calls["Hello"] == 2)
    shows(tab, ["user", "Hello"], ["assistant", PIECES[0]])
    model.release()
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    shows_log(tab, store)


@pytest.mark.usefixtures("worker")
def test_page_continues_after_its_server_was_killed(
    tab: Tab, service: Service, model: StreamingModel, store: Store
) -> None:
    model.hold()
    ask(tab, "Hello")
    shows(tab, ["user", "Hello"], ["assistant", PIECES[0]])
    service.kill_server()
    until(lambda: status(tab) == "No connection. Trying again…")
    ask(tab, "More")  # it is sent when the server is back
    model.release()
    service.start()
    shows(tab, ["user", "Hello"], ["assistant", ANSWER], ["user", "More"], ["assistant", ANSWER])
    shows_log(tab, store)


@pytest.mark.usefixtures("worker")
def test_page_continues_after_it_was_offline(browser: Browser, tab: Tab, model: StreamingModel, store: Store) -> None:
    model.hold()
    ask(tab, "Hello")
    shows(tab, ["user", "Hello"], ["assistant", PIECES[0]])
    set_offline(browser, tab, offline=True)
    until(lambda: status(tab) == "Offline.")
    model.release()
    ask(tab, "More")
    shows(tab, ["user", "Hello"], ["assistant", PIECES[0]], ["user waiting", "More"])
    set_offline(browser, tab, offline=False)
    shows(tab, ["user", "Hello"], ["assistant", ANSWER], ["user", "More"], ["assistant", ANSWER])
    shows_log(tab, store)


def set_offline(browser: Browser, tab: Tab, *, offline: bool) -> None:
    browser.call("Network.enable", tab._session)
    speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.call("Network.emulateNetworkConditions", tab._session, offline=offline, **speed)


@pytest.mark.usefixtures("worker")
def test_stopped_answer_is_kept_and_can_be_replaced(tab: Tab, model: StreamingModel, store: Store) -> None:
    model.hold(2)
    ask(tab, "Hello")
    begun = "".join(PIECES[:2])
    shows(tab, ["user", "Hello"], ["assistant", begun])
    click(tab, "#stop")
    shows(tab, ["user", "Hello"], ["assistant interrupted", begun])
    until(lambda: status(tab) == "Stopped.")
    shows_log(tab, store)
    model.release()
    click(tab, "#again")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    shows_log(tab, store)
    assert model.calls == {"Hello": 2}


@pytest.mark.usefixtures("worker")
def test_button_shares_the_conversation_so_far_and_ends_it(tab: Tab, service: Service, browser: Browser) -> None:
    tab.run("window.prompt = (text, link) => { window.links = [...(window.links ?? []), link]; }")
    assert tab.run("$('share').hidden")
    ask(tab, "Hello")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    until(lambda: not tab.run("$('share').hidden"))
    click(tab, "#share")
    until(lambda: tab.run("$('share').textContent") == "Stop sharing" and tab.run("window.links?.length === 1"))
    link = tab.run("links[0]")
    assert link.startswith(f"{service.address}s/")
    ask(tab, "Later")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER], ["user", "Later"], ["assistant", ANSWER])
    reader = browser.open_tab(link)
    until(lambda: reader.run("document.querySelectorAll('article').length === 2"))
    assert reader.run("document.body.innerText.includes('Hello')")
    assert not reader.run("document.body.innerText.includes('Later')")
    click(tab, "#share")
    until(lambda: tab.run("$('share').textContent") == "Share")
    reader.reload()
    until(lambda: reader.run("document.querySelector('h1')?.textContent") == "Not found")
    until(lambda: status(tab) == "")


def hidden_buttons(tab: Tab) -> list[str]:
    """Return the texts of the buttons in the log that a pointer in their middle does not hit."""
    hidden: list[str] = tab.run(
        """[...document.querySelectorAll("#log button")].filter((button) => {
          button.scrollIntoView({ block: "center" });
          const { x, y, width, height } = button.getBoundingClientRect();
          return !button.contains(document.elementFromPoint(x + width / 2, y + height / 2));
        }).map((button) => button.textContent)"""
    )
    return hidden


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("is_answered", [True, False])
def test_edited_question_gets_another_answer(tab: Tab, model: StreamingModel, store: Store, is_answered: bool) -> None:
    ask(tab, "Before")
    shows(tab, ["user", "Before"], ["assistant", ANSWER])
    if not is_answered:
        model.hold()
    ask(tab, "Hello")
    shows(
        tab,
        ["user", "Before"],
        ["assistant", ANSWER],
        ["user", "Hello"],
        ["assistant", ANSWER if is_answered else PIECES[0]],
    )
    tab.run("[...document.querySelectorAll('.user > button')].at(-1).click()")
    assert tab.run("$('text').value") == "Hello"
    ask(tab, "Goodbye")
    until(lambda: model.calls["Goodbye"] == 1)
    model.release()
    shows(tab, ["user", "Before"], ["assistant", ANSWER], ["user", "Goodbye"], ["assistant", ANSWER])
    shows_log(tab, store)
    assert model.calls == {"Before": 1, "Hello": 1, "Goodbye": 1}


@pytest.mark.usefixtures("worker")
def test_versions_of_a_question_and_of_an_answer_can_be_shown_again(tab: Tab, browser: Browser, store: Store) -> None:
    ask(tab, "Hello")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    click(tab, "#again")
    until(lambda: versions(tab) == ["2/2"])
    tab.run("document.querySelector('.user > button').click()")
    ask(tab, "Goodbye")
    shows(tab, ["user", "Goodbye"], ["assistant", ANSWER])
    until(lambda: versions(tab) == ["2/2"])
    assert hidden_buttons(tab) == []
    other = opened(browser, tab.run("location.href"))
    until(lambda: versions(other) == ["2/2"])
    click(tab, "nav button[aria-label='Previous version']")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    until(lambda: versions(tab) == ["1/2", "2/2"])
    until(lambda: versions(other) == ["1/2", "2/2"])
    reload(tab)
    until(lambda: versions(tab) == ["1/2", "2/2"])
    click(tab, ".assistant nav button[aria-label='Previous version']")
    until(lambda: versions(tab) == ["1/2", "1/2"])
    shows_log(tab, store)


@pytest.mark.usefixtures("worker")
def test_denied_call_is_not_made_and_the_reason_is_stored(tab: Tab, tool: CountingTool, store: Store) -> None:
    ask(tab, "Pay")
    asked: list[Any] = [["user", "Pay"], ["assistant", "Wait.", ["pay", "approval-requested", ""]]]
    shows(tab, *asked)
    until(lambda: status(tab) == "Waiting for your decision.")
    reload(tab)
    shows(tab, *asked)
    tab.run("document.querySelector('.decide input').value = 'too much'")
    click(tab, ".Deny")
    shows(tab, ["user", "Pay"], ["assistant", "Wait.", ["pay", "output-available", "not paid"], ANSWER])
    shows_log(tab, store)
    (suspension,) = store.conversation(tab.run("chat")).suspensions.list()
    assert suspension.answer == {"approved": False, "reason": "too much"}
    assert not tool.runs


@pytest.mark.usefixtures("worker")
def test_call_before_another_question_cannot_be_approved(tab: Tab, store: Store) -> None:
    ask(tab, "Pay")
    until(lambda: status(tab) == "Waiting for your decision.")
    ask(tab, "Hello")
    until(lambda: len(view(tab)) == 4)
    shows_log(tab, store)
    assert view(tab)[1][-1] == ["pay", "unfinished", ""]
    assert tab.run("document.querySelectorAll('.Approve').length") == 0


@pytest.mark.usefixtures("worker")
def test_call_that_is_approved_in_two_tabs_is_made_once(
    browser: Browser, tab: Tab, tool: CountingTool, store: Store
) -> None:
    ask(tab, "Pay")
    asked: list[Any] = [["user", "Pay"], ["assistant", "Wait.", ["pay", "approval-requested", ""]]]
    shows(tab, *asked)
    second = opened(browser, tab.run("location.href"))
    shows(second, *asked)
    tab.run("document.querySelector('.Approve').click(), document.querySelector('.Approve').click()")
    second.run("document.querySelector('.Deny')?.click()")
    for each in (tab, second):
        shows_log(each, store)
    assert [[*tool.runs.values()], [each.role for each in store.conversation(tab.run("chat")).messages()]] in (
        [[1], ["user", "assistant", "tool", "assistant"]],
        [[], ["user", "assistant", "tool", "assistant"]],
    )


def test_approved_call_is_finished_after_its_worker_was_killed(
    tab: Tab, service: Service, tool: CountingTool, store: Store
) -> None:
    service.start_worker()
    ask(tab, "Pay")
    shows(tab, ["user", "Pay"], ["assistant", "Wait.", ["pay", "approval-requested", ""]])
    with tool.without_answers() as received:
        click(tab, ".Approve")
        assert received.acquire(timeout=30)
        service.kill_workers()
        reload(tab)
        shows(tab, ["user", "Pay"], ["assistant", "Wait.", ["pay", "approved", ""]])
    service.start_worker()
    until(lambda: view(tab)[-1][-1] == ANSWER)
    shows_log(tab, store)
    assert [*tool.runs.values()] == [1]


@pytest.mark.usefixtures("worker")
def test_tool_of_the_page_runs_and_the_answer_continues(
    browser: Browser, tab: Tab, model: StreamingModel, store: Store
) -> None:
    ask(tab, "Where")
    shows(tab, ["user", "Where"], ["assistant", "Wait.", ["where", "output-available", "Oslo"], ANSWER])
    shows_log(tab, store)
    assert tab.run("window.ran") == 1
    assert model.calls == {"Where": 1}


@pytest.mark.usefixtures("worker")
def test_tool_that_was_interrupted_by_a_reload_runs_again(tab: Tab, store: Store) -> None:
    tab.run("window.where = new Promise(() => {}); 1")
    ask(tab, "Where")
    until(lambda: tab.run("window.ran") == 1)
    reload(tab)
    shows(tab, ["user", "Where"], ["assistant", "Wait.", ["where", "output-available", "Oslo"], ANSWER])
    shows_log(tab, store)


@pytest.mark.usefixtures("worker")
def test_failed_tool_of_the_page_is_shown_as_failed(tab: Tab, store: Store) -> None:
    tab.run("langoTools.where = () => { throw new Error('not allowed') }; 1")
    ask(tab, "Where")
    failed = ["where", "output-error", "Error: not allowed"]
    shows(tab, ["user", "Where"], ["assistant", "Wait.", failed, ANSWER])


@pytest.mark.usefixtures("worker")
def test_answer_waits_for_an_approval_and_a_tool_of_the_page(
    tab: Tab, model: StreamingModel, tool: CountingTool, store: Store
) -> None:
    ask(tab, "Both")
    calls: list[Any] = [["pay", "approval-requested", ""], ["where", "output-available", "Oslo"]]
    shows(tab, ["user", "Both"], ["assistant", "Wait.", *calls])
    shows_log(tab, store)
    assert not model.calls
    click(tab, ".Approve")
    until(lambda: view(tab)[-1][-1] == ANSWER)
    shows_log(tab, store)
    assert [model.calls["Both"], *tool.runs.values()] == [1, 1]


@pytest.mark.usefixtures("worker")
def test_attached_image_is_shown_before_and_after_a_reload(
    browser: Browser, tab: Tab, store: Store, tmp_path: Path
) -> None:
    (tmp_path / "dot.png").write_bytes(PICTURE)
    attach(browser, tab, tmp_path / "dot.png")
    ask(tab, "Hello")
    for _ in range(2):
        shows(tab, ["user", "dot.png", "Hello"], ["assistant", ANSWER])
        shows_log(tab, store)
        until(lambda: tab.run("document.querySelector('#log img').naturalWidth") == 1)
        reload(tab)


def attach(browser: Browser, tab: Tab, path: Path) -> None:
    document = browser.call("DOM.getDocument", tab._session)["root"]["nodeId"]
    node = browser.call("DOM.querySelector", tab._session, nodeId=document, selector="#files")["nodeId"]
    browser.call("DOM.setFileInputFiles", tab._session, nodeId=node, files=[str(path)])


def test_large_attachment_is_refused_and_the_question_stays(browser: Browser, tab: Tab, tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(1_000_001))
    attach(browser, tab, tmp_path / "large.bin")
    tab.run("$('text').value = 'Hello'; $('form').requestSubmit()")
    until(lambda: status(tab) == "Failed: large.bin is larger than 1 MB")
    assert tab.run("$('text').value") == "Hello"


def test_refused_question_returns_to_the_form(tab: Tab) -> None:
    response = 'new Response(JSON.stringify({error: "It is busy."}), {status: 409})'
    tab.run(f"const send = fetch; window.fetch = (url, it) => it?.method ? {response} : send(url, it); 1")
    tab.run("$('text').value = 'Hello'; $('form').requestSubmit()")
    until(lambda: "It is busy." in status(tab))
    assert [tab.run("$('text').value"), tab.run("outbox.length")] == ["Hello", 0]


def test_page_allows_only_its_own_scripts(service: Service) -> None:
    with urlopen(service.address) as page:
        policy = page.headers["Content-Security-Policy"]
        document = page.read().decode()
    assert "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'" in policy
    assert re.findall("<script[^>]*>", document) == ['<script src="chat.js" defer>', '<script src="tools.js" defer>']
    assert not re.search("<style| style=| on[a-z]+=", document)


@pytest.mark.usefixtures("worker")
def test_conversations_are_listed_renamed_and_deleted(tab: Tab, store: Store) -> None:
    for question in ("Hello", "Goodbye"):
        tab.run("location.hash = ''")
        until(lambda: tab.run("chat") == "")
        ask(tab, question)
        shows(tab, ["user", question], ["assistant", ANSWER])
    titles = "[...document.querySelectorAll('#list a')].map((each) => each.textContent)"
    until(lambda: tab.run(titles) == ["Goodbye", "Hello"])
    tab.run("$('title').value = 'Renamed'; $('title').dispatchEvent(new Event('change'))")
    until(lambda: tab.run(titles) == ["Renamed", "Hello"])
    tab.run("document.querySelectorAll('#list a')[1].click()")
    shows(tab, ["user", "Hello"], ["assistant", ANSWER])
    until(lambda: tab.run("$('title').value") == "Hello")
    tab.run("window.confirm = () => true")
    click(tab, "#delete")
    until(lambda: tab.run(titles) == ["Renamed"] and view(tab) == [])
    assert store.count() == 1


def test_idle_page_reads_messages_only_after_a_change(tab: Tab, store: Store) -> None:
    messages = [Message.user(f"question {number}", id=f"q{number}") for number in range(1_000)]
    store.create("long", user_id="ann", messages=messages)
    tab.run("location.hash = '#long'")
    until(lambda: len(view(tab)) == 1_000 and status(tab) == "")
    until(lambda: tab.run("Math.abs($('log').scrollHeight - $('log').scrollTop - $('log').clientHeight)") < 2)
    tab.run("Date.now = () => 0")  # the page also reads them each minute
    tab.run("read = asked = 0, real = fetch, fetch = (path, ...rest) => (path.endsWith('/messages') ? read++ : "
            "path.endsWith('/stream') && asked++, real(path, ...rest))")  # fmt: skip
    tab.run("again()")
    for number in range(1, 4):
        until(lambda number=number: tab.run("asked") >= number)  # type: ignore[misc]
        until(lambda: tab.run("wake !== undefined && document.body.className !== 'busy'"))
        tab.run("wake()")
    assert tab.run("read") <= 1
    store.conversation("long").append_message(Message.user("from elsewhere"))
    until(lambda: tab.run("(wake(), messages.length)") == 1_001, 30)


HOSTILE: Final = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>[a](javascript:alert(1))'


def test_stored_text_and_addresses_are_not_executed(tab: Tab, service: Service, store: Store) -> None:
    blocks = [
        {"type": "text", "text": HOSTILE},
        {"type": "source-url", "sourceId": "1", "url": "javascript:window.hacked=1", "title": HOSTILE},
        {"type": "file", "mediaType": "text/html", "filename": HOSTILE, "url": "javascript:window.hacked=1"},
        {"type": "file", "mediaType": "image/svg+xml", "filename": "a.svg", "url": "data:image/svg+xml,<svg/>"},
    ]
    store.create("hostile", user_id="ann", title=HOSTILE)
    calls: Any = [{"id": "1", "name": HOSTILE, "arguments": {"a": HOSTILE}}]
    store.conversation("hostile").append_messages([Message.user(HOSTILE), Message.assistant(blocks, tool_calls=calls)])
    tab.run("location.hash = '#hostile'")
    until(lambda: len(view(tab)) == 2)
    assert tab.run("document.querySelector('#log p').textContent") == HOSTILE
    assert tab.run("[...document.querySelectorAll('#log a')].map((each) => each.protocol)") == ["data:"]
    assert tab.run("document.querySelectorAll('#log img, #log script').length") == 0
    assert tab.run("window.hacked") is None


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_the_window_and_passes_the_accessibility_checks_of_axe(
    browser: Browser, tab: Tab, store: Store, width: int, scheme: str
) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.call("Emulation.setDeviceMetricsOverride", tab._session, **size)
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", tab._session, features=features)
    ask(tab, "Pay")
    until(lambda: status(tab) == "Waiting for your decision.")
    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth") is True
    tab.run(f"{AXE}; 1")
    violations = "axe.run().then((it) => it.violations.map((each) => [each.id, each.nodes[0].html]))"
    assert tab.run(violations) == []


class Person:
    """Two tabs of one conversation, and what a person does there at random."""

    def __init__(self, browser: Browser, service: Service, rng: random.Random) -> None:
        self._service, self._rng, self._asked = service, rng, 0
        first = opened(browser, service.address)
        ask(first, "Start")
        self.tabs = [first, opened(browser, first.run("location.href"))]
        self.actions = [self.ask, self.ask, self.edit, self.decide, self.decide, self.press_again, self.press_stop]
        self.actions += [self.switch, self.switch, self.reload, self.reload, self.kill_worker, self.kill_server]

    def ask(self, tab: Tab) -> None:
        self._asked += 1
        ask(tab, self._rng.choice(["Pay", "Where", "Both", f"Question {self._asked}"]))

    def edit(self, tab: Tab) -> None:
        if self._click(tab, ".user > button") and tab.run("editing"):
            self.ask(tab)

    def switch(self, tab: Tab) -> None:
        self._click(tab, "#log nav button:enabled")

    def _click(self, tab: Tab, selector: str) -> bool:
        """Click one of the elements; return False if there is none."""
        found = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return bool(
            tab.run(f"(all => all[Math.floor({self._rng.random()} * all.length)]?.click() ?? all.length)({found})")
        )

    def decide(self, tab: Tab) -> None:
        tab.run(f"document.querySelector('.{self._rng.choice(['Approve', 'Approve', 'Deny'])}')?.click()")

    def press_again(self, tab: Tab) -> None:
        tab.run("$('again').hidden || $('again').click()")

    def press_stop(self, tab: Tab) -> None:
        tab.run("document.body.className === 'busy' && $('stop').click()")

    def reload(self, tab: Tab) -> None:
        reload(tab)

    def kill_worker(self, tab: Tab) -> None:
        self._service.kill_workers()
        self._service.start_worker()

    def kill_server(self, tab: Tab) -> None:
        self._service.kill_server()
        self._service.start()


RUNS: Final = int(os.environ.get("LANGO_STORE_CHAT_PAGE_RUNS", "2"))


@pytest.mark.usefixtures("worker")
@pytest.mark.timeout(120 + 60 * RUNS)
@pytest.mark.parametrize("seed", range(RUNS))
def test_random_actions_leave_both_tabs_with_the_log(
    browser: Browser, service: Service, tool: CountingTool, store: Store, seed: int
) -> None:
    rng = random.Random(seed)
    person = Person(browser, service, rng)
    for _ in range(25):
        action = rng.choice(person.actions)
        action(rng.choice(person.tabs))
    for tab in person.tabs:
        until(lambda tab=tab: not tab.run("outbox.length"))  # type: ignore[misc]
    for tab in person.tabs:
        shows_log(tab, store)
    assert {*tool.runs.values()} <= {1}  # nothing is paid twice
