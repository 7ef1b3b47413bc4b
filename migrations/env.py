"""The environment of Alembic's own command line in a checkout; programs and `lango-store db` do without it."""

from logging.config import fileConfig

from alembic import context

from lango_store import schema

if context.config.config_file_name is not None:
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

schema.run_from_env(context)
