"""The features of sessions beyond their log: one module or package for each, with its SQL and its group of methods.

A group is a small class with one subject, such as `conversation.drafts`. It holds the context and, for one session, the
session's key.
"""

from lango_store._features.named_values.groups import Values

__all__ = ["Values"]
"""The groups of methods of the features."""
