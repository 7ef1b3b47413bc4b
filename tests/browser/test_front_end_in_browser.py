"""The page of the chat service: `useChat` of the published package in two tabs, with reloads, stops and approvals."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.chat_page_programs import PAGE, TOKEN, chat_service
from support.chromium import Browser, Tab
from support.pages import blocks
from support.polling import until
from support.streaming_model import PIECES, StreamingModel, streaming_model

from lango_store import Store

ANSWER: Final = f"assistant: {''.join(PIECES)}"


@pytest.fixture
def model() -> Iterator[StreamingModel]:
    with streaming_model() as model:
        yield model


@pytest.fixture
def address(model: StreamingModel, front_end: Path, tmp_path: Path) -> Iterator[str]:
    (source,) = blocks(PAGE, "jsx")
    (front_end / "chat.jsx").write_text(source)
    options = ["--bundle", "--format=esm", f"--outfile={tmp_path}/static/chat.js", "--loader:.jsx=jsx"]
    subprocess.run(["node_modules/.bin/esbuild", "chat.jsx", *options], cwd=front_end, check=True, capture_output=True)
    (page,) = blocks(PAGE, "html")
    (tmp_path / "static/chat.html").write_text(page)
    with chat_service(f"sqlite:///{tmp_path}/agent.db", model, tmp_path) as address:
        yield f"{address}/static/chat.html?chat-1#{TOKEN}"


def opened(browser: Browser, address: str) -> Tab:
    tab = browser.open_tab(address)
    until(lambda: status(tab) == "ready")
    return tab


def status(tab: Tab) -> str | None:
    text: str | None = tab.run('document.getElementById("status")?.textContent')
    return text


def log(tab: Tab) -> list[str]:
    items: list[str] = tab.run('[...document.querySelectorAll("#log li")].map((each) => each.textContent)')
    return items


def ask(tab: Tab, text: str) -> None:
    setter = "Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set"
    tab.run(
        f"{{const input = document.getElementById('text'); {setter}.call(input, '{text}');"
        "input.dispatchEvent(new Event('input', {bubbles: true}))}"
    )
    until(lambda: tab.run("document.getElementById('text').value") == text)
    click(tab, "#send")


def click(tab: Tab, selector: str) -> None:
    tab.run(f"document.querySelector('{selector}').click()")


def reload(tab: Tab) -> None:
    tab.run("window.isOld = true")
    tab.reload()
    until(lambda: tab.run("window.isOld") is None and status(tab) is not None)


def test_two_tabs_show_the_whole_answer_after_a_reload_in_the_middle(
    browser: Browser, address: str, model: StreamingModel
) -> None:
    first = opened(browser, address)
    model.hold()
    ask(first, "Hello")
    begun = ["user: Hello", f"assistant: {PIECES[0]}"]
    until(lambda: log(first) == begun)
    second = browser.open_tab(address)
    until(lambda: log(second) == begun)
    reload(first)
    until(lambda: log(first) == begun)
    model.release()
    for tab in (first, second):
        until(lambda tab=tab: (log(tab), status(tab)) == (["user: Hello", ANSWER], "ready"))  # type: ignore[misc]
    assert model.calls == {"Hello": 1}


def test_stopped_answer_is_kept(browser: Browser, address: str, model: StreamingModel) -> None:
    tab = opened(browser, address)
    model.hold()
    ask(tab, "Hello")
    stopped = ["user: Hello", f"assistant: {PIECES[0]}"]
    until(lambda: log(tab) == stopped)
    click(tab, "#stop")
    until(lambda: status(tab) == "ready")
    assert log(tab) == stopped
    reload(tab)
    until(lambda: log(tab) == stopped)


def test_another_answer_replaces_the_first(browser: Browser, address: str, model: StreamingModel) -> None:
    tab = opened(browser, address)
    ask(tab, "Hello")
    until(lambda: (log(tab), status(tab)) == (["user: Hello", ANSWER], "ready"))
    click(tab, "#again")
    until(lambda: model.calls == {"Hello": 2} and status(tab) == "ready")
    until(lambda: log(tab) == ["user: Hello", ANSWER])
    reload(tab)
    until(lambda: log(tab) == ["user: Hello", ANSWER])


def test_approved_call_continues_the_answer(browser: Browser, address: str, model: StreamingModel) -> None:
    tab = opened(browser, address)
    ask(tab, "Pay")
    until(lambda: "approval-requested" in str(log(tab)) and status(tab) == "ready")
    reload(tab)
    until(lambda: bool(tab.run("document.querySelector('.approve') !== null")))
    click(tab, ".approve")
    until(lambda: log(tab) == ["user: Pay", f"assistant: [tool-pay: paid]{''.join(PIECES)}"])


def test_tool_of_the_page_continues_the_answer(browser: Browser, address: str, model: StreamingModel) -> None:
    tab = opened(browser, address)
    ask(tab, "Where am I?")
    until(lambda: "input-available" in str(log(tab)) and status(tab) == "ready")
    reload(tab)
    until(lambda: bool(tab.run("document.querySelector('.share') !== null")))
    click(tab, ".share")
    answered = ["user: Where am I?", f"assistant: [tool-where: Oslo]{''.join(PIECES)}"]
    until(lambda: (log(tab), status(tab)) == (answered, "ready"))
    reload(tab)
    until(lambda: log(tab) == answered)
    assert sum(model.calls.values()) == 1


def test_approval_that_was_stored_before_a_crash_continues_after_a_reload(
    browser: Browser, address: str, model: StreamingModel, tmp_path: Path
) -> None:
    tab = opened(browser, address)
    ask(tab, "Pay")
    until(lambda: "approval-requested" in str(log(tab)) and status(tab) == "ready")
    model.hold()  # the answer ends after the page is loaded again
    with Store(f"sqlite:///{tmp_path}/agent.db") as store:
        conversation = store.conversation("chat-1")
        conversation.suspensions.answer(conversation.suspensions.list()[0].id, {"approved": True})
    reload(tab)
    until(lambda: PIECES[0] in str(log(tab)))
    model.release()
    until(lambda: log(tab) == ["user: Pay", f"assistant: [tool-pay: paid]{''.join(PIECES)}"])


@pytest.mark.parametrize("width", [1280, 390])
def test_page_fits_the_window(browser: Browser, address: str, model: StreamingModel, width: int) -> None:
    tab = opened(browser, address)
    browser.call(
        "Emulation.setDeviceMetricsOverride",
        tab._session,
        width=width,
        height=800,
        deviceScaleFactor=1,
        mobile=width < 500,
    )
    ask(tab, "Hello")
    until(lambda: log(tab) == ["user: Hello", ANSWER])
    assert tab.run("document.documentElement.scrollWidth <= window.innerWidth") is True


AGENTS: Final = """
const address = process.argv[2];
const headers = { Authorization: `Bearer ${process.argv[3]}` };
const agent = (initialMessages) =>
  new Agent({ url: `${address}/api/agent`, threadId: "chat-1", headers, initialMessages });
const stored = async () => (await fetch(`${address}/api/agent/chat-1/messages`, { headers })).json();
const texts = (it) => it.messages.map((each) => `${each.role}: ${each.content ?? each.toolCalls[0].function.name}`);
const results = {};

const first = agent([]);
first.addMessage({ id: "q1", role: "user", content: "Hello" });
let second, joined;
await first.runAgent({}, {
  onTextMessageContentEvent: async () => {
    if (second) return;
    second = agent(await stored());
    joined = second.connectAgent({}, { onTextMessageContentEvent: () => console.log("joined") });
  },
});
await joined;
results.first = texts(first);
results.second = texts(second);

const late = agent(await stored());
await late.connectAgent();  // no run is in progress
results.late = texts(late);
await late.runAgent();
results.again = texts(late);

late.addMessage({ id: "q2", role: "user", content: "Pay" });
await late.runAgent();
results.asked = late.pendingInterrupts.map((each) => each.message);
const answer = { status: "resolved", payload: { approved: true } };
await late.runAgent({ resume: late.pendingInterrupts.map((each) => ({ interruptId: each.id, ...answer })) });
results.approved = texts(late).slice(2);
results.messages = late.messages;
results.stored = await stored();
console.log(JSON.stringify(results));
"""


def test_agents_join_ask_again_and_approve(model: StreamingModel, front_end: Path, tmp_path: Path) -> None:
    (source,) = [each for each in blocks("docs/howto/front-ends.md", "js") if each.startswith("// agent.js")]
    (front_end / "agent.mjs").write_text(source + AGENTS)
    model.hold()
    with (
        chat_service(f"sqlite:///{tmp_path}/agent.db", model, tmp_path) as address,
        subprocess.Popen(
            ["node", "agent.mjs", address, TOKEN], cwd=front_end, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stdout.readline() == "joined\n"
        model.release()
        results = json.loads(process.stdout.read().splitlines()[-1])
    answered = ["user: Hello", ANSWER]
    assert [results[name] for name in ("first", "second", "late", "again")] == [answered] * 4
    assert model.calls["Hello"] == 2
    assert results["asked"] == ["Pay?"]
    assert results["approved"] == ["user: Pay", "assistant: pay", "tool: paid", ANSWER]
    assert results["messages"] == results["stored"]
