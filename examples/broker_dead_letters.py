"""Retry with dead letters: a rejected message waits in a queue without consumers, expires there, and comes back.

After two rejections the message is parked.
"""

from multiqueue.broker import Broker, Message, deaths_of


def main() -> None:
    with Broker(housekeeping_interval=0.01) as broker:
        to_wait = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "wait"}
        back_to_work = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "work"}
        broker.declare_queue("work", arguments=to_wait)
        broker.declare_queue("wait", arguments={"x-message-ttl": 10, **back_to_work})
        broker.declare_queue("parked")
        broker.publish(Message("poison", routing_key="work"))
        with broker.subscribe("work") as subscription:
            for received in subscription:
                deaths = deaths_of(received.message)
                if deaths:
                    story = [(death["queue"], death["reason"]) for death in deaths]
                    print(story)  # [('wait', 'expired'), ('work', 'rejected')]
                    with broker.transaction() as transaction:
                        transaction.publish(Message(received.body, routing_key="parked"))
                        transaction.accept(received)
                    break
                received.reject()
        print(broker.queue("parked").statistics().depth)  # 1


if __name__ == "__main__":
    main()
