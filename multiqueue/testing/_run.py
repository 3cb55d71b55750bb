"""One run of a scenario under one schedule: real threads, of which exactly one moves at a time.

Promise     Between two steps (operations on locks; lines too, where asked) a thread is alone. The walk answers which
            step is next. A run always ends: all threads are through, or one failed, or none can go on, or the walk cuts
            it; the threads that are left then unwind.
State       `_threads`, `_now`, `log` and the locks' fields: only touched by the thread that moves: one of the run's, or
            the scenario's own while it prepares and checks. No lock is needed for that.
Waiting     a thread waits on its baton until the walk chooses it. The thread that moves hands on exactly one baton,
            or the scenario's when the run is over.
Membership  a thread that ends hands on and is forgotten. `close` makes every lock operation of the others
            raise `_Abandoned`, one thread after the other; after a hang all at once.
Assumes     nothing moves a thread but the run: real locks, sleeping and I/O stop everything, which
            `HANG_AFTER` reports.
"""

from __future__ import annotations

import _thread
import sys
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ParamSpec

from ._errors import Deadlock, Livelock, TestToolError
from ._locks import ExploredLock, ExploredRLock
from ._stacks import own_frame, places
from ._steps import Pending, Spawned
from ._substitute import is_within
from ._walk import EXPIRE, GO, INTERRUPT, Choice, Walk

P = ParamSpec("P")

# Seconds without a step after which a thread is taken to wait for something the run knows nothing of.
HANG_AFTER = 30.0


class _Abandoned(BaseException):
    """Unwinds a thread of a run that is over."""


class Cut(BaseException):
    """Leaves the scenario: another order of the same steps has shown what would follow."""


class Run:
    """The run that a scenario gets: `spawn` threads, `join` them, and check the result."""

    def __init__(self, walk: Walk, *, max_steps: int, within: Collection[str] = ()) -> None:
        self.log: list[tuple[str, str, Pending]] = []
        self.schedule: list[str] = []
        self.cut: bool = False
        self._walk = walk
        self._max_steps = max_steps
        self._within = within
        self._stops: dict[str, bool] = {}  # module names, and whether their lines are steps
        self._now = 1_000.0
        self._locks = 0
        self._controller = _thread.get_ident()
        self._baton = _thread.allocate_lock()
        self._baton.acquire()
        self._threads: list[Spawned] = []
        self._by_ident: dict[int, Spawned] = {}
        self._failure: BaseException | None = None
        self._over = False
        self._hangs = False  # over, and its threads end at once, not one after the other
        self._real = False  # the controller is starting or joining a thread: its locks are the real ones

    # For scenarios

    def spawn(
        self,
        function: Callable[P, object],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Spawned:
        """Prepare a thread that calls `function` in the next `join`. Any exception fails the run.

        The thread is named after the function. Only the scenario itself may call this.
        """
        return self.spawn_expecting((), function, *args, **kwargs)

    def spawn_expecting(
        self,
        expected: type[BaseException] | tuple[type[BaseException], ...],
        function: Callable[P, object],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Spawned:
        """As `spawn`, but exceptions of these types are kept in `error` and do not fail the run."""
        return self._add(function, args, kwargs, expected if isinstance(expected, tuple) else (expected,), None)

    def spawn_interrupted(
        self,
        exception: type[BaseException],
        function: Callable[P, object],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Spawned:
        """As `spawn`, but at any one of its steps, or at none, `exception` goes off in the thread.

        As in CPython it ends an `acquire` that waits, or goes off after one that has just succeeded.
        """
        return self._add(function, args, kwargs, (exception,), exception)

    def join(self) -> None:
        """Let the threads that were spawned run to their ends, under the schedule of this run.

        Raises: the first unexpected exception of a thread; Deadlock; Livelock.
        """
        if all(spawned.finished for spawned in self._threads):
            return
        first = self._choose(None)
        if first is not None:
            first.baton.release()
            self._await_baton()
        if self._failure is not None or self.cut:
            self.close()
            raise self._failure or Cut
        self._join_threads()

    def monotonic(self) -> float:
        """The run's own clock, in seconds. It stands still until a timed wait expires."""
        return self._now

    # For the locks

    def make_lock(self) -> ExploredLock | _thread.LockType:
        """The result of `Lock()`: for a thread of this run one that is a step, for any other a real one."""
        return ExploredLock(self) if self._is_ours() else _thread.allocate_lock()

    def make_rlock(self) -> ExploredRLock | _thread.RLock:
        """As `make_lock`, for `RLock()`."""
        return ExploredRLock(self) if self._is_ours() else _thread.RLock()

    def number_lock(self) -> int:
        """The number of a new lock, by which the steps name it."""
        self._locks += 1
        return self._locks

    def whoami(self) -> int:
        """The calling thread, as an `RLock` knows its owner."""
        return _thread.get_ident()

    def acquire(self, lock: ExploredLock, blocking: bool, timeout: float, *, entering: bool = False) -> bool:
        me = self._by_ident.get(_thread.get_ident())
        if me is None:
            return self._acquire_alone(lock, blocking, timeout)
        deadline = None if timeout < 0 else self._now + timeout
        waits = blocking and timeout != 0
        verdict = self._step(me, Pending("acquire", lock, waits, deadline, entering))
        if verdict == EXPIRE:
            return False
        taken = not lock.held
        if taken:
            lock.take()
        if verdict == INTERRUPT:
            self._interrupt(me)
        return taken

    def release(self, lock: ExploredLock) -> None:
        me = self._by_ident.get(_thread.get_ident())
        if me is None:
            lock.give()
        elif self._over:
            if lock.held:
                lock.give()
        elif self._walk.merges_releases and lock.owner == self.whoami() and me.interruption is None:
            lock.give()  # the thread that it lets in could as well come after this one's next step
        else:
            verdict = self._step(me, Pending("release", lock))
            lock.give()
            if verdict == INTERRUPT:
                self._interrupt(me)

    # For the exploration

    def close(self) -> None:
        """Unwind and join the threads that are not through. After this, locks are uncontended ones."""
        self._over = True
        for spawned in self._threads:
            if not spawned.finished:
                spawned.baton.release()
                self._await_baton()
        self._join_threads()

    def waiting(self) -> str:
        """A line for every thread that is not through: what it waits for, who has it, and where."""
        return "\n".join(self._waiting(spawned) for spawned in self._threads if not spawned.finished)

    def _waiting(self, spawned: Spawned) -> str:
        pending = spawned.pending
        step = pending.what
        if pending.lock is not None:
            step += f" {pending.lock!r}"
            if pending.lock.held:
                step += f", held by {self._name(pending.lock.owner)}"
        return f"  {spawned.name}: {step}, in {self._stack(spawned)}"

    # Threads

    def _add(
        self,
        function: Callable[..., object],
        args: tuple[object, ...],
        kwargs: dict[str, object],
        expected: tuple[type[BaseException], ...],
        interruption: type[BaseException] | None,
    ) -> Spawned:
        if _thread.get_ident() != self._controller or self._over:
            raise TestToolError("spawn threads in the scenario itself, not in its threads or after its end")
        name = self._unique(getattr(function, "__name__", type(function).__name__))
        spawned = Spawned(name, lambda: function(*args, **kwargs), expected, interruption)
        spawned.baton.acquire()
        with self._real_locks():
            spawned.thread = threading.Thread(target=self._body, args=(spawned,), name=name, daemon=True)
            spawned.thread.start()
        self._threads.append(spawned)
        return spawned

    def _body(self, me: Spawned) -> None:
        self._by_ident[_thread.get_ident()] = me
        me.baton.acquire()
        try:
            if not self._over:
                if self._within:
                    sys.settrace(self._trace)
                me.result = me.function()
        except _Abandoned:
            pass  # the run is over; the thread that ended it says why
        except me.expected as error:
            me.error = error
        except BaseException as error:  # noqa: BLE001 - reported by `join`, in the scenario's thread
            me.error = self._failure = error
        finally:
            sys.settrace(None)
            me.finished = True
            del self._by_ident[_thread.get_ident()]
            if not self._hangs:
                self._hand_on(self._choose(None))

    def _trace(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        name = frame.f_globals.get("__name__", "")
        stops = self._stops.get(name)
        if stops is None:
            stops = self._stops[name] = is_within(name, self._within)
        return self._trace_inside if stops else None

    def _trace_inside(self, frame: FrameType, event: str, argument: object) -> Callable[..., Any]:
        if event == "line" and not self._hangs:
            me = self._by_ident[_thread.get_ident()]
            if self._step(me, Pending("line", code=frame.f_code, instruction=frame.f_lasti)) == INTERRUPT:
                self._interrupt(me)
        return self._trace_inside

    # Steps

    def _step(self, me: Spawned, pending: Pending) -> str:
        if self._over:
            raise _Abandoned
        if pending.code is None:
            frame = own_frame()
            pending.code, pending.instruction = frame.f_code, frame.f_lasti
        me.pending = pending
        if not pending.blocked and self._walk.goes_on(me.name):
            self._note(me, GO)
            return GO
        following = self._choose(me)
        if following is not me:
            self._hand_on(following)
            self._await_turn(me)
        return me.verdict

    def _await_turn(self, me: Spawned) -> None:
        me.baton.acquire()
        if self._over and not (self._hangs and me.pending.what == "line"):
            raise _Abandoned

    def _choose(self, running: Spawned | None) -> Spawned | None:
        """The thread that moves next, its verdict set; None when the scenario's own thread has to look at it."""
        alive = [spawned for spawned in self._threads if not spawned.finished]
        if self._over or self._failure is not None or not alive:
            return None
        if running is not None:
            alive.remove(running)
            alive.insert(0, running)
        # `go` before `expire` before `interrupt`: the first schedule is the one without surprises.
        choices = [choice for spawned in alive for choice in spawned.choices()]
        choices.sort(key=lambda choice: (GO, EXPIRE, INTERRUPT).index(choice.verdict))
        try:
            return self._decide(choices, running)
        except Exception as error:  # noqa: BLE001 - raised by `join`, in the scenario's thread
            self._failure = error
            return None

    def _decide(self, choices: list[Choice], running: Spawned | None) -> Spawned | None:
        if not choices:
            raise Deadlock("no thread can go on:\n" + self.waiting())
        chosen = self._walk.choose(choices, running.name if running is not None else None)
        if chosen is None:
            self.cut = True
            return None
        spawned = next(spawned for spawned in self._threads if spawned.name == chosen.thread)
        if chosen != choices[0]:
            self.schedule.append(f"{len(self.log)}:{chosen}")
        self._note(spawned, chosen.verdict)
        spawned.verdict = chosen.verdict
        if chosen.verdict == EXPIRE and spawned.pending.deadline is not None:
            self._now = max(self._now, spawned.pending.deadline)
        return spawned

    def _note(self, spawned: Spawned, verdict: str) -> None:
        if len(self.log) == self._max_steps:
            raise Livelock(f"not at its end after {self._max_steps} steps:\n" + self.waiting())
        self.log.append((spawned.name, verdict, spawned.pending))

    def _hand_on(self, following: Spawned | None) -> None:
        (self._baton if following is None else following.baton).release()

    def _interrupt(self, me: Spawned) -> None:
        assert me.interruption is not None
        exception, me.interruption = me.interruption, None
        raise exception

    # The scenario's own thread

    def _acquire_alone(self, lock: ExploredLock, blocking: bool, timeout: float) -> bool:
        if not lock.held:
            lock.take()
            return True
        if blocking and timeout < 0:
            raise Deadlock(f"the scenario waits for {lock!r}, held by {self._name(lock.owner)}, and no thread runs")
        self._now += max(timeout, 0.0)
        return False

    def _await_baton(self) -> None:
        steps = -1
        while not self._baton.acquire(timeout=HANG_AFTER):
            if steps == len(self.log):
                stacks = "\n".join(f"  {s.name}: {self._stack(s)}" for s in self._threads if not s.finished)
                self._let_all_go()
                raise TestToolError(
                    f"no step for {HANG_AFTER:.0f} s: a thread waits for something the exploration does not "
                    f"know (a real lock, a sleep, I/O) or computes:\n{stacks}"
                )
            steps = len(self.log)

    def _let_all_go(self) -> None:
        """After a hang: unwind all threads at once, for one that is stopped may hold the real lock another waits for.

        Not at lines: raised at one that leaves a `with` block, an exception would leave the lock held. Threads that do
        not end soon are left alone.
        """
        self._over = self._hangs = True
        left = [spawned for spawned in self._threads if not spawned.finished]
        for spawned in left:
            spawned.verdict = GO
            if spawned.baton.locked():  # else it has its turn, and has not noticed yet
                spawned.baton.release()
        for spawned in left:
            assert spawned.thread is not None
            spawned.thread.join(HANG_AFTER / 10)
            spawned.finished, spawned.thread = True, None  # `close` must not wait for it

    def _join_threads(self) -> None:
        with self._real_locks():
            for spawned in self._threads:
                if spawned.thread is not None:
                    spawned.thread.join()
                    spawned.thread = None

    @contextmanager
    def _real_locks(self) -> Iterator[None]:
        self._real = True
        try:
            yield
        finally:
            self._real = False

    def _is_ours(self) -> bool:
        ident = _thread.get_ident()
        return not self._over and (ident in self._by_ident or (ident == self._controller and not self._real))

    def _unique(self, name: str) -> str:
        taken = {spawned.name for spawned in self._threads}
        number, unique = 1, name
        while unique in taken:
            number += 1
            unique = f"{name}-{number}"
        return unique

    def _name(self, ident: object) -> str:
        for known, spawned in self._by_ident.items():
            if known == ident:
                return spawned.name
        return "the scenario" if ident == self._controller else "a thread that has ended"

    def _stack(self, spawned: Spawned) -> str:
        for ident, known in self._by_ident.items():
            if known is spawned and ident in (frames := sys._current_frames()):
                return places(frames[ident])
        return "?"
