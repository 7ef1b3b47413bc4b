"""Pages of `lango-store serve` in a browser: accessible, readable on a phone, with a policy that allows their style."""

import json
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.factories import message, messages

from lango_store import Message, Store, schema
from lango_store.web import application

AXE = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8").replace("</script", "<\\/script")
TOKEN = "a token of some length"

RunScript = Callable[..., str]


@pytest.fixture
def get_page(tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Return a page by its path below the token."""
    with Store(f"sqlite:///{tmp_path}/agent.db", migrate=True) as store:
        for number in range(60):
            store.create(f"telegram:{number}", agent_id="support", title="Router on fire " * (number % 9))
        store.conversation("telegram:7").append_messages(messages(250))
        store.append_message("telegram:7", message("hello there"))
        failed = Message.tool("no route", name="pay", failed=True)
        store.open("telegram:8").save_turn([Message.user("Pay."), failed], usage={"input_tokens": 9, "cost_usd": 0.5})
        schema.enable_search(store.engine)
        browser = TestClient(application(store, TOKEN), base_url="http://localhost")
        yield lambda path: browser.get(f"/{TOKEN}/{path}").text


@pytest.mark.parametrize(
    "path", ["", "?cursor=bogus", "session?key=telegram:7&before=200", "search?words=hello", "totals"]
)
@pytest.mark.parametrize("dark", [False, True])
def test_page_passes_the_accessibility_checks_of_axe(
    get_page: Callable[[str], str], run_script: RunScript, path: str, dark: bool
) -> None:
    violations = "(await axe.run()).violations.map(each => [each.id, each.nodes[0].html])"
    assert json.loads(run_script(get_page(path), f"{AXE}; return JSON.stringify({violations})", dark=dark)) == []


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


def test_session_list_on_a_phone_wraps_no_key(get_page: Callable[[str], str], run_script: RunScript) -> None:
    assert json.loads(run_script(get_page(""), IN_A_FRAME)) == [True, 0]


@pytest.mark.parametrize(("path", "width"), [("", "1152px"), ("session?key=telegram:7", "832px")])
def test_content_security_policy_of_a_page_allows_the_style_of_the_page(
    get_page: Callable[[str], str], run_script: RunScript, path: str, width: str
) -> None:
    page = get_page(path)
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    # Add the script of the test to the policy, and change nothing else in it.
    document = page.replace(policy, f"{policy}; script-src 'unsafe-inline'")
    document = document.replace("http-equiv=", "data-x http-equiv=")
    assert run_script(document, "return getComputedStyle(document.querySelector('main')).maxWidth") == width
