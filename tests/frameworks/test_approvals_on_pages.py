"""The programs that wait for an approval ask in one process, and continue in others, some of which are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.framework_pages import started
from support.pages import blocks
from support.paths import ROOT

from lango_store import Store


class Page(NamedTuple):
    """A page with a program, the session and the file of the program, and the roles of the messages at its end."""

    path: str
    key: str
    file: str
    roles: list[str]


OPENAI: Final = Page("openai-agents.md", "user-125", "agents.db", ["user", "assistant", "tool", "assistant"])
PYDANTIC: Final = Page("pydantic-ai.md", "chat-4", "agents.db", ["user", "assistant", "tool", "assistant"])
ADK: Final = Page(
    "google-adk.md", "cashier:ann:bills", "adk.db", ["user", "model", "model", "tool", "tool", "tool", "model"]
)
PAGES: Final = [OPENAI, ADK, PYDANTIC]

ASK: Final = "import asyncio, approval; print(asyncio.run(approval.ask('Pay my bill.')))"
ANSWER: Final = "asyncio.run(approval.answer({token!r}, {approved}))"
START: Final = "import asyncio, os, signal, approval\n"

KILLED_IN_TOOL: Final = "approval.print = lambda *words: os.kill(os.getpid(), signal.SIGKILL)\n"
KILLED_IN_MODEL: Final = """
class Killed(approval.{model}):
    def {method}(self, *arguments, **options):
        os.kill(os.getpid(), signal.SIGKILL)

approval.{model} = Killed
"""

pytestmark = pytest.mark.timeout(400)  # ADK takes seconds to load


def asked(page: Page, folder: Path) -> str:
    """Run the program until it waits for an approval; return the token."""
    (program,) = (block for block in blocks(f"docs/frameworks/{page.path}", "python") if "suspend(" in block)
    (folder / "approval.py").write_text(program)
    waiting, token = started("-c", ASK, folder=folder).splitlines()
    assert waiting.startswith("waiting: pay ")
    return token


def answered(token: str, folder: Path, *, approved: bool = True) -> list[str]:
    """Answer in a new process; return the lines that it prints."""
    return started("-c", START + ANSWER.format(token=token, approved=approved), folder=folder).splitlines()


def roles(page: Page, folder: Path) -> list[str]:
    with Store(f"sqlite:///{folder}/{page.file}") as store:
        return [message.role for message in store.messages(page.key)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_approved_tool_runs_in_a_new_process(page: Page, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    assert answered(token, tmp_path) == ["paying 40 euros", "Done."]
    assert answered(token, tmp_path) == ["already done"]
    assert roles(page, tmp_path) == page.roles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_refused_tool_does_not_run(page: Page, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    assert answered(token, tmp_path, approved=False) == ["Done."]
    assert answered(token, tmp_path, approved=True) == ["already done"]


def kill(page: Page, token: str, killing: str, folder: Path) -> None:
    """Approve in a process that is killed, and end its turn."""
    source = START + killing + ANSWER.format(token=token, approved=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store(f"sqlite:///{folder}/{page.file}") as store:
        assert store.conversation(page.key).release_turn() is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_stored_approval_is_used_after_its_process_is_killed_in_the_tool(page: Page, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    kill(page, token, KILLED_IN_TOOL, tmp_path)
    assert answered(token, tmp_path, approved=False) == ["paying 40 euros", "Done."]


@pytest.mark.parametrize(
    ("page", "model", "method", "printed"),
    [(OPENAI, "ScriptedModel", "get_response", ["Done."]), (ADK, "Script", "generate_content_async", [])],
    ids=["openai", "adk"],
)
def test_tool_is_not_repeated_after_its_process_is_killed_in_the_model(
    page: Page, model: str, method: str, printed: list[str], tmp_path: Path
) -> None:
    token = asked(page, tmp_path)
    kill(page, token, KILLED_IN_MODEL.format(model=model, method=method), tmp_path)
    assert answered(token, tmp_path) == printed  # without "paying 40 euros"
