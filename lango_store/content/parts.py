"""The vocabulary of content: each kind of part that a message can have, whatever form it was written in.

A part keeps the `block` that it was read from, so that a writer of the same form can keep fields that only this form
has. Two parts are equal if they say the same, in whatever form. No function changes a part; the classes do not check
this, because a frozen dataclass takes three times as long to create.
"""

from dataclasses import dataclass, field
from typing import Any, Final

Block = dict[str, Any]


@dataclass(slots=True)
class Text:
    """Words. A plain text has no `block`."""

    text: str
    block: Block | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Media:
    """An image, a document or a recording: its data in base64, its URL, or its id among the files of an issuer.

    The type is a media type, or its beginning (`image/`) if the rest is unknown.
    """

    type: str
    data: str | None = None
    url: str | None = None
    name: str | None = None
    file: str | None = None
    issuer: str | None = None
    block: Block | None = field(default=None, compare=False, repr=False)

    @property
    def is_image(self) -> bool:
        """If it is an image."""
        return self.type.startswith("image/")

    @property
    def uri(self) -> str | None:
        """A data URI of the data, or the URL."""
        return f"data:{self.type};base64,{self.data}" if self.data else self.url

    @property
    def label(self) -> str:
        """The name of the attachment for a model that does not get it."""
        return f"{self.type.strip('/') or 'file'} attachment" + (f" {self.name}" if self.name else "")


@dataclass(slots=True)
class Call:
    """A call of a tool. `extra` has further fields of the provider, such as a thought signature.

    In the parts of a message, `position` is the position of the call in `tool_calls`. Calls that only the content has
    are counted after these.
    """

    id: str
    name: str
    arguments: Any = None
    extra: Block = field(default_factory=dict)
    block: Block | None = field(default=None, compare=False, repr=False)
    position: int = field(default=-1, compare=False, repr=False)


@dataclass(slots=True)
class Result:
    """The result of a call. The content is any JSON; `read` returns its parts.

    The object that a tool of MCP returns becomes its content and its failure.
    """

    id: str | None
    name: str | None
    content: Any = None
    failed: bool = False
    block: Block | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if type(self.content) is dict and _is_mcp_result(self.content):
            failed = has_failed({}, self.content)
            structured = self.content.get("structuredContent", self.content.get("structured_content"))
            self.content = self.content["content"] or structured or ""
            self.failed = self.failed or failed


_MCP_FIELDS: Final = frozenset(
    ("content", "isError", "is_error", "structuredContent", "structured_content", "_meta", "meta")
)
_MCP_BLOCKS: Final = ("text", "image", "audio", "resource", "resource_link")


def _is_mcp_result(value: Block) -> bool:
    """Return True for the result of a tool of MCP, a `CallToolResult`."""
    blocks = value.get("content")
    return (
        type(blocks) is list
        and value.keys() <= _MCP_FIELDS
        and all(isinstance(block, dict) and block.get("type") in _MCP_BLOCKS for block in blocks)
        and (blocks != [] or len(value) > 1)
    )


@dataclass(slots=True)
class Thinking:
    """Thinking or reasoning. Only the issuer can read the signature; `issuer` is the name of a form, if it is known."""

    text: str
    signature: str | None = None
    issuer: str | None = None
    block: Block | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Refusal:
    """The words with which a model refuses to answer."""

    text: str
    block: Block | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Source:
    """A source that an answer cites."""

    url: str | None
    title: str | None = None
    block: Block | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class Native:
    """A block that only one form has, or, if the name of the form is empty, JSON of an unknown kind.

    Attributes:
        form: The name of the form.
        block: The block, unchanged.
        like: What the block is for readers of other forms: the text that it has, or a call or a result of a tool that
            the provider itself ran. None if it says nothing to them.
    """

    form: str
    block: Any
    like: Text | Call | Result | None = field(default=None, compare=False)

    @property
    def shown(self) -> "Part":
        """The part that a reader sees: `like`, or the block itself if `like` is only its JSON as text."""
        is_known = self.form or (isinstance(self.block, dict) and "text" in self.block)
        return self.like if self.like is not None and is_known else self


FAILED: Final[Block] = {"failed": True}
"""The fields that the `extra` of a result, or of a call with an output, has if the tool failed."""


def has_failed(extra: Block, output: Any = None) -> bool:
    """Return True for a tool that failed, by the `extra` of its result, or by the object that a tool of MCP returns.

    Earlier messages may have the name `is_error` in `extra`.
    """
    if type(output) is dict and True in (output.get("isError"), output.get("is_error")) and _is_mcp_result(output):
        return True
    return extra.get("failed") is True or extra.get("is_error") is True


Part = Text | Media | Call | Result | Thinking | Refusal | Source | Native
KINDS: Final = (Text, Media, Call, Result, Thinking, Refusal, Source, Native)
