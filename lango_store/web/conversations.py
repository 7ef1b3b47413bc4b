"""OpenAI's Conversations API over a store, for its clients in any language.

An item is stored as a message, so other readers of the session see it. A message of another writer is served as one
or more items.
"""

from __future__ import annotations

import json
import logging
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from secrets import token_hex
from typing import Any, Final, NamedTuple

from lango_store import Message, MessageRole, SessionInfo
from lango_store.aio import AsyncConversation, AsyncStore
from lango_store.errors import (
    Conflict,
    DatabaseBusy,
    DatabaseUnavailable,
    InvalidKey,
    InvalidValue,
    LangoStoreError,
    MessageNotFound,
    SessionExists,
    SessionNotFound,
    needs_extra,
)
from lango_store.interchange import openai_items
from lango_store.rows import storable_id
from lango_store.web.requests import GetUser, read_object, store_for

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
_TRIES: Final = 100
_PLAIN_ID: Final = re.compile("conv_(?!key_)[A-Za-z0-9_-]+")
_ENCODED: Final = "conv_key_"
_PLACE: Final = re.compile(r"[a-z]+_at_(\d{1,18})_(\d{1,18})")
_PREFIXES: Final = {
    "message": "msg", "function_call": "fc", "function_call_output": "fc", "reasoning": "rs", "custom_tool_call": "ctc",
}  # fmt: skip
_HAVE_STATUS: Final = ("message", "function_call", "function_call_output")
_MOST_PAIRS, _LONGEST_KEY, _LONGEST_VALUE = 16, 64, 512
_STATUS: Final = {
    InvalidKey: 404,  # no session can have this key
    SessionNotFound: 404,
    MessageNotFound: 404,
    InvalidValue: 400,
    Conflict: 409,
    DatabaseBusy: 503,
    DatabaseUnavailable: 503,
}


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
    if not isinstance(store, AsyncStore):
        raise TypeError(f"store is {type(store).__name__}: give an AsyncStore")
    if not callable(user):
        raise TypeError(f"user is {type(user).__name__}: give a function of the request")
    api = _API(store, user)
    one = "/conversations/{conversation}"
    return Starlette(
        routes=[
            Route("/conversations", api.create, methods=["POST"]),
            Route(one, api.retrieve, methods=["GET"]),
            Route(one, api.update, methods=["POST"]),
            Route(one, api.delete, methods=["DELETE"]),
            Route(f"{one}/items", api.list_items, methods=["GET"]),
            Route(f"{one}/items", api.create_items, methods=["POST"]),
            Route(f"{one}/items/{{item:path}}", api.retrieve_item, methods=["GET"]),
            Route(f"{one}/items/{{item:path}}", api.delete_item, methods=["DELETE"]),
        ],
        exception_handlers={
            APIError: _refused,
            HTTPException: _no_route,
            LangoStoreError: _failed,
            Exception: _failed,
        },
    )


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
    """An item of a conversation: the `seq` of its message, and its fields."""

    seq: int
    fields: dict[str, Any]


class _API:
    """The routes."""

    def __init__(self, store: AsyncStore, user: GetUser) -> None:
        self._store = store
        self._user = user

    async def create(self, request: Request) -> Response:
        """Create a conversation, or return the one that the same request has created."""
        store = await self._bound(request)
        body = await _body(request, "items", "metadata")
        repeated = request.headers.get("idempotency-key")
        key = f"conv_{_hashed(request.state.user, repeated) if repeated else token_hex(24)}"
        messages = _messages(_items(body, required=False), key, repeated)
        try:
            info: SessionInfo = await store.create(key, messages=messages, metadata=_metadata(body))
        except SessionExists:
            info = await store.conversation(key).info()
        return _answer(_conversation(info))

    async def retrieve(self, request: Request) -> Response:
        """Return a conversation."""
        return _answer(_conversation(await (await self._conversation(request)).info()))

    async def update(self, request: Request) -> Response:
        """Replace the metadata of a conversation. Values that are not text belong to other programs, and stay."""
        conversation = await self._conversation(request)
        body = await _body(request, "metadata")
        if "metadata" not in body:
            raise _missing("metadata")
        new = _metadata(body)
        for _ in range(_TRIES):
            info = await conversation.info()
            kept = {name: value for name, value in info.metadata.items() if not isinstance(value, str)}
            with suppress(Conflict):  # an append, for example, has changed the revision
                return _answer(_conversation(await conversation.update(metadata=kept | new, expect=info.revision)))
        raise APIError("Other requests change the conversation: try again.", 409)

    async def delete(self, request: Request) -> Response:
        """Delete a conversation with its items."""
        store, key = await self._bound(request), _key_of(request)
        if not await store.delete(key):
            raise SessionNotFound(key)
        return _answer({"id": conversation_id(key), "object": "conversation.deleted", "deleted": True})

    async def create_items(self, request: Request) -> Response:
        """Store items, all or none. Items that are stored already are not stored again."""
        conversation = await self._conversation(request)
        items = _items(await _body(request, "items"))
        messages = _messages(items, conversation.key, request.headers.get("idempotency-key"))
        stored = await conversation.append_messages(messages)
        return _answer(_page([item for each in stored for item in _served(conversation, each)], has_more=False))

    async def list_items(self, request: Request) -> Response:
        """Return a page of items."""
        conversation = await self._conversation(request)
        query = request.query_params
        limit, is_newest_first = _limit(query), _order(query) == "desc"
        found = await _find(conversation, query["after"]) if query.get("after") else None
        items = await _read(conversation, limit + 1, found, is_newest_first)
        return _answer(_page(items[:limit], has_more=len(items) > limit))

    async def retrieve_item(self, request: Request) -> Response:
        """Return an item."""
        items, number = await _find(await self._conversation(request), request.path_params["item"])
        return _answer(items[number].fields)

    async def delete_item(self, request: Request) -> Response:
        """Delete an item, and return its conversation."""
        conversation = await self._conversation(request)
        items, number = await _find(conversation, request.path_params["item"])
        if len(items) > 1:
            text = f"The item belongs to a message with {len(items)} items, which can only be deleted as a whole."
            raise APIError(text, param="item_id", code="item_not_deletable")
        await conversation.edits.delete(items[number].seq)
        return _answer(_conversation(await conversation.info()))

    async def _bound(self, request: Request) -> AsyncStore:
        """Return the store of the user who sent a request."""
        store, request.state.user = await store_for(self._store, self._user, request)
        return store

    async def _conversation(self, request: Request) -> AsyncConversation:
        return (await self._bound(request)).conversation(_key_of(request))


# Requests


def _key_of(request: Request) -> str:
    """Return the key of the session that a path names: by its id in the API or, without the prefix `conv_`, itself."""
    id: str = request.path_params["conversation"]
    if not id.startswith(_ENCODED):
        return id
    encoded = id.removeprefix(_ENCODED)
    try:
        key = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (Error, ValueError):
        raise SessionNotFound(id) from None
    if conversation_id(key) != id:
        raise SessionNotFound(id)
    return key


async def _body(request: Request, *names: str) -> dict[str, Any]:
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


def _invalid_type(param: str, expected: str) -> APIError:
    return APIError(f"Invalid type for '{param}': expected {expected}.", param=param, code="invalid_type")


def _param(name: str) -> str:
    return name[:_LONGEST_KEY]


def _metadata(body: Mapping[str, Any]) -> dict[str, str]:
    metadata = body.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise _invalid_type("metadata", "an object")
    if len(metadata) > _MOST_PAIRS:
        text = f"Invalid 'metadata': too many properties. Expected at most {_MOST_PAIRS}, but got {len(metadata)}."
        raise APIError(text, param="metadata", code="object_above_max_properties")
    for name, value in metadata.items():
        param = f"metadata.{_param(name)}"
        if not isinstance(value, str):
            raise _invalid_type(param, "a string")
        if len(name) > _LONGEST_KEY or len(value) > _LONGEST_VALUE:
            text = f"Invalid '{param}': names have at most {_LONGEST_KEY} characters, values {_LONGEST_VALUE}."
            raise APIError(text, param=param, code="string_above_max_length")
    return metadata


def _items(body: Mapping[str, Any], *, required: bool = True) -> list[dict[str, Any]]:
    items = body.get("items")
    if items is None and not required:
        return []
    if items is None:
        raise _missing("items")
    if not isinstance(items, list):
        raise _invalid_type("items", "an array of objects")
    if len(items) > MOST_ITEMS:
        text = f"Invalid 'items': array too long. Expected at most {MOST_ITEMS} items, but got {len(items)} instead."
        raise APIError(text, param="items", code="array_above_max_length")
    for number, item in enumerate(items):
        _check(item, f"items[{number}]")
    return items


def _check(item: Any, param: str) -> None:
    """Refuse an item that is not an object with a type, or that is a message without its fields."""
    if not isinstance(item, dict):
        raise _invalid_type(param, "an object")
    kind, id = item.get("type", "message" if "role" in item else None), item.get("id")
    if kind is None:
        raise _missing(f"{param}.type")
    if not isinstance(kind, str):
        raise _invalid_type(f"{param}.type", "a string")
    if id is not None and storable_id(id) is None:
        raise _invalid_type(f"{param}.id", "a string of 1 to 512 bytes")
    if kind != "message":
        return
    for name in ("role", "content"):
        if name not in item:
            raise _missing(f"{param}.{name}")
    if not isinstance(item["role"], str):
        raise _invalid_type(f"{param}.role", "a string")
    if not isinstance(item["content"], str | list):
        raise _invalid_type(f"{param}.content", "a string or an array of objects")


def _messages(items: Sequence[Mapping[str, Any]], key: str, repeated: str | None) -> list[Message]:
    """Return the messages of items, each with an id. It depends on the header of repeated requests, if there is one."""
    ends = [_hashed(key, repeated, number) if repeated else token_hex(24) for number in range(len(items))]
    ids = [item.get("id") or f"{_prefix(item)}_{end}" for item, end in zip(items, ends, strict=True)]
    return [openai_items.message_of_json(item, id=id) for item, id in zip(items, ids, strict=True)]


def _hashed(*names: object) -> str:
    return sha256(json.dumps(names).encode()).hexdigest()[:48]


def _limit(query: Mapping[str, str]) -> int:
    text = query.get("limit", str(_PAGE))
    if not re.fullmatch("-?[0-9]{1,9}", text):
        raise _invalid_type("limit", "an integer")
    limit = int(text)
    if limit < 1 or limit > _LONGEST_PAGE:
        bound, name = (">= 1", "below_min") if limit < 1 else (f"<= {_LONGEST_PAGE}", "above_max")
        text = (
            f"Invalid 'limit': integer {name.replace('_', ' ')}imum value. Expected a value {bound}, but got {limit}."
        )
        raise APIError(text, param="limit", code=f"integer_{name}_value")
    return limit


def _order(query: Mapping[str, str]) -> str:
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        text = f"Invalid value: {order!a}. Supported values are: 'asc' and 'desc'."
        raise APIError(text, param="order", code="invalid_value")
    return order


# Items


async def _read(
    conversation: AsyncConversation, count: int, found: tuple[list[Item], int] | None, is_newest_first: bool
) -> list[Item]:
    """Read items, those after an item that was found. Records of other writers are not items."""
    items: list[Item] = []
    seq = None
    if found is not None:
        same, number = found
        seq = same[number].seq
        items += same[:number][::-1] if is_newest_first else same[number + 1 :]
    size = count
    while len(items) < count:
        if is_newest_first:
            messages = (await conversation.all_messages(before=seq, last=size))[::-1]
        else:
            messages = await conversation.all_messages(after=seq or 0, limit=size)
        for message in messages:
            served = _served(conversation, message)
            items += served[::-1] if is_newest_first else served
        if len(messages) < size:
            break
        seq, size = messages[-1].seq, _NEWEST
    return items


async def _find(conversation: AsyncConversation, id: str) -> tuple[list[Item], int]:
    """Return the items of a message, and the position of the item with this id.

    An item of another writer may have an id that its message does not have: it is found among the newest messages.
    """
    if place := _PLACE.fullmatch(id):
        messages = await conversation.all_messages(seqs=[int(place[1])])
    else:
        message = await conversation.find_message(id) if storable_id(id) else None
        messages = [message] if message else (await conversation.all_messages(last=_NEWEST))[::-1]
    for message in messages:
        items = _served(conversation, message)
        for number, item in enumerate(items):
            if id == item.fields["id"] or (message.id == id and len(items) == 1):
                return items, number
    raise APIError(f"Item with id {id!a} not found.", 404, param="item_id")


def _served(conversation: AsyncConversation, message: Message) -> list[Item]:
    """Return the items of a message as clients get them; none for a record of another writer."""
    if message.role is MessageRole.RECORD and message.author != openai_items.NAME:
        return []
    items = openai_items.stored_items(conversation.key, message)
    default = message.id if len(items) == 1 else None
    return [
        Item(message.seq, _complete(item, default or f"{_prefix(item)}_at_{message.seq}_{number}"))
        for number, item in enumerate(items)
        if isinstance(item, dict)
    ]


def _complete(item: Mapping[str, Any], default_id: str) -> dict[str, Any]:
    """Return an item with the fields that OpenAI's API adds. All other fields are unchanged."""
    id = item.get("id")
    fields = {**item, "id": id if id and isinstance(id, str) else default_id}
    if "role" in item:
        fields.setdefault("type", "message")
    if fields.get("type") in _HAVE_STATUS:
        fields.setdefault("status", "completed")
    if fields.get("type") == "message" and isinstance(item.get("content"), str):
        block = {"type": "output_text", "annotations": []} if item["role"] == "assistant" else {"type": "input_text"}
        fields["content"] = [{**block, "text": item["content"]}]
    return fields


def _prefix(item: Mapping[str, Any]) -> str:
    """Return the beginning of an id that OpenAI expects for this type of item."""
    return _PREFIXES.get(item.get("type", "message"), "item")


# Answers


def _conversation(info: SessionInfo) -> dict[str, Any]:
    return {
        "id": conversation_id(info.key),
        "object": "conversation",
        "created_at": int(info.created_at.timestamp()),
        "metadata": {name: value for name, value in info.metadata.items() if isinstance(value, str)},
    }


def _page(items: Sequence[Item], *, has_more: bool) -> dict[str, Any]:
    data = [item.fields for item in items]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return {"object": "list", "data": data, "first_id": first, "last_id": last, "has_more": has_more}


def _answer(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    # Without the escapes of JSON, a lone surrogate could not be sent.
    text = json.dumps(body, allow_nan=False)
    return Response(text, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def _error(message: str, status: int, param: str | None = None, code: str | None = None) -> Response:
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return _answer({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return _error(str(error), error.status, error.param, error.code)


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text, code = _TEXTS.get(error.status_code, (f"Invalid URL ({request.method} {request.url.path})", "unknown_url"))
    return _error(text, error.status_code, code=code)


async def _failed(request: Request, error: Exception) -> Response:
    status = next((_STATUS[kind] for kind in type(error).mro() if kind in _STATUS), 500)
    if isinstance(error, (SessionNotFound, InvalidKey)):
        id = request.path_params.get("conversation")
        return _error(f"Conversation with id {id!a} not found.", 404)
    if status >= 500:
        logger.error("a request of the Conversations API failed: %s", error)
        return _error("The server had an error while processing your request.", status)
    return _error(str(error), status, code="invalid_value" if status == 400 else None)
