"""The command line, to which `lango_store.cli` and the rooms add commands and groups of commands."""

from typing import Any, Final

import typer
from typer.core import TyperGroup

from lango_store.cli.options import example

JOBS: Final = {
    "Look": ("sessions", "search", "serve", "usage", "stats", "tail", "shares"),
    "Mend": ("doctor", "expire", "erase", "owed", "turns", "calls", "suspensions", "payloads"),
    "Move": ("export", "import", "copy", "adopt"),
    "Run": ("db", "budgets", "demo"),
}
"""The commands by their purpose, the most used first. A new command adds its name here."""


class _ByJob(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for job, names in JOBS.items():
            for name in names:
                if name in self.commands:
                    self.commands[name] = command = self.commands.pop(name)
                    command.rich_help_panel = job  # type: ignore[attr-defined]


app = typer.Typer(
    name="lango-store",
    cls=_ByJob,
    help="Manage a store of agent sessions and its database schema.",
    epilog=example("sessions list --url sqlite:///agent.db"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
