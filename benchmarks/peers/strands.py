"""strands-agents: `FileSessionManager`, which writes a file for each message, without an fsync."""

from __future__ import annotations

from typing import Any

from benchmarks.peers.contender import Said, own_file

AGENT = "agent"


class SessionFiles:
    """Sessions of one agent; the caller counts the messages, as the session manager of an agent does."""

    def __init__(self, url: str) -> None:
        from strands.session.file_session_manager import FileSessionManager

        self._files = FileSessionManager("bench", storage_dir=own_file(url, "strands"))
        self._counts: dict[str, int] = {}

    def create(self, key: str) -> None:
        from strands.types.session import Session, SessionAgent, SessionType

        self._files.create_session(Session(key, SessionType.AGENT))
        self._files.create_agent(key, SessionAgent(AGENT, {}, {}))
        self._counts[key] = 0

    def append(self, key: str, message: dict[str, Any]) -> None:
        from strands.types.session import SessionMessage

        self._files.create_message(key, AGENT, SessionMessage.from_message(_made(message), self._counts[key]))
        self._counts[key] += 1

    def append_many(self, key: str, messages: list[dict[str, Any]]) -> None:
        for message in messages:
            self.append(key, message)

    def load(self, key: str) -> list[Any]:
        return [each.to_message() for each in self._files.list_messages(key, AGENT)]

    def last(self, key: str, n: int) -> list[Any]:
        found = self._files.list_messages(key, AGENT, offset=self._counts[key] - n)
        return [each.to_message() for each in found]

    def close(self) -> None:
        pass


def _made(message: dict[str, Any]) -> Any:
    text = {"text": message["content"]}
    if message["role"] == "tool":
        result = {"toolUseId": message["tool_call_id"], "status": "success", "content": [text]}
        return {"role": "user", "content": [{"toolResult": result}]}
    calls = [
        {"toolUse": {"toolUseId": call["id"], "name": call["name"], "input": call["arguments"]}}
        for call in message.get("tool_calls", ())
    ]
    return {"role": message["role"], "content": [text, *calls]}


def said_by_strands(message: Any) -> Said:
    """Read a message: its first block is a text or a result with a text, the others are calls."""
    first, *calls = message["content"]
    text = first["toolResult"]["content"][0]["text"] if "toolResult" in first else first["text"]
    return text, [(block["toolUse"]["name"], block["toolUse"]["input"]) for block in calls]
