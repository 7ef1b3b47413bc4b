"""The chat on the page about live views: two tabs, one of which is reloaded in the middle of an answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from support.chromium import Tab, open_browser
from support.live_view import live_view
from support.polling import until
from support.streaming_model import PIECES, StreamingModel, streaming_model

ANSWER: Final = "".join(PIECES)


@pytest.fixture
def model() -> Iterator[StreamingModel]:
    with streaming_model() as model:
        yield model


@pytest.fixture
def address(model: StreamingModel, tmp_path: Path) -> Iterator[str]:
    with live_view(f"sqlite:///{tmp_path}/agent.db", model, tmp_path) as address:
        yield f"{address}/chats/chat-1"


def log(tab: Tab) -> list[str]:
    items: list[str] = tab.run('[...document.querySelectorAll("#log li")].map((each) => each.textContent)')
    return items


def draft(tab: Tab) -> str | None:
    text: str | None = tab.run('document.getElementById("draft")?.textContent')
    return text


def ask(tab: Tab, text: str) -> None:
    tab.run(f'document.getElementById("text").value = "{text}"; document.getElementById("form").requestSubmit()')


def test_two_tabs_show_the_whole_answer_even_if_one_tab_is_reloaded_meanwhile(
    address: str, model: StreamingModel, tmp_path: Path
) -> None:
    model.hold()
    with open_browser(tmp_path / "profile") as browser:
        first, second = browser.open_tab(address), browser.open_tab(address)
        for tab in (first, second):
            until(lambda tab=tab: tab.run("typeof follow === 'function'"))  # type: ignore[misc]
        ask(first, "Have you read it?")
        for tab in (first, second):
            until(lambda tab=tab: draft(tab) == PIECES[0])  # type: ignore[misc]
            assert log(tab) == ["user: Have you read it?"]
        second.run("window.isOld = true")
        second.reload()
        until(lambda: second.run("window.isOld") is None and draft(second) == PIECES[0])
        model.release()
        expected = ["user: Have you read it?", f"assistant: {ANSWER}"]
        for tab in (first, second):
            until(lambda tab=tab: (log(tab), draft(tab)) == (expected, ""))  # type: ignore[misc]
        ask(second, "Again?")
        for tab in (first, second):
            until(lambda tab=tab: log(tab) == [*expected, "user: Again?", f"assistant: {ANSWER}"])  # type: ignore[misc]
    assert model.calls == {"Have you read it?": 1, "Again?": 1}
