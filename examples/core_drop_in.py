"""Change one line, `import multiqueue as queue`, in a program written for the standard library."""

import threading

import multiqueue as queue

jobs: queue.Queue[int] = queue.Queue(maxsize=3)
squares: list[int] = []


def work() -> None:
    while True:
        try:
            number = jobs.get()
        except queue.ShutDown:
            return
        squares.append(number * number)
        jobs.task_done()


worker = threading.Thread(target=work)
worker.start()
for number in range(6):
    jobs.put(number)
jobs.shutdown()
jobs.join()
worker.join()
print(squares)
