"""The programs that wait for an approval ask in one process, and continue in others, some of which are killed."""

import signal
from importlib.metadata import version
from pathlib import Path
from typing import Final, NamedTuple

import pytest
from support.framework_pages import started, write_program
from support.pages import blocks
from support.processes import run_program

from lango_store import Store


class Page(NamedTuple):
    """A page with a program, the session and the file of the program, and the roles of the messages at its end."""

    path: str
    key: str  # or the prefix of the key
    file: str
    roles: list[str]


OPENAI: Final = Page("openai-agents.md", "user-125", "agents.db", ["user", "assistant", "tool", "assistant"])
PYDANTIC: Final = Page("pydantic-ai.md", "chat-4", "agents.db", ["user", "assistant", "tool", "assistant"])
ADK: Final = Page(
    "google-adk.md", "cashier:ann:bills", "adk.db", ["user", "model", "model", "tool", "tool", "tool", "model"]
)
CLAUDE: Final = Page(
    "claude-agent-sdk.md", "claude:", "approval.db", ["user", "assistant", "tool", "user", "assistant"]
)
PAGES: Final = [OPENAI, ADK, PYDANTIC, CLAUDE]

ASK: Final = "import asyncio, approval; print(asyncio.run(approval.ask('Can you pay my bill?')))"
ANSWER: Final = "asyncio.run(approval.answer({token!r}, {approved}))"
START: Final = "import asyncio, os, signal, approval\n"

KILLED_IN_TOOL: Final = "approval.print = lambda *words: os.killpg(0, signal.SIGKILL)\n"
KILLED_IN_MODEL: Final = """
class Killed(approval.{model}):
    def {method}(self, *arguments, **options):
        os.killpg(0, signal.SIGKILL)

approval.{model} = Killed
"""
KILLED_AFTER_TOOL: Final = """
class Killed(approval.LangoSessionStore):
    async def append(self, key, entries):
        await super().append(key, entries)
        if any("toolUseResult" in entry for entry in entries):
            os.killpg(0, signal.SIGKILL)

approval.LangoSessionStore = Killed
"""

pytestmark = [pytest.mark.timeout(400), pytest.mark.usefixtures("claude_model")]  # ADK takes seconds to load


def asked(page: Page, folder: Path) -> str:
    """Run the program until it waits for an approval; return the token."""
    programs = blocks(f"docs/frameworks/{page.path}", "python")
    (program,) = (block for block in programs if "suspensions.create(" in block)
    write_program(f"docs/frameworks/{page.path}", program, folder / "approval.py")
    waiting, token = started("-c", ASK, folder=folder).splitlines()
    assert waiting.startswith("waiting: pay ")
    return token


def answered(token: str, folder: Path, *answers: bool) -> list[str]:
    """Answer once or several times in a new process; return the lines that it prints."""
    source = "; ".join(ANSWER.format(token=token, approved=approved) for approved in answers)
    return started("-c", START + source, folder=folder).splitlines()


def key(page: Page, store: Store) -> str:
    return next(info.key for info in store.iter_sessions(key_prefix=page.key))


def roles(page: Page, folder: Path) -> list[str]:
    with Store(f"sqlite:///{folder}/{page.file}") as store:
        return [message.role for message in store.conversation(key(page, store)).messages()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_approved_tool_runs_in_a_new_process(page: Page, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    assert answered(token, tmp_path, True, True) == ["paying 40 euros", "Done.", "already done"]
    assert roles(page, tmp_path) == page.roles


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_refused_tool_does_not_run(page: Page, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    assert answered(token, tmp_path, False, True) == ["Done.", "already done"]


def kill(page: Page, token: str, killing: str, folder: Path) -> None:
    """Approve in a process that is killed together with the SDK's command line; end its turn."""
    source = START + killing + ANSWER.format(token=token, approved=True)
    done = run_program(source, folder=folder, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store(f"sqlite:///{folder}/{page.file}") as store:
        assert store.conversation(key(page, store)).turns.release() is not None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.path)
def test_stored_approval_is_used_after_the_process_is_killed_during_the_tool(page: Page, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    kill(page, token, KILLED_IN_TOOL, tmp_path)
    assert answered(token, tmp_path, False) == ["paying 40 euros", "Done."]


ADK_ENDS_THE_RUN: Final = [int(part) for part in version("google-adk").split(".")[:2]] >= [2, 12]
ADK_PRINTS: Final = [] if ADK_ENDS_THE_RUN else ["paying 40 euros", "Done."]
"""Earlier versions run a tool again whose result is stored, as the page says."""


@pytest.mark.parametrize(
    ("page", "model", "method", "printed"),
    [(OPENAI, "ScriptedModel", "get_response", ["Done."]), (ADK, "Script", "generate_content_async", ADK_PRINTS)],
    ids=["openai", "adk"],
)
def test_approved_run_continues_as_documented_after_a_kill_during_the_model_call(
    page: Page, model: str, method: str, printed: list[str], tmp_path: Path
) -> None:
    token = asked(page, tmp_path)
    kill(page, token, KILLED_IN_MODEL.format(model=model, method=method), tmp_path)
    assert answered(token, tmp_path, True) == printed


def test_stored_result_of_a_claude_tool_is_used_after_the_process_is_killed(tmp_path: Path) -> None:
    token = asked(CLAUDE, tmp_path)
    kill(CLAUDE, token, KILLED_AFTER_TOOL, tmp_path)
    assert roles(CLAUDE, tmp_path)[:3] == ["user", "assistant", "tool"]
    assert answered(token, tmp_path, True, True) == ["Done.", "already done"]
    with Store(f"sqlite:///{tmp_path}/{CLAUDE.file}") as store:
        assert [each.content for each in store.conversation(key(CLAUDE, store)).messages() if each.role == "tool"] == [
            "paid"
        ]
