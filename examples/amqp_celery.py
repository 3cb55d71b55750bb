"""Use Celery with a broker in this process: a worker, a chord, and a task that retries."""

from celery import Celery, chord
from celery.contrib.testing.worker import start_worker

from multiqueue.broker import Broker

app = Celery("shop", backend="cache+memory://")
app.conf.update(
    task_acks_late=True, worker_prefetch_multiplier=1, broker_heartbeat=2, broker_connection_retry_on_startup=True
)


@app.task
def price(item: str) -> int:
    return len(item)


@app.task
def total(prices: list[int]) -> int:
    return sum(prices)


@app.task(bind=True, max_retries=3, default_retry_delay=0)
def pay(self, amount: int) -> str:
    if self.request.retries < 2:
        raise self.retry(exc=TimeoutError("the bank does not answer"))
    return f"paid {amount} at the third attempt"


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        app.conf.broker_url = server.url
        with start_worker(app, concurrency=2, pool="threads", perform_ping_check=False, loglevel="ERROR"):
            print(chord([price.s("tea"), price.s("coffee")])(total.s()).get(timeout=30))  # 9
            print(pay.delay(9).get(timeout=30))  # paid 9 at the third attempt
        app.close()


if __name__ == "__main__":
    main()
