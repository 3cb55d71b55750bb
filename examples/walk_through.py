# ruff: noqa: E402 - a cell imports what it is the first to need, as in a notebook

# %% [markdown]
# # Walk through it, with pictures
#
# Start with one thread that blocks on many queues, and end with Spark jobs in lanes. Each cell builds on the last; from
# step 5 you need Java and `pip install 'blocking-multiqueue[spark,amqp]'`. Open
# [examples/walk_through.py](../examples/walk_through.py) as a notebook in VS Code or PyCharm, or run it. It draws
# each picture from the results of the cell above.

# %%
# Pictures from here on. The module is beside this file; the page's cells do without it.
from walk_through_pictures import order, show, turns

# %% [markdown]
# ## 1. One thread, many queues
#
# Give each source a sub-queue; one head takes from all of them. Lower numbers go first, equal ones take turns.
# %%
from multiqueue import LinkedBlockingMultiQueue

inbox = LinkedBlockingMultiQueue()
alarms = inbox.add_subqueue("alarms", priority=0)
orders = inbox.add_subqueue("orders", priority=1, weight=2)  # two elements a turn
mail = inbox.add_subqueue("mail", priority=1)

orders.put_many(["tea", "coffee", "cake", "milk"])
mail.put_many(["hello", "bill", "card"])
alarms.put("fire!")

taken = []
while inbox.qsize():
    element = inbox.take()  # would block on an empty queue
    taken.append((element.subqueue.key, element.item))
    element.subqueue.task_done()
print(taken[:4])
# Pictures from here on.
show("walk-through-1.svg", turns("In the order in which they were taken", taken))

# %% [markdown]
# `alarms` has the lower number, so you get it first, although you put it last. `orders` and `mail` take turns, two to
# one.

# %% [markdown]
# ## 2. Back-pressure
#
# A bounded sub-queue blocks only its own producers. The head skips a sub-queue that you pause.

# %%
small = inbox.add_subqueue("small", capacity=3)
print(small.put_many(range(8), timeout=0), "of 8 fit; others have room:", orders.offer("bread"))
orders.disable("stocktaking")  # paused: it still accepts elements, but is skipped
print("next:", inbox.get(), inbox.get())
print("room again:", small.remaining_capacity())

# %% [markdown]
# ## 3. A thread pool that is fair
#
# The executor's lanes are sub-queues too. One tenant submits twelve jobs, three others two each; one worker runs them.

# %%
import threading
from concurrent.futures import ThreadPoolExecutor

from multiqueue import MultiQueueExecutor

jobs = [("big", f"b{number}") for number in range(12)]
jobs += [(tenant, f"{tenant[0]}{number}") for tenant in ("red", "green", "white") for number in range(2)]


def run_all(executor, lane_of):
    started = []
    submitted = threading.Event()
    with executor:
        lane_of("gate").submit(submitted.wait)  # the worker is busy until all jobs are submitted
        for tenant, job in jobs:
            lane_of(tenant).submit(started.append, (tenant, job))
        submitted.set()
    return started


pool = ThreadPoolExecutor(1)
lanes = MultiQueueExecutor(1)
in_pool = run_all(pool, lambda tenant: pool)
in_lanes = run_all(lanes, lanes.lane)
print("the last of the small tenants:", in_pool.index(("white", "w1")) + 1, "and", in_lanes.index(("white", "w1")) + 1)
# Pictures from here on.
show("walk-through-2.svg", order({"a thread pool": in_pool, "lanes": in_lanes}))

# %% [markdown]
# ## 4. A broker in the process
#
# An exchange puts each message into the queues whose pattern matches, and your subscription blocks on both queues.

# %%
from multiqueue.broker import Broker, Message

got = []
with Broker() as broker:
    broker.declare_exchange("shop", "topic")
    for queue, pattern in {"kitchen": "order.*", "books": "*.tea"}.items():
        broker.declare_queue(queue)
        broker.bind_queue(queue, "shop", pattern)
    for key in ("order.tea", "order.cake", "paid.tea", "order.milk"):
        broker.publish(Message(key, exchange="shop", routing_key=key))
    with broker.subscribe(["kitchen", "books"], prefetch=2) as subscription:
        for _ in range(5):
            received = subscription.get(timeout=10)
            got.append((received.queue, received.body))
            received.accept()
for queue in ("kitchen", "books"):
    print(queue, [body for name, body in got if name == queue])
# Pictures from here on.
by_queue = [(name, body) for name in ("kitchen", "books") for queue, body in got if queue == name]
show("walk-through-3.svg", turns("What reached which queue", by_queue))

# %% [markdown]
# ## 5. Spark, fed by lanes
#
# You submit the report last, and it runs first. Jobs run one at a time here, so that the picture is always the same.

# %%
from multiqueue.spark import SparkDispatcher, fan_in, session_builder, task_events

spark = session_builder("walk-through").master("local[2]").getOrCreate()
ran = []


def count(session, lane, name):
    ran.append((lane, name))
    return session.range(10).count()


with SparkDispatcher(spark, max_running=1) as dispatcher:
    nightly = dispatcher.lane("nightly", priority=10)
    people = dispatcher.lane("people", priority=0)
    for lane in (nightly, people):
        lane.pause("until all are there")
    for number in range(6):
        nightly.submit(count, "nightly", f"n{number}")
    report = people.submit(count, "people", "report")
    for lane in (people, nightly):
        lane.resume("until all are there")
    print("rows of the report:", report.result())
# Pictures from here on.
submitted = [("nightly", f"n{number}") for number in range(6)] + [("people", "report")]
show("walk-through-4.svg", order({"submitted": submitted, "run": ran}))

# %% [markdown]
# ## 6. Spark, read by one loop
#
# Read many DataFrames, each through a bounded sub-queue, as their rows arrive. Their order varies, so count them.

# %%
from collections import Counter

regions = {"eu": spark.range(300), "us": spark.range(200), "asia": spark.range(100)}
with fan_in(regions, capacity=50) as rows:
    counted = Counter(region for region, _ in rows)
print(dict(sorted(counted.items())))
# Pictures from here on.
show(
    "walk-through-5.svg",
    order({region: [(region, "100 rows")] * (counted[region] // 100) for region in sorted(counted)}),
)

# %% [markdown]
# ## 7. Spark, talking back
#
# The tasks of one job send you values while they run, over a broker in the driver. You get each once, even if Spark
# repeats a task.


# %%
def find(task, rows):  # runs on executors
    for row in rows:
        if row["id"] % 50 == 0:
            task.send(row["id"])


ids = spark.range(0, 500, 1, 4)
with Broker() as broker, broker.listen() as server, task_events(ids, find, server.url) as events:
    found = sorted(events)
print(len(found), "values of", len({event.partition for event in found}), "partitions")
# Pictures from here on.
sent = [(f"partition {event.partition}", str(event.value)) for event in found]
show("walk-through-6.svg", turns("What the tasks of each partition sent", sent))

# %% [markdown]
# ## Where to next
#
# [The tutorial](tutorial.md) teaches you the core. Guides: [many Spark jobs](guides/spark-dispatcher.md),
# [fan-in](guides/spark-fan-in.md), [task events](guides/spark-task-events.md),
# [a broker in your process](guides/in-process-broker.md).
