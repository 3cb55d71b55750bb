"""Let tenants take turns, by weight: the one that floods the queue delays nobody."""

from multiqueue import FairQueue

jobs: FairQueue[str] = FairQueue(key=lambda job: job.split()[0], weights={"gold": 2})
for number in range(1000):
    jobs.put(f"flood {number}")
for number in range(4):
    jobs.put(f"gold {number}")
jobs.put("small 0")

print("the first six:", ", ".join(jobs.get() for _ in range(6)))
print("still waiting:", sorted(jobs.waiting().items()))
