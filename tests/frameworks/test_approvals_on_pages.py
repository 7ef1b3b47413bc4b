"""The programs that wait for an approval ask in one process, and continue in others, some of which are killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from support.framework_pages import started
from support.pages import blocks
from support.paths import ROOT

from lango_store import Store

OPENAI: Final = ("docs/frameworks/openai-agents.md", "user-125")
PYDANTIC: Final = ("docs/frameworks/pydantic-ai.md", "chat-4")

ASK: Final = "import asyncio, approval; print(asyncio.run(approval.ask('Pay my bill.')))"
ANSWER: Final = "asyncio.run(approval.answer({token!r}, {approved}))"
START: Final = "import asyncio, os, signal, approval\n"

KILLED_IN_TOOL: Final = "approval.print = lambda *words: os.kill(os.getpid(), signal.SIGKILL)\n"
KILLED_IN_MODEL: Final = """
class Killed(approval.ScriptedModel):
    async def get_response(self, *arguments, **options):
        os.kill(os.getpid(), signal.SIGKILL)

approval.ScriptedModel = Killed
"""

pytestmark = pytest.mark.timeout(200)


def asked(page: str, folder: Path) -> str:
    """Run the program until it waits for an approval; return the token."""
    (program,) = (block for block in blocks(page, "python") if "suspend(" in block)
    (folder / "approval.py").write_text(program)
    waiting, token = started("-c", ASK, folder=folder).splitlines()
    assert waiting.startswith("waiting: pay ")
    return token


def answered(token: str, folder: Path, *, approved: bool = True) -> list[str]:
    """Answer in a new process; return the lines that it prints."""
    return started("-c", START + ANSWER.format(token=token, approved=approved), folder=folder).splitlines()


@pytest.mark.parametrize(("page", "key"), [OPENAI, PYDANTIC])
def test_approved_tool_runs_in_a_new_process(page: str, key: str, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    assert answered(token, tmp_path) == ["paying 40 euros", "Done."]
    assert answered(token, tmp_path) == ["already done"]
    with Store(f"sqlite:///{tmp_path}/agents.db") as store:
        assert [message.role for message in store.messages(key)] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize(("page", "key"), [OPENAI, PYDANTIC])
def test_refused_tool_does_not_run(page: str, key: str, tmp_path: Path) -> None:
    token = asked(page, tmp_path)
    assert answered(token, tmp_path, approved=False) == ["Done."]
    assert answered(token, tmp_path, approved=True) == ["already done"]


@pytest.mark.parametrize(
    ("page", "key", "killed", "printed"),
    [
        (*OPENAI, KILLED_IN_TOOL, ["paying 40 euros", "Done."]),
        (*OPENAI, KILLED_IN_MODEL, ["Done."]),
        (*PYDANTIC, KILLED_IN_TOOL, ["paying 40 euros", "Done."]),
    ],
)
def test_answer_is_sent_again_after_its_process_was_killed(
    page: str, key: str, killed: str, printed: list[str], tmp_path: Path
) -> None:
    token = asked(page, tmp_path)
    source = START + killed + ANSWER.format(token=token, approved=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=100)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with Store(f"sqlite:///{tmp_path}/agents.db") as store:
        assert store.conversation(key).release_turn() is not None
        assert answered(token, tmp_path, approved=False) == printed  # the first answer is stored
        assert [message.role for message in store.messages(key)] == ["user", "assistant", "tool", "assistant"]
