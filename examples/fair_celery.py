"""Let tenants take turns at Celery's workers: one argument of the queue, one header per task."""

import threading

from celery import Celery
from celery.contrib.testing.worker import start_worker
from kombu import Queue

from multiqueue.broker import Broker

app = Celery("shop")
app.conf.update(
    task_queues=[Queue("jobs", queue_arguments={"x-queue-kind": "fair"})],
    task_default_queue="jobs",
    task_ignore_result=True,
    task_acks_late=True,  # with this, a worker that prefetches 1 for each process holds no task that waits
    worker_prefetch_multiplier=1,
    broker_heartbeat=2,
    broker_connection_retry_on_startup=True,
)
served: list[str] = []
is_served = threading.Event()


@app.task(bind=True)
def job(self) -> None:
    served.append(self.request.headers["tenant"])
    if served[-1] == "quiet":
        is_served.set()


def main() -> None:
    with Broker() as broker, broker.listen() as server:
        app.conf.broker_url = server.url
        for tenant in ["flood"] * 300 + ["quiet"]:
            job.apply_async(headers={"tenant": tenant})
        with start_worker(app, pool="solo", perform_ping_check=False, loglevel="ERROR"):
            is_served.wait(30)
        print(served[:2])  # ['flood', 'quiet']
        app.close()


if __name__ == "__main__":
    main()
