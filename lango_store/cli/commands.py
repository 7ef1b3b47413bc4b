"""Which module a command is in. It is loaded when the command is called for: each knows what only some of them need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Final, cast

import typer
from typer.core import TyperGroup

_PLACES: Final = {
    "sessions": "sessions:app",
    "search": "search:app",
    "expire": "upkeep:expire",
    "stats": "upkeep:stats",
    "doctor": "upkeep:doctor",
    "archive": "archives:app",
    "import": "interchange:import_",
    "export": "interchange:export",
    "copy": "copying:copy",
    "db": "db:app",
    "serve": "serve:serve",
    "demo": "demo:demo",
}


class _Commands(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        module, _, function = _PLACES[name].partition(":")
        found = getattr(import_module(f"lango_store.cli.{module}"), function)
        around = typer.Typer(add_completion=False)
        if not isinstance(found, typer.Typer):
            around.command(name)(found)
            return typer.main.get_command(around)
        around.add_typer(found, name=name)
        return cast(TyperGroup, typer.main.get_command(around)).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


class Commands(TyperGroup):
    """The commands of `lango-store`, in the order of its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.commands = cast(Any, _Commands())
