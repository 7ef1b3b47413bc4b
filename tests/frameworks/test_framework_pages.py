"""The programs on the pages about frameworks run unchanged and print what the pages say."""

import re
from pathlib import Path

import pytest
from support.commands import run
from support.framework_pages import run_replacement, started, write_program
from support.pages import PAGES, blocks

from lango_store import Store

CLAUDE = "docs/frameworks/claude-agent-sdk.md"
ADK = "docs/frameworks/google-adk.md"
OPENAI = "docs/frameworks/openai-agents.md"
PYDANTIC = "docs/frameworks/pydantic-ai.md"
README = "README.md"
INDEX = "docs/index.md"

STRICT = ("-W", "error", "-W", "ignore:SelectableGroups:DeprecationWarning")  # of an older OpenTelemetry
TWICE = """
import asyncio

from once import *

async def ask_twice():
    async with AsyncStore("sqlite:///once.db", migrate=True) as store:
        {before}
        await asyncio.gather(*({call} for _ in range(2)))
        print(*(message.role for message in await store.conversation({key!r}).messages()))

asyncio.run(ask_twice())
"""

BEFORE = {
    "openai-agents": "from agents import SQLiteSession",
    "google-adk": "from google.adk.sessions import InMemorySessionService",
    "claude-agent-sdk": "from claude_agent_sdk import InMemorySessionStore",
    "pydantic-ai": "from pydantic_ai.conversation_store import InMemoryConversationStore",
    "langgraph": "from langgraph.checkpoint.memory import InMemorySaver",
}

IMPORTS = ["from lango_store import Store", *BEFORE.values()]
IMPORTS += [f"from lango_store.integrations.{name.replace('-', '_')} import *" for name in BEFORE]
STARTS = {CLAUDE: "from claude_agent_sdk import ClaudeAgentOptions; url = 'sqlite:///agent.db'"}

pytestmark = pytest.mark.timeout(400)  # ADK takes seconds to load


@pytest.mark.parametrize("page", [CLAUDE, ADK, OPENAI, PYDANTIC])
def test_old_and_new_lines_of_each_diff_on_the_page_run(page: str, tmp_path: Path) -> None:
    run_replacement(page, tmp_path, STARTS.get(page, ""))


def test_old_and_new_lines_of_all_diffs_on_the_first_page_run(tmp_path: Path) -> None:
    lines = "".join(blocks(INDEX, "diff")).splitlines()
    assert [line[0] for line in lines] == ["-", "+"] * len(BEFORE)
    started("-c", "\n".join([*IMPORTS, *(line[1:] for line in lines)]), folder=tmp_path, timeout=200)


def test_classes_in_the_table_of_frameworks_can_be_created(tmp_path: Path) -> None:
    rows = re.findall(r"^\| \[.*?/([\w-]+)\.md\).*\| `([^`]+)` \| `([^`]+)` \|$", PAGES[README], re.MULTILINE)
    assert len(rows) == 5
    for name, old, new in rows:
        module = name.replace("-", "_")
        names = f"from lango_store import Store\nfrom lango_store.integrations.{module} import *\n{BEFORE[name]}"
        started("-c", f"{names}\n{old}\n{new}", folder=tmp_path, timeout=200)


@pytest.mark.parametrize(
    ("page", "options", "key", "file", "messages"),
    [
        (ADK, (), "weather:ann:trip", "adk.db", 4),
        (OPENAI, STRICT[:2], "user-123", "agents.db", 6),
        (PYDANTIC, STRICT, "chat-1", "agents.db", 8),
    ],
)
def test_program_prints_documented_output_and_a_second_run_continues(
    page: str, options: tuple[str, ...], key: str, file: str, messages: int, tmp_path: Path
) -> None:
    program, printed = blocks(page, "python")[0], blocks(page, "text")[0]
    assert started(*options, "-c", program, folder=tmp_path, timeout=200) == printed
    sessions = ("-m", "lango_store.cli", "sessions")
    assert key in started(*sessions, "list", "--url", f"sqlite:///{file}", folder=tmp_path)
    started("-c", program, folder=tmp_path, timeout=200)
    with Store(f"sqlite:///{tmp_path / file}") as store:
        assert store.conversation(key).info().message_count == 2 * messages


@pytest.mark.parametrize(
    ("page", "before", "call", "key", "roles"),
    [
        (
            ADK,
            "await LangoSessionService(store).create_session(app_name='weather', user_id='ann', session_id='walk')",
            "answer_once(store, 'request-17', {'user_id': 'ann', 'session_id': 'walk'})",
            "weather:ann:walk",
            "user model tool model",
        ),
        (OPENAI, "", "answer_once(store, 'request-17', 'Oslo?')", "user-124", "user assistant tool assistant"),
        (PYDANTIC, "", "answer_once(store, 'request-17', 'Oslo?')", "chat-3", "user assistant tool assistant"),
    ],
)
def test_request_that_is_sent_twice_is_answered_once(
    page: str, before: str, call: str, key: str, roles: str, tmp_path: Path
) -> None:
    (block,) = (each for each in blocks(page, "python") if "def answer_once(" in each)
    write_program(page, block, tmp_path / "once.py")
    script = TWICE.format(before=before, call=call, key=key)
    assert started("-c", script, folder=tmp_path, timeout=200).splitlines()[-1] == roles


FAILING = """
import asyncio

from failing import *

@function_tool(failure_error_function=None)
def away(city: str) -> str:
    raise ConnectionError("the weather service is away")

usage = Usage(requests=1, input_tokens=20, output_tokens=5, total_tokens=25)
call = function_call("away", {"city": "Oslo"}, call_id="call_1")
agent = Agent(name="weather", model=ScriptedModel([ModelStep(output=[call], usage=usage)]), tools=[away])

async def fail():
    async with AsyncStore(URL, migrate=True) as store:
        try:
            await run(agent, "How cold is it?", LangoSession("user-123", store))
        except AgentsException:
            print((await store.conversation("user-123").total_usage())["input_tokens"])

asyncio.run(fail())
"""


def test_usage_of_a_failed_run_of_openai_agents_is_stored(tmp_path: Path) -> None:
    (block,) = (each for each in blocks(OPENAI, "python") if "wrapper=" in each)
    write_program(OPENAI, block, tmp_path / "failing.py")
    assert started("-c", FAILING, folder=tmp_path, timeout=200) == "20\n"


CRASHING = """
import asyncio

from saving import *

def crashing(messages, info):
    if isinstance(messages[-1].parts[-1], ToolReturnPart):
        raise RuntimeError("power cut")
    return ModelResponse(parts=[ToolCallPart("get_weather", {"city": "Oslo"}, tool_call_id="call_1")])

def continuing(messages, info):
    print("the model is asked with", len(messages), "messages")
    return ModelResponse(parts=[TextPart("Cold.")])

async def run(prompt, model):
    async with LangoConversationStore(URL, migrate=True) as conversations:
        conversation = await conversations.load("chat-1") or Conversation(conversation_id="chat-1")
        saving = SaveBeforeEachRequest(conversations, conversation)
        agent = Agent(FunctionModel(model), capabilities=[saving])

        @agent.tool_plain
        def get_weather(city: str) -> str:
            print("the tool answers")
            return f"-3 in {city}"

        print((await agent.run(prompt, conversation=conversation)).output)

try:
    asyncio.run(run("Weather in Oslo?", crashing))
except RuntimeError:
    asyncio.run(run(None, continuing))
"""


def test_capability_of_pydantic_ai_saves_a_run_that_crashes(tmp_path: Path) -> None:
    (block,) = (each for each in blocks(PYDANTIC, "python") if "class SaveBeforeEachRequest" in each)
    write_program(PYDANTIC, block, tmp_path / "saving.py")
    printed = started("-c", CRASHING, folder=tmp_path, timeout=200)
    assert printed == "the tool answers\nthe model is asked with 3 messages\nCold.\n"


ASKED = """
import asyncio, uuid

from once import *

async def main():
    session = str(uuid.uuid4())
    async with AsyncStore("sqlite:///once.db", migrate=True) as store:
        for request, prompt in (
            ("request-17", "Who are you?"),
            ("request-18", "What was my question?"),
            ("request-18", "What was my question?"),
        ):
            await answer_once(store, session, request, prompt)
        print([message.content.strip() for message in await store.conversation(key_of(session)).messages()])

asyncio.run(main())
"""


def test_claude_agent_sdk_programs_print_documented_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, claude_model: None
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program, once, _ = blocks(CLAUDE, "python")
    (printed,) = blocks(CLAUDE, "text")
    assert started("-c", program, folder=tmp_path) == printed
    with Store(f"sqlite:///{tmp_path}/agent.db") as store:
        (info,) = store.iter_sessions()
    shown = run("sessions", "show", "--url", f"sqlite:///{tmp_path}/agent.db", info.key).stdout
    assert "What is the weather in Oslo?" in shown
    write_program(CLAUDE, once, tmp_path / "once.py")
    answers = ["Who are you?", "You asked:", "What was my question?", "You asked: Who are you?"]
    assert started("-c", ASKED, folder=tmp_path) == f"{answers}\n"
