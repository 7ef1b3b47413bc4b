"""Arguments of what callers call, checked against their annotations before anything else happens.

What a session or a message may hold is checked where it is encoded (`encoding`); here stand those arguments that
say which ones are meant and how: numbers, times, spans, yes or no, functions. `checking_all` is for functions whose
texts and lists reach no encoder.
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
from typing import Any, BinaryIO, Final, TypeVar, cast

from pydantic import BaseModel

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


Check = Callable[[str, Any], None]


def checked(*, delegating: Collection[str] = (), encoded: Collection[str] = ()) -> Callable[[Class], Class]:
    """Check the arguments of a class's public methods; `delegating` are those that only call a method that is checked.

    TypeError or ValueError names the argument, what it is and what to give. Arguments that are `encoded` are left to
    the encoder.
    """

    def decorate(kind: Class) -> Class:
        for name, method in list(vars(kind).items()):
            if inspect.isfunction(method) and not name.startswith("_") and name not in delegating:
                setattr(kind, name, _checking(method, everything=False, encoded=encoded))
        return kind

    return decorate


def checking(function: Function) -> Function:
    """Check the arguments of one method, but for the texts and lists that are encoded."""
    return _checking(function, everything=False)


def checking_all(function: Function) -> Function:
    """Check the arguments of one function or method, texts and what lists hold too."""
    return _checking(function, everything=True)


def _checking(function: Function, *, everything: bool, encoded: Collection[str] = ()) -> Function:
    names = list(inspect.signature(function).parameters)
    known: tuple[str, ...] | None = None
    checks: dict[str, Check] = {}
    missing = True

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        nonlocal missing, known
        if missing:  # at the first call, when all that the annotations name is there
            hints, others = _hints(function)
            known = None if others else tuple(hints)
            found = {name: _check(hint, everything=everything) for name, hint in hints.items()}
            checks.update((name, check) for name, check in found.items() if check is not None and name not in encoded)
            missing = False
        for name, value in zip(names, arguments):  # noqa: B905 # too many is Python's error
            if (check := checks.get(name)) is not None:
                check(name, value)
        for name, value in options.items():
            if (check := checks.get(name)) is not None:
                check(name, value)
            elif known is not None and name not in known:
                raise TypeError(
                    f"{function.__name__}() got an unexpected keyword argument {name!r}: give {', '.join(known)}"
                )
        return function(*arguments, **options)

    return cast(Function, call)


def _hints(function: Callable[..., Any]) -> tuple[dict[str, Any], bool]:
    """Return the annotations of arguments, those of a TypedDict that is unpacked among them, and if it takes others."""
    hints: dict[str, Any] = {}
    others = False
    gathering = {name for name, each in inspect.signature(function).parameters.items() if each.kind is each.VAR_KEYWORD}
    for name, hint in typing.get_type_hints(function).items():
        if typing.get_origin(hint) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(hint)[0])
        elif name in gathering:
            others = True
        elif name != "return":
            hints[name] = hint
    return hints, others


def _check(hint: Any, *, everything: bool) -> Check | None:
    choices = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if words := [word for each in choices for word in _words(each)]:
        return _check_of_words(words, optional=type(None) in choices)
    kinds = [typing.get_origin(each) or each for each in choices]
    if Path in kinds:
        return _check_of_path(optional=type(None) in choices, or_file=BinaryIO in kinds)
    if everything and len(kinds) == 1 and kinds[0] in (Sequence, Collection):
        return _check_of_items(kinds[0], *typing.get_args(hint))
    later = _CHECKED_LATER - {str} if everything else _CHECKED_LATER
    if not all(inspect.isclass(kind) for kind in kinds) or not later.isdisjoint(kinds):
        return None
    passing = frozenset(kinds) - {datetime, float} | (frozenset((list, tuple)) if Sequence in kinds else frozenset())
    wanted = " or ".join(_remedy(kind) for kind in kinds if not _is_mark(kind))

    def check(name: str, value: Any) -> None:
        if type(value) in passing:
            if type(value) is str and not _is_unicode(value):
                raise ValueError(f"{name} holds a lone surrogate: give another text")  # unquoted: it may be a secret
            return
        if not any(_fits(value, kind) for kind in kinds):
            raise TypeError(f"{name} is {type(value).__name__}: give {wanted}")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise ValueError(f"{name}={value} has no time zone: use datetime.now(UTC)")

    return check


def _check_of_items(kind: type, item: Any) -> Check:
    """Check a list and what it holds: values of a class, or tuples of values of classes."""
    parts: tuple[type, ...] = typing.get_args(item)
    wanted = f"({', '.join(part.__name__ for part in parts)})" if parts else _remedy(item)

    def fits(value: Any) -> bool:
        if not parts:
            return isinstance(value, item)
        return isinstance(value, tuple | list) and len(value) == len(parts) and all(map(_fits, value, parts))

    def check(name: str, value: Any) -> None:
        if not isinstance(value, kind) or isinstance(value, str | bytes | Mapping):
            raise TypeError(f"{name} is {type(value).__name__}: give {_REMEDIES[kind]}")
        for position, each in enumerate(cast(Iterable[Any], value)):
            if type(each) is not item and not fits(each):
                raise TypeError(f"{name}[{position}] is {type(each).__name__}: give {wanted}")

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


def _check_of_path(*, optional: bool, or_file: bool) -> Check:
    wanted = "a path or an open binary file" if or_file else "a path"

    def check(name: str, value: Any) -> None:
        if (optional and value is None) or (or_file and hasattr(value, "write")):
            return
        if not isinstance(value, str | PathLike):
            raise TypeError(f"{name} is {type(value).__name__}: give {wanted}")
        try:
            named = b"\0" not in fsencode(value)
        except UnicodeEncodeError:
            named = False
        if not named:
            raise ValueError(f"{name}={value!r} cannot name a file: give another path")

    return check


_CHECKED_LATER: Final[frozenset[Any]] = frozenset({str, dict, list, object, Any})
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


def _is_unicode(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


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
    Collection: "a list or a set",
    str: "a text",
}


def _remedy(kind: type) -> str:
    return _REMEDIES.get(kind) or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
