"""Conversations that are trees of messages, as chat products export them: the shown path, and the other paths.

A product keeps what an edit or another answer replaces, as another child of the same parent. The shown path becomes
the log, and each other path an alternative.

An export writes the whole tree, as the products read it: texts, and images where the product has them in its files.
Calls of tools, their results and other attachments become text. A message that the product's form cannot hold has the
member `lango_store` too, with all fields of the message except its id and time, and an import takes the fields from
there unless the product has changed the text. Records are left out, except those that were read from the product.
Turns, values and the usage are left out; a message without an id gets one. A summary follows what it replaces.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, Final

from lango_store import Message, MessageRole
from lango_store.content import Call, Media, Result, ignore, plain, shown
from lango_store.content.openai_chat import image_of
from lango_store.content.reading import plain_result
from lango_store.errors import InvalidFile, InvalidKey, quoted
from lango_store.interchange import exporting
from lango_store.interchange.backups import export_to
from lango_store.interchange.documents import read_items
from lango_store.interchange.draft import Branch, Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import LEVELS, as_text, json_bytes, same
from lango_store.interchange.files import state
from lango_store.interchange.format import SESSION_FAULTS, Exported, Format
from lango_store.interchange.moments import moment
from lango_store.interchange.source import checked_file_key, first_bytes, reading_unchanged
from lango_store.rows import storable_text
from lango_store.store import Store

_BEGINNING: Final = 1 << 16
_OWN: Final = "lango_store"
_PLACE: Final = {"id", "created_at", "seq", "turn_no"}

Json = dict[str, Any]


@dataclass(frozen=True)
class Node:
    """A node of the tree: the messages that it stands for, normally one, and the id of its parent."""

    id: str
    parent: Any
    messages: list[Message]


@dataclass(frozen=True)
class Written:
    """A message in the form of a product, with the ids of its parent and its children."""

    message: Message
    raw: Json
    parent: str | None
    children: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Product:
    """A chat product: how its export is recognized, and how a conversation of it is read."""

    name: str
    marks: tuple[bytes, ...]
    """The members that the beginning of each file of the product contains."""
    id: str
    title: str
    created_at: str
    updated_at: str
    nodes: Callable[[Json], Iterator[Node]]
    """Yields the nodes of a conversation. Raises ValueError if it has no nodes."""
    shown: Callable[[Json], Any]
    """Returns the id of the last node that the product shows, None if it is unknown: then the newest one is taken."""
    large: tuple[str, ...]
    """The members of a conversation that hold the messages."""
    write_message: Callable[[Message], Json] = lambda _: {}
    """Returns a message in the form of the product, without its place in the tree."""
    write: Callable[[SessionDraft, str, dict[str, Written], str | None], Json] | None = None
    """`write(draft, id, messages, shown)` returns a conversation of messages by id, of which one is shown last."""
    levels: int = LEVELS
    """The maximum nesting of a conversation."""
    remedy: str = "give the file unchanged"

    @property
    def format(self) -> Format:
        """The format of the product's exports."""
        if self.write is None:
            return Format(self.name, self.recognizes, self.read)
        return _Writable(self.name, self.recognizes, self.read, product=self)

    def recognizes(self, path: Path) -> bool:
        """Return True if the beginning of a JSON file has the members of the product's exports."""
        beginning = first_bytes(path, _BEGINNING) if path.suffix == ".json" else b""
        return all(mark in beginning for mark in self.marks)

    def read(self, path: Path, skipped: list[Skipped]) -> Iterator[SessionDraft]:
        """Yield the conversations of a file. Raises `InvalidFile` if it is not an export of the product."""
        with reading_unchanged(path, state(path)) as file:
            faults: dict[int, ValueError] = {}
            is_export = False
            try:
                for number, each in enumerate(read_items(file, self.levels), 1):
                    try:
                        draft = self._draft(path, number, each, skipped)
                    except ValueError as error:
                        faults[number] = error
                        continue
                    is_export = True
                    yield draft
                if faults and not is_export:
                    raise next(iter(faults.values()))
            except ValueError as error:
                raise InvalidFile(path, f"is not an export of {self.name} ({error}): {self.remedy}") from error
            skipped += [Skipped(number, f"{error}: left out") for number, error in faults.items()]

    def _draft(self, path: Path, number: int, raw: Any, skipped: list[Skipped]) -> SessionDraft:
        names = (self.id, "id") if isinstance(raw, dict) else ()  # exporters in browsers write another name
        id = next((raw[name] for name in names if isinstance(raw.get(name), str)), None)
        if id is None:
            raise ValueError(f"conversation {number} has no {self.id}")
        nodes = {}
        for node in self.nodes(raw):
            if node.id in nodes:
                raise ValueError(f"conversation {number} has the message {quoted(node.id)} twice")
            nodes[node.id] = node if isinstance(node.parent, str) else replace(node, parent=None)
        lost = set(nodes)
        log: list[Message] | None = None
        parts: list[Message] = []
        branches: list[Branch] = []
        for each in _paths(nodes, self.shown(raw)):
            lost -= {node.id for node in each}
            messages = [message for node in each for message in node.messages]
            if log is None:
                parts = messages
            elif (branch := _branch(log, messages)) is not None:
                branches.append(branch)
            else:
                continue
            log = messages
        last = self.shown(raw)
        if log and isinstance(last, str) and last in nodes.keys() - lost and last != each[-1].id:
            # The conversation ends where other versions begin.
            log = [message for node in _path(nodes, last) for message in node.messages]
            branches.append(Branch(len(log), []))
        skipped += [Skipped(number, f"message {quoted(id)} is below itself: left out") for id in sorted(lost)]
        title = storable_text(raw.get(self.title))
        times = [each.created_at for node in nodes.values() for each in node.messages if each.created_at]
        created_at = time_of(raw.get(self.created_at)) or min(times, default=None)
        return SessionDraft(
            key=checked_file_key(path, f"{self.name}:{id}"),
            parts=[Part(parts, created_at=created_at)],
            fields={"title": title} if title and title != id else {},
            created_at=created_at,
            updated_at=time_of(raw.get(self.updated_at)) or max(times, default=None),
            extra={self.name: {name: value for name, value in raw.items() if name not in (*self.large, self.title)}},
            branches=branches,
            log=[message for message in log or [] if message.role is not MessageRole.RECORD],
        )

    def conversation(self, draft: SessionDraft) -> Json:
        """Return a session in the form of the product, and count the records that are left out in the draft."""
        messages, last = draft.tree()
        draft.records = 0
        ids: dict[int, str | None] = {0: None}
        found: dict[str, Written] = {}
        for message, parent in messages:
            ids[message.seq] = ids[parent]
            if message.role is MessageRole.RECORD and self.name not in message.extra:
                draft.records += 1
                continue
            id = message.id or f"message-{message.seq}"
            while id in found:  # an alternative can have a message with the same id
                id += f"~{message.seq}"
            found[id] = Written(message, self.write_message(message._with_id(id)), ids[parent])
            ids[message.seq] = id
        # An import writes the shown path last; siblings keep the order in which the product made them.
        found = dict(sorted(found.items(), key=lambda item: (item[1].message.created_at, item[1].message.seq)))
        for id, each in found.items():
            if each.parent is not None:
                found[each.parent].children.append(id)
        assert self.write is not None
        id = draft.key.removeprefix(f"{self.name}:") if self.name in draft.extra else draft.key
        raw = self.write(draft, id, found, ids[last])
        for node in self.nodes(raw):
            if node.id in found:
                _add_fields(found[node.id], _fields(node.messages[0]))
        return raw


@dataclass(frozen=True)
class _Writable(Format):
    """The format of a product whose exports can be written: one file with all conversations."""

    product: Product | None = None

    @property
    def is_writable(self) -> bool:
        return True

    def export(
        self, store: Store, keys: Iterable[str], to: Path | BinaryIO, *, shared: bool = False, replace: bool = False
    ) -> Iterator[Exported]:
        """Write one file with all sessions, each from its own snapshot. Of two with the same id, one is written."""
        assert self.product is not None
        product = self.product

        def write(file: BinaryIO) -> Iterator[Exported]:
            ids: set[str] = set()
            for key in dict.fromkeys(keys):
                try:
                    with store._context.snapshot(allow_replica=True) as connection:
                        moment = store._context.moment(connection)
                        draft = exporting.draft(connection, moment, key, self.name)
                        raw = product.conversation(draft)
                    if raw[product.id] in ids:
                        raise InvalidKey(f"session {quoted(key)} has the id of another one: export it by itself")
                except SESSION_FAULTS as error:
                    yield Exported(key=key, error=error.fact)
                    continue
                file.write(json_bytes((",\n" if ids else "[\n") + json.dumps(raw, ensure_ascii=False)))
                ids.add(raw[product.id])
                yield Exported(key=key, records=draft.records)
            file.write(b"\n]\n" if ids else b"[]\n")

        return export_to(to, f"{self.name}.json", write, replace=replace)


def _paths(nodes: dict[str, Node], shown: Any) -> Iterator[list[Node]]:
    """Yield the paths from the root to each leaf; neighbours share as much as they can, and the shown one is last."""
    children: dict[str | None, list[str]] = {}
    for node in nodes.values():
        children.setdefault(node.parent if node.parent in nodes else None, []).append(node.id)
    last = nodes.get(str(shown)) or max(nodes.values(), key=_time, default=None)
    ids: set[str] = set()  # the way to the shown message, which is visited last
    while last is not None and last.id not in ids:
        ids.add(last.id)
        last = nodes.get(last.parent)
    waiting: list[str] = []

    def wait(parent: str | None) -> None:
        below = children.get(parent, [])[::-1]
        below.sort(key=lambda id: id not in ids)
        waiting.extend(below)

    wait(None)
    while waiting:
        id = waiting.pop()
        if id in children:
            wait(id)
            continue
        yield _path(nodes, id)


def _path(nodes: dict[str, Node], id: str) -> list[Node]:
    path = [nodes[id]]
    while path[-1].parent in nodes:
        path.append(nodes[path[-1].parent])
    return path[::-1]


def _time(node: Node) -> datetime:
    times = [each.created_at for each in node.messages if each.created_at]
    return times[-1] if times else datetime.min.replace(tzinfo=UTC)


def _branch(log: list[Message], path: list[Message]) -> Branch | None:
    """Return what a path has after the messages that it shares with a log; None if that is nothing."""
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(log, path, strict=False)))
    return Branch(shared, path[shared:]) if path[shared:] else None


def time_of(value: Any) -> datetime | None:
    """Return a time that is a text of ISO 8601, or a number of seconds or milliseconds since 1970."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e14:
        seconds = value / 1000 if value > 1e11 else value
        return datetime.fromtimestamp(seconds, UTC)
    return moment(value)


def message(product: str, role: MessageRole, content: Any, raw: Json, used: Iterable[str], **fields: Any) -> Message:
    """Create a message; members of the product's message that no field holds are stored in its `extra`."""
    names = (*used, _OWN)
    rest = {name: value for name, value in raw.items() if name not in names and value not in (None, [], {}, "")}
    given = {name: value for name, value in fields.items() if value is not None}
    return Message(role=role, content=content, extra={product: rest} if rest else {}, **given)


def original(read: Message, raw: Json, write: Callable[[Message], Json]) -> Message:
    """Return the message from which an export has written a product's message, unless its text has been changed."""
    own = raw.get(_OWN)
    if not isinstance(own, dict):
        return read
    place = {"id": read.id, "created_at": read.created_at, "seq": 0, "turn_no": None, "replayed": False}
    stored = Message.model_validate({"content": read.content} | own | place)
    return stored if same(write(stored)["content"], raw.get("content")) else read


def _fields(message: Message) -> Json:
    return message.model_dump(mode="json", exclude=_PLACE)


def _add_fields(written: Written, read: Json) -> None:
    """Add the fields of a message if an import of what was written would read others."""
    own = _fields(written.message)
    if not same(read, own):
        is_read = same(read["content"], own["content"])
        written.raw[_OWN] = {name: value for name, value in own.items() if name != "content" or not is_read}


def said(message: Message, images: list[str] | None = None, without: Iterable[str] = ()) -> str:
    """Return a message as text, except some texts; images are added to the list instead, if there is one."""
    texts: list[str] = []
    for part in shown(message):
        if images is not None and isinstance(part, Media) and (uri := image_of(part)):
            images.append(uri)
        elif isinstance(part, Call):
            texts.append(f"[call of {part.name}: {as_text(part.arguments)}]")
        else:
            texts.append(plain_result(part, ignore) if isinstance(part, Result) else plain([part], ignore))
    return "\n\n".join(text for text in texts if text and text not in without)


def seconds(time: datetime | None) -> float | None:
    """Return a time as a number of seconds since 1970."""
    return None if time is None else time.timestamp()


def blocks(texts: Iterable[str | Json]) -> Any:
    """Return a content of texts and blocks: one text by itself, otherwise a list of blocks."""
    parts = [{"type": "text", "text": each} if isinstance(each, str) else each for each in texts if each]
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def attached(name: Any, text: Any = None) -> str:
    """Return the text that stands for an attachment which is not in the export."""
    return f"[attached file: {as_text(name) or 'without a name'}]" + (f"\n{text}" if text else "")


def objects(value: Any) -> list[Json]:
    """Return the objects of a list; [] for any other value."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
