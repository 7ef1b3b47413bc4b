"""The base classes of conversations and of groups of methods, and of their asynchronous twins."""
