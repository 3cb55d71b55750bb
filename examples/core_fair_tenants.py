"""Give each tenant a sub-queue: one that submits ten times as much does not delay the others."""

from multiqueue import LinkedBlockingMultiQueue

inbox: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
for tenant in ("big", "small", "tiny"):
    inbox.add_subqueue(tenant, capacity=100)

for tenant, amount in {"big": 30, "small": 3, "tiny": 1}.items():
    inbox.get_subqueue(tenant).put_many(f"{tenant} {n}" for n in range(amount))

served = inbox.get_many(100)
print("the first seven:", ", ".join(served[:7]))
print("the last of small was number", served.index("small 2") + 1, "of", len(served))
