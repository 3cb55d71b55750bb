"""Pause a sub-queue, with a reason from each component that pauses it, and limit what is in flight."""

from multiqueue import Empty, LinkedBlockingMultiQueue

calls: LinkedBlockingMultiQueue[str] = LinkedBlockingMultiQueue()
api = calls.add_subqueue("api", max_in_flight=2)
api.put_many(["a", "b", "c", "d"])

print("under way:", calls.get(), calls.get())
try:
    calls.get(timeout=0.01)
except Empty:
    print("two are in flight, the third waits")

api.disable("the service says slow down")
api.disable("an operator paused it")
api.task_done()
api.enable("the service says slow down")
print("still paused:", calls.poll(default="nothing"))
api.enable("an operator paused it")
print("on again:", calls.get())
