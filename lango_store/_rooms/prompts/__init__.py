"""Prompts: the end of a window that fits a budget, with the instructions and the tools of a session."""
