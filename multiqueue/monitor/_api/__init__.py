"""RabbitMQ's management API, and our own paths: requests, bodies, views, lists, and their effects on the broker."""
