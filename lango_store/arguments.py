"""Arguments of the public verbs, checked against their annotations before anything else happens.

What a session or a message may hold is checked where it is encoded (`columns`); here stand the arguments that say which
ones are meant and how: numbers, times, spans, yes or no, functions.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, StrEnum
from os import PathLike, fsencode
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from pydantic import BaseModel

Class = TypeVar("Class", bound=type)
Method = TypeVar("Method", bound=Callable[..., Any])


def checked(*, delegating: Collection[str] = ()) -> Callable[[Class], Class]:
    """Check the arguments of a class's public methods; `delegating` are those that only call a method that is checked.

    TypeError or ValueError names the argument, what it is and what to give.
    """

    def decorate(kind: Class) -> Class:
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in delegating:
                setattr(kind, name, checking(method))
        return kind

    return decorate


Check = Callable[[str, Any], None]


def checking(method: Method) -> Method:
    """Check the arguments of one method."""
    parameters = inspect.signature(method).parameters
    names = list(parameters)[1:]
    takes_more = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    known: tuple[str, ...] = ()
    checks: dict[str, Check] = {}
    missing = True

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal missing, known
        if missing:  # at the first call, when all that the annotations name is there
            hints = _hints(method)
            known = tuple(hints)
            checks.update((name, check) for name, hint in hints.items() if (check := _check(hint)) is not None)
            missing = False
        if arguments:
            for name, value in zip(names, arguments):  # noqa: B905 # too many is Python's error
                if (check := checks.get(name)) is not None:
                    check(name, value)
        for name, value in options.items():
            if (check := checks.get(name)) is not None:
                check(name, value)
            elif takes_more and name not in known:
                raise TypeError(
                    f"{method.__name__}() got an unexpected keyword argument {name!r}: give {', '.join(known)}"
                )
        return method(self, *arguments, **options)

    return cast(Method, call)


def _hints(method: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of a method's arguments, those of a TypedDict that it unpacks among them."""
    hints: dict[str, Any] = {}
    for name, hint in typing.get_type_hints(method).items():
        if typing.get_origin(hint) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(hint)[0])
        elif name != "return":
            hints[name] = hint
    return hints


def _check(hint: Any) -> Check | None:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if words := [word for each in choices for word in _words(each)]:
        return _check_of_words(words, optional=type(None) in choices)
    kinds = [typing.get_origin(each) or each for each in choices]
    if Path in kinds:
        return _check_of_path(optional=type(None) in choices)
    if not all(inspect.isclass(kind) for kind in kinds) or not _CHECKED_LATER.isdisjoint(kinds):
        return None
    passing = frozenset(kinds) - {datetime, float} | (frozenset((list, tuple)) if Sequence in kinds else frozenset())
    wanted = " or ".join(_remedy(kind) for kind in kinds if not _is_mark(kind))

    def check(name: str, value: Any) -> None:
        if type(value) in passing:
            return
        if not any(_fits(value, kind) for kind in kinds):
            raise TypeError(f"{name} is {type(value).__name__}: give {wanted}")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError(f"{name}={value} has no time zone: use datetime.now(UTC)")

    return check


def _words(choice: Any) -> Iterable[str]:
    if typing.get_origin(choice) is typing.Literal:
        return typing.get_args(choice)
    return choice if inspect.isclass(choice) and issubclass(choice, StrEnum) else ()


def _check_of_words(words: list[str], *, optional: bool) -> Check:
    def check(name: str, value: Any) -> None:
        if not (isinstance(value, str) and value in words) and not (optional and value is None):
            raise ValueError(f"{name}={value!r}: give one of {', '.join(words)}")

    return check


def _check_of_path(*, optional: bool) -> Check:
    def check(name: str, value: Any) -> None:
        if optional and value is None:
            return
        if not isinstance(value, str | PathLike):
            raise TypeError(f"{name} is {type(value).__name__}: give a path")
        try:
            named = b"\0" not in fsencode(value)
        except UnicodeEncodeError:
            named = False
        if not named:
            raise ValueError(f"{name}={value!r} can name no file: give another path")

    return check


_CHECKED_LATER: Final = frozenset({str, dict, list, object})


_FUNCTION: Final[Any] = typing.get_origin(Callable[..., Any])


def _fits(value: Any, kind: type) -> bool:
    if kind is _FUNCTION:
        return callable(value)
    if kind is Sequence:
        return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping | BaseModel)
    if kind is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and value == value
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _is_mark(kind: type) -> bool:
    """Return whether a type only says that an argument was left out."""
    return issubclass(kind, Enum)


_REMEDIES: Final[dict[Any, str]] = {
    type(None): "None",
    bool: "True or False",
    int: "a whole number",
    float: "a number",
    datetime: "an aware datetime, such as datetime.now(UTC)",
    timedelta: "a timedelta, such as timedelta(minutes=30)",
    _FUNCTION: "a function",
    Sequence: "a list",
}


def _remedy(kind: type) -> str:
    return _REMEDIES.get(kind) or f"a {kind.__name__}"
