"""Let tenants take turns at a queue, with pika: one argument at the declaration, one header per message."""

import pika

from multiqueue.broker import Broker


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.url))
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True, arguments={"x-queue-kind": "fair"})
        for tenant in ["flood"] * 1000 + ["quiet"]:
            channel.basic_publish("", "jobs", b"job", pika.BasicProperties(headers={"tenant": tenant}))

        channel.basic_qos(prefetch_count=1)  # what a consumer has, nobody can take turns with
        served = []
        for method, properties, _ in channel.consume("jobs"):
            served.append(properties.headers["tenant"])
            channel.basic_ack(method.delivery_tag)
            if served[-1] == "quiet":
                break
        print(served)  # ['flood', 'quiet']
        connection.close()


if __name__ == "__main__":
    main()
