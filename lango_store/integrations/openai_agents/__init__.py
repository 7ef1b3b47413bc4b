"""Sessions for OpenAI Agents in a `Store`: `Runner.run(agent, "Hello", session=LangoSession("user-123", store))`."""

from lango_store.errors import needs_extra

with needs_extra("openai-agents"):
    from lango_store.integrations.openai_agents.session import LangoSession

__all__ = ["LangoSession"]
