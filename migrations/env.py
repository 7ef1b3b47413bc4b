"""Alembic's environment: all of it is `lango_store.schema.run`, so that programs and both command lines do the same."""

from alembic import context

from lango_store import schema

schema.run(context)
