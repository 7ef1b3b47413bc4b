"""Alembic's environment: all of it is `lango_store.schema.run`, so that programs and both command lines do the same."""

from logging.config import fileConfig

from alembic import context

from lango_store import schema

if context.config.config_file_name is not None:  # Alembic's own command line, which says what it runs
    fileConfig(context.config.config_file_name, disable_existing_loggers=False)

schema.run(context)
