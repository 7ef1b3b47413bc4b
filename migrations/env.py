"""The environment for the `alembic` command in a checkout. Programs and `lango-store db` do not use it."""

from logging.config import fileConfig

from alembic import context

from lango_store import schema

if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

schema.run_from_env(context)
