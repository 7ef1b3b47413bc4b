"""The usage and the cost of turns, by groups."""
