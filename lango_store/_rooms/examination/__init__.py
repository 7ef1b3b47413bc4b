"""The checks of `doctor`: find damage, and repair faults that have only one correct repair."""
