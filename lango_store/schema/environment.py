"""What Alembic's own command line does with our revisions: `migrations/env.py` calls `run`."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic.config import Config

from lango_store._engine.engine import create_engine
from lango_store._engine.url import url_from_environment
from lango_store.errors import LangoStoreError
from lango_store.schema.options import OPTIONS
from lango_store.schema.running import LOCK_TIMEOUT, run_revisions, run_steps


def run(context: Any) -> None:
    """Run what Alembic's command line was asked for, on the URL of `-x url=`, else of a variable."""
    if context.is_offline_mode():
        dialect = create_engine(_url(context)).dialect
        context.configure(dialect_name=dialect.name, literal_binds=True, **OPTIONS)
        run_revisions(context.get_context())
        return
    with create_engine(_url(context), poolclass=sa.NullPool).connect() as connection:
        context.configure(connection=connection, **OPTIONS)
        if _command(context.config) in ("upgrade", "downgrade", "stamp"):
            timeout = float(context.get_x_argument(as_dictionary=True).get("lock_timeout", LOCK_TIMEOUT))
            run_steps(connection, context.get_context().opts, timeout)
        else:
            with context.begin_transaction():
                context.run_migrations()


def _command(config: Config) -> str:
    options = getattr(config, "cmd_opts", None)
    return options.cmd[0].__name__ if options is not None and hasattr(options, "cmd") else "upgrade"


def _url(context: Any) -> str:
    url = (
        context.get_x_argument(as_dictionary=True).get("url")
        or context.config.get_main_option("sqlalchemy.url")
        or url_from_environment()
    )
    if not url:
        raise LangoStoreError("no database was given: set LANGO_STORE_URL (or DATABASE_URL), or give `-x url=…`")
    return str(url)
