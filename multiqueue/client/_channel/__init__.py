"""A channel: its calls, what it publishes and what is confirmed, its consumers and what they settle."""
