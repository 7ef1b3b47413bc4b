"""The served pages in a real browser: no violation, no wider than a telephone, and their policy admits their style."""

import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.factories import message, messages

from lango_store import Store, schema
from lango_store.web import application

AXE = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8").replace("</script", "<\\/script")
TOKEN = "a token of some length"

Look = Callable[..., str]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Return a page by its place below the token."""
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        for number in range(60):
            store.create(f"telegram:{number}", agent_id="support", title="Router on fire " * (number % 9))
        store.append_messages("telegram:7", messages(250))
        store.append_message("telegram:7", message("hello there"))
        schema.enable_search(store.engine)
        browser = TestClient(application(store, TOKEN), base_url="http://localhost")
        yield lambda to: browser.get(f"/{TOKEN}/{to}").text


@pytest.mark.parametrize("to", ["", "?cursor=bogus", "session?key=telegram:7&before=200", "search?words=hello"])
@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_no_violation(served: Callable[[str], str], look: Look, to: str, dark: bool) -> None:
    violations = "(await axe.run()).violations.map(each => [each.id, each.nodes[0].html])"
    assert json.loads(look(served(to), f"{AXE}; return JSON.stringify({violations})", dark=dark)) == []


IN_A_FRAME = """
document.querySelectorAll("script").forEach(each => each.remove());
const frame = document.createElement("iframe");
frame.style = "border:0;width:390px;height:900px";
frame.srcdoc = document.documentElement.outerHTML;
document.body.appendChild(frame);
await new Promise(done => { frame.onload = done });
const page = frame.contentDocument;
const broken = [...page.querySelectorAll("td[data-name]")].filter(each => each.offsetHeight > 30);
return JSON.stringify([page.documentElement.scrollWidth <= 390, broken.length]);
"""


def test_list_on_a_telephone_breaks_no_word(served: Callable[[str], str], look: Look) -> None:
    assert json.loads(look(served(""), IN_A_FRAME)) == [True, 0]


@pytest.mark.parametrize(("to", "width"), [("", "1152px"), ("session?key=telegram:7", "832px")])
def test_the_style_is_the_one_that_the_policy_allows(
    served: Callable[[str], str], look: Look, to: str, width: str
) -> None:
    page = served(to)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    # The policy stays as it is, but that it admits the test's own script too.
    kept = page.replace(policy, f"{policy}; script-src 'unsafe-inline'").replace("http-equiv=", "data-x http-equiv=")
    assert look(kept, "return getComputedStyle(document.querySelector('main')).maxWidth") == width
