"""Prometheus: the broker under RabbitMQ's names, and the program under ours."""
