"""An agent for a separate process: `main` with the words URL API FOLDER PROMPT [SESSION] [--die].

It prints the id of its session with the answer, and its usage as JSON. With `--die` it is killed, together with its
CLI, as soon as the tool's result is stored.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool

from lango_store.integrations.claude_agent_sdk import LangoSessionStore


class Dying(LangoSessionStore):
    """A store whose process is killed after it has stored a tool's result."""

    async def append(self, key: Any, entries: Any) -> None:
        await super().append(key, entries)
        if any("toolUseResult" in entry for entry in entries):
            os.killpg(0, signal.SIGKILL)


@tool("get_weather", "The weather in a city", {"city": str})
async def get_weather(arguments: dict[str, Any]) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": f"-3 °C in {arguments['city']}"}]}


async def main(*words: str) -> None:
    url, api, folder, prompt, *more = words
    sessions = (Dying if "--die" in more else LangoSessionStore)(url)
    resumed = [word for word in more if not word.startswith("-")]
    work, config = Path(folder) / "work", Path(folder) / f"config-{os.getpid()}"
    for each in (work, config):
        each.mkdir(exist_ok=True)
    environment = {
        "ANTHROPIC_BASE_URL": api,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CONFIG_DIR": str(config),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "ENABLE_TOOL_SEARCH": "false",
        "HOME": str(config),
    }
    options = ClaudeAgentOptions(
        session_store=sessions,
        session_store_flush="eager",
        env=environment,
        cwd=work,
        model="claude-sonnet-4-5",
        mcp_servers={"desk": create_sdk_mcp_server("desk", tools=[get_weather])},
        allowed_tools=["mcp__desk__get_weather"],
        setting_sources=[],
        resume=resumed[0] if resumed else None,
    )
    async with sessions:
        async for message in query(prompt=prompt, options=options):
            if isinstance(message, ResultMessage):
                print(message.session_id, message.result)
                print(json.dumps(message.usage))
