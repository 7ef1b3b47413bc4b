"""Documents of sessions in a real browser: readable for everybody, harmless, and no wider than a telephone."""

import json
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from support.factories import message

from lango_store import Message, MessageRole, Store, ToolCall
from lango_store._values.document import document

AXE = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
NASTY = "<script>document.title = 'run'</script><img src=x onerror=\"document.title='run'\">\u202eevil\x1b[2J\0"

Look = Callable[..., str]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as opened:
        yield opened


@pytest.fixture
def html(store: Store) -> str:
    """A document with every kind of content, hostile text included."""
    conversation = store.open("k", title=NASTY.rstrip("\0"), agent_id="support", metadata={"a": {"b": [NASTY]}})
    call = ToolCall(id="c1", name="get_weather", arguments={"city": "Oslo", NASTY: NASTY})
    asked = [message(NASTY, author=NASTY.rstrip("\0")), Message.assistant("Let me look.", tool_calls=[call])]
    conversation.save_turn(asked, {"tokens": 1})
    conversation.append_messages(
        [
            Message.tool(tool_calls=[ToolCall(id="c1", name="get_weather", output=["long"] * 3_000)]),
            Message(role=MessageRole.RECORD, content={"usd": 1}),
            Message.system("x" * 9_000),
            Message.user([{"type": "text", "text": "and this?"}, {"type": "image", "data": "AAAA" * 900}]),
        ]
    )
    conversation.compact(lambda _: [Message.assistant("We spoke.")])
    return "".join(document(conversation.info(), conversation.all_messages(), conversation.turns()))


OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true);"


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation(html: str, look: Look, dark: bool) -> None:
    violations = "(await axe.run()).violations.map(each => [each.id, each.nodes[0].html])"
    script = f"{AXE};{OPEN_ALL} return JSON.stringify({violations})"
    assert json.loads(look(html, script.replace("</script", "<\\/script"), dark=dark)) == []


def test_the_style_follows_the_reader(html: str, look: Look) -> None:
    colours = {
        look(html, "return getComputedStyle(document.body).backgroundColor", dark=dark) for dark in (False, True)
    }
    assert len(colours) == 2


def test_nothing_stored_is_run(html: str, look: Look) -> None:
    title, images, scripts = json.loads(
        look(html, "return JSON.stringify([document.title, document.images.length, document.scripts.length])")
    )
    assert title != "run"
    assert "<script>" in title
    assert (images, scripts) == (0, 1)  # the one that counts


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
def test_nothing_is_wider_than_the_window(html: str, look: Look, width: int) -> None:
    inner, needed = json.loads(look(html, IN_A_FRAME.replace("WIDTH", str(width))))
    assert inner == width
    assert needed <= inner


def test_five_thousand_messages_are_shown(store: Store, look: Look) -> None:
    for start in range(0, 5_000, 500):
        store.append_messages("k", [message(f"message {start + place}") for place in range(500)], create=True)
    html = "".join(document(store.info("k"), store.conversation("k").iter_messages()))
    assert look(html, "return document.querySelectorAll('article').length") == "5000"
