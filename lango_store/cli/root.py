"""The command line, to which `lango_store.cli` and the rooms add commands and groups of commands."""

import typer

from lango_store.cli.options import example

app = typer.Typer(
    name="lango-store",
    help="Manage a store of agent sessions and its database schema.",
    epilog=example("sessions list --url sqlite:///agent.db"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
