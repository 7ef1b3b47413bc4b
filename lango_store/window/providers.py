"""The rules of providers and models for requests, beyond the form of the messages.

Sources, read on 28 November 2026:

- Claude, thinking: platform.claude.com/docs/en/build-with-claude/preserved-thinking and its page on prefix checks.
- Claude, answers at the end: platform.claude.com/docs/en/about-claude/models/whats-new-claude-4-6.
- Gemini: ai.google.dev/gemini-api/docs/thought-signatures.
- OpenAI: platform.openai.com/docs/guides/reasoning. xAI and Azure seal with other keys: openai/codex#17541.
- Gemini in OpenAI's format: ai.google.dev/gemini-api/docs/openai. Claude: lobehub/lobehub#16916.
- Mistral, ids: langchain-ai/langchain#24668. Order of roles: NousResearch/hermes-agent#20154, microsoft/autogen#5044.
- DeepSeek: api-docs.deepseek.com/guides/thinking_mode, NousResearch/hermes-agent#15353. Kimi: charmbracelet/crush#2696.
"""

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

Format = Literal["openai", "openai-responses", "anthropic", "gemini"]
"""A format of prompts: that of OpenAI's chat completions (and of compatible servers), of OpenAI's responses, of
Anthropic's messages or of Gemini's contents."""

_VENDORS: Final = {"openai": "openai", "openai-responses": "openai", "anthropic": "anthropic", "gemini": "google"}
"""The vendor of each format, which is assumed if the provider of a request or of a message is not known."""

_ALIASES: Final = {
    **dict.fromkeys(("gemini", "google-gla", "google_genai", "google-genai", "gcp.gemini"), "google"),
    **dict.fromkeys(("google-vertex", "google_vertexai", "vertexai", "vertex_ai", "gcp.vertex_ai"), "vertex"),
    **dict.fromkeys(("aws_bedrock", "bedrock_converse", "aws.bedrock"), "bedrock"),
    **dict.fromkeys(("moonshotai", "kimi"), "moonshot"),
    **dict.fromkeys(("azure_openai", "azure_ai", "azure-openai"), "azure"),
    **dict.fromkeys(("x_ai", "x-ai", "grok"), "xai"),
    **dict.fromkeys(("mistralai", "mistral_ai"), "mistral"),
}
_ECHOES: Final = frozenset({"deepseek", "moonshot"})
_CLAUDES: Final = frozenset({"anthropic", "bedrock", "vertex", "azure"})
_MISTRAL: Final = re.compile("(mis|minis|magis|devs|codes|vox)tral|pixtral")
_CLAUDE: Final = re.compile(r"claude-(?:[a-z]+-)?(\d+)(?:[-.](\d)(?!\d))?")
_NEWEST: Final = (99, 0)
_BINDS: Final = (5, 1)
_NO_PREFILL: Final = (4, 6)


@dataclass(frozen=True)
class Target:
    """The receiver of a request: the format, and the model and the provider if they are known."""

    format: str
    model: str | None = None
    provider: str | None = None

    @property
    def name(self) -> str:
        """The usual name of the provider; without one, the vendor of the format."""
        return _usual(self.provider) or _VENDORS[self.format]

    def made(self, message: Any, form: str | None) -> bool:
        """Return True if this provider made the sealed parts of a message, which are in a form."""
        if form == "openai":  # reasoning as text, which is not sealed
            return self.provider is None or message.provider is None or _usual(message.provider) == self.name
        return (_usual(message.provider) or _VENDORS.get(form or "", form)) == self.name

    def binds(self, message: Any) -> bool:
        """Return True if thinking of a message is valid only after the prefix of the request that it answers."""
        return self._claude(self.model) >= _BINDS and self._claude(message.model) >= _BINDS

    @property
    def continues(self) -> bool:
        """True if the model continues an answer at the end of a request, rather than refusing the request."""
        return self._claude(self.model) < _NO_PREFILL and not self.is_mistral

    @property
    def is_mistral(self) -> bool:
        """True for a model of Mistral, which has special rules for ids and for the order of roles."""
        return self.format == "openai" and (self.name == "mistral" or bool(_MISTRAL.search(self.model or "")))

    @property
    def signs(self) -> bool:
        """True for Gemini in the format of OpenAI, where calls have their thought signatures in `extra_content`."""
        return self.format == "openai" and self.name in ("google", "vertex")

    @property
    def echoes(self) -> bool:
        """True if each message with calls needs reasoning."""
        return self.format == "openai" and self.name in _ECHOES

    def _claude(self, model: str | None) -> tuple[int, int]:
        """Return the version of a Claude model, (0, 0) for another model; an unknown one counts as the newest."""
        if match := _CLAUDE.search(model or ""):
            return int(match[1]), int(match[2] or 0)
        return _NEWEST if self.format == "anthropic" and not model and self.name in _CLAUDES else (0, 0)


def _usual(provider: str | None) -> str | None:
    name = provider.lower() if provider else None
    return _ALIASES.get(name, name) if name else None


def format_of(model: str | None) -> Format:
    """Return the usual format of a model."""
    return "anthropic" if "claude" in (model or "") else "gemini" if (model or "").startswith("gemini") else "openai"
