"""RabbitMQ's management API, and our own paths: requests, bodies, views, lists, what they read and change."""
