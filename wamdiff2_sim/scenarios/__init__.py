"""Situations that a route is driven through: directed road users and lights on top of the world's own traffic."""
