"""Let tenants take turns at a RabbitMQ: a queue for each, and an inbox over all of them that takes turns.

Here the broker is one of this process, reached as a RabbitMQ is, with its HTTP API.
"""

from multiqueue.broker import Broker
from multiqueue.client import connect


def main() -> None:
    with (
        Broker() as broker,
        broker.listen() as server,
        broker.listen_http(amqp=server) as http,
        connect(server.url) as publisher,
        publisher.channel() as channel,
    ):
        for tenant in ("flood", "quiet"):
            channel.queue_declare(f"jobs.{tenant}", durable=True)
        for tenant in ["flood"] * 1000 + ["quiet"]:
            channel.publish_confirmed(b"job", routing_key=f"jobs.{tenant}").result()

        with connect(server.url) as connection, connection.inbox("jobs.*", api=http.url, every=0.1) as inbox:
            served = []
            for message in inbox:
                served.append(message.routing_key)
                message.ack()
                if message.routing_key == "jobs.quiet":
                    break
            print(len(served) < 100)  # True

            channel.queue_declare("jobs.new", durable=True)  # a tenant comes
            channel.publish(b"job", routing_key="jobs.new")
            for message in inbox:
                message.ack()
                if message.routing_key == "jobs.new":
                    break
            print(sorted(inbox.queues))  # ['jobs.flood', 'jobs.new', 'jobs.quiet']


if __name__ == "__main__":
    main()
