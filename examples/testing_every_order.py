"""Find a race by trying every order, then show that the fix holds in all of them.

python examples/testing_every_order.py
"""

from __future__ import annotations

import threading

from multiqueue.testing import Run, ScheduleFailed, explore


class Account:
    def __init__(self, balance: int) -> None:
        self.lock = threading.Lock()
        self.balance = balance

    def has(self, amount: int) -> bool:
        with self.lock:
            return self.balance >= amount

    def withdraw_carelessly(self, amount: int) -> None:
        if self.has(amount):
            with self.lock:
                self.balance -= amount

    def withdraw(self, amount: int) -> None:
        with self.lock:
            if self.balance >= amount:
                self.balance -= amount


def careless(run: Run) -> None:
    account = Account(100)
    run.spawn(account.withdraw_carelessly, 70)
    run.spawn(account.withdraw_carelessly, 70)
    run.join()
    assert account.balance >= 0, f"overdrawn: {account.balance}"


def careful(run: Run) -> None:
    account = Account(100)
    run.spawn(account.withdraw, 70)
    run.spawn(account.withdraw, 70)
    run.join()
    assert account.balance == 30


def main() -> None:
    try:
        explore(careless, modules=[threading])
    except ScheduleFailed as failure:
        print(failure)
    result = explore(careful, modules=[threading])
    print(f"the careful one holds in all {result.schedules} orders")


if __name__ == "__main__":
    main()
