"""Sessions as HTML documents."""

import html as html_module
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.commands import run
from support.factories import message
from support.json_values import json_values

from lango_store import Conversation, Message, MessageRole, Session, Store, ToolCall
from lango_store._rooms.documents.document import document
from lango_store._rooms.documents.page import POLICY
from lango_store.testing import Clock
from lango_store.testing.factories import SessionFactory

pytestmark = pytest.mark.one_database

STRUCTURE = {"html", "head", "meta", "title", "style", "body", "main", "header", "article", "h1", "h2", "h3", "div"}
RENDERED = {"ul", "ol", "li", "blockquote", "code", "em", "s", "table", "thead", "tbody", "tr", "th", "td", "br", "hr"}
TAGS = (
    STRUCTURE
    | RENDERED
    | {"nav"}
    | {"dl", "dt", "dd", "p", "a", "span", "small", "strong", "time", "pre", "details", "summary"}
)
ATTRIBUTES = {
    "lang",
    "charset",
    "name",
    "content",
    "http-equiv",
    "class",
    "id",
    "href",
    "dir",
    "datetime",
    "rel",
    "start",
}
ADDRESS = re.compile(r"#[mt]\d+|#turns|https?://.*|mailto:.*", re.IGNORECASE | re.DOTALL)


class Read(HTMLParser):
    """Collects the tags and texts of a document, as a browser parses it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.hrefs: list[str] = []
        self.articles: list[tuple[str, list[str]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.attributes |= set(given)
        self.hrefs += [given["href"] or ""] if "href" in given else []
        if tag == "article":
            self.articles.append((given["class"] or "", []))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self.articles:
            self.articles[-1][1].append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def session(*messages: Message, **fields: Any) -> Session:
    created: Session = SessionFactory(messages=messages, **fields)
    return created


def read(*messages: Message, **fields: Any) -> Read:
    return Read(session(*messages, **fields).to_html())


anything = st.text(st.characters() | st.sampled_from("<>&\"'/\0\x1b\u202e\u2066\ud800\x85\u2028"), max_size=40)
anything |= st.sampled_from(
    ["<script>alert(1)</script>", "</pre></details>", "]]>", "<!--", "&lt;b&gt;", '" onload="x']
)


@given(anything, json_values(anything), anything, json_values(anything))
def test_document_never_contains_stored_text_as_markup(text: str, content: Any, name: str, value: Any) -> None:
    call = ToolCall(id=text, name=name, arguments=content, output=value)
    found = read(
        Message.user(text, author=name),
        Message.assistant(content, tool_calls=[call], name=text),
        Message(role=MessageRole.RECORD, content=value),
        title=name,
        metadata={name: content},
    )
    assert set(found.tags) <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert all(map(ADDRESS.fullmatch, found.hrefs))
    shown = found.text.replace("\n", "")
    assert not re.search(
        "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown
    )
    found.text.encode()


@given(st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), max_size=60))
def test_document_shows_ascii_text_of_a_tool_unchanged(text: str) -> None:
    ((_, texts),) = read(Message.tool(text)).articles
    assert text in "".join(texts)


def test_document_loads_no_resources() -> None:
    html = session(Message.user("see https://example.org/picture.png")).to_html()
    assert f'content="{POLICY}"' in html
    assert not re.search(r"<(script|img|link|iframe|object|embed|form|base)\b|url\(|@import|\bsrc=", html)


DATA = "iVBORw0KGgo="
URI = f"data:image/png;base64,{DATA}"
IMAGES: dict[str, dict[str, Any]] = {
    "openai": {"type": "image_url", "image_url": {"url": URI}},
    "responses": {"type": "input_image", "image_url": URI},
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    "gemini": {"inline_data": {"mime_type": "image/png", "data": DATA}},
    "ai sdk": {"type": "file", "mediaType": "image/png", "url": URI},
    "ag-ui": {"type": "image", "source": {"type": "data", "value": DATA, "mimeType": "image/png"}},
}


@pytest.mark.parametrize("block", IMAGES.values(), ids=IMAGES)
def test_document_shows_stored_images(block: dict[str, Any]) -> None:
    html = session(Message.user([{"type": "text", "text": "What is this?"}, block])).to_html()
    assert f'<img src="{URI}" alt="PNG image">' in html


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a.png",
        "data:image/svg+xml;base64,PHN2Zz4=",
        "data:text/html;base64,PGI+",
        f'{URI}" onerror="run()',
        "",
        None,
    ],
)
def test_document_shows_other_addresses_as_json(url: str | None) -> None:
    assert "<img" not in session(Message.user([{"type": "image_url", "image_url": {"url": url}}])).to_html()


def test_document_shows_roles_authors_times_and_tokens() -> None:
    found = read(
        message("hi", author="planner", tokens=1_234, model="<gpt>"),
        Message.system("be kind"),
        Message(role="model", content=""),
    )
    assert [kind for kind, _ in found.articles] == ["user", "system", "assistant"]
    assert {"planner", "<gpt> · 1,234 tokens"} <= {text.strip(" ·") for text in found.articles[0][1]}


def test_document_folds_tool_calls_with_arguments_and_outputs() -> None:
    asked = ToolCall(id="c1", name="get_weather", arguments={"city": "Oslo"})
    answered = ToolCall(id="c1", name="get_weather", output={"celsius": -3})
    found = read(Message.assistant(None, tool_calls=[asked]), Message.tool(tool_calls=[answered]))
    assert found.tags.count("details") == 2
    assert '{\n  "city": "Oslo"\n}' in found.text
    assert '{\n  "celsius": -3\n}' in found.text
    assert '→ {"celsius": -3}' in found.text


def test_document_folds_long_texts_without_cutting_them() -> None:
    long = "word " * 2_000
    found = read(Message.user(long), Message.user("short"))
    assert found.tags.count("details") == 1
    assert long in found.text


MARKUP = [
    "# ",
    "- ",
    "3. ",
    "> ",
    "    ",
    "\n",
    "\n\n",
    "```python\n",
    "```",
    "`",
    "*",
    "**",
    "_",
    "~~",
    "|",
    "|-|-|",
    "[",
    "](",
]
MARKUP += [
    ")",
    "]: ",
    "<",
    ">",
    "![",
    "<b onclick=x>",
    "<!--",
    "&#x202e;",
    "&lt;",
    "javascript:",
    "data:text/html,",
    "//",
]
MARKUP += [
    "https://a.b/",
    "mailto:a@b",
    "file:///",
    "\\",
    '"',
    "word",
    "x=1",
    "\u202e",
    "\0",
    "\ud800",
    "JAVASCRIPT:",
    "\t",
]
markup = st.lists(st.sampled_from(MARKUP) | st.text(max_size=3), max_size=30).map("".join)


@pytest.mark.slow
@given(markup)
def test_markdown_becomes_only_the_permitted_tags_attributes_and_links(text: str) -> None:
    found = read(Message.assistant(text))
    assert set(found.tags) <= TAGS
    assert found.attributes <= ATTRIBUTES
    assert all(map(ADDRESS.fullmatch, found.hrefs))
    assert not re.search("[\u202a-\u202e\ud800-\udfff\0]", found.text + "".join(found.hrefs))


@given(st.lists(st.sampled_from(["> ", "- ", "1. ", "* ", "  ", "\n", "a", "**", "|"]), max_size=60).map("".join))
def test_markdown_keeps_each_letter_however_deeply_it_is_nested(text: str) -> None:
    ((_, texts),) = read(Message.assistant(f"{text}\n\n{'> ' * text.count('> ')}a")).articles
    assert "".join(texts[texts.index("assistant") + 1 :]).count("a") >= text.count("a") + 1


def test_document_renders_markdown_and_colors_code() -> None:
    text = "# Plan\n\n- **pull** the `plug`\n\n| a | b |\n|:-|-:|\n| 1 | 2 |\n\n```python\nreturn '<'\n```\n"
    html = session(Message.assistant(text)).to_html()
    for part in (
        '<h3 class="h1">Plan</h3>',
        "<li><strong>pull</strong> the <code>plug</code></li>",
        "<td>2</td>",
        '<span class="k">return</span>',
        "&lt;",
    ):
        assert part in html
    assert "style=" not in html


def test_document_colors_the_first_code_of_a_message_only() -> None:
    block = f"```python\nreturn {'1' * 1_500}\n```\n"
    assert session(Message.assistant(block * 9)).to_html().count('<span class="k">return</span>') == 2


def test_markdown_links_to_web_pages_and_mail_only() -> None:
    text = "[a](https://a.b) ![c](http://c.d/e.png) <mailto:f@g> [h](javascript:i) [j](data:k) [l](/m) <b>n</b>"
    found = read(Message.assistant(text))
    assert [href for href in found.hrefs if href[0] != "#"] == ["https://a.b", "http://c.d/e.png", "mailto:f@g"]
    assert "[h](javascript:i) [j](data:k) [l](/m) <b>n</b>" in found.text


def test_document_shows_text_without_markup_with_its_spaces_and_lines() -> None:
    assert "a  b\n    c" in read(Message.user("a  b\n    c")).text


CALLS: dict[str, list[dict[str, Any]]] = {
    "anthropic": [
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"}},
        {"type": "tool_result", "tool_use_id": "t1", "content": "no station", "is_error": True},
    ],
    "gemini": [
        {"function_call": {"id": "t1", "name": "get_weather", "args": {"city": "Oslo"}}},
        {"functionResponse": {"id": "t1", "name": "get_weather", "response": {"error": "no station"}}},
    ],
    "openai": [
        {"type": "function_call", "call_id": "t1", "name": "get_weather", "arguments": {"city": "Oslo"}},
        {"type": "function_call_output", "call_id": "t1", "output": "no station"},
    ],
}


@pytest.mark.parametrize("provider", CALLS)
def test_document_shows_the_tool_blocks_of_providers_as_calls_and_results(provider: str) -> None:
    asked, answered = CALLS[provider]
    html = session(Message.assistant([asked]), Message.user([answered])).to_html()
    assert html.count('<details class="call">') == 2
    assert '<span class="name">get_weather</span>' in html
    assert "no station" in Read(html).text
    assert ('<strong class="failed">failed</strong>' in html) == (provider != "openai")  # which marks no error


def test_document_marks_results_of_failed_tools() -> None:
    marked = ['class="failed"' in session(Message.tool("x", extra=extra)).to_html() for extra in ({"failed": True}, {})]
    assert marked == [True, False]


LARGE = {"days": [{"day": number, "wind": None} for number in range(9)], "from": "<Süden>"}


@pytest.mark.parametrize(
    "result",
    [
        Message.tool(LARGE),
        Message.tool(json.dumps(LARGE)),
        Message.tool(f"\n{json.dumps(LARGE, ensure_ascii=False, separators=(',', ':'))} "),
        Message.user([{"type": "tool_result", "tool_use_id": "t1", "content": json.dumps(LARGE)}]),
        Message.tool(tool_calls=[ToolCall(id="t1", name="wind", output=json.dumps(LARGE))]),
    ],
)
def test_document_folds_and_indents_results_that_are_json(result: Message) -> None:
    html = session(result).to_html()
    indented = html_module.escape(json.dumps(LARGE, ensure_ascii=False, indent=2))
    assert re.search(r"<details><summary><small>.*?…</small></summary><pre>" + re.escape(indented), html)
    assert html.count(indented) == 1


def test_document_indents_arguments_that_are_json_text() -> None:
    html = session(Message.assistant(tool_calls=[ToolCall(id="c", name="f", arguments='{"a":[1]}')])).to_html()
    assert '{\n  "a": [\n    1\n  ]\n}' in Read(html).text


@pytest.mark.parametrize(
    "text",
    [
        '{"celsius": -3}',
        f'{{"price": 1.10, "note": "{"x" * 100}"}}',
        f'{{"name": 1, "name": 2, "note": "{"x" * 100}"}}',
        f'{{"url": "https:\\/\\/example.com", "note": "{"x" * 100}"}}',
        f"{'[' * 21}1,{'2,' * 50}3{']' * 21}",
        f"{'[' * 100_000}",
        f"{'[' * 5_000}{']' * 5_000}",
        f"[{'1,' * 100}",
        f"[{'1, ' * 30_000}2]",
    ],
)
def test_document_shows_a_result_as_it_is_if_indented_json_would_not_be_the_same_or_no_help(text: str) -> None:
    html = session(Message.tool(text)).to_html()
    assert f'<div class="text" dir="auto">{html_module.escape(text)}</div>' in html


def test_document_of_a_long_session_folds_json_once(store: Store) -> None:
    conversation = store.open("k")
    conversation.append_messages([Message.tool(json.dumps(LARGE)) for _ in range(60)])
    html = "".join(document(conversation.info(), conversation.all_messages()))
    assert html.count("<details") == 60


def test_document_of_a_long_session_folds_results_and_has_an_index_of_turns(store: Store) -> None:
    conversation = store.open("k")
    for number in range(20):
        conversation.save_turn([message(f"ask {number}"), Message.tool("done"), Message.assistant("ok")], {})
    turns = conversation.turns.list()
    html = "".join(document(conversation.info(), conversation.all_messages(), turns))
    assert html.count("<details><summary>done</summary>") == 20
    assert '<li><a href="#t20">turn 20</a> ask 19</li>' in html
    hrefs = {href[1:] for href in Read(html).hrefs}
    assert hrefs <= set(re.findall(r' id="([^"]*)"', html))
    short = "".join(document(conversation.info().model_copy(update={"message_count": 6}), [], turns))
    assert 'href="#turns"' not in short


def test_document_shows_each_content_block() -> None:
    blocks = [{"type": "text", "text": "Look:"}, {"type": "tool_result", "tool_use_id": "t1", "content": "one\ntwo"}]
    found = read(Message.user(blocks), Message.user(blocks[1:]))
    assert found.text.count("one\ntwo") == 2
    assert found.tags.count("details") == 2
    assert "Look:" in found.text


def test_document_shows_a_turn_and_its_usage_before_the_messages_of_the_turn(store: Store) -> None:
    conversation = store.open("k")
    conversation.save_turn([message("one"), message("two")], {"input_tokens": 10}, id="request-1")
    conversation.save_turn([], {"input_tokens": 7}, id="empty")
    conversation.save_turn([message("three")], {"input_tokens": 3})
    html = conversation.get().to_html(turns=conversation.turns.list())
    places = [html.index(each) for each in ("request-1", ">one<", ">two<", "</strong> empty", "turn 3", ">three<")]
    assert places == sorted(places)
    assert "<dt>usage of turns</dt><dd>input_tokens 20</dd>" in html
    assert "input_tokens 10" in html


def test_document_shows_the_model_and_usage_of_a_turn_on_one_line(store: Store) -> None:
    usage = {"input_tokens": 12_345, "details": {"cached": 1_000}, "cost_usd": 0.25, "steps": [0] * 200}
    conversation = store.open("k")
    conversation.save_turn([message()], usage, id="request-1", metadata={"model": "large"})
    html = conversation.get().to_html(turns=conversation.turns.list())
    facts = f"request-1 · large · input_tokens 12,345 · details.cached 1,000 · cost $0.25 · steps [{'0, ' * 31}…"
    assert f"<strong>turn 1</strong> {facts}</p>" in html


def ask_and_answer(store: Store) -> Conversation:
    """Store a call that ann has approved, a second question about it, and a question without a call."""
    conversation = store.open(
        "k", messages=[message("one"), Message.assistant(tool_calls=[ToolCall(id="c", name="p")])]
    )
    asked = [
        conversation.suspensions.create(calls, reason=f"Pay {n}?") for n, calls in enumerate([[(2, 0)], [(2, 0)], []])
    ]
    conversation.suspensions.answer(asked[0].id, {"ok": "\ud83d<b>"}, by="ann <b>", why="It is <b>cheap</b>.")
    conversation.suspensions.answer(asked[2].id, False)
    return conversation


def test_document_shows_who_has_answered_a_question_and_why(store: Store, clock: Clock) -> None:
    conversation = ask_and_answer(store)
    when = f"answered {clock.time:%Y-%m-%d %H:%M:%S} UTC"
    found = Read(conversation.get().to_html(suspensions=conversation.suspensions.list()))
    assert f'call 0 · Pay 0? · {when} by ann <b>: {{"ok": "\\ud83d<b>"}} · It is <b>cheap</b>.' in found.text
    assert "call 0 · Pay 1? · not answered" in found.text
    assert f"Pay 2? · {when}: false" in found.text
    assert "Pay" not in Read(conversation.get().to_html()).text


def test_show_prints_answers_on_a_terminal_and_in_a_document(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        ask_and_answer(store)
    out = run("sessions", "show", "k", "--url", url).stdout
    assert "by ann <b>" in out
    assert "Pay 2? · answered" in out.splitlines()[4]
    run("sessions", "show", "k", "--url", url, "--html", str(tmp_path / "out.html"))
    assert "by ann &lt;b&gt;" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_document_marks_summaries(store: Store) -> None:
    conversation = store.open("k", messages=[message("old")])
    conversation.compact(lambda _: [Message.assistant("we met")])
    conversation.append_message(message("new"))
    window = Read(conversation.get().to_html())
    assert [kind for kind, _ in window.articles] == ["summary", "user"]
    log = "".join(document(conversation.info(), conversation.all_messages(), conversation.turns.list()))
    assert "replaces messages up to 1" in log
    assert [kind for kind, _ in Read(log).articles] == ["user", "summary", "user"]


def test_notebook_shows_document_in_a_sandboxed_frame() -> None:
    found = session(Message.user("</iframe><script>x</script>"))._repr_html_()
    assert found.count("<iframe") == 1
    assert re.fullmatch(r'<iframe sandbox srcdoc="[^"<>]*" style="[^"]*" title="session"></iframe>', found)


def test_show_html_writes_a_file(url: str, tmp_path: Path) -> None:
    with Store(url) as store:
        conversation = store.open("k", title="Router on fire")
        conversation.save_turn([message("one"), message("two")], {"input_tokens": 10})
    target = tmp_path / "out.html"
    for _ in range(2):  # the second run replaces the file
        done = run("sessions", "show", "k", "--url", url, "--html", str(target))
        assert (done.returncode, done.stderr) == (0, "")
    found = Read(target.read_text(encoding="utf-8"))
    assert "Router on fire" in found.text
    assert "input_tokens 10" in found.text
    assert len(found.articles) == 2


def test_show_html_writes_nothing_for_unknown_session(url: str, tmp_path: Path) -> None:
    done = run("sessions", "show", "nobody", "--url", url, "--html", str(tmp_path / "out.html"))
    assert done.returncode == 1
    assert list(tmp_path.glob("*.html*")) == []
