"""Import of plain messages: CSV files, and OpenAI's lines for fine-tuning, each an object with `messages`.

**CSV** has a line of names, and a row for each message, in order. The columns `role` and `content` are needed.
`session` is the key, by default the name of the file without its suffix; `time` is ISO 8601, in UTC if it has no time
zone. Other columns become `extra["csv"]`. Commas, semicolons or tabs separate columns. A field has at most 131,072
characters; `csv.field_size_limit` changes that.

**OpenAI's lines**: the key is the name of the file without its suffix, `:`, and the number of the line. `tools` become
the session's tools, and other members the value `openai`. The file of `export --format openai` can be read.

A row or line with an unknown role, or with anything else that cannot be read, is an error, and nothing of the file is
imported. An import needs memory for the whole file.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from lango_store import Message, MessageRole
from lango_store.errors import InvalidFile, quoted
from lango_store.interchange.draft import Part, SessionDraft, Skipped
from lango_store.interchange.fidelity import known_role, read_json
from lango_store.interchange.files import lines_of
from lango_store.interchange.fine_tuning import NAME as OPENAI
from lango_store.interchange.moments import moment
from lango_store.interchange.source import checked_file_key, first_bytes, lines_in, reading_unchanged

CSV: Final = "csv"
_COLUMNS: Final = ("role", "content", "session", "time")
_LINE: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{[^\n]*"messages"\s*:\s*\[')


def recognizes_csv(path: Path) -> bool:
    """Return True if the first line of a `.csv` file has the names of the needed columns."""
    names = _first_line(path).lower() if path.suffix.lower() == ".csv" else b""
    return b"role" in names and b"content" in names


def recognizes_lines(path: Path) -> bool:
    """Return True if the first line of a `.jsonl` file is an object with `messages`."""
    return path.suffix == ".jsonl" and _LINE.match(first_bytes(path, 1 << 16)) is not None


def read_csv(path: Path, skipped: list[Skipped]) -> Iterator[SessionDraft]:
    """Yield the sessions of a CSV file. Raises `InvalidFile` if a row cannot be read."""
    sessions: defaultdict[str, list[Message]] = defaultdict(list)
    separator = max(",;\t", key=_first_line(path).decode("latin-1").count)
    with reading_unchanged(path) as file:
        lines = (line.decode("utf-8-sig" if number == 1 else "utf-8") for number, line in lines_of(file, path))
        rows = csv.reader(lines, delimiter=separator, strict=True)
        try:
            names = [name.strip().lower() for name in next(rows, [])]
            if not {*names} >= {*_COLUMNS[:2]} or len({*names}) < len(names):
                raise ValueError("needs the columns role and content, each with a unique name")
            for row in rows:
                if len(row) > len(names):
                    raise ValueError(f"has {len(row)} values for {len(names)} columns")
                if values := dict(zip(names, row, strict=False)):
                    sessions[values.get("session") or path.stem].append(_message_of_row(values))
        except (ValueError, csv.Error) as error:
            raise InvalidFile(path, f"line {max(rows.line_num, 1)}: {error}: correct the file") from error
    for key, messages in sessions.items():
        times = [each.created_at for each in messages if each.created_at]
        yield _draft(path, key, messages, min(times, default=None), updated_at=max(times, default=None))


def _message_of_row(values: dict[str, str]) -> Message:
    time = moment(values.get("time"))
    if values.get("time") and time is None:
        raise ValueError(f"the time {quoted(values['time'])} is not in ISO 8601")
    rest = {name: value for name, value in values.items() if name not in _COLUMNS and value}
    role, extra = _role(values.get("role", "").strip().lower()), {CSV: rest} if rest else {}
    return Message(role=role, content=values.get("content", ""), created_at=time, extra=extra)


def read_lines(path: Path, skipped: list[Skipped]) -> Iterator[SessionDraft]:
    """Yield a session for each line. Raises `InvalidFile` if a line cannot be read."""
    number = 0
    for number, line in lines_in(path):
        try:
            value = read_json(line.decode("utf-8-sig"))
            if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
                raise ValueError('is not an object with a list "messages"')
            messages = [_message(each) for each in value.pop("messages")]
        except ValueError as error:
            raise InvalidFile(path, f"line {number}: {error}: correct the file") from error
        tools = {"tools": value.pop("tools")} if isinstance(value.get("tools"), list) else {}
        yield _draft(path, f"{path.stem}:{number}", messages, fields=tools, extra={OPENAI: value} if value else {})
    if not number:
        raise InvalidFile(path, "is empty: use another copy")


def _message(value: Any) -> Message:
    _role(value.get("role") if isinstance(value, dict) else None)
    try:
        return Message.from_openai(value)
    except (ValidationError, TypeError, AttributeError) as error:
        raise ValueError("a message is not in OpenAI's form") from error


def _role(word: Any) -> MessageRole:
    if (role := known_role(word)) is None:
        raise ValueError(f"the role {quoted(word)} is unknown: use system, user, assistant or tool")
    return role


def _draft(path: Path, key: str, messages: list[Message], created_at: Any = None, **fields: Any) -> SessionDraft:
    part = Part(messages, created_at=created_at)
    return SessionDraft(checked_file_key(path, key), [part], created_at=created_at, **fields)


def _first_line(path: Path) -> bytes:
    return first_bytes(path, 1 << 12).partition(b"\n")[0]
