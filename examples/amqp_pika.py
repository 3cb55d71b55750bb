"""Use pika with a broker in this process: publish with confirms, consume with acks, answer a request."""

import pika

from multiqueue.broker import Broker


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        connection = pika.BlockingConnection(pika.URLParameters(server.url))
        channel = connection.channel()
        channel.queue_declare("orders")
        channel.confirm_delivery()
        for order in (b"one tea", b"two coffees"):
            channel.basic_publish("", "orders", order, mandatory=True)

        for method, _, body in channel.consume("orders", inactivity_timeout=5):
            print(method.delivery_tag, body)  # 1 b'one tea'
            channel.basic_ack(method.delivery_tag)
            break
        channel.cancel()  # what was delivered and not acked goes back, flagged
        method, _, body = channel.basic_get("orders", auto_ack=True)
        print(method.redelivered, body)  # True b'two coffees'

        try:
            channel.basic_publish("", "nowhere", b"", mandatory=True)
        except pika.exceptions.UnroutableError as error:
            print(error.messages[0].method.reply_text)  # NO_ROUTE
        connection.close()


if __name__ == "__main__":
    main()
