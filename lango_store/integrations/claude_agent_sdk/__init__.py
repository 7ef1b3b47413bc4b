"""Sessions of the Claude Agent SDK in a `Store`: `ClaudeAgentOptions(session_store=LangoSessionStore(store))`."""

from lango_store.errors import needs_extra

with needs_extra("claude-agent-sdk"):
    from lango_store.integrations.claude_agent_sdk.store import LangoSessionStore

__all__ = ["LangoSessionStore"]
