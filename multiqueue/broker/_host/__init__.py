"""A virtual host and a broker: what puts all other parts together."""
