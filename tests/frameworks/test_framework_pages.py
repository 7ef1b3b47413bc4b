"""The programs on the pages about frameworks run unchanged and print what the pages say."""

import re
from pathlib import Path

import pytest
from support.commands import run
from support.framework_pages import run_replacement, started
from support.pages import blocks

from lango_store import Store

CLAUDE = "docs/frameworks/claude-agent-sdk.md"
ADK = "docs/frameworks/google-adk.md"
OPENAI = "docs/frameworks/openai-agents.md"
PYDANTIC = "docs/frameworks/pydantic-ai.md"
README = "README.md"

STRICT = ("-W", "error", "-W", "ignore:SelectableGroups:DeprecationWarning")  # of an older OpenTelemetry
STARTS = {
    CLAUDE: "from claude_agent_sdk import ClaudeAgentOptions; url = 'sqlite:///agent.db'",
}

pytestmark = pytest.mark.timeout(400)  # ADK takes seconds to load


@pytest.mark.parametrize("page", [README, CLAUDE, ADK, OPENAI, PYDANTIC])
def test_old_and_new_lines_of_each_diff_on_the_page_run(page: str, tmp_path: Path) -> None:
    run_replacement(page, tmp_path, STARTS.get(page, ""))


@pytest.mark.parametrize(
    ("page", "options", "key", "file", "messages"),
    [
        (ADK, (), "weather:ann:trip", "adk.db", 4),
        (OPENAI, STRICT[:2], "user-123", "agents.db", 6),
        (PYDANTIC, STRICT, "chat-1", "agents.db", 8),
    ],
)
def test_programs_print_documented_output_and_a_second_run_continues(
    page: str, options: tuple[str, ...], key: str, file: str, messages: int, tmp_path: Path
) -> None:
    def ran(program: str) -> str:
        return started(*options, "-c", program, folder=tmp_path, timeout=200)

    programs, (printed, shown, *others) = blocks(page, "python"), blocks(page, "text")
    url = f"sqlite:///{file}"
    assert [ran(program) for program in programs] == [printed, *others, ""][: len(programs)]
    sessions = ("-m", "lango_store.cli", "sessions")
    times = re.compile(r"\d\d:\d\d:\d\d")
    log = started(*sessions, "show", key, "--url", url, folder=tmp_path, timeout=200)
    assert times.sub("", shown.removesuffix("…\n")) in times.sub("", log)
    assert key in started(*sessions, "list", "--url", url, folder=tmp_path)

    ran(programs[0])
    with Store(f"sqlite:///{tmp_path / file}") as store:
        assert store.conversation(key).info().message_count == 2 * messages


def test_claude_agent_sdk_programs_print_documented_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    names = ("model.py", "agent.py", "once.py", "approval.py")
    for name, program in zip(names, blocks(CLAUDE, "python"), strict=True):
        (tmp_path / name).write_text(program)
    printed, shown, printed_once, printed_approval = blocks(CLAUDE, "text")
    assert started("agent.py", folder=tmp_path) == printed
    assert started("once.py", folder=tmp_path) == printed_once
    assert started("approval.py", folder=tmp_path) == printed_approval
    url = f"sqlite:///{tmp_path}/agent.db"
    with Store(url) as store:
        (info,) = store.iter_sessions()
    log = run("sessions", "show", "--url", url, info.key, environment={"COLUMNS": "80"}).stdout
    assert panels(shown) < panels(log)


def panels(text: str) -> set[str]:
    """Return the shown messages without times, numbers and models, which depend on the version of the framework."""
    found = re.findall(r"^╭.*?╯$", re.sub(r"\d\d:\d\d:\d\d", "00:00:00", text), re.MULTILINE | re.DOTALL)
    return {re.sub(r"^╭─ \d+ (\w+)(?: · [\w.-]+)? ─+╮", r"\1", panel) for panel in found}
