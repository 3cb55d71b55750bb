"""Look at a live queue: a browser sees every message and takes none."""

from multiqueue.broker import Broker, Message


def main() -> None:
    with Broker() as broker:
        broker.declare_queue("orders")
        for region, amount in [("eu", 5), ("us", 50), ("eu", 500)]:
            broker.publish(Message(amount, routing_key="orders", headers={"region": region}))
        with broker.subscribe("orders", browse=True, selector="region = 'eu'") as browser:
            print([browser.get().body for _ in range(2)])  # [5, 500]
        print(broker.queue("orders").statistics().available)  # 3


if __name__ == "__main__":
    main()
