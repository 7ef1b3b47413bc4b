"""Forms: each reads its own blocks, and writes each kind of part."""

from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lango_store.content.media import is_text
from lango_store.content.parts import (
    KINDS,
    Block,
    Call,
    Media,
    Native,
    Part,
    Refusal,
    Result,
    Source,
    Text,
    Thinking,
)

Note = Callable[[str], None]
"""A function that is called with what a form cannot express."""

Reader = Callable[[Block], Part | tuple[Part, ...] | None]
"""A function that reads a block. None if the block is of another form that has the same type."""

Writer = Callable[[Any, Note], Block | None]
"""A function that writes a part. None if the form cannot express this part."""

Arrange = Callable[[Any, list[Part], list[Call]], list[Part] | None]
"""A function that puts the parts of a content and calls into the order that an adapter stored, see `ARRANGED`."""

ARRANGED: Final[dict[str, Arrange]] = {}
"""By the name under which an adapter stores the order of parts in `extra`: the function that restores it."""

ATTACHED: Final[dict[str, Callable[[Any, list[Result]], list[Result]]]] = {}
"""By the name under which an adapter stores the rest of results in `extra`: the function that adds their pictures."""

READERS: Final[dict[str, list[Reader]]] = {}
"""The readers of all forms, by the type of a block."""


@dataclass(frozen=True)
class Form:
    """A form of content: that of a provider, a framework or a protocol of front ends.

    Attributes:
        name: The name of the form.
        readers: A reader for each type of a block. Types of which only the beginning is fixed end with `*`; the reader
            of blocks without a type has the name "".
        writers: A writer for each kind of part.
        roles: The kinds of parts that a message of a role can have, for "user", "assistant", "tool" and "system". A
            kind that is not in it is written as text, or left out.
        render: Writes entries as messages, for forms that are prompts.
        records: The author of records whose contents are blocks of the form, and parts of the answer that follows them.
    """

    name: str
    readers: Mapping[str, Reader]
    writers: Mapping[type, Writer]
    roles: Mapping[str, Iterable[type]]
    render: Callable[..., list[Block]] | None = None
    records: str = ""
    _by_role: dict[str, dict[type, Writer]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        missing = [kind.__name__ for kind in KINDS if kind not in self.writers]
        if missing or self.roles.keys() != ROLES:
            raise TypeError(f"the form {self.name!r} has no writer for {missing}, or other roles than {sorted(ROLES)}")
        for role, kinds in self.roles.items():
            self._by_role[role] = {kind: self.writers[kind] for kind in kinds}
        for kind, reader in self.readers.items():
            READERS.setdefault(kind, []).append(reader)

    def write(self, parts: Iterable[Part], role: str, note: Note) -> list[Block]:
        """Return parts as blocks. What the form has no block for is written as text or left out, and noted."""
        writers = self._by_role[role]
        blocks: list[Block] = []
        for part in parts:
            writer = writers.get(type(part))
            block = None if writer is None else writer(part, note)
            if block is None and type(part) is not Text:
                block = self._in_words(part, note)
            if block is not None:
                blocks.append(block)
        return blocks

    def block(self, part: Part, role: str, note: Note) -> Block | None:
        """Return one part as a block; None if it is left out."""
        writer = self._by_role[role].get(type(part))
        written = None if writer is None else writer(part, note)
        return self._in_words(part, note) if written is None and type(part) is not Text else written

    def _in_words(self, part: Part, note: Note) -> Block | None:
        text = in_words(part, note)
        return None if text is None else self.writers[Text](text, note)

    def sends(self, part: Part, role: str) -> bool:
        """Return True if a message of a role with this part is not empty."""
        match part:
            case Text() | Refusal():
                return part.text != "" and not part.text.isspace()
            case Native(form=form, like=like):
                is_own = form == self.name and Native in self._by_role[role]
                return is_own or (isinstance(like, Text) and self.sends(like, role))
            case Thinking() | Source():
                return False
        return True


ROLES: Final = frozenset({"user", "assistant", "tool", "system"})
EVERY: Final[Mapping[str, Iterable[type]]] = dict.fromkeys(ROLES, KINDS)


def in_words(part: Part, note: Note) -> Text | None:
    """Return the text that stands for a part for which a form has no block; None for a part that is left out."""
    match part:
        case Refusal():
            note("a refusal is sent as text")
            return Text(part.text)
        case Media(type=type, data=str(data)) if is_text(type):
            note(f"{part.label} is sent as its text")
            return Text(b64decode(data).decode("utf-8", "replace"))
        case Media():
            note(f"{part.label} is named by a text, since the format has no form for it here")
            return Text(f"[{part.label}]")
        case Thinking():
            note("thinking that another provider wrote, or that is not signed, is left out")
        case Native(like=Text(text=text), form=form):
            note(f"a block that only {form} has is sent as its text" if form else UNKNOWN)
            return Text(text)
        case Native(block=block):
            kind = block.get("type") if isinstance(block, dict) else None
            kind = kind or next(iter(block), None)
            note(f"a block of type {kind!r} is left out: only {part.form or 'its author'} reads it")
        case Source():
            note("a source that an answer cites is left out")
        case Call() | Result():
            note("a call or a result is left out here")
    return None


UNKNOWN: Final = "content that is neither text nor blocks is sent as JSON text"


def left_out(_: Part, __: Note) -> None:
    """Write nothing: the form has no block for this kind of part."""


def ignore(_: str) -> None:
    """Do not note what a form cannot express."""


def kept(written: Block, part: Any, *names: str) -> Block:
    """Return a written block with those of these fields that the block had from which the part was read."""
    block = part.block
    if block:
        for name in names:
            if name in block:
                written[name] = block[name]
    return written


def own(form: str) -> Writer:
    """Return a writer of native blocks, which returns those of a form unchanged."""
    return lambda part, _: part.block if part.form == form else None


@dataclass(slots=True)
class Entry:
    """A message of a prompt, repaired and rendered.

    Attributes:
        message: The message that the parts are from.
        role: The common name of the role: "user", "assistant", "tool", "system" or "developer".
        parts: The parts in their order. An entry of the role "tool" has one, the result.
        note: Called with what the form cannot express.
        name: The name of the participant.
    """

    message: Any
    role: str
    parts: list[Any]
    note: Note
    name: str | None = None

    @property
    def calls(self) -> list[Call]:
        """The calls of tools."""
        return [part for part in self.parts if type(part) is Call]
