"""nanobot sessions and the files they are exported to."""

import shutil
from pathlib import Path

from nanobot.providers.base import ProviderConversationState
from nanobot.session.manager import JsonlSessionStore, Session

from lango_store import Store
from lango_store.interchange import export

KEY = "telegram:12345678"
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "ä.txt"}'}}


def talk(session: Session) -> None:
    """A turn with everything that nanobot writes into a session."""
    session.add_message("user", "Weather in Oslo? 😀", media=["/tmp/a.png"], sender_id="7")
    session.add_message("assistant", "", tool_calls=[CALL], reasoning_content="hm", thinking_blocks=[{"type": "x"}])
    session.add_message("tool", "sun\0\ud83d", tool_call_id="call_1", name="read")
    session.add_message("assistant", None, unknown={"b": 1, "a": [None, 1.0, 10**30]})
    session.metadata["title"] = "Oslo"
    session.metadata["goal_state"] = {"z": 1, "a": None}


def private(text: str = "secret") -> ProviderConversationState:
    return ProviderConversationState("responses", "openai", "gpt-x", 1, {"encrypted": text}, [{"role": "user"}])


def written_by_nanobot(files: JsonlSessionStore, session: Session) -> bytes:
    files.save(session)
    return bytes(files.get_session_path(session.key).read_bytes())


def exported(store: Store, folder: Path, key: str = KEY) -> bytes:
    shutil.rmtree(folder, ignore_errors=True)
    (done,) = export(store, folder, "nanobot", keys=[key])
    assert done.error is None
    return Path(str(done.path)).read_bytes()
