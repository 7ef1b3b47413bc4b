"""HTML documents of sessions in a browser: accessible, without scripts, readable on a phone."""

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from support.chromium import Browser
from support.factories import message
from support.polling import until

from lango_store import Message, MessageRole, Store, ToolCall
from lango_store._rooms.documents.document import document

AXE = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
NASTY = "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">\u202eevil\x1b[2J\0"
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
MARKDOWN = f"""# Plan

Pull the `plug`. See [the manual](https://example.org/).

| part | celsius | {"x" * 60} |
|:-|-:|-|
| cpu | 91 | {"word " * 20} |

> quoted

```python
@cached  # once
def main(x: int = 3) -> str:
    return f"{{x}}" or {"y" * 200}
```

```diff
- old
+ new
```
"""

RunScript = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as opened:
        yield opened


@pytest.fixture
def html(store: Store) -> str:
    """A document with every kind of content, including hostile text."""
    conversation = store.open("k", title=NASTY.rstrip("\0"), agent_id="support", metadata={"a": {"b": [NASTY]}})
    call = ToolCall(id="c1", name="get_weather", arguments={"city": "Oslo", NASTY: NASTY})
    turn = [message(NASTY, author=NASTY.rstrip("\0")), Message.assistant("Let me look.", tool_calls=[call])]
    conversation.save_turn(turn, {"tokens": 1})
    conversation.append_messages(
        [
            Message.tool(tool_calls=[ToolCall(id="c1", name="get_weather", output=["long"] * 3_000)]),
            Message(role=MessageRole.RECORD, content={"usd": 1}),
            Message.system("x" * 9_000),
            Message.assistant(MARKDOWN),
            Message.user([{"type": "tool_result", "tool_use_id": "t1", "content": "no station", "is_error": True}]),
            Message.user([{"type": "text", "text": "and this?"}, {"type": "image", "data": "AAAA" * 900}]),
            Message.user([{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}]),
        ]
    )
    conversation.compact(lambda _: [Message.assistant("We spoke.")])
    return "".join(document(conversation.info(), conversation.all_messages(), conversation.turns.list()))


OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true);"


@pytest.mark.parametrize("dark", [False, True])
def test_document_passes_the_accessibility_checks_of_axe(html: str, run_script: RunScript, dark: bool) -> None:
    violations = "(await axe.run()).violations.map(each => [each.id, each.nodes[0].html])"
    script = f"{AXE};{OPEN_ALL} return JSON.stringify({violations})"
    assert json.loads(run_script(html, script.replace("</script", "<\\/script"), dark=dark)) == []


def test_document_has_another_background_in_dark_mode(html: str, run_script: RunScript) -> None:
    colors = {
        run_script(html, "return getComputedStyle(document.body).backgroundColor", dark=dark) for dark in (False, True)
    }
    assert len(colors) == 2


def test_scripts_in_stored_messages_do_not_run(html: str, run_script: RunScript) -> None:
    title, images, scripts = json.loads(
        run_script(html, "return JSON.stringify([document.title, document.images.length, document.scripts.length])")
    )
    assert title != "run"
    assert "<script>" in title
    assert (images, scripts) == (1, 1)  # the stored image, and the script of the test


IN_A_FRAME = """
document.querySelectorAll("script").forEach(each => each.remove());
document.querySelectorAll("details").forEach(each => each.setAttribute("open", ""));
const frame = document.createElement("iframe");
frame.style = "border:0;width:WIDTHpx;height:900px";
frame.srcdoc = document.documentElement.outerHTML;
document.body.appendChild(frame);
await new Promise(done => { frame.onload = done });
return JSON.stringify([frame.contentWindow.innerWidth, frame.contentDocument.documentElement.scrollWidth]);
"""


@pytest.mark.parametrize("width", [320, 390, 1200])
def test_document_fits_the_width_of_the_browser_window(html: str, run_script: RunScript, width: int) -> None:
    window_width, document_width = json.loads(run_script(html, IN_A_FRAME.replace("WIDTH", str(width))))
    assert window_width == width
    assert document_width <= width


def test_document_shows_5000_messages(store: Store, run_script: RunScript) -> None:
    for start in range(0, 5_000, 500):
        store.conversation("k").append_messages(
            [message(f"message {start + offset}") for offset in range(500)], create=True
        )
    html = "".join(document(store.conversation("k").info(), store.conversation("k").iter_messages()))
    assert run_script(html, "return document.querySelectorAll('article').length") == "5000"


def test_policy_lets_stored_images_be_shown(store: Store, browser: Browser, tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXEL}"}}
    page = tmp_path / "page.html"
    page.write_text(store.open("k", messages=[Message.user([image])]).get().to_html(), encoding="utf-8")
    tab = browser.open_tab(page.as_uri())
    until(lambda: tab.run("document.images[0]?.naturalWidth") == 1)
    blocked = "new Promise(done => { const image = new Image(); image.onload = () => done(false); "
    blocked += f"image.onerror = () => done(true); image.src = '{page.as_uri()}.png' }})"
    page.with_name("page.html.png").write_bytes(b64decode(PIXEL))
    assert tab.run(blocked) is True
