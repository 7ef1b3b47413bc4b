"""ADK's command line and web server use the service as the page says."""

import json
from pathlib import Path

import pytest
from support.framework_pages import started
from support.pages import blocks, commands

from lango_store.integrations.google_adk import LangoSessionService

PAGE = "docs/frameworks/google-adk.md"


@pytest.mark.timeout(400)
def test_adk_command_has_the_option_that_the_page_shows(tmp_path: Path) -> None:
    _, script = blocks(PAGE, "sh")
    ((program, command, service, _),) = commands(script)
    assert program == "adk"
    told = started("-c", "from google.adk.cli import main; main()", command, "--help", folder=tmp_path, timeout=200)
    assert service.partition("=")[0] in told


SERVER = """
import sys
from fastapi.testclient import TestClient
from google.adk.cli.fast_api import get_fast_api_app

app = get_fast_api_app(agents_dir="agents", session_service_uri=sys.argv[1], web=False)
with TestClient(app) as client:
    of_ann = "/apps/weather/users/ann/sessions"
    client.post(f"{of_ann}/trip", json={"user:name": "Ann"}).raise_for_status()
    message = {"role": "user", "parts": [{"text": "How warm is it?"}]}
    asked = {"app_name": "weather", "user_id": "ann", "session_id": "trip", "new_message": message}
    client.post("/run", json=asked).raise_for_status()
    print([each["id"] for each in client.get(of_ann).raise_for_status().json()])
    print(client.get(f"{of_ann}/trip").raise_for_status().text)
    client.delete(f"{of_ann}/trip").raise_for_status()
    print(client.get(f"{of_ann}/trip").status_code)
"""


@pytest.mark.timeout(400)
def test_adk_web_server_stores_its_sessions_in_the_store(url: str, tmp_path: Path) -> None:
    program, *_ = blocks(PAGE, "python")
    (services,) = blocks(PAGE, "yaml")
    assert len(services.splitlines()) == 4
    uri = f"lango+{url}".replace("+psycopg", "")
    agent = tmp_path / "agents" / "weather"
    agent.mkdir(parents=True)
    (agent.parent / "services.yaml").write_text(services.replace("lango+postgresql", uri.partition(":")[0]))
    (agent / "agent.py").write_text(program)
    listed, read, gone = started("-c", SERVER, uri, folder=tmp_path, timeout=200).splitlines()[-3:]
    assert listed == "['trip']"
    session = json.loads(read)
    assert session["state"] == {"user:name": "Ann", "user:city": "Oslo"}
    told = [part["text"] for event in session["events"] for part in event["content"]["parts"] if "text" in part]
    assert told == ["How warm is it?", "It has -3 degrees."]
    assert gone == "404"


@pytest.mark.parametrize("both", [True, False])
def test_service_needs_either_a_store_or_a_uri(url: str, both: bool) -> None:
    with pytest.raises(TypeError, match="give either a store or a uri"):
        LangoSessionService(url if both else None, uri=url if both else None)
