"""The parts of messages, whatever form they were written in: that of a provider, a framework or a protocol of pages.

A picture has seven forms in practice, and so have calls, results and thinking. This package is the only place that
knows them: `read` and `parts` return what a content or a message consists of (`Text`, `Media`, `Call`, `Result`,
`Thinking`, `Refusal`, `Source`, `Native`), and a `Form` writes parts as the blocks of a provider or of a page. All
functions are pure: messages are stored unchanged.

To add a form, write a module with one record `Form`: a reader for each type of its blocks, a writer for each kind of
part, the kinds that a message of a role can have, and, for a form of prompts, a function that renders messages. A form
without a writer for a kind of part fails at import. Import the record below, so that its blocks are read.
"""

from lango_store.content.anthropic import ANTHROPIC, CLAUDE
from lango_store.content.form import ROLES, Entry, Form, Note, ignore
from lango_store.content.frameworks import LANGCHAIN, MCP, PYDANTIC_AI
from lango_store.content.gemini import ADK, GEMINI
from lango_store.content.openai_chat import OPENAI
from lango_store.content.openai_responses import RESPONSES
from lango_store.content.pages import AGUI, AISDK
from lango_store.content.parts import (
    FAILED,
    KINDS,
    Call,
    Media,
    Native,
    Part,
    Refusal,
    Result,
    Source,
    Text,
    Thinking,
    has_failed,
)
from lango_store.content.reading import parts, plain, read, shown, written, written_result
from lango_store.content.text import as_object, as_text, text_of

FORMS = {
    form.name: form
    for form in (OPENAI, RESPONSES, ANTHROPIC, GEMINI, AISDK, AGUI, LANGCHAIN, MCP, PYDANTIC_AI, ADK, CLAUDE)
}

__all__ = [
    "ADK",
    "AGUI",
    "AISDK",
    "ANTHROPIC",
    "CLAUDE",
    "FAILED",
    "FORMS",
    "GEMINI",
    "KINDS",
    "LANGCHAIN",
    "MCP",
    "OPENAI",
    "PYDANTIC_AI",
    "RESPONSES",
    "ROLES",
    "Call",
    "Entry",
    "Form",
    "Media",
    "Native",
    "Note",
    "Part",
    "Refusal",
    "Result",
    "Source",
    "Text",
    "Thinking",
    "as_object",
    "as_text",
    "has_failed",
    "ignore",
    "parts",
    "plain",
    "read",
    "shown",
    "text_of",
    "written",
    "written_result",
]
