"""Payloads: large strings of a message that are stored separately from its row, once per session.

`move` takes the strings out of an encoded row, and leaves empty strings in their places. The column `payloads` lists
the strings: it has the shape of the row's JSON, with a reference in the place of each string. A reference is
`[digest, bytes]` or, for a data URI, `[digest, bytes, media type]`. The column is separate, so nothing that a message
contains can be mistaken for a reference.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from lango_store._rows.encoding import decode_json, encode_json, encode_text
from lango_store._values.model import CONTAINERS, MessageRole, Payload, Unset
from lango_store.errors import InvalidValue

JSON_COLUMNS: Final = tuple(name for name in CONTAINERS if name != "sent")  # `drop_sent` removes it without reading it
"""The columns with JSON whose large strings become payloads."""

COLUMNS: Final = ("text", *JSON_COLUMNS)
"""The columns of a message whose large strings become payloads."""


class Threshold(NamedTuple):
    """The lengths in characters from which strings become payloads.

    Attributes:
        length: For all strings.
        small: For data URIs, which are rarely read as text, and for the strings of records, tool calls and `extra`,
            which frameworks repeat.
    """

    length: int
    small: int


DEFAULT_THRESHOLD: Final = Threshold(65_536, small=4_096)
"""Texts of usual length occur once: as payloads, they would take a second row and a second statement."""

_DATA_URI: Final = re.compile(r"data:([\w.+-]{1,99}/[\w.+-]{1,99})[;,]", re.ASCII)
_STAYS: Final = ("id", "name")  # of a tool call: short, and read by queries

Listing = dict[str, Any]
"""The decoded column `payloads`."""


def digest_of(body: str) -> str:
    """Return the digest of a payload: 128 bits of BLAKE2b over its UTF-8, in 22 characters of base64url."""
    return urlsafe_b64encode(blake2b(body.encode(), digest_size=16).digest()).decode().rstrip("=")


def reference_to(body: str) -> list[Any]:
    """Return the reference to a payload."""
    media_type = _DATA_URI.match(body)
    return [digest_of(body), len(body.encode()), *([media_type[1]] if media_type else [])]


def threshold_of(length: int | None | Unset) -> Threshold | None:
    """Return the threshold that an argument of a caller means: one length for all strings, or the defaults."""
    if isinstance(length, Unset):
        return DEFAULT_THRESHOLD
    return None if length is None else Threshold(length, length)


def move(row: dict[str, Any], threshold: Threshold) -> dict[str, str]:
    """Move the large strings out of an encoded message; return them by digest.

    The id and the name of a tool call stay, and so do strings that a database cannot store as text. A column with
    almost 200 levels is not changed, and neither is `sent`.
    """
    moved: dict[str, str] = {}
    listing: list[str] = []
    small = Threshold(threshold.small, threshold.small)
    large = small if row["role"] == MessageRole.RECORD else threshold
    text = row["text"]
    if text is not None and _is_large(text, large):
        reference = reference_to(text)
        row["text"], moved[reference[0]] = "", text
        listing.append(f'"text":{encode_json(reference, "payloads")}')
    for name in JSON_COLUMNS:
        least = large if name == "content" else small
        if row[name] is None or not _may_have_large_string(row[name], least):
            continue
        value = decode_json(row[name])
        taken: dict[str, str] = {}
        if places := _take(value, least, taken, _STAYS if name == "tool_calls" else ()):
            try:
                row[name], places_json = encode_json(value, name), encode_json(places, "payloads")
            except InvalidValue:
                continue
            moved |= taken
            listing.append(f'"{name}":{places_json}')
    row["payloads"] = "{" + ",".join(listing) + "}" if listing else None
    return moved


def _is_large(string: str, least: Threshold) -> bool:
    return len(string) >= least.length or (len(string) >= least.small and string.startswith("data:"))


def _may_have_large_string(json: str, least: Threshold) -> bool:
    return _may_have_string_of(least.length, json) or ('"data:' in json and _may_have_string_of(least.small, json))


def _may_have_string_of(length: int, json: str) -> bool:
    if len(json) < length:
        return False
    # No decoding is needed: such a string is a part of the JSON of at least this length without a quotation mark.
    if '\\"' in json:
        json = json.replace('\\"', "__")
    start = 0
    while start + length <= len(json):
        start = json.rfind('"', start, start + length) + 1
        if not start:
            return True
    return False


def _take(value: Any, least: Threshold, taken: dict[str, str], stays: tuple[str, ...] = (), level: int = 0) -> Listing:
    places: Listing = {}
    for name, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, dict | list):
            if inner := _take(item, least, taken, stays, level + 1):
                places[str(name)] = inner
        elif isinstance(item, str) and _is_large(item, least) and not (level == 1 and name in stays) and _is_text(item):
            reference = reference_to(item)
            value[name], taken[reference[0]] = "", item
            places[str(name)] = reference
    return places


def _is_text(item: str) -> bool:
    try:
        return encode_text(item, "payload") is not None
    except InvalidValue:  # a NUL, or a lone surrogate
        return False


def references(places: Any) -> Iterator[list[Any]]:
    """Yield the references of a listing."""
    if isinstance(places, dict):
        for inner in places.values():
            yield from references(inner)
    else:
        digest, size, *_ = places
        if type(digest) is not str or type(size) is not int:
            raise TypeError(f"{digest!r} and {size!r} are not a reference")
        yield places


def fill(fields: dict[str, Any], listing: Listing, bodies: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Put payloads in their places in the decoded fields of a message; without bodies, put `Payload`s there.

    Raises `KeyError` with the digest of a missing payload, and other errors if the listing does not match the message.
    """
    for name, places in listing.items():
        if name not in COLUMNS:
            raise ValueError(f"{name} has no payloads")
        field = "content" if name == "text" else name
        fields[field] = _filled(fields[field], places, bodies)
    return fields


def _filled(value: Any, places: Any, bodies: Mapping[str, str] | None) -> Any:
    if not isinstance(places, dict):
        digest, size, *media_type = places
        if value != "":
            raise ValueError(f"the place of payload {digest} is not empty")
        if bodies is not None:
            return bodies[digest]
        return Payload(digest=digest, size=size, media_type=media_type[0] if media_type else None)
    for name, inner in places.items():
        position = int(name) if isinstance(value, list) else name
        value[position] = _filled(value[position], inner, bodies)
    return value


def put_back(row: dict[str, Any], listing: Listing, bodies: Mapping[str, str]) -> None:
    """Put payloads back into the encoded columns from which `move` took them; raise the errors of `fill`."""
    for name, places in listing.items():
        if name == "text":
            row[name] = bodies[places[0]]
        else:
            row[name] = encode_json(_filled(decode_json(row[name]), places, bodies), name)


FAULTS: Final = (KeyError, IndexError, TypeError, ValueError, AttributeError)
"""The errors that the functions of this module raise for a damaged listing."""
