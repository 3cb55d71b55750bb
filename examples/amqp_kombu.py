"""Use kombu with a broker in this process: a topic exchange, two queues, a consumer of both."""

from kombu import Connection, Consumer, Exchange, Producer, Queue

from multiqueue.broker import Broker

EVENTS = Exchange("events", "topic")
QUEUES = [Queue("eu", EVENTS, routing_key="order.eu.#"), Queue("all", EVENTS, routing_key="order.#")]


def main() -> None:
    with Broker() as broker, broker.listen() as server, Connection(server.url) as connection:
        seen = []

        def on_message(body, message):
            seen.append((message.delivery_info["consumer_tag"], body))
            message.ack()

        with Consumer(connection, [QUEUES[0]], callbacks=[on_message], tag_prefix="eu-"):
            Producer(connection).publish({"sku": "tea"}, routing_key="order.eu.paris", exchange=EVENTS, declare=QUEUES)
            connection.drain_events(timeout=5)
        print([body for _, body in seen])  # [{'sku': 'tea'}]
        print(connection.SimpleQueue(QUEUES[1]).get(timeout=5).payload)  # {'sku': 'tea'}


if __name__ == "__main__":
    main()
