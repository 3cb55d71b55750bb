"""Block on many queues at once."""

__version__ = "0.1.0"
