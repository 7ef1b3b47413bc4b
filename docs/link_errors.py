"""Griffe extension for the API pages: link the exceptions in `Raises:` sections to the page that describes them.

Griffe resolves only names that a module imports, and a module need not import the exceptions that its docstrings name.
"""

from typing import Any

import griffe


class LinkErrors(griffe.Extension):
    """Gives the exceptions in docstrings the scope of `lango_store.errors`, so that they become links."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Link the exceptions in the docstring of one object."""
        if obj.docstring is None or obj.package.name != "lango_store":
            return
        errors = obj.package["errors"]
        for section in obj.docstring.parsed:
            if isinstance(section, griffe.DocstringSectionRaises):
                for item in section.value:
                    if (name := str(item.annotation)) in errors.members:
                        item.annotation = griffe.ExprName(name, parent=errors)
