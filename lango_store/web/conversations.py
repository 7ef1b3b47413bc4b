"""OpenAI's Conversations API over a store, for its clients in any language.

An item is stored as a message, so other readers of the session see it. A message of another writer is served as one
or more items.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate
from secrets import token_hex
from typing import Any, Final, NamedTuple

from lango_store import Message, MessageRole, SessionInfo
from lango_store.aio import AsyncConversation, AsyncStore
from lango_store.errors import (
    InvalidKey,
    LangoStoreError,
    MessageNotFound,
    SessionExists,
    SessionNotFound,
    needs_extra,
)
from lango_store.interchange import openai_items
from lango_store.rows import storable_id
from lango_store.web.payloads import without_payloads
from lango_store.web.requests import (
    AnyJSON,
    GetUser,
    change_metadata,
    check_arguments,
    read_object,
    refuse_forms,
    status_and_text,
    store_for,
)

with needs_extra("web"):
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

logger = logging.getLogger("lango_store.web")

MOST_ITEMS: Final = 20
_MOST_BYTES: Final = 2**25
_PAGE: Final = 20
_LONGEST_PAGE: Final = 100
_NEWEST: Final = 1_000
_PLAIN_ID: Final = re.compile("conv_(?!key_)[A-Za-z0-9_-]+")
_ENCODED: Final = "conv_key_"
_PLACE: Final = re.compile(r"(?:[a-z]+_)?at_(\d{1,18})_(\d{1,18})")
_NO_IDS: Final = ("", "__fake_id__", "FAKE_ID")  # those of the Agents SDK, for items of other models
_PREFIXES: Final = {
    "message": "msg", "function_call": "fc", "function_call_output": "fc", "reasoning": "rs", "custom_tool_call": "ctc",
}  # fmt: skip
_HAVE_STATUS: Final = ("message", "function_call", "function_call_output")
_Fields = dict[str, Any]
_MOST_PAIRS, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512
_BROKEN: Final = "The server had an error while processing your request."


def conversation_id(key: str) -> str:
    """Return the id that a session has in the Conversations API.

    Args:
        key: The session's key.

    Returns:
        The key itself if it begins with `conv_` and has only letters, digits, `-` and `_`, as the keys of new
        conversations do. Otherwise `conv_key_` and the key in base64url without padding.
    """
    if _PLAIN_ID.fullmatch(key):
        return key
    return _ENCODED + urlsafe_b64encode(key.encode()).decode().rstrip("=")


def conversations(store: AsyncStore, *, user: GetUser) -> Starlette:
    """Create an ASGI application with OpenAI's Conversations API.

    Mount it under `/v1`, and give clients this address as their base URL. A conversation is a session of the caller,
    and its items are the session's log. An item that is sent with an `id` is stored once, however often it is sent. So
    is each item of a request with the header `Idempotency-Key`.

    Args:
        store: The store.
        user: A function, or a coroutine function, that takes the request and returns the id of the user who sent it, or
            None to refuse the request. The request sees and creates only sessions with this `user_id`.

    Raises:
        TypeError: `store` is not an `AsyncStore`, or `user` is not callable.
    """
    check_arguments(store, user)

    def route(method: str, path: str, handler: _Handler) -> Route:
        async def endpoint(request: Request) -> Response:
            return _answer(await handler(_Call(request, *await store_for(store, user, request))))

        return Route(f"/conversations{path}", endpoint, methods=[method])

    one, item = "/{conversation}", "/{conversation}/items/{item:path}"
    routes = [
        route("POST", "", _create),
        route("GET", one, _retrieve),
        route("POST", one, _update),
        route("DELETE", one, _delete),
        route("GET", f"{one}/items", _list_items),
        route("POST", f"{one}/items", _create_items),
        route("GET", item, _retrieve_item),
        route("DELETE", item, _delete_item),
    ]
    handled = APIError, HTTPException, LangoStoreError, Exception
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(handled, _failed))
    app.router.redirect_slashes = False
    return app


_TEXTS: Final = {
    400: ("The body of the request is not complete.", None),
    401: ("Incorrect API key provided.", "invalid_api_key"),
    413: (f"The body of the request is larger than {_MOST_BYTES:,} bytes.", "request_too_large"),
    415: ("Unsupported content type: this method only accepts 'application/json'.", "unsupported_content_type"),
}


class APIError(Exception):
    """A request that is refused, with the fields of OpenAI's error object."""

    def __init__(self, message: str, status: int = 400, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.param, self.code = status, param, code


class Item(NamedTuple):
    """An item of a conversation.

    Attributes:
        seq: The `seq` of its message.
        number: Its number in the message.
        fields: Its fields, as clients get them.
        cursor: Its id, or its place if other items may have the id or it may not be found by it.
        size: The bytes of the message's large strings, if these are not loaded.
    """

    seq: int
    number: int
    fields: _Fields
    cursor: str
    size: int


class _Call(NamedTuple):
    """A request of a user, with a store that has only the sessions of this user."""

    request: Request
    store: AsyncStore
    user: str | None

    @property
    def conversation(self) -> AsyncConversation:
        """The conversation that the path names."""
        return self.store.conversation(_key_of(self.request.path_params["conversation"]))

    @property
    def repeated(self) -> str | None:
        """The common part of a request and its repetitions."""
        return self.request.headers.get("idempotency-key")


_Handler = Callable[[_Call], Awaitable[_Fields]]


async def _create(call: _Call) -> _Fields:
    """Create a conversation, or return the one that the same request has created."""
    refuse_forms(call.request)
    is_empty = call.request.headers.get("content-length") == "0"
    body = {} if is_empty else await _body(call.request, "items", "metadata")
    key = f"conv_{_hashed(call.user, call.repeated) if call.repeated else token_hex(24)}"
    messages = _messages(_items(body, required=False), key, call.repeated)
    try:
        return _conversation(await call.store.create(key, messages=messages, metadata=_metadata(body)))
    except SessionExists:
        return _conversation(await call.store.conversation(key).info())


async def _retrieve(call: _Call) -> _Fields:
    """Return a conversation."""
    return _conversation(await call.conversation.info())


async def _update(call: _Call) -> _Fields:
    """Replace the metadata of a conversation. Values that are not text belong to other programs, and stay."""
    body = await _body(call.request, "metadata")
    if "metadata" not in body:
        raise _missing("metadata")
    new = _metadata(body)

    def change(metadata: _Fields) -> _Fields:
        return {name: value for name, value in metadata.items() if not isinstance(value, str)} | new

    return _conversation(await change_metadata(call.conversation, change))


async def _delete(call: _Call) -> _Fields:
    """Delete a conversation with its items."""
    key = call.conversation.key
    if not await call.store.delete(key):
        raise SessionNotFound(key)
    return {"id": conversation_id(key), "object": "conversation.deleted", "deleted": True}


async def _create_items(call: _Call) -> _Fields:
    """Store items, all or none. Items that are stored already are not stored again."""
    items, conversation = _items(await _body(call.request, "items")), call.conversation
    stored = await conversation.append_messages(_messages(items, conversation.key, call.repeated))
    return _page([item for each in stored for item in _served(conversation, each)], has_more=False)


async def _list_items(call: _Call) -> _Fields:
    """Return a page of items."""
    conversation, query = call.conversation, call.request.query_params
    limit, is_newest_first = _limit(query), _order(query) == "desc"
    found = await _find(conversation, query["after"]) if query.get("after") else None
    items = await _read(conversation, limit + 1, found, is_newest_first)
    fitting = _fitting(items[:limit])
    return _page(await _load(conversation, fitting), has_more=len(items) > len(fitting))


async def _retrieve_item(call: _Call) -> _Fields:
    """Return an item."""
    conversation, id = call.conversation, call.request.path_params["item"]
    items, number = await _find(conversation, id)
    for item in await _load(conversation, [items[number]]):
        return item.fields
    raise _no_item(id)


async def _delete_item(call: _Call) -> _Fields:
    """Delete an item, and return its conversation."""
    conversation = call.conversation
    items, number = await _find(conversation, call.request.path_params["item"])
    text = f"The item belongs to a message with {len(items)} items, which can only be deleted as a whole."
    _require(len(items) == 1, text, "item_id", "item_not_deletable")
    await conversation.edits.delete(items[number].seq)
    return _conversation(await conversation.info())


# Requests


def _key_of(id: str) -> str:
    """Return the key of the session with an id: that of the API or, without the prefix `conv_`, the key itself."""
    if not id.startswith(_ENCODED):
        return id
    encoded = id.removeprefix(_ENCODED)
    try:
        key = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except ValueError:
        raise SessionNotFound(id) from None
    if conversation_id(key) != id:
        raise SessionNotFound(id)
    return key


async def _body(request: Request, *names: str) -> _Fields:
    """Return the body of a request, an object with some of these names."""
    try:
        body = await read_object(request, _MOST_BYTES)
    except (ValueError, RecursionError):
        raise APIError("We could not parse the body of your request as a JSON object.") from None
    for name in body:
        if name not in names:
            raise APIError(f"Unknown parameter: {name!a}.", param=_param(name), code="unknown_parameter")
    return body


def _missing(param: str) -> APIError:
    return APIError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")


def _require(is_right: bool, text: str, param: str, code: str) -> None:
    if not is_right:
        raise APIError(text, param=param, code=code)


def _expect(is_right: bool, param: str, expected: str) -> None:
    _require(is_right, f"Invalid type for '{param}': expected {expected}.", param, "invalid_type")


def _param(name: str) -> str:
    return name[:_LONGEST_KEY]


def _metadata(body: Mapping[str, Any]) -> dict[str, str]:
    metadata: dict[str, str] | None = body.get("metadata")
    if metadata is None:
        return {}
    _expect(isinstance(metadata, dict), "metadata", "an object")
    text = f"Invalid 'metadata': too many properties. Expected at most {_MOST_PAIRS}, but got {len(metadata)}."
    _require(len(metadata) <= _MOST_PAIRS, text, "metadata", "object_above_max_properties")
    for name, value in metadata.items():
        param = f"metadata.{_param(name)}"
        _expect(isinstance(value, str), param, "a string")
        text = f"Invalid '{param}': names have at most {_LONGEST_KEY} characters, values {_LONGEST_VALUE}."
        is_short = len(name) <= _LONGEST_KEY and len(value) <= _LONGEST_VALUE
        _require(is_short, text, param, "string_above_max_length")
    return metadata


def _items(body: Mapping[str, Any], *, required: bool = True) -> list[_Fields]:
    items: list[_Fields] | None = body.get("items")
    if items is None and not required:
        return []
    if items is None:
        raise _missing("items")
    _expect(isinstance(items, list), "items", "an array of objects")
    text = f"Invalid 'items': array too long. Expected at most {MOST_ITEMS} items, but got {len(items)} instead."
    _require(len(items) <= MOST_ITEMS, text, "items", "array_above_max_length")
    for number, item in enumerate(items):
        _check(item, f"items[{number}]")
    return items


def _check(item: Any, param: str) -> None:
    """Refuse an item that is not an object with a type, or that is a message without its fields."""
    _expect(isinstance(item, dict), param, "an object")
    kind, id = item.get("type", "message" if "role" in item else None), item.get("id")
    if kind is None:
        raise _missing(f"{param}.type")
    _expect(isinstance(kind, str), f"{param}.type", "a string")
    _expect(id is None or storable_id(id) is not None, f"{param}.id", "a string of 1 to 512 bytes")
    if kind != "message":
        return
    for name in ("role", "content"):
        if name not in item:
            raise _missing(f"{param}.{name}")
    _expect(isinstance(item["role"], str), f"{param}.role", "a string")
    content = item["content"]
    is_list = isinstance(content, list) and all(isinstance(part, dict) for part in content)
    _expect(is_list or isinstance(content, str), f"{param}.content", "a string or an array of objects")


def _messages(items: Sequence[Mapping[str, Any]], key: str, repeated: str | None) -> list[Message]:
    """Return the messages of items, each with an id. It depends on the header of repeated requests, if there is one."""
    ends = [_hashed(key, repeated, number) if repeated else token_hex(24) for number in range(len(items))]
    ids = [_id_of(item) or f"{_prefix(item)}_{end}" for item, end in zip(items, ends, strict=True)]
    return [openai_items.message_of_json(item, id=id) for item, id in zip(items, ids, strict=True)]


def _hashed(*names: object) -> str:
    return sha256(json.dumps(names).encode()).hexdigest()[:48]


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_PAGE))
    _expect(re.fullmatch("-?[0-9]{1,9}", text) is not None, "limit", "an integer")
    limit = int(text)
    text = f"Invalid 'limit': expected a value from 1 to {_LONGEST_PAGE}, but got {limit}."
    _require(limit >= 1, text, "limit", "integer_below_min_value")
    _require(limit <= _LONGEST_PAGE, text, "limit", "integer_above_max_value")
    return limit


def _order(query: Mapping[str, str]) -> str:
    order = query.get("order", "desc")
    text = f"Invalid value: {order!a}. Supported values are: 'asc' and 'desc'."
    _require(order in ("asc", "desc"), text, "order", "invalid_value")
    return order


# Items


async def _read(
    conversation: AsyncConversation, count: int, found: tuple[list[Item], int] | None, is_newest_first: bool
) -> list[Item]:
    """Read items without their large strings, those after an item that was found."""
    items: list[Item] = []
    seq = None
    if found is not None:
        same, number = found
        seq = same[number].seq
        items += same[:number][::-1] if is_newest_first else same[number + 1 :]
    size = count
    while len(items) < count:
        if is_newest_first:
            messages = (await conversation.all_messages(before=seq, last=size, payloads="reference"))[::-1]
        else:
            messages = await conversation.all_messages(after=seq or 0, limit=size, payloads="reference")
        for message in messages:
            served = _served(conversation, message)
            items += served[::-1] if is_newest_first else served
        if len(messages) < size:
            break
        seq, size = messages[-1].seq, min(2 * size, _NEWEST)
    return items


def _fitting(items: Sequence[Item]) -> Sequence[Item]:
    """Return the first items, at least one, whose large strings together are not too large for a page."""
    sizes = list(accumulate(item.size for item in items))
    return items[: max(1, bisect_right(sizes, _MOST_BYTES))]


async def _load(conversation: AsyncConversation, items: Sequence[Item]) -> list[Item]:
    """Return items with their large strings, without those that have been deleted since they were read."""
    large = {item.seq for item in items if item.size}
    messages = await conversation.all_messages(seqs=sorted(large)) if large else []
    loaded = {each[:2]: each for message in messages for each in _served(conversation, message)}
    return [loaded.get(item[:2], item) for item in items if item[:2] in loaded or not item.size]


async def _find(conversation: AsyncConversation, id: str) -> tuple[list[Item], int]:
    """Return the items of a message, maybe without large strings, and the position of the item with this id."""
    async for messages in _candidates(conversation, id):
        for message in messages:
            items = _served(conversation, message)
            for number, item in enumerate(items):
                if id in (item.fields["id"], item.cursor) or (message.id == id and len(items) == 1):
                    return items, number
    raise _no_item(id)


async def _candidates(conversation: AsyncConversation, id: str) -> AsyncIterator[Sequence[Message]]:
    """Yield messages that may have the item with an id.

    An item of another writer may have an id that its message does not have: it is found among the newest messages.
    """
    place = _PLACE.fullmatch(id)
    if place:
        yield await conversation.all_messages(seqs=[int(place[1])], payloads="reference")
    message = await conversation.find_message(id) if storable_id(id) else None
    if message:  # a client may have sent an item with the id that it has in another conversation
        yield [message]
    elif not place:
        yield (await conversation.all_messages(last=_NEWEST, payloads="reference"))[::-1]


def _no_item(id: str) -> APIError:
    return APIError(f"Item with id {id!a} not found.", 404, param="item_id")


def _served(conversation: AsyncConversation, message: Message) -> list[Item]:
    """Return the items of a message as clients get them; none for a record of another writer."""
    if message.role is MessageRole.RECORD and message.author != openai_items.NAME:
        return []
    message, size = without_payloads(message)
    items = openai_items.stored_items(conversation.key, message)
    served = []
    for number, item in enumerate(items):
        if isinstance(item, dict):
            place = f"at_{message.seq}_{number}"
            id = (message.id if len(items) == 1 else None) or f"{_prefix(item)}_{place}"
            fields = _complete(item, id)
            served.append(Item(message.seq, number, fields, id if fields["id"] == id else place, size))
    return served


def _complete(item: Mapping[str, Any], default_id: str) -> _Fields:
    """Return an item with the fields that OpenAI's API adds. All other fields are unchanged."""
    fields = {**item, "id": _id_of(item) or default_id}
    if "role" in item:
        fields.setdefault("type", "message")
    if fields.get("type") in _HAVE_STATUS:
        fields.setdefault("status", "completed")
    if fields.get("type") == "message" and isinstance(item.get("content"), str):
        is_answer = item.get("role") == "assistant"
        block = {"type": "output_text", "annotations": []} if is_answer else {"type": "input_text"}
        fields["content"] = [{**block, "text": item["content"]}]
    return fields


def _id_of(item: Mapping[str, Any]) -> str | None:
    id = item.get("id")
    return id if isinstance(id, str) and id not in _NO_IDS else None


def _prefix(item: Mapping[str, Any]) -> str:
    """Return the beginning of an id that OpenAI expects for this type of item."""
    return _PREFIXES.get(str(item.get("type", "message")), "item")


# Answers


def _conversation(info: SessionInfo) -> _Fields:
    return {
        "id": conversation_id(info.key),
        "object": "conversation",
        "created_at": int(info.created_at.timestamp()),
        "metadata": {name: value for name, value in info.metadata.items() if isinstance(value, str)},
    }


def _page(items: Sequence[Item], *, has_more: bool) -> _Fields:
    data = [item.fields for item in items]
    first, last = (data[0]["id"], items[-1].cursor) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _answer(body: Any, status: int = 200) -> Response:
    return AnyJSON(body, status, {"Cache-Control": "no-store"})


async def _failed(request: Request, error: Exception) -> Response:
    """Return the error object of a request that was refused or has failed."""
    refused = _refusal(request, error)
    kind = "server_error" if refused.status >= 500 else "invalid_request_error"
    fields = {"message": str(refused), "type": kind, "param": refused.param, "code": refused.code}
    return _answer({"error": fields}, refused.status)


def _refusal(request: Request, error: Exception) -> APIError:
    match error:
        case APIError():
            return error
        case HTTPException(status_code=status):
            unknown = f"Invalid URL ({request.method} {request.url.path})", "unknown_url"
            reason, code = _TEXTS.get(status, unknown)
            return APIError(reason, status, code=code)
        case SessionNotFound() | InvalidKey():  # no session can have an invalid key
            return APIError(f"Conversation with id {request.path_params.get('conversation')!a} not found.", 404)
        case MessageNotFound():  # another request has deleted it since it was found
            return _no_item(request.path_params["item"])
    status, text = status_and_text(error) if isinstance(error, LangoStoreError) else (500, None)
    if status >= 500:
        logger.error("a request of the Conversations API failed: %s", error)
    return APIError(text or _BROKEN, status, code="invalid_value" if status == 400 else None)
