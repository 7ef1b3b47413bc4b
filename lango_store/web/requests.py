"""Requests of the applications: who sends them, and their JSON. Refused requests raise `HTTPException`."""

import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any

from lango_store.aio import AsyncStore
from lango_store.errors import needs_extra

with needs_extra("web"):
    from starlette.exceptions import HTTPException
    from starlette.requests import ClientDisconnect, Request

GetUser = Callable[[Request], str | None | Awaitable[str | None]]
"""A function that returns the id of the user who sends a request; None if the request is not authenticated."""


def bearer_tokens(users: Mapping[str, str]) -> GetUser:
    """Return a function that finds the user of a request by its header `Authorization: Bearer TOKEN`.

    Args:
        users: The id of the user of each token. Clients of OpenAI send their API key as the token.
    """
    digests = {sha256(token.encode()).digest(): user for token, user in users.items()}

    def user(request: Request) -> str | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        # A lookup by the digest takes a time that tells nothing about the tokens.
        return digests.get(sha256(token.strip().encode()).digest()) if scheme.lower() == "bearer" else None

    return user


def single_user(_: Request) -> str | None:
    """Stand for the one person who uses an application, for example on their own computer.

    This person reads and changes all sessions, also those without a `user_id` and those of other users. The sessions
    that the application creates have no `user_id`. Do not use it where others can reach the application.
    """
    return None


async def store_for(store: AsyncStore, user: GetUser, request: Request) -> tuple[AsyncStore, str | None]:
    """Return a store for the sessions that a request may reach, and the id of the user who sends the request."""
    if user is single_user:
        return store, None
    id = await find_user(user, request)
    return store.for_user(id), id


async def find_user(user: GetUser, request: Request) -> str:
    """Return the id of the user who sends a request."""
    id = user(request)
    id = await id if inspect.isawaitable(id) else id
    if not id:
        raise HTTPException(401)
    return id


async def read_object(request: Request, max_body: int) -> dict[str, Any]:
    """Return the JSON of a request. Raises `ValueError` or `RecursionError` if it is not an object."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415)  # a form of another site cannot send it
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > max_body:
                raise HTTPException(413)
    except ClientDisconnect:
        raise HTTPException(400) from None
    content = json.loads(body, parse_constant=_refuse_constant)
    if not isinstance(content, dict):
        raise ValueError("the request is not an object")
    return content


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
