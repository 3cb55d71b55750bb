"""A channel: its calls, publishes and confirms, its consumers and their settlements."""
