"""Changes of a log: list, compare, undo and redo them."""
