"""Exchanges, bindings and the way of a message to its queues."""
