/* The engine of the core in C: elements, turns, locks and waits. `_multi_queue.py`, `_sub_queue.py` and `_queue.py` have
 * the classes that users see.
 *
 * Promise     1. An element that was put is taken by exactly one taker, in put order within its tail.
 *             2. An element whose put has returned is seen by every take that begins later.
 *             3. A take that raises has taken nothing; a put that raises Full, ShutDown or Detached has put nothing.
 *             4. No thread sleeps for what is there: an element, room, the end of a join, the end of the queue.
 *             5. A put and a take cost the same however many tails there are.
 *             6. No code of the user runs while the lock is held.
 *
 * Names       A *head* is what a multi-queue has one of, and a stand-alone queue too. A *tail* is a sub-queue, or the
 *             stand-alone queue itself. The tails that are ready stand in the ring of
 *             the head: `_ring.h` decides whose turn it is.
 *
 * State       Each field is guarded by the lock of its head, the pointer `head` aside, which never changes once others
 *             know the tail. With the GIL that lock is the GIL: a *section*, from `enter` to `leave`, contains nothing
 *             that lets go of it. On a free-threaded build it is the head's PyMutex. In a section we count references
 *             up, never down, allocate memory from PyMem only, and call nothing in Python: so no finalizer, no weakref
 *             callback, no garbage collection and no signal handler runs in one, and no thread that is in one ever
 *             waits for another lock. What a section takes out (elements, waiters) is dropped or called after it.
 *
 * Strikes     CPython delivers signals and asynchronous exceptions where the interpreter's loop looks for them: at the
 *             entry of a function in Python, at a backward jump, and after a *call* of something in C. In C it delivers
 *             them only where C asks for it, by Py_MakePendingCalls. We ask in one place: `sleep_native`, after a signal
 *             has ended the sleep of a thread that has taken nothing.
 *             What is left is the instruction that called us. After CALL the loop looks, before the result is stored:
 *             `x = queue.get()` with get in C would lose the element there, as that of queue.SimpleQueue does. After a
 *             subscription it does not look. So a take is the subscription of a `Door`: `due[queue]`; and the method
 *             that users call is a function in Python that ends with `return due[self]`, whose return is no place
 *             to look either. tests/core/test_engine_doors.py reads that from the bytecode of each interpreter.
 *             A put needs no door: the strike comes after it, the element is in.
 *
 * Waiting     A thread that waits parks in a line: of takers (of the head, or of one tail), of putters, of joiners. It
 *             has looked and parks in the same section, so nobody can have changed what it waits for in between. A
 *             thread that changes it wakes in the section of the change:
 *               an element, or a tail that became ready:  one taker of the tail, one of the head
 *               a take that leaves something ready:       the next taker
 *               a take from a full tail, a higher capacity, elements discarded:  one putter; a put that leaves room
 *                                                         wakes the next
 *               the last unfinished element:              all joiners
 *               shutdown, removal:                        all whose wait it ends
 *             A wake-up belongs to nobody: a thread that leaves without having used it, by an exception or because its time is up,
 *             looks by `stir` for who can be woken. A thread that was woken and found nothing parks in front.
 *             A waiter in C leaves the line before its thread goes on. It is not on the stack of its thread: where the
 *             interpreter ends, a daemon's stack goes and its waiter stands in line still, for the collector to see. A
 *             waiter that is an object (of a coroutine, or a lock of multiqueue.testing) is woken by a call of its `release`
 *             after the section, for that is code in Python; False from it means that nobody was woken by it.
 *
 * Gate        A head may have one object more to pass, a lock in Python that is acquired before each section and
 *             released after it: that of a queue whose `mutex` a program has asked for, or one that multiqueue.testing
 *             has put in the place of RLock, which then decides who goes on. NULL, as it nearly always is, costs a
 *             comparison. What strikes in the release, or in the release of a waiter, is code of Python that runs
 *             when an operation is done: `strike_later` has it raised at the next instruction that looks.
 *
 * Threads     Any thread may call anything, holding its GIL or attached. `after_fork` runs in the child, where no
 *             other thread is: CPython forks with the world stopped, and no thread stops inside a section.
 *
 * Membership  A tail that is detached keeps its head, by a reference to the multi-queue, and uses the lock of it alone.
 *             A head lists its tails from their birth to their end, attached or not, without references.
 *
 * Source      Doug Lea, LinkedBlockingQueue (cascading wake-ups); M. Barrios, LinkedBlockingMultiQueue (sub-queues with
 *             priorities that meet at one head); the ready list of a weighted round-robin scheduler.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include "_ring.h"

#if defined(Py_GIL_DISABLED) && defined(ENGINE_PTHREADS)
#include <pthread.h>              /* for ThreadSanitizer, which sees no PyMutex of a CPython built without it */
#define PyMutex pthread_mutex_t
#define LOCK(h) pthread_mutex_lock(&(h)->mutex)
#define UNLOCK(h) pthread_mutex_unlock(&(h)->mutex)
#elif defined(Py_GIL_DISABLED)
#define LOCK(h) PyMutex_Lock(&(h)->mutex)
#define UNLOCK(h) PyMutex_Unlock(&(h)->mutex)
#else
#define LOCK(h) ((void)(h))
#define UNLOCK(h) ((void)(h))
#endif

#if defined(__GNUC__)
#define RARELY(condition) __builtin_expect(!!(condition), 0)
#else
#define RARELY(condition) (condition)
#endif

#define NO_LIMIT PY_SSIZE_T_MAX
#define NEVER (-1.0)              /* a deadline that does not come */
#define LEAST_RING 8              /* elements; a power of two */
#define KEPT_RING 1024            /* a longer ring is given back when the last element leaves it */
#define LONGEST_RUN 1024          /* elements taken in one section: some 10 us */
#define LONGEST_SLEEP 1e6         /* seconds asked of the platform's lock at once */
#define LEAST_SLEEP 0.02          /* seconds to wait for a gate when hardly any time is left: it is held for
                                     microseconds, and "nothing in time" must be the answer of a look at the queue */
#define ATTEMPTS 50               /* strikes in a row in one call that may be repeated */

struct Tail;
struct Head;

/* ---- types ------------------------------------------------------------------------------------------------------ */

typedef struct Waiter {
    struct Waiter *next, *prev;
    PyThread_type_lock lock;      /* of a thread; NULL: an object */
    PyObject *object;             /* woken by object.release(); ours */
    PyObject *owner;              /* the queue that `line` is in; ours, so that the line is there when we come back */
    struct Line *line;
    unsigned long thread;         /* of a thread: its identifier */
    int woken;
} Waiter;

typedef struct Line { Waiter *first, *last; } Line;

typedef enum { OPEN = 0, SHUT = 1, DETACHED = 2, GONE = 3 } Closed;

typedef struct { struct Tail **buckets; int bits; Py_ssize_t count; long long born; } Table;   /* see _fair.h */
typedef struct { struct Tail *first, *last; } Fading;

typedef struct Head {
    struct State *st;
    struct Head *next, *prev;     /* all heads of this interpreter, for after_fork; guarded by State.mutex */
    PyObject *gate;               /* set once */
    Ring ring;                    /* of the tails that are ready; see _ring.h */
    struct Tail *tails;           /* all of them, by Tail.sibling */
    Py_ssize_t n_tails;
    Line takers, joiners;
    Waiter *calls, *last_call;    /* woken objects, to be called after this section */
    Py_ssize_t ready;             /* elements in linked tails: what could be taken now */
    Py_ssize_t left;              /* elements in attached tails */
    Py_ssize_t busy;              /* attached tails with unfinished elements */
    int closed;                   /* of the multi-queue as a whole */
    int fair;                     /* of a fair queue: its tails are found by their keys, in `table` */
    Py_ssize_t capacity, max_in_flight;     /* of its tails, unless one has its own */
    Table table;
    Fading fading;
    int uneven;                   /* once a cost or a weight is not 1 */
#ifdef Py_GIL_DISABLED
    PyMutex mutex;
#endif
} Head;

typedef struct Tail {
    PyObject_HEAD
    Head *head;
    PyObject *owner;              /* the multi-queue; NULL: the head is ours alone */
    struct Tail *sibling, *elder; /* in head->tails */
    PyObject **ring;              /* elements, from `first`, `count` of them; `size` is a power of two */
    Py_ssize_t size, first, count;
    Py_ssize_t limit;             /* count must be below it for a put: the capacity, NO_LIMIT, or -1 once closed */
    Py_ssize_t capacity;          /* NO_LIMIT: none */
    Py_ssize_t unfinished;        /* put, and neither done nor discarded: count + in flight. Below 0 while what was called
                                   * done ahead of its take has been discarded */
    Py_ssize_t finished, discarded;
    Py_ssize_t max_in_flight;     /* NO_LIMIT: none */
    Py_ssize_t weight, turn;      /* elements in a turn; given in this turn */
    Level *level;
    Place place;                  /* in the ring: linked, or not */
    PyObject *reasons;            /* a frozenset: why it is disabled; NULL: never was */
    Line putters, takers, joiners;
    unsigned char closed, attached, enabled, hooked;
    unsigned char was_attached;   /* ever: one whose removal is undone comes back, also after the end */
    PyObject *key;                /* of a fair queue's tail; NULL: it is none, and nothing below is used */
    struct Tail *outer;           /* in whose ring it is, and is charged; ours; NULL: in the head's */
    Ring inner;                   /* of those that are in it */
    Py_ssize_t nested;            /* tails that name it as `outer` and have not gone */
    Py_ssize_t usual;             /* max_in_flight, unless it is given one of its own */
    double share;                 /* its weight */
    Py_hash_t hash;
    long long born;               /* a number: those that come later have a higher one */
    struct Tail *chain;           /* the next in its bucket; or of those that have gone */
    Fading fading;                /* of those that are in `inner` */
    struct Tail *next_fading;
    char is_fading;
} Tail;

typedef struct {
    PyObject_HEAD
    Head *head;
    PyObject *selection;          /* NULL: priorities, weights and turns decide */
} Multi;

typedef struct State {
    PyTypeObject *tail_type, *multi_type, *door_type, *ring_type, *turn_type;
    PyObject *sync, *allocate_lock, *native_lock, *monotonic;   /* module, name, what the name means in earnest, name */
    PyObject *release, *acquire;                                 /* names */
    PyObject *empty, *shut_down, *taken, *fair_taken;            /* classes */
    PyObject *refusal, *ending, *select, *selected, *put, *get;  /* functions, see _multi_queue.py */
    Head *heads;
#ifdef Py_GIL_DISABLED
    PyMutex mutex;
#endif
} State;

typedef struct { PyObject_HEAD State *st; PyObject *module; PyObject *(*take)(State *, PyObject *); } Door;

/* ---- sections --------------------------------------------------------------------------------------------------- */

static double now(State *st) {    /* -1: exception */
    PyObject *t = PyObject_CallMethodNoArgs(st->sync, st->monotonic);
    double seconds = t ? PyFloat_AsDouble(t) : -1.0;
    Py_XDECREF(t);
    return seconds;
}

/* Have the exception that is set raised in this thread a little later. A signal handler's, in the main thread, is kept
 * whole; another thread gets a new one of its class. */
static int raise_kept(void *error) {
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF((PyObject *)error);
    return -1;
}
static PyObject *fetch(void) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (type) {
        PyErr_NormalizeException(&type, &value, &trace);
        if (trace && value) PyException_SetTraceback(value, trace);
    }
    Py_XDECREF(type); Py_XDECREF(trace);
    return value;
#endif
}
static void restore(PyObject *error) {   /* steals */
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(error);
#else
    if (error) PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
    else PyErr_Clear();
#endif
}
static int is_main_thread(void) {
    PyObject *threading = PyImport_ImportModule("threading"), *main = NULL, *ident = NULL;
    int answer = 0;
    if (threading && (main = PyObject_CallMethod(threading, "main_thread", NULL))
        && (ident = PyObject_GetAttrString(main, "ident")))
        answer = PyLong_AsUnsignedLong(ident) == PyThread_get_thread_ident();
    Py_XDECREF(threading); Py_XDECREF(main); Py_XDECREF(ident);
    PyErr_Clear();
    return answer;
}
static void strike_later(void) {
    PyObject *error = fetch();
    if (!error) return;
    if (is_main_thread() && Py_AddPendingCall(raise_kept, error) == 0) return;
    PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), (PyObject *)Py_TYPE(error));
    Py_DECREF(error);
}

static void strike(PyObject **struck) { PyObject *error = fetch(); Py_XSETREF(*struck, error); }

/* After an exception in a call of the gate: does this thread hold it? */
static int holds_gate(Head *h) {
    PyObject *error = fetch(), *owned = PyObject_CallMethod(h->gate, "_is_owned", NULL);
    int holds = owned && PyObject_IsTrue(owned) > 0;
    Py_XDECREF(owned);
    restore(error);
    return holds;
}
/* Acquire the gate. 1 done, 0 not in time, -1 exception. */
static int pass_gate(Head *h, double deadline) {
    State *st = h->st;
    PyObject *answer;
    if (deadline == NEVER) answer = PyObject_CallMethodNoArgs(h->gate, st->acquire);
    else {
        double time = now(st);
        if (time == -1.0 && PyErr_Occurred()) return -1;
        answer = PyObject_CallMethod(h->gate, "acquire", "id", 1, fmin(fmax(deadline - time, LEAST_SLEEP), LONGEST_SLEEP));
    }
    int got = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (got < 0 && holds_gate(h)) {             /* it struck once the gate was ours */
        PyObject *error = fetch(), *done = PyObject_CallMethodNoArgs(h->gate, st->release);
        Py_XDECREF(done);
        restore(error);
    }
    return got;
}
/* Begin a section. 0: no gate. 1: a gate, which `leave` is told. 2: not in time. -1: an exception. */
static inline int enter(Head *h, double deadline) {
    LOCK(h);
    if (!h->gate) return 0;
    UNLOCK(h);
    int got = pass_gate(h, deadline);
    if (got == 0) return 2;
    if (got < 0) return -1;
    LOCK(h);
    return 1;
}
/* The same, whatever strikes: *struck becomes 1, with the exception set. One that was set before stays. */
static int enter_surely(Head *h, int *struck) {
    PyObject *first = *struck ? fetch() : NULL;
    int gated = -1;
    for (int i = 0; i < ATTEMPTS && (gated = enter(h, NEVER)) < 0; i++) {
        PyObject *error = fetch();
        if (first) Py_DECREF(error); else first = error;
    }
    if (gated < 0) { LOCK(h); gated = 0; }      /* the gate refuses each time: go on without it */
    if (first) { *struck = 1; restore(first); }
    return gated;
}

static void line_add(Line *l, Waiter *w, int in_front) {
    w->next = w->prev = NULL;
    if (in_front) { if ((w->next = l->first)) w->next->prev = w; else l->last = w; l->first = w; }
    else { if ((w->prev = l->last)) w->prev->next = w; else l->first = w; l->last = w; }
    w->line = l;
}
static void line_remove(Line *l, Waiter *w) {
    if (w->prev) w->prev->next = w->next; else l->first = w->next;
    if (w->next) w->next->prev = w->prev; else l->last = w->prev;
    w->next = w->prev = NULL;
}
static Waiter *line_find(Line *l, PyObject *object) {
    Waiter *w = l->first;
    while (w && w->object != object) w = w->next;
    return w;
}
static Py_ssize_t line_length(Line *l) { Py_ssize_t n = 0; for (Waiter *w = l->first; w; w = w->next) n++; return n; }
static void waiter_free(Waiter *w) { Py_XDECREF(w->object); Py_XDECREF(w->owner); PyMem_Free(w); }

static void wake_one(Head *h, Line *l) {
    Waiter *w = l->first;
    if (!w) return;
    line_remove(l, w);
    if (w->lock) { w->woken = 1; PyThread_release_lock(w->lock); }
    else { if (h->last_call) h->last_call->next = w; else h->calls = w; h->last_call = w; }
}
static void wake_all(Head *h, Line *l) { while (l->first) wake_one(h, l); }

/* *struck gets what strikes in here, if the operation can be undone; else it strikes later. */
static void leave_slowly(Head *h, int gated, Waiter *calls, PyObject **struck) {
    State *st = h->st;
    PyObject *raised = fetch();                 /* the operation's own */
    PyObject *later = NULL;                     /* kept until all is woken: it would strike the calls below again */
    if (!struck) struck = &later;
    if (gated) {
        PyObject *done = NULL;
        for (int i = 0; i < 2 && !(done = PyObject_CallMethodNoArgs(h->gate, st->release)); i++) {
            int again = holds_gate(h);
            strike(struck);
            if (!again) break;
        }
        Py_XDECREF(done);
    }
    while (calls) {
        Waiter *w = calls;
        PyObject *answer = NULL;
        for (int i = 0; i < ATTEMPTS && !(answer = PyObject_CallMethodNoArgs(w->object, st->release)); i++) {
            if (i && PyErr_ExceptionMatches(PyExc_RuntimeError)) { PyErr_Clear(); break; }   /* the lock is released: it
                                                                                              * struck at the return */
            strike(struck);
        }
        if (answer == Py_False) {               /* its coroutine has stopped waiting, or its loop is closed */
            LOCK(h);
            wake_one(h, w->line);
            if (h->calls) { Waiter *last = w; while (last->next) last = last->next; last->next = h->calls; h->calls = h->last_call = NULL; }
            UNLOCK(h);
        }
        Py_XDECREF(answer);
        calls = w->next;
        waiter_free(w);
    }
    if (later) { restore(later); strike_later(); }
    restore(raised);
}
/* End a section. Keeps an exception that is set, and raises none. */
static inline void leave(Head *h, int gated) {
    Waiter *calls = h->calls;
    if (calls) h->calls = h->last_call = NULL;
    UNLOCK(h);
    if (calls || gated) leave_slowly(h, gated, calls, NULL);
}
/* End a section in which an element was taken. -1: an exception has struck in code of Python that belongs to it. */
static inline int leave_taken(Head *h, int gated) {
    Waiter *calls = h->calls;
    PyObject *struck = NULL;
    h->calls = h->last_call = NULL;
    UNLOCK(h);
    if (calls || gated) leave_slowly(h, gated, calls, &struck);
    if (struck) restore(struck);
    return struck ? -1 : 0;
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

/* The parking place of a thread, made outside of the section in which it parks. */
typedef struct { Waiter *here; Waiter *object; PyObject *lock; } Spot;

static int spot_make(Head *h, PyObject *owner, Spot *p) {
    State *st = h->st;
    PyObject *make = PyObject_GetAttr(st->sync, st->allocate_lock);
    if (!make) return -1;
    if (make == st->native_lock) {
        Py_DECREF(make);
        PyThread_type_lock lock = PyThread_allocate_lock();
        if (lock && (p->here = PyMem_Calloc(1, sizeof(Waiter)))) {
            p->here->lock = lock;
            p->here->thread = PyThread_get_thread_ident();
            PyThread_acquire_lock(lock, NOWAIT_LOCK);
            return 0;
        }
        if (lock) PyThread_free_lock(lock);
        PyErr_NoMemory();
        return -1;
    }
    Py_XSETREF(p->lock, PyObject_CallNoArgs(make));
    Py_DECREF(make);
    PyObject *locked = p->lock ? PyObject_CallMethodNoArgs(p->lock, st->acquire) : NULL;
    if (!locked) return -1;
    Py_DECREF(locked);
    if (!(p->object = PyMem_Calloc(1, sizeof(Waiter)))) { PyErr_NoMemory(); return -1; }
    p->object->object = Py_NewRef(p->lock);
    p->object->owner = Py_NewRef(owner);
    return 0;
}
static void spot_free(Spot *p) {
    if (p->here) { PyThread_free_lock(p->here->lock); PyMem_Free(p->here); }
    if (p->object) waiter_free(p->object);
    Py_XDECREF(p->lock);
}

/* Outside of a section: 1 released by somebody, 0 time is up, -1 an exception. */
static int sleep_native(State *st, PyThread_type_lock lock, double deadline) {
    for (;;) {
        PY_TIMEOUT_T us = -1;
        int cut = 0;
        if (deadline != NEVER) {
            double time = now(st);
            if (time == -1.0 && PyErr_Occurred()) return -1;
            double left = fmax(deadline - time, 0.0);
            if ((cut = left > LONGEST_SLEEP)) left = LONGEST_SLEEP;
            us = (PY_TIMEOUT_T)ceil(left * 1e6);
        }
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS
        status = PyThread_acquire_lock_timed(lock, us, 1);
        Py_END_ALLOW_THREADS
        if (status == PY_LOCK_ACQUIRED) return 1;
        if (status == PY_LOCK_INTR) { if (Py_MakePendingCalls() < 0) return -1; }
        else if (!cut) return 0;
    }
}
static int sleep_object(State *st, PyObject *lock, double deadline) {
    PyObject *answer;
    if (deadline == NEVER) answer = PyObject_CallMethodNoArgs(lock, st->acquire);
    else {
        double time = now(st);
        if (time == -1.0 && PyErr_Occurred()) return -1;
        answer = PyObject_CallMethod(lock, "acquire", "id", 1, fmin(fmax(deadline - time, 0.0), LONGEST_SLEEP));
    }
    int got = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    return got;
}

/* Park in `line`, which is the owner's, and sleep. In a section before and after. 1 woken, 0 time is up, -1 exception. */
static int park(Head *h, Line *line, Spot *p, int in_front, double deadline, int *gated) {
    int slept, woken, struck;
    if (p->here) {
        Waiter *here = p->here;
        here->woken = 0;
        line_add(line, here, in_front);
        leave(h, *gated);
        slept = sleep_native(h->st, here->lock, deadline);
        struck = slept < 0;
        *gated = enter_surely(h, &struck);
        if (!(woken = here->woken)) line_remove(line, here);
        else if (slept != 1) PyThread_acquire_lock(here->lock, NOWAIT_LOCK);     /* released since: lock it again */
    }
    else {
        line_add(line, p->object, in_front);
        p->object = NULL;                       /* who takes it out of the line has it */
        leave(h, *gated);
        slept = sleep_object(h->st, p->lock, deadline);
        struck = slept < 0;
        *gated = enter_surely(h, &struck);
        Waiter *w = line_find(line, p->lock);
        woken = !w;
        if (w) { line_remove(line, w); p->object = w; }
    }
    return struck ? -1 : woken;
}

static inline Tail *tail_of(Place *p) { return (Tail *)((char *)p - offsetof(Tail, place)); }
static inline Tail *best(Head *h) {
    Place *p = ring_due(&h->ring);
    if (!p) return NULL;
    Tail *t = tail_of(p);
    while (RARELY(!t->count)) t = tail_of(ring_due(&t->inner));    /* of a fair queue, nested */
    return t;
}

/* Wake those that this state has something for. More than one too many does no harm: they look for themselves. */
static void stir(Head *h, Tail *t) {
    if (t) {
        if (t->takers.first && t->count) wake_one(h, &t->takers);
        if (t->putters.first && t->count < t->limit) wake_one(h, &t->putters);
    }
    if (h->takers.first && best(h)) wake_one(h, &h->takers);
}

/* Back into a section that was left for a moment, by UNLOCK with the gate kept, or by leave without one. -1: an exception. */
static int come_back(Head *h, int *gated) {
    int struck = PyErr_Occurred() != NULL;
    LOCK(h);
    if (*gated || !h->gate) return 0;
    UNLOCK(h);                                  /* a program has asked for the mutex meanwhile */
    *gated = enter_surely(h, &struck);
    return struck ? -1 : 0;
}

/* Wait in `line` until `over` is true. In a section before. 1: it is, in the section. 0: time is up, in the section.
 * -1: an exception, and the section has ended. */
static int wait_until(Head *h, Tail *t, PyObject *owner, Line *line, int (*over)(Head *, Tail *), int block,
                      double deadline, int *gated) {
    if (over(h, t)) return 1;
    if (!block) return 0;
    Spot p = {0};
    int waited = 0, answer;
    for (;;) {
        if (!p.here && !p.object) {
            if (*gated) UNLOCK(h); else leave(h, 0);       /* who has the gate keeps it: nobody else comes in */
            int made = spot_make(h, owner, &p);
            if (come_back(h, gated) < 0 || made < 0) { answer = -1; break; }
        }
        if (over(h, t)) { answer = 1; break; }
        if (!block) { answer = 0; break; }
        int woken = park(h, line, &p, waited, deadline, gated);
        waited = 1;
        if (woken < 0) { answer = -1; break; }
        if (!woken) block = 0;                  /* one more look, then it is over */
        else if (!p.here && over(h, t)) { answer = 1; break; }
    }
    if (answer < 0) { stir(h, t); leave(h, *gated); spot_free(&p); return -1; }
    if (p.lock) {                               /* dropping it runs code: not in the section */
        if (*gated) UNLOCK(h); else leave(h, 0);
        spot_free(&p);
        if (come_back(h, gated) < 0) { stir(h, t); leave(h, *gated); return -1; }
        return over(h, t) ? 1 : answer ? wait_until(h, t, owner, line, over, block, deadline, gated) : 0;
    }
    spot_free(&p);                             /* no reference in it: nothing runs */
    return answer;
}

static int over_take(Head *h, Tail *t) { return best(h) || (h->closed && !h->left); }
static int over_own_take(Head *h, Tail *t) { return t->count || t->closed; }
static int over_put(Head *h, Tail *t) { return t->count < t->limit || t->closed; }
static int over_join(Head *h, Tail *t) { return t->unfinished <= 0; }
static int over_join_all(Head *h, Tail *t) { return h->busy <= 0; }

/* ---- turns: which tail is served next ---------------------------------------------------------------------------- */

/* A tail is eligible when the head may take from it; it is linked if and only if it is eligible and not empty. */
static inline int eligible(Tail *t) { return t->attached && t->enabled && t->unfinished - t->count < t->max_in_flight; }

/* What `_fair.h` has of a fair queue's tails. */
static void settle_fair(Tail *), leave_fair(Tail *), untake(Tail *), reap(Tail *, Tail **), drop_gone(Tail *), reap_surely(Tail *);
static PyObject *pop_fair(Tail *), *assign_fair(Tail *, PyObject *, PyObject *);
static void table_clear(Head *, Tail **);
static int is_idle(Tail *);
static inline Ring *ring_of(Tail *t) { return t->outer ? &t->outer->inner : &t->head->ring; }

static void link_tail(Tail *t) {               /* at the end of the round */
    Head *h = t->head;
    ring_join(&h->ring, t->level, &t->place);
    h->ready += t->count;
}
static void unlink_tail(Tail *t) {
    Head *h = t->head;
    ring_leave(&h->ring, t->level, &t->place);
    t->turn = 0;
    h->ready -= t->count;
}
static inline void settle(Tail *t) {           /* after any change of what eligible() and `count` say */
    if (RARELY(t->key)) { settle_fair(t); return; }
    int belongs = t->count && eligible(t);
    if (belongs && !t->place.next) link_tail(t);
    else if (!belongs && t->place.next) unlink_tail(t);
}

/* ---- elements --------------------------------------------------------------------------------------------------- */

/* The costs of a fair queue's elements stand behind them, in the same block. */
static inline double *costs_of(Tail *t) { return (double *)(t->ring + t->size); }
static void unroll(Tail *t, void *to, void *from, Py_ssize_t width) {   /* `count` of them, the first one first */
    Py_ssize_t some = t->count < t->size - t->first ? t->count : t->size - t->first;
    memcpy(to, (char *)from + t->first * width, some * width);
    memcpy((char *)to + some * width, from, (t->count - some) * width);
}
static int grow(Tail *t, Py_ssize_t n) {       /* room for n more. 0, or -1: no memory, and nothing has changed */
    Py_ssize_t size = t->size ? t->size * 2 : LEAST_RING, width = sizeof *t->ring + (t->key ? sizeof(double) : 0);
    while (size - t->count < n) size *= 2;
    PyObject **ring = size > PY_SSIZE_T_MAX / width ? NULL : PyMem_Malloc(size * width);
    if (!ring) return -1;
    if (t->count) {                             /* there may be no ring yet */
        unroll(t, ring, t->ring, sizeof *ring);
        if (t->key) unroll(t, ring + size, costs_of(t), sizeof(double));
    }
    PyMem_Free(t->ring);
    t->ring = ring; t->size = size; t->first = 0;
    return 0;
}
static inline PyObject **slot(Tail *t, Py_ssize_t index) { return &t->ring[(t->first + index) & (t->size - 1)]; }

static void owe(Tail *t, Py_ssize_t unfinished) {          /* set it, and end the joins that it ends */
    Head *h = t->head;
    int was = t->unfinished > 0, is = unfinished > 0;
    if (t->key) h->busy += unfinished - t->unfinished;
    else if (t->attached) h->busy += is - was;
    t->unfinished = unfinished;
    if (!is && t->joiners.first) wake_all(h, &t->joiners);
    if (h->busy <= 0 && h->joiners.first) wake_all(h, &h->joiners);
}
/* After elements have come: count, link, wake. */
static Py_ALWAYS_INLINE inline void arrived(Tail *t, Py_ssize_t n) {
    Head *h = t->head;
    if (t->attached) h->left += n;
    if (t->place.next) h->ready += n; else settle(t);
    for (Py_ssize_t i = 0; i < n && t->takers.first; i++) wake_one(h, &t->takers);
    if (t->place.next) for (Py_ssize_t i = 0; i < n && h->takers.first; i++) wake_one(h, &h->takers);
}
/* n elements more, for which the ring has room; `cost` is a fair queue's, of the only one. */
static Py_ALWAYS_INLINE inline void append(Tail *t, PyObject *const *items, Py_ssize_t n, const double *cost) {
    if (cost) { costs_of(t)[(t->first + t->count) & (t->size - 1)] = *cost; if (*cost != 1.0) t->head->uneven = 1; }
    for (Py_ssize_t i = 0; i < n; i++) *slot(t, t->count + i) = Py_NewRef(items[i]);
    if (cost || (t->attached && t->unfinished <= 0 && t->unfinished + n > 0)) t->head->busy++;
    t->count += n;
    t->unfinished += n;
    arrived(t, n);
}
/* At the head; `again` for an element that was taken and counts as if it had not been. */
static int push_first(Tail *t, PyObject *item, int again) {
    if (t->count == t->size && grow(t, 1) < 0) return -1;
    t->first = (t->first - 1) & (t->size - 1);
    t->ring[t->first] = Py_NewRef(item);
    t->count++;
    if (t->key) untake(t);
    else if (!again) owe(t, t->unfinished + 1);
    arrived(t, 1);
    settle(t);
    return 0;
}
/* The first elements, n at most; in turn, as many as its turn goes on for. How many: one at least, as there is one. */
static Py_ALWAYS_INLINE inline Py_ssize_t pop(Tail *t, int in_turn, PyObject **items, Py_ssize_t n) {
    Head *h = t->head;
    if (RARELY(t->key)) { *items = pop_fair(t); return 1; }
    Py_ssize_t was = t->count;
    int alone = t->place.next == &t->place;     /* its next turn follows at once */
    if (n > 1) {
        n = Py_MIN(n, was);
        if (in_turn && t->max_in_flight != NO_LIMIT) n = Py_MIN(n, t->max_in_flight - (t->unfinished - was));
        if (in_turn && !alone) n = Py_MIN(n, Py_MAX(t->weight - t->turn, 1));
    }
    for (Py_ssize_t i = 0; i < n; i++) items[i] = *slot(t, i);
    t->first = (t->first + n) & (t->size - 1);
    t->count -= n;
    if (t->attached) h->left -= n;
    if (t->place.next) {
        int leaves = !t->count || !eligible(t);
        h->ready -= n;
        if (in_turn && (t->turn += n - leaves) >= t->weight) {
            Py_ssize_t turns = n > 1 && alone ? t->turn / t->weight : 1;
            t->turn = n > 1 && alone ? t->turn % t->weight : 0;
            ring_charge(&h->ring, t->level, &t->place, (double)turns);
        }
        if (leaves) unlink_tail(t);
    }
    if (t->putters.first && was >= t->limit && t->count < t->limit) wake_one(h, &t->putters);
    if (!t->count) {
        if (t->closed && t->takers.first) wake_all(h, &t->takers);
        if (h->closed && !h->left && h->takers.first) wake_all(h, &h->takers);
    }
    return n;
}
static inline void trim(Tail *t) {             /* once nothing of it can come back */
    if (!t->count && t->size > KEPT_RING) { PyMem_Free(t->ring); t->ring = NULL; t->size = t->first = 0; }
}
/* A run of elements taken out of a tail, to be dropped after the section. */
typedef struct { PyObject **ring; Py_ssize_t size, first, count; } Swept;

static Swept sweep(Tail *t) {
    Swept swept = {t->ring, t->size, t->first, t->count};
    Head *h = t->head;
    if (t->place.next) { if (t->key) leave_fair(t); else unlink_tail(t); }
    if (t->attached) h->left -= t->count;
    t->ring = NULL;
    t->size = t->first = t->count = 0;
    if (t->key) settle_fair(t);
    t->discarded += swept.count;
    owe(t, t->unfinished - swept.count);
    if (t->putters.first && t->limit > 0) wake_one(h, &t->putters);
    if (t->closed) wake_all(h, &t->takers);
    if (h->closed && !h->left) wake_all(h, &h->takers);
    return swept;
}
static void drop(Swept *s) {
    for (Py_ssize_t i = 0; i < s->count; i++) Py_DECREF(s->ring[(s->first + i) & (s->size - 1)]);
    PyMem_Free(s->ring);
}

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static State *state_of(PyObject *module) { return (State *)PyModule_GetState(module); }

static PyObject *Tail_new(PyTypeObject *, PyObject *, PyObject *), *Multi_new(PyTypeObject *, PyObject *, PyObject *);

/* A class made of ours has our tp_new, unless it has a __new__ of its own: that is quicker to see than its bases. */
static inline int is_tail(State *st, PyObject *o) {
    newfunc make = Py_TYPE(o)->tp_new;
    return make == Tail_new || (make != Multi_new && PyObject_TypeCheck(o, st->tail_type));
}
/* The head of a queue, and in *own the tail that it is, if it is one. NULL: TypeError. */
static inline Head *head_of(State *st, PyObject *queue, Tail **own) {
    if (Py_TYPE(queue)->tp_new == Multi_new) return ((Multi *)queue)->head;
    if (is_tail(st, queue)) return (*own = (Tail *)queue)->head;
    if (PyObject_TypeCheck(queue, st->multi_type)) return ((Multi *)queue)->head;
    PyErr_Format(PyExc_TypeError, "%R is no queue of this engine", queue);
    return NULL;
}

static int wait_arguments(State *st, PyObject *block_, PyObject *timeout, int *block, double *deadline) {
    *deadline = NEVER;
    if ((*block = block_ == Py_True ? 1 : PyObject_IsTrue(block_)) < 0) return -1;
    if (!*block || timeout == Py_None) return 0;
    PyObject *zero = PyLong_FromLong(0);
    int fits = zero ? PyObject_RichCompareBool(timeout, zero, Py_GE) : -1;
    Py_XDECREF(zero);
    if (fits < 0) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) PyErr_Format(PyExc_TypeError, "'timeout' must be a number, not %R", timeout);
        return -1;
    }
    if (!fits) { PyErr_Format(PyExc_ValueError, "'timeout' must be a non-negative number of seconds, not %R", timeout); return -1; }
    double seconds = PyFloat_AsDouble(timeout), time;
    if (seconds == -1.0 && PyErr_Occurred()) return -1;
    if (seconds == 0.0) { *block = 0; return 0; }
    if ((time = now(st)) == -1.0 && PyErr_Occurred()) return -1;
    *deadline = time + seconds;
    return 0;
}
/* item, block, timeout by position or name. NULL: TypeError. */
static int unpack(const char *method, const char *const *names, int n_names, int least, PyObject *const *args,
                  Py_ssize_t n, PyObject *kwnames, PyObject **out) {
    Py_ssize_t k = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    int given = 0;
    if (n > n_names) { PyErr_Format(PyExc_TypeError, "%s() takes at most %d arguments (%zd given)", method, n_names, n + k); return -1; }
    for (Py_ssize_t i = 0; i < n; i++) { out[i] = args[i]; given |= 1 << i; }
    for (Py_ssize_t i = 0; i < k; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int at = 0;
        while (at < n_names && PyUnicode_CompareWithASCIIString(name, names[at]) != 0) at++;
        if (at == n_names) { PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", method, name); return -1; }
        if (given & 1 << at) { PyErr_Format(PyExc_TypeError, "%s() got multiple values for argument %R", method, name); return -1; }
        given |= 1 << at;
        out[at] = args[n + i];
    }
    for (int i = 0; i < least; i++)
        if (!(given & 1 << i)) { PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", method, names[i]); return -1; }
    return 0;
}

/* ---- errors: made by functions in Python, outside of sections ------------------------------------------------------ */

static PyObject *raise_made(PyObject *error) {
    if (error) { PyErr_SetObject((PyObject *)Py_TYPE(error), error); Py_DECREF(error); }
    return NULL;
}
static PyObject *refuse(State *st, Tail *t, int closed, PyObject *item, PyObject *timeout) {
    return raise_made(PyObject_CallFunction(st->refusal, "OiOO", t, closed, item, timeout));
}
static PyObject *end(State *st, PyObject *queue) { return raise_made(PyObject_CallOneArg(st->ending, queue)); }

/* ---- putting ---------------------------------------------------------------------------------------------------- */

typedef enum { PUT, FULL, CLOSED, RAISED } Outcome;

/* Put one element. */
static inline Outcome put_one(Tail *t, PyObject *item, const double *cost, int block, double deadline) {
    Head *h = t->head;
    int gated = enter(h, deadline);
    if (gated == 2) return FULL;
    if (gated < 0) return RAISED;
    int was_full = t->count >= t->limit;
    if (was_full) {
        int r = wait_until(h, t, (PyObject *)t, &t->putters, over_put, block, deadline, &gated);
        if (r < 0) return RAISED;
        if (t->closed || t->count >= t->limit) { Outcome o = t->closed ? CLOSED : FULL; leave(h, gated); return o; }
    }
    if (t->count == t->size && grow(t, 1) < 0) { stir(h, t); leave(h, gated); PyErr_NoMemory(); return RAISED; }
    append(t, &item, 1, cost);
    if (was_full && t->putters.first && t->count < t->limit) wake_one(h, &t->putters);
    leave(h, gated);
    return PUT;
}
static const char *const put_names[] = {"item", "block", "timeout"};

static PyObject *Tail_put(Tail *t, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    State *st = t->head->st;
    if (t->hooked) {
        PyObject *all[8], *r;
        Py_ssize_t k = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
        if (n + k > 7) { PyErr_SetString(PyExc_TypeError, "put() takes at most 3 arguments"); return NULL; }
        all[0] = (PyObject *)t;
        for (Py_ssize_t i = 0; i < n + k; i++) all[i + 1] = args[i];
        r = PyObject_Vectorcall(st->put, all, n + 1, kwnames);
        return r;
    }
    PyObject *a[3] = {NULL, Py_True, Py_None};
    int block = 1;
    double deadline = NEVER;
    if (n == 1 && !kwnames) a[0] = args[0];
    else if (unpack("put", put_names, 3, 1, args, n, kwnames, a) < 0 || wait_arguments(st, a[1], a[2], &block, &deadline) < 0) return NULL;
    Outcome o = put_one(t, a[0], NULL, block, deadline);
    if (o == PUT) Py_RETURN_NONE;
    if (o == RAISED) return NULL;
    return refuse(st, t, o == CLOSED, a[0], block ? a[2] : Py_None);
}
static PyObject *Tail_offer(Tail *t, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const char *const names[] = {"item", "timeout"};
    State *st = t->head->st;
    PyObject *a[2] = {NULL, NULL};
    int block = 0;
    double deadline = NEVER;
    if (unpack("offer", names, 2, 1, args, n, kwnames, a) < 0) return NULL;
    if (a[1] && wait_arguments(st, Py_True, a[1], &block, &deadline) < 0) return NULL;
    Outcome o = put_one(t, a[0], NULL, block, deadline);
    if (o == PUT) Py_RETURN_TRUE;
    if (o == FULL) Py_RETURN_FALSE;
    if (o == CLOSED) refuse(st, t, 1, a[0], Py_None);
    return NULL;
}
static PyObject *accepted_closed(Py_ssize_t accepted, int closed) {
    PyObject *pair = PyTuple_New(2), *n = PyLong_FromSsize_t(accepted);
    if (!pair || !n) { Py_XDECREF(pair); Py_XDECREF(n); return NULL; }
    PyTuple_SET_ITEM(pair, 0, n);
    PyTuple_SET_ITEM(pair, 1, PyBool_FromLong(closed));
    return pair;
}
/* put_some(tail, list, start, timeout_at): put what there is room for, waiting for the first; (accepted, 0 Full or put,
 * 1 closed). `deadline` is a float or None. */
static PyObject *put_some(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    State *st = state_of(module);
    if (n != 4 || !PyObject_TypeCheck(args[0], st->tail_type) || !PyList_CheckExact(args[1])) {
        PyErr_SetString(PyExc_TypeError, "put_some(tail, list, start, deadline)");
        return NULL;
    }
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    Py_ssize_t start = PyLong_AsSsize_t(args[2]), total = PyList_GET_SIZE(args[1]), accepted = 0;
    double deadline = args[3] == Py_None ? NEVER : PyFloat_AsDouble(args[3]);
    if (PyErr_Occurred()) return NULL;
    int gated = enter(h, deadline), closed = 0;
    if (gated == 2) return accepted_closed(0, 0);
    if (gated < 0) return NULL;
    int was_full = t->count >= t->limit;
    if (was_full && wait_until(h, t, args[0], &t->putters, over_put, 1, deadline, &gated) < 0) return NULL;
    closed = t->closed != OPEN;
    Py_ssize_t fits = closed ? 0 : Py_MAX(Py_MIN(Py_MIN(total - start, LONGEST_RUN), t->limit - t->count), 0);
    accepted = t->size - t->count < fits && grow(t, fits) < 0 ? t->size - t->count : fits;
    if (accepted) append(t, ((PyListObject *)args[1])->ob_item + start, accepted, NULL);
    if (was_full && !closed && t->putters.first && t->count < t->limit) wake_one(h, &t->putters);
    leave(h, gated);
    if (fits && !accepted) return PyErr_NoMemory();
    return accepted_closed(accepted, closed);
}
static PyObject *Tail_put_first(Tail *t, PyObject *item) {
    Head *h = t->head;
    int gated = enter(h, NEVER);
    if (gated < 0) return NULL;
    int closed = t->closed, failed = 0;
    if (!closed) failed = push_first(t, item, 0) < 0;
    leave(h, gated);
    if (closed) return refuse(h->st, t, 1, item, Py_None);
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}

/* ---- taking ----------------------------------------------------------------------------------------------------- */

/* Linked tails in the order in which they would be served. Outside of a section; who has the gate keeps it. */
static PyObject *ready_tuple(Head *h) {
    LOCK(h);
    Py_ssize_t room = h->n_tails;
    UNLOCK(h);
    for (;;) {
        PyObject *tuple = PyTuple_New(room);
        if (!tuple) return NULL;
        LOCK(h);
        Py_ssize_t n = 0;
        for (Py_ssize_t i = 0; i < h->ring.n_active; i++) {
            Place *first = h->ring.active[i]->cursor, *p = first;
            do { if (n < room) PyTuple_SET_ITEM(tuple, n, Py_NewRef(tail_of(p))); n++; p = p->next; } while (p != first);
        }
        UNLOCK(h);
        if (n <= room) { if (n < room && _PyTuple_Resize(&tuple, n) < 0) return NULL; return tuple; }
        Py_DECREF(tuple);
        room = n;
    }
}

/* Elements in a row that came from one tail, to which it is a reference. */
typedef struct { Tail *tail; Py_ssize_t n; } Run;

static void drop_runs(Run *runs, Py_ssize_t n) {
    for (Py_ssize_t i = 0; i < n; i++) Py_DECREF(runs[i].tail);
}
/* Give back what was taken, the last first, with an exception set, which stays. The references stay the caller's. */
static void undo(Head *h, PyObject **items, Run *runs, Py_ssize_t n_runs) {
    int struck = 1, gated = enter_surely(h, &struck);
    Py_ssize_t i = 0;
    for (Py_ssize_t k = 0; k < n_runs; k++) i += runs[k].n;
    while (n_runs-- > 0)                        /* there is room: they came from there */
        for (Py_ssize_t k = runs[n_runs].n; k > 0; k--) push_first(runs[n_runs].tail, items[--i], 1);
    stir(h, NULL);
    leave(h, gated);
}
static void undo_one(Head *h, PyObject *item, Tail *t) {   /* steals both references */
    Run run = {t, 1};
    undo(h, &item, &run, 1);
    Py_DECREF(item);
    Py_DECREF(t);
}

/* Take from the tail that the user's selection names; it is asked outside of sections. Answers as `take_one`. */
static PyObject *take_selected(Multi *m, int block, double deadline, Tail **from) {
    Head *h = m->head;
    State *st = h->st;
    for (;;) {
        int gated = enter(h, deadline);
        if (gated == 2) return NULL;
        if (gated < 0) return NULL;
        int r = wait_until(h, NULL, (PyObject *)m, &h->takers, over_take, block, deadline, &gated);
        if (r < 0) return NULL;
        int is_ready = best(h) != NULL;
        if (!gated) leave(h, 0); else UNLOCK(h);
        PyObject *ready = is_ready ? ready_tuple(h) : NULL;
        if (gated) { LOCK(h); leave(h, gated); }
        if (!is_ready) return r ? end(st, (PyObject *)m) : NULL;
        if (!ready) { int struck = 1; gated = enter_surely(h, &struck); stir(h, NULL); leave(h, gated); return NULL; }
        if (PyTuple_GET_SIZE(ready) == 0) { Py_DECREF(ready); continue; }
        PyObject *chosen = PyObject_CallFunctionObjArgs(st->select, m->selection, ready, NULL), *item = NULL;
        Py_DECREF(ready);
        if (!chosen) {
            int struck = 1;
            gated = enter_surely(h, &struck);
            stir(h, NULL);
            leave(h, gated);
            return NULL;
        }
        if (!PyObject_TypeCheck(chosen, st->tail_type)) { Py_DECREF(chosen); PyErr_SetString(PyExc_TypeError, "no tail"); return NULL; }
        Tail *t = (Tail *)chosen;
        int struck = 0;
        gated = enter_surely(h, &struck);
        if (!struck && t->head == h && t->place.next) {
            pop(t, 0, &item, 1);
            if (t->place.next) { unlink_tail(t); link_tail(t); }     /* to the end of the round */
        }
        stir(h, NULL);
        leave(h, gated);
        if (struck) { Py_DECREF(chosen); return NULL; }
        if (!item) { Py_DECREF(chosen); continue; }            /* somebody was faster */
        PyObject *told = PyObject_CallFunctionObjArgs(st->selected, m->selection, chosen, NULL);
        if (!told) { undo_one(h, item, t); return NULL; }
        Py_DECREF(told);
        if (from) *from = t; else Py_DECREF(chosen);
        return item;
    }
}

/* Take the element that is due. NULL without an exception: there was none in time. *from is a new reference. */
static PyObject *take_one(State *st, PyObject *queue, int block, double deadline, Tail **from) {
    Tail *own = NULL, *t;
    Head *h = head_of(st, queue, &own);
    if (!h) return NULL;
    if (!own && ((Multi *)queue)->selection) return take_selected((Multi *)queue, block, deadline, from);
    int gated = enter(h, deadline);
    if (gated) { if (gated == 2) return NULL; if (gated < 0) return NULL; }
    if (!(t = own ? (own->count ? own : NULL) : best(h))) {
        int r = wait_until(h, own, queue, own ? &own->takers : &h->takers, own ? over_own_take : over_take, block,
                           deadline, &gated);
        if (r < 0) return NULL;
        if (!(t = own ? (own->count ? own : NULL) : best(h))) {
            leave(h, gated);
            return r ? end(st, queue) : NULL;
        }
    }
    PyObject *item;
    pop(t, !own, &item, 1);
    if (own && own->takers.first && own->count) wake_one(h, &own->takers);
    if (h->takers.first && best(h)) wake_one(h, &h->takers);
    if (!gated && !h->calls) {
        Tail *gone = NULL;
        trim(t);
        if (from) *from = (Tail *)Py_NewRef(t);
        if (RARELY(t->key)) reap(t, &gone);
        UNLOCK(h);
        if (RARELY(gone)) drop_gone(gone);
        return item;
    }
    Py_INCREF(t);
    if (leave_taken(h, gated) < 0) { undo_one(h, item, t); return NULL; }
    if (t->key) reap_surely(t);
    if (from) *from = t; else Py_DECREF(t);
    return item;
}
static PyObject *or_empty(State *st, PyObject *item) {
    if (!item && !PyErr_Occurred()) PyErr_SetNone(st->empty);
    return item;
}
static PyObject *standard_get(State *st, PyObject *queue, PyObject *block, PyObject *timeout) {
    return PyObject_CallFunctionObjArgs(st->get, queue, block, timeout, NULL);
}
static inline int is_hooked(State *st, PyObject *queue) {
    return is_tail(st, queue) && ((Tail *)queue)->hooked;
}
static int key_of(PyObject *key, Py_ssize_t n) {
    if (PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key) == n) return 0;
    PyErr_Format(PyExc_TypeError, "this door takes %zd arguments", n);
    return -1;
}
#define ARG(i) PyTuple_GET_ITEM(key, i)

/* due[queue]: the element that is due, however long it takes. */
static PyObject *door_due(State *st, PyObject *queue) {
    if (is_hooked(st, queue)) return standard_get(st, queue, Py_True, Py_None);
    return or_empty(st, take_one(st, queue, 1, NEVER, NULL));
}
/* get[queue, block, timeout] */
static PyObject *door_get(State *st, PyObject *key) {
    int block; double deadline;
    if (key_of(key, 3) < 0) return NULL;
    if (is_hooked(st, ARG(0))) return standard_get(st, ARG(0), ARG(1), ARG(2));
    if (wait_arguments(st, ARG(1), ARG(2), &block, &deadline) < 0) return NULL;
    return or_empty(st, take_one(st, ARG(0), block, deadline, NULL));
}
/* poll[queue, timeout, default] */
static PyObject *door_poll(State *st, PyObject *key) {
    int block; double deadline;
    if (key_of(key, 3) < 0 || wait_arguments(st, Py_True, ARG(1), &block, &deadline) < 0) return NULL;
    PyObject *item = take_one(st, ARG(0), block, deadline, NULL);
    return item || PyErr_Occurred() ? item : Py_NewRef(ARG(2));
}
/* Both the tail and the element, in `pair`, which was made before. 1, or 0: none in time, or -1. */
static int take_into(State *st, PyObject *pair, PyObject *queue, int block, double deadline) {
    Tail *from = NULL;
    PyObject *item = take_one(st, queue, block, deadline, &from);
    if (!item) return PyErr_Occurred() ? -1 : 0;
    PyTuple_SET_ITEM(pair, 0, from->key ? Py_NewRef(from->key) : Py_NewRef((PyObject *)from));
    PyTuple_SET_ITEM(pair, 1, item);
    Py_DECREF(from);
    PyObject_GC_Track(pair);
    return 1;
}
static PyTypeObject *taken_type(State *st, PyObject *queue) {
    int fair = PyObject_TypeCheck(queue, st->multi_type) && ((Multi *)queue)->head->fair;
    return (PyTypeObject *)(fair ? st->fair_taken : st->taken);
}
/* take[queue, block, timeout]: a Taken */
static PyObject *door_take(State *st, PyObject *key) {
    int block; double deadline;
    if (key_of(key, 3) < 0 || wait_arguments(st, ARG(1), ARG(2), &block, &deadline) < 0) return NULL;
    PyTypeObject *type = taken_type(st, ARG(0));
    PyObject *pair = type->tp_alloc(type, 2);
    if (!pair) return NULL;
    PyObject_GC_UnTrack(pair);                  /* gc.get_objects() shows nobody a tuple that is not filled */
    int r = take_into(st, pair, ARG(0), block, deadline);
    if (r == 1) return pair;
    Py_DECREF(pair);
    return r < 0 ? NULL : or_empty(st, NULL);
}
/* pair[queue]: a Taken, or None if nothing is there now */
static PyObject *door_pair(State *st, PyObject *queue) {
    PyTypeObject *type = taken_type(st, queue);
    PyObject *pair = type->tp_alloc(type, 2);
    if (!pair) return NULL;
    PyObject_GC_UnTrack(pair);
    int r = take_into(st, pair, queue, 0, NEVER);
    if (r == 1) return pair;
    Py_DECREF(pair);
    if (r < 0) return NULL;
    Py_RETURN_NONE;
}
/* What a user's selection chooses, as one list. */
static PyObject *many_selected(State *st, PyObject *queue, Py_ssize_t most, int block, double deadline) {
    PyObject *list = PyList_New(0), *item;
    Run *runs = NULL;
    Py_ssize_t got = 0;
    int failed = !list;
    while (!failed && got < most) {
        if (!(got & (got - 1))) {                                      /* 0, and each power of two: double the room */
            Run *more = PyMem_Realloc(runs, (got ? 2 * got : 1) * sizeof *runs);
            if (!more) { PyErr_NoMemory(); failed = 1; break; }
            runs = more;
        }
        if (!(item = take_one(st, queue, block && !got, deadline, &runs[got].tail))) break;
        runs[got].n = 1;
        if (PyList_Append(list, item) < 0) { failed = 1; undo_one(((Multi *)queue)->head, item, runs[got].tail); break; }
        Py_DECREF(item);
        got++;
    }
    if (PyErr_Occurred()) {
        if (!failed && got && PyErr_ExceptionMatches(st->shut_down)) PyErr_Clear();      /* what was taken counts */
        else failed = 1;
    }
    if (failed && got) undo(((Multi *)queue)->head, ((PyListObject *)list)->ob_item, runs, got);
    drop_runs(runs, got);
    PyMem_Free(runs);
    if (!failed && got) return list;
    Py_XDECREF(list);
    return or_empty(st, NULL);
}
/* many[queue, max_items, block, timeout]: a list of 1 to max_items, in service order; waits only for the first. */
static PyObject *door_many(State *st, PyObject *key) {
    int block; double deadline;
    if (key_of(key, 4) < 0 || wait_arguments(st, ARG(2), ARG(3), &block, &deadline) < 0) return NULL;
    PyObject *queue = ARG(0), *list = NULL, **items;
    Py_ssize_t most = PyNumber_AsSsize_t(ARG(1), NULL), room = 0, got = 0, n_runs = 0;      /* cut at the ends of the range */
    if (most == -1 && PyErr_Occurred()) return NULL;
    Tail *own = NULL, *t;
    Head *h = head_of(st, queue, &own);
    if (!h) return NULL;
    if (!own && ((Multi *)queue)->selection) return many_selected(st, queue, most, block, deadline);
    Run *runs = NULL;
    Tail *gone = NULL;
    int large = 0, gated;
    for (;;) {
        if ((gated = enter(h, deadline)) == 2) break;
        if (gated < 0) break;
        int r = wait_until(h, own, queue, own ? &own->takers : &h->takers, own ? over_own_take : over_take, block, deadline, &gated);
        if (r < 0) break;
        Py_ssize_t ready = own ? own->count : best(h) ? h->ready : 0;     /* no fewer than can be taken */
        if (ready && Py_MIN(most, ready) <= room) goto found;
        leave(h, gated);
        if (!ready) { if (r) end(st, queue); break; }
        room = Py_MIN(most, ready + ready / 8 + 8);                    /* outside of a section: it may collect garbage */
        Py_XSETREF(list, PyList_New(room));
        PyMem_Free(runs);
        runs = PyMem_Malloc(room * sizeof *runs);
        if (list) PyObject_GC_UnTrack(list);                           /* gc.get_objects() shows nobody one that is not filled */
        if (list && runs) continue;
        PyErr_NoMemory();
        int struck = 1;
        gated = enter_surely(h, &struck);
        stir(h, own);                                                  /* another may take what we were woken for */
        leave(h, gated);
        break;
    }
    PyMem_Free(runs);
    Py_XDECREF(list);
    return or_empty(st, NULL);
found:
    items = ((PyListObject *)list)->ob_item;
    for (int ended = 0, struck = 0; !ended && !struck;) {              /* in a section */
        Py_ssize_t limit = Py_MIN(room, got + LONGEST_RUN);
        while (got < limit && (t = own ? (own->count ? own : NULL) : best(h))) {
            if (t->size > KEPT_RING || t->key) large = 1;
            Py_ssize_t n = pop(t, !own, items + got, limit - got);
            if (n_runs && runs[n_runs - 1].tail == t) runs[n_runs - 1].n += n;
            else runs[n_runs++] = (Run){(Tail *)Py_NewRef(t), n};
            got += n;
        }
        stir(h, own);
        ended = got == room || got < limit;
        struck = leave_taken(h, gated) < 0;
        if (!ended && !struck) {
            gated = enter_surely(h, &struck);
            if (struck) leave(h, gated);
        }
        if (struck) { undo(h, items, runs, n_runs); Py_CLEAR(list); large = 0; }
    }
    if (large) {
        int struck = 0;
        gated = enter_surely(h, &struck);
        for (Py_ssize_t i = 0; i < n_runs; i++) { trim(runs[i].tail); reap(runs[i].tail, &gone); }
        leave(h, gated);
        if (struck) strike_later();
        drop_gone(gone);
    }
    drop_runs(runs, n_runs);
    PyMem_Free(runs);
    if (!list) return NULL;
    Py_SET_SIZE(list, got);                                            /* others may have been faster */
    PyObject_GC_Track(list);
    return list;
}

/* ---- the state of one queue ---------------------------------------------------------------------------------------- */

static PyObject *Tail_qsize(Tail *t, PyObject *Py_UNUSED(ignored)) {
    LOCK(t->head);
    Py_ssize_t n = t->count;
    UNLOCK(t->head);
    return PyLong_FromSsize_t(n);
}
static Py_ssize_t Tail_length(Tail *t) {
    LOCK(t->head);
    Py_ssize_t n = t->count;
    UNLOCK(t->head);
    return n;
}
static PyObject *Tail_empty(Tail *t, PyObject *Py_UNUSED(ignored)) { return PyBool_FromLong(Tail_length(t) == 0); }
static PyObject *Tail_full(Tail *t, PyObject *Py_UNUSED(ignored)) {
    LOCK(t->head);
    int full = t->count >= t->capacity;
    UNLOCK(t->head);
    return PyBool_FromLong(full);
}
static PyObject *Tail_task_done(Tail *t, PyObject *Py_UNUSED(ignored)) {
    Head *h = t->head;
    int gated = enter(h, NEVER), many;
    if (gated < 0) return NULL;
    if (!(many = t->unfinished <= 0)) {
        t->finished++;
        owe(t, t->unfinished - 1);
        if (t->max_in_flight != NO_LIMIT && !t->place.next) {
            settle(t);
            if (t->place.next && h->takers.first) wake_one(h, &h->takers);
        }
    }
    leave(h, gated);
    if (many) { PyErr_SetString(PyExc_ValueError, "task_done() called too many times"); return NULL; }
    Py_RETURN_NONE;
}
static PyObject *Tail_join(Tail *t, PyObject *Py_UNUSED(ignored)) {
    Head *h = t->head;
    int gated = enter(h, NEVER);
    if (gated < 0 || wait_until(h, t, (PyObject *)t, &t->joiners, over_join, 1, NEVER, &gated) < 0) return NULL;
    leave(h, gated);
    Py_RETURN_NONE;
}
static PyObject *Tail_peek(Tail *t, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const char *const names[] = {"default"};
    PyObject *a[1] = {Py_None}, *item = NULL;
    if (unpack("peek", names, 1, 0, args, n, kwnames, a) < 0) return NULL;
    int gated = enter(t->head, NEVER);
    if (gated < 0) return NULL;
    if (t->count) item = Py_NewRef(*slot(t, 0));
    leave(t->head, gated);
    return item ? item : Py_NewRef(a[0]);
}
static PyObject *Multi_qsize(Multi *m, PyObject *Py_UNUSED(ignored)) {
    int gated = enter(m->head, NEVER);
    if (gated < 0) return NULL;
    Py_ssize_t n = m->head->fair ? m->head->left : m->head->ready;
    leave(m->head, gated);
    return PyLong_FromSsize_t(n);
}
static PyObject *Multi_empty(Multi *m, PyObject *Py_UNUSED(ignored)) {
    int gated = enter(m->head, NEVER);
    if (gated < 0) return NULL;
    int empty = !best(m->head);
    leave(m->head, gated);
    return PyBool_FromLong(empty);
}
static PyObject *Multi_join(Multi *m, PyObject *Py_UNUSED(ignored)) {
    Head *h = m->head;
    int gated = enter(h, NEVER);
    if (gated < 0 || wait_until(h, NULL, (PyObject *)m, &h->joiners, over_join_all, 1, NEVER, &gated) < 0) return NULL;
    leave(h, gated);
    Py_RETURN_NONE;
}

/* ---- what the classes in Python are made of: functions of the module ------------------------------------------------- */

#define TAIL(o) if (!PyObject_TypeCheck(o, state_of(module)->tail_type)) { PyErr_Format(PyExc_TypeError, "%R is no tail", o); return NULL; }
#define MULTI(o) if (!PyObject_TypeCheck(o, state_of(module)->multi_type)) { PyErr_Format(PyExc_TypeError, "%R is no multi-queue", o); return NULL; }
#define ENTER(h) int gated = enter(h, NEVER); if (gated < 0) return NULL

/* A limit as Python has it, None for none. -1: exception. */
static Py_ssize_t limit_of(PyObject *o) {
    if (o == Py_None) return NO_LIMIT;
    Py_ssize_t n = PyNumber_AsSsize_t(o, NULL);            /* beyond the range is no limit either */
    return n;
}
static PyObject *limit_to(Py_ssize_t n) { return n == NO_LIMIT ? Py_NewRef(Py_None) : PyLong_FromSsize_t(n); }

static void head_free(Head *h) {
    State *st = h->st;
    LOCK(st);
    if (h->prev) h->prev->next = h->next; else st->heads = h->next;
    if (h->next) h->next->prev = h->prev;
    UNLOCK(st);
    Line *lines[] = {&h->takers, &h->joiners};
    for (int i = 0; i < 2; i++) for (Waiter *w; (w = lines[i]->first);) { line_remove(lines[i], w); if (!w->lock) waiter_free(w); }
    ring_free(&h->ring);
    PyMem_Free(h->table.buckets);    /* the tails refer to us: none is left */
    Py_XDECREF(h->gate);
    PyMem_Free(h);
}
static Head *head_new(State *st) {
    Head *h = PyMem_Calloc(1, sizeof *h);
    if (!h) { PyErr_NoMemory(); return NULL; }
    h->st = st;
    h->ring.least = 1.0;                        /* a turn is charged 1, whatever the weight: then nobody is in advance */
    LOCK(st);
    h->next = st->heads;
    if (h->next) h->next->prev = h;
    st->heads = h;
    UNLOCK(st);
    return h;
}
static void adopt(Head *h, Tail *t) {
    t->head = h;
    t->elder = NULL;
    if ((t->sibling = h->tails)) t->sibling->elder = t;
    h->tails = t;
    h->n_tails++;
}
/* bind(tail, multi, priority, capacity, max_in_flight, weight): a new tail becomes one of a multi-queue, not attached. */
static PyObject *bind_tail(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 6) { PyErr_SetString(PyExc_TypeError, "bind takes 6 arguments"); return NULL; }
    TAIL(args[0]) MULTI(args[1])
    Tail *t = (Tail *)args[0];
    Head *h = ((Multi *)args[1])->head, *old = t->head;
    if (t->owner) { PyErr_SetString(PyExc_TypeError, "it belongs to a multi-queue already"); return NULL; }
    long long priority = PyLong_AsLongLong(args[2]);
    if (priority == -1 && PyErr_Occurred()) return NULL;
    Py_ssize_t capacity = limit_of(args[3]), most = limit_of(args[4]), weight = limit_of(args[5]);
    if (PyErr_Occurred()) return NULL;
    ENTER(h);
    Level *g = level_enter(&h->ring, priority);
    if (g) {
        adopt(h, t);
        t->level = g;
        t->limit = t->capacity = capacity;
        t->max_in_flight = most;
        t->weight = weight;
        t->owner = Py_NewRef(args[1]);
    }
    leave(h, gated);
    if (!g) return PyErr_NoMemory();
    head_free(old);
    Py_RETURN_NONE;
}
/* attach(tail): the multi-queue takes from it from now on. False if that one is shut down, and then it is not. */
static PyObject *attach(PyObject *module, PyObject *o) {
    TAIL(o)
    Tail *t = (Tail *)o;
    Head *h = t->head;
    ENTER(h);
    int refused = h->closed && !t->was_attached;
    if (!refused && !t->attached) {
        t->attached = t->was_attached = 1;
        if (t->closed == DETACHED) { t->closed = h->closed ? SHUT : OPEN; t->limit = h->closed ? -1 : t->capacity; }
        h->left += t->count;
        if (t->unfinished > 0) h->busy++;
        settle(t);
        stir(h, t);
    }
    leave(h, gated);
    return PyBool_FromLong(!refused);
}
static void close_tail(Tail *t, Closed closed) {
    Head *h = t->head;
    if (t->closed == OPEN) { t->closed = closed; t->limit = -1; }
    wake_all(h, &t->putters);
    if (!t->count) wake_all(h, &t->takers);
}
/* detach(tail, unused): with `unused` only if it has no elements, nor any in flight. Whether it is detached. */
static PyObject *detach(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "detach takes 2 arguments"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    ENTER(h);
    if (t->attached && !(args[1] == Py_True && (t->count || t->unfinished > 0))) {
        if (t->place.next) unlink_tail(t);
        t->attached = 0;
        h->left -= t->count;
        if (t->unfinished > 0 && --h->busy == 0) wake_all(h, &h->joiners);
        close_tail(t, DETACHED);
        if (h->closed && !h->left) wake_all(h, &h->takers);
    }
    int done = !t->attached;
    leave(h, gated);
    return PyBool_FromLong(done);
}
/* close(tail, immediate) */
static PyObject *close_one(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "close takes 2 arguments"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    int immediate = PyObject_IsTrue(args[1]);
    if (immediate < 0) return NULL;
    Swept swept = {0};
    ENTER(h);
    close_tail(t, SHUT);
    if (immediate) swept = sweep(t);
    leave(h, gated);
    drop(&swept);
    Py_RETURN_NONE;
}
/* close_all(multi, immediate): one moment for all tails. */
static PyObject *close_all(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "close_all takes 2 arguments"); return NULL; }
    MULTI(args[0])
    Head *h = ((Multi *)args[0])->head;
    int immediate = PyObject_IsTrue(args[1]);
    if (immediate < 0) return NULL;
    Swept *swept = NULL;
    Tail *gone = NULL;
    for (Py_ssize_t room = 0, i = 0;;) {
        ENTER(h);
        Py_ssize_t needed = immediate ? h->n_tails : 0;
        if (needed <= room) {
            h->closed = 1;
            for (Tail *t = h->tails; t; t = t->sibling) {
                if (!t->attached) continue;
                close_tail(t, SHUT);
                if (immediate) { swept[i++] = sweep(t); reap(t, &gone); }
            }
            if (!h->left) wake_all(h, &h->takers);
            leave(h, gated);
            while (i) drop(&swept[--i]);
            drop_gone(gone);
            PyMem_Free(swept);
            Py_RETURN_NONE;
        }
        leave(h, gated);
        PyMem_Free(swept);
        if (!(swept = PyMem_Malloc((room = needed + 8) * sizeof *swept))) return PyErr_NoMemory();
    }
}
static PyObject *is_closed(PyObject *module, PyObject *o) {
    MULTI(o)
    LOCK(((Multi *)o)->head);
    int closed = ((Multi *)o)->head->closed;
    UNLOCK(((Multi *)o)->head);
    return PyBool_FromLong(closed);
}
/* assign(tail, name, value): one of the settings */
static PyObject *assign(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 3 || !PyUnicode_Check(args[1])) { PyErr_SetString(PyExc_TypeError, "assign takes a tail, a name and a value"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    int failed = 0, is_priority = PyUnicode_CompareWithASCIIString(args[1], "priority") == 0;
    long long priority = is_priority ? PyLong_AsLongLong(args[2]) : 0;
    Py_ssize_t value = is_priority || t->key ? 0 : limit_of(args[2]);
    if (PyErr_Occurred()) return NULL;
    if (t->key) return assign_fair(t, args[1], args[2]);
    ENTER(h);
    if (is_priority) {
        Level *l = t->level && t->level->priority == priority ? t->level : level_enter(&h->ring, priority);
        if (!(failed = !l) && l != t->level) {
            if (t->place.next) unlink_tail(t);
            if (t->level) ring_move(&t->place, t->level, l);
            level_leave(&h->ring, t->level);
            t->level = l;
        }
    }
    else if (PyUnicode_CompareWithASCIIString(args[1], "weight") == 0) { t->weight = value; }
    else if (PyUnicode_CompareWithASCIIString(args[1], "max_in_flight") == 0) t->max_in_flight = value;
    else if (PyUnicode_CompareWithASCIIString(args[1], "unfinished") == 0) {
        t->finished += t->unfinished - value;
        owe(t, value);
    }
    else { t->capacity = value; if (t->closed == OPEN) t->limit = value; }
    settle(t);
    stir(h, t);
    leave(h, gated);
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
/* replace_reasons(tail, before, after): False if the reasons are not `before` any more. */
static PyObject *replace_reasons(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 3) { PyErr_SetString(PyExc_TypeError, "replace_reasons takes 3 arguments"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    PyObject *old = NULL;
    int enabled = PyObject_Size(args[2]) == 0;
    ENTER(h);
    int same = (t->reasons == args[1] || (!t->reasons && args[1] == Py_None)) && t->closed != GONE;
    Tail *gone = NULL;
    if (same) {
        old = t->reasons;
        t->reasons = Py_NewRef(args[2]);
        t->enabled = enabled;
        settle(t);
        stir(h, t);
        reap(t, &gone);
    }
    leave(h, gated);
    drop_gone(gone);
    Py_XDECREF(old);
    return PyBool_FromLong(same);
}
static PyObject *reasons(PyObject *module, PyObject *o) {
    TAIL(o)
    Tail *t = (Tail *)o;
    ENTER(t->head);
    PyObject *r = Py_XNewRef(t->reasons);
    leave(t->head, gated);
    return r ? r : Py_NewRef(Py_None);
}
/* figures(tail): all numbers at one moment. It does not pass the gate: gates ask. */
static PyObject *figures(PyObject *module, PyObject *o) {
    TAIL(o)
    Tail *t = (Tail *)o;
    LOCK(t->head);
    Tail s = *t;
    Py_ssize_t putters = line_length(&t->putters), takers = line_length(&t->takers);
    long long priority = t->level ? t->level->priority : 0;
    UNLOCK(t->head);
    return Py_BuildValue("nNnnnnniiiLnNn", s.count, limit_to(s.capacity), s.unfinished, s.finished, s.discarded, putters, takers,
                         (int)s.enabled, (int)s.attached, (int)s.closed, priority, s.weight, limit_to(s.max_in_flight),
                         s.unfinished - s.count);
}
static PyObject *waiting_takers(PyObject *module, PyObject *o) {
    MULTI(o)
    Head *h = ((Multi *)o)->head;
    ENTER(h);
    Py_ssize_t n = line_length(&h->takers);
    leave(h, gated);
    return PyLong_FromSsize_t(n);
}
static PyObject *ready(PyObject *module, PyObject *o) {
    MULTI(o)
    Head *h = ((Multi *)o)->head;
    ENTER(h);
    if (gated) UNLOCK(h); else leave(h, 0);
    PyObject *tuple = ready_tuple(h);
    if (gated) { LOCK(h); leave(h, gated); }
    return tuple;
}

/* due_of(multi, default): the element that would be taken now. */
static PyObject *peek_multi(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "peek takes 2 arguments"); return NULL; }
    MULTI(args[0])
    Head *h = ((Multi *)args[0])->head;
    ENTER(h);
    Tail *t = best(h);
    PyObject *item = Py_NewRef(t ? *slot(t, 0) : args[1]);
    leave(h, gated);
    return item;
}
/* snapshot(tail): a list of its elements. */
static PyObject *snapshot(PyObject *module, PyObject *o) {
    TAIL(o)
    Tail *t = (Tail *)o;
    Head *h = t->head;
    for (Py_ssize_t room = Tail_length(t);;) {
        PyObject *list = PyList_New(room);
        if (!list) return NULL;
        int gated = enter(h, NEVER);
        if (gated < 0) { Py_DECREF(list); return NULL; }
        Py_ssize_t count = t->count;
        if (count <= room) for (Py_ssize_t i = 0; i < count; i++) PyList_SET_ITEM(list, i, Py_NewRef(*slot(t, i)));
        leave(h, gated);
        if (count <= room) { if (count < room && PyList_SetSlice(list, count, room, NULL) < 0) Py_CLEAR(list); return list; }
        Py_DECREF(list);
        room = count + count / 8 + 8;
    }
}
static void take_out(Tail *t, Py_ssize_t i) {   /* element i leaves, and is discarded; its reference is the caller's */
    Head *h = t->head;
    if (i < t->count / 2) {                     /* move the shorter side */
        for (; i > 0; i--) *slot(t, i) = *slot(t, i - 1);
        t->first = (t->first + 1) & (t->size - 1);
    }
    else for (; i + 1 < t->count; i++) *slot(t, i) = *slot(t, i + 1);
    t->count--;
    t->discarded++;
    if (t->attached) h->left--;
    if (t->place.next) h->ready--;
    owe(t, t->unfinished - 1);
    settle(t);
    if (!t->count) {
        if (t->closed) wake_all(h, &t->takers);
        if (h->closed && !h->left) wake_all(h, &h->takers);
    }
    stir(h, t);
}
/* drop[tail]: the element at the head leaves, if it is an empty list: a ticket of the executor without a job. */
static PyObject *door_drop(State *st, PyObject *o) {
    if (!PyObject_TypeCheck(o, st->tail_type)) { PyErr_Format(PyExc_TypeError, "%R is no tail", o); return NULL; }
    Tail *t = (Tail *)o;
    PyObject *item = NULL;
    int struck = 0, gated = enter_surely(t->head, &struck);
    if (t->count) {
        item = *slot(t, 0);
        if (PyList_CheckExact(item) && PyList_GET_SIZE(item) == 0) take_out(t, 0); else item = NULL;
    }
    leave(t->head, gated);
    if (struck) strike_later();
    Py_XDECREF(item);
    return PyBool_FromLong(item != NULL);
}
/* item(tail, index): the element that `index` others stand behind, or None. */
static PyObject *item_at(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "item takes 2 arguments"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Py_ssize_t index = PyLong_AsSsize_t(args[1]);
    if (index == -1 && PyErr_Occurred()) return NULL;
    ENTER(t->head);
    PyObject *item = Py_NewRef(index >= 0 && index < t->count ? *slot(t, t->count - 1 - index) : Py_None);
    leave(t->head, gated);
    return item;
}
/* remove(tail, item): the element that is `item`, the same object, if it is there. */
static PyObject *remove_item(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "remove takes 2 arguments"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    ENTER(h);
    Py_ssize_t i = 0;
    while (i < t->count && *slot(t, i) != args[1]) i++;
    int found = i < t->count;
    if (found) take_out(t, i);
    leave(h, gated);
    if (found) Py_DECREF(args[1]);             /* the tail's; the caller has one */
    return PyBool_FromLong(found);
}
/* discard(tail): empty it; how many. */
static PyObject *discard(PyObject *module, PyObject *o) {
    TAIL(o)
    Tail *t = (Tail *)o;
    ENTER(t->head);
    Swept swept = sweep(t);
    leave(t->head, gated);
    Py_ssize_t count = swept.count;
    drop(&swept);
    return PyLong_FromSsize_t(count);
}
/* replace(queue, list): these are its elements now. What it counts as unfinished stays as it is. */
static PyObject *replace(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2 || !PyList_CheckExact(args[1])) { PyErr_SetString(PyExc_TypeError, "replace takes a tail and a list"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    Head *h = t->head;
    Py_ssize_t count = PyList_GET_SIZE(args[1]), size = LEAST_RING;
    while (size < count) size *= 2;
    PyObject **ring = PyMem_Malloc(size * sizeof *ring);
    if (!ring) return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < count; i++) ring[i] = Py_NewRef(PyList_GET_ITEM(args[1], i));
    int gated = enter(h, NEVER);
    Swept swept = {ring, size, 0, count};
    if (gated < 0) { drop(&swept); return NULL; }
    if (t->place.next) unlink_tail(t);
    if (t->attached) h->left += count - t->count;
    Swept old = {t->ring, t->size, t->first, t->count};
    t->ring = ring; t->size = size; t->first = 0; t->count = count;
    settle(t);
    for (Py_ssize_t i = 0; i < count && t->takers.first; i++) wake_one(h, &t->takers);
    stir(h, t);
    leave(h, gated);
    drop(&old);
    Py_RETURN_NONE;
}
/* give_back(tail, item): to the head; it was not taken. */
static PyObject *give_back(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "give_back takes 2 arguments"); return NULL; }
    TAIL(args[0])
    Tail *t = (Tail *)args[0];
    int struck = 0, gated = enter_surely(t->head, &struck);
    int failed = push_first(t, args[1], 1) < 0;
    leave(t->head, gated);
    if (struck) return NULL;
    if (failed) return PyErr_NoMemory();
    Py_RETURN_NONE;
}
/* park(queue, waiter, putting): put `waiter` in line, unless what it waits for is there already: False then. */
static PyObject *park_object(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    State *st = state_of(module);
    if (n != 3) { PyErr_SetString(PyExc_TypeError, "park takes 3 arguments"); return NULL; }
    Tail *t = PyObject_TypeCheck(args[0], st->tail_type) ? (Tail *)args[0] : NULL;
    if (!t) MULTI(args[0])
    Head *h = t ? t->head : ((Multi *)args[0])->head;
    int putting = args[2] == Py_True;
    Waiter *w = PyMem_Calloc(1, sizeof *w);
    if (!w) return PyErr_NoMemory();
    w->object = Py_NewRef(args[1]);
    w->owner = Py_NewRef(args[0]);
    int gated = enter(h, NEVER);
    if (gated < 0) { waiter_free(w); return NULL; }
    int over = putting ? over_put(h, t) : t ? over_own_take(h, t) : over_take(h, t);
    if (!over) line_add(putting ? &t->putters : t ? &t->takers : &h->takers, w, 0);
    leave(h, gated);
    if (over) waiter_free(w);
    return PyBool_FromLong(!over);
}
/* unpark(queue, waiter, putting): take it out of line. A wake-up that it has had is passed on. */
static PyObject *unpark_object(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    State *st = state_of(module);
    if (n != 3) { PyErr_SetString(PyExc_TypeError, "unpark takes 3 arguments"); return NULL; }
    Tail *t = PyObject_TypeCheck(args[0], st->tail_type) ? (Tail *)args[0] : NULL;
    if (!t) MULTI(args[0])
    Head *h = t ? t->head : ((Multi *)args[0])->head;
    Line *line = args[2] == Py_True ? &t->putters : t ? &t->takers : &h->takers;
    int struck = 0, gated = enter_surely(h, &struck);
    Waiter *w = line_find(line, args[1]);
    Tail *gone = NULL;
    if (w) line_remove(line, w);
    stir(h, t);
    if (t) reap(t, &gone);
    leave(h, gated);
    if (w) waiter_free(w);
    drop_gone(gone);
    if (struck) return NULL;
    Py_RETURN_NONE;
}
/* stir(tail): look for who can be woken. */
static PyObject *stir_tail(PyObject *module, PyObject *o) {
    TAIL(o)
    Head *h = ((Tail *)o)->head;
    int struck = 0, gated = enter_surely(h, &struck);
    stir(h, (Tail *)o);
    leave(h, gated);
    if (struck) return NULL;
    Py_RETURN_NONE;
}
/* set_gate(queue, gate): the gate of its head, `gate` unless it has one already. */
static PyObject *set_gate(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    State *st = state_of(module);
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "set_gate takes 2 arguments"); return NULL; }
    Tail *t = PyObject_TypeCheck(args[0], st->tail_type) ? (Tail *)args[0] : NULL;
    if (!t) MULTI(args[0])
    Head *h = t ? t->head : ((Multi *)args[0])->head;
    LOCK(h);
    if (!h->gate) h->gate = Py_NewRef(args[1]);
    PyObject *gate = Py_NewRef(h->gate);
    UNLOCK(h);
    return gate;
}
static PyObject *set_hooked(PyObject *module, PyObject *o) { TAIL(o) ((Tail *)o)->hooked = 1; Py_RETURN_NONE; }
static PyObject *set_selection(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "set_selection takes 2 arguments"); return NULL; }
    MULTI(args[0])
    Multi *m = (Multi *)args[0];
    Py_XSETREF(m->selection, args[1] == Py_None ? NULL : Py_NewRef(args[1]));
    Py_RETURN_NONE;
}
static PyObject *selection(PyObject *module, PyObject *o) {
    MULTI(o)
    PyObject *s = ((Multi *)o)->selection;
    return Py_NewRef(s ? s : Py_None);
}

/* after_fork(): in the child. No other thread waits any more, and no lock is held. This one waits still if a signal
 * handler that interrupts its waits has forked. */
static void forget(Line *l) {
    Waiter *w = l->first;
    l->first = l->last = NULL;
    while (w) {
        Waiter *next = w->next;
        if (!w->lock) waiter_free(w);
        else if (w->thread == PyThread_get_thread_ident()) line_add(l, w, 0);
        else PyMem_Free(w);
        w = next;
    }
}
static PyObject *after_fork(PyObject *module, PyObject *Py_UNUSED(ignored)) {
    State *st = state_of(module);
#ifdef Py_GIL_DISABLED
    memset(&st->mutex, 0, sizeof st->mutex);
#endif
    for (Head *h = st->heads; h; h = h->next) {
#ifdef Py_GIL_DISABLED
        memset(&h->mutex, 0, sizeof h->mutex);
#endif
        h->calls = h->last_call = NULL;
        forget(&h->takers);
        forget(&h->joiners);
        for (Tail *t = h->tails; t; t = t->sibling) { forget(&t->takers); forget(&t->putters); forget(&t->joiners); }
        if (h->gate) {
            PyObject *done = PyObject_CallMethod(h->gate, "_at_fork_reinit", NULL);
            if (!done) return NULL;
            Py_DECREF(done);
        }
    }
    Py_RETURN_NONE;
}

/* check(queue): what must be true between any two operations. For tests. */
#define HOLDS(condition, message) if (!wrong && !(condition)) wrong = message
static const char *check_tail(Tail *t) {
    const char *wrong = NULL;
    Head *h = t->head;
    HOLDS(t->count >= 0 && t->count <= t->size, "the ring holds what is counted");
    HOLDS(t->unfinished + t->discarded >= 0, "no more is done than was put");
    HOLDS((t->place.next != NULL) == ((t->count || t->inner.n_active) && eligible(t)), "what is ready is linked, and nothing else");
    HOLDS(!t->key || t->max_in_flight != NO_LIMIT || t->unfinished == t->count, "without a limit nothing is counted in flight");
    HOLDS(!t->key || t->closed == GONE || t->is_fading || !is_idle(t), "a tail that has nothing has gone");
    HOLDS(!t->place.next || t->place.next->prev == &t->place, "the ring of turns is closed");
    HOLDS((t->closed != OPEN) == (t->limit == -1), "closed means that no count is low enough");
    HOLDS(!(t->putters.first && (t->count < t->limit || t->closed)), "no putter waits for room while there is room");
    HOLDS(!(t->takers.first && (t->count || t->closed)), "no taker waits for an element while there is one");
    HOLDS(!(t->joiners.first && t->unfinished <= 0), "no joiner waits for a join that is fulfilled");
    HOLDS(!h->calls, "nobody is left to be called");
    return wrong;
}
static const char *check_ring(Ring *r, Py_ssize_t *seen) {
    const char *wrong = NULL;
    Py_ssize_t active = 0;
    for (Py_ssize_t i = 0; i < r->n_levels && !wrong; i++) {
        HOLDS(i == 0 || r->levels[i - 1]->priority < r->levels[i]->priority, "levels stand in ascending order, each once");
        Place *p = r->levels[i]->cursor;
        if (!p) continue;
        HOLDS(active < r->n_active && r->active[active] == r->levels[i], "the levels with members are listed as active");
        HOLDS(p->round == r->levels[i]->round, "it is the turn of one who has a turn in this round");
        active++;
        do { HOLDS(tail_of(p)->level == r->levels[i], "a tail is linked in its level"); ++*seen; p = p->next; } while (p != r->levels[i]->cursor);
    }
    HOLDS(active == r->n_active, "no other level is active");
    return wrong;
}
static PyObject *check(PyObject *module, PyObject *o) {
    State *st = state_of(module);
    const char *wrong = NULL;
    Tail *t = PyObject_TypeCheck(o, st->tail_type) ? (Tail *)o : NULL;
    if (!t) MULTI(o)
    Head *h = t ? t->head : ((Multi *)o)->head;
    ENTER(h);
    if (t) wrong = check_tail(t);
    else {
        Py_ssize_t ready = 0, left = 0, busy = 0, linked = 0, seen = 0, there = 0;
        for (t = h->tails; t && !wrong; t = t->sibling) {
            wrong = check_tail(t);
            if (t->place.next) { ready += t->count; linked++; }
            if (t->attached) { left += t->count; busy += t->unfinished > 0; there++; }
            if (t->key && !wrong) wrong = check_ring(&t->inner, &seen);
        }
        if (!wrong) wrong = check_ring(&h->ring, &seen);
        HOLDS(seen == linked, "each is linked once");
        HOLDS(ready == h->ready && left == h->left && (h->fair || busy == h->busy), "the totals are the sums");
        HOLDS(!h->fair || h->table.count == there, "the tails that are there are in the table");
        HOLDS(!(h->joiners.first && h->busy <= 0), "no joiner of all waits for nothing");
    }
    leave(h, gated);
    if (wrong) { PyErr_SetString(PyExc_AssertionError, wrong); return NULL; }
    Py_RETURN_NONE;
}

/* ---- types: birth and end ------------------------------------------------------------------------------------------- */

static struct PyModuleDef module_def;
#define METHOD(f) ((PyCFunction)(void (*)(void))(f))

static PyObject *Tail_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs)) {
    PyObject *module = PyType_GetModuleByDef(type, &module_def);
    Tail *t = module ? (Tail *)type->tp_alloc(type, 0) : NULL;
    if (!t) return NULL;
    Head *h = head_new(state_of(module));
    if (!h) { Py_DECREF(t); return NULL; }
    t->limit = t->capacity = t->max_in_flight = NO_LIMIT;
    t->weight = 1;
    t->enabled = 1;
    adopt(h, t);
    return (PyObject *)t;
}
static int Tail_traverse(Tail *t, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(t));
    Py_VISIT(t->owner);
    Py_VISIT(t->reasons);
    Py_VISIT(t->key);
    Py_VISIT(t->outer);
    for (Py_ssize_t i = 0; i < t->count; i++) Py_VISIT(*slot(t, i));
    Line *lines[] = {&t->takers, &t->putters, &t->joiners};
    for (int i = 0; i < 3; i++)
        for (Waiter *w = lines[i]->first; w; w = w->next) { Py_VISIT(w->object); Py_VISIT(w->owner); }
    if (t->head && !t->owner) Py_VISIT(t->head->gate);
    return 0;
}
/* The owner stays: what an element's finalizer calls now finds a tail that is empty, with its head. */
static int Tail_clear(Tail *t) {
    if (!t->head) return 0;
    LOCK(t->head);
    Waiter *w, *waiters = NULL;
    Line *lines[] = {&t->takers, &t->putters, &t->joiners};
    for (int i = 0; i < 3; i++)
        for (w = lines[i]->first; w; w = lines[i]->first) { line_remove(lines[i], w); if (!w->lock) { w->next = waiters; waiters = w; } }
    Swept swept = sweep(t);
    UNLOCK(t->head);
    while ((w = waiters)) { waiters = w->next; waiter_free(w); }
    drop(&swept);
    Py_CLEAR(t->reasons);
    return 0;
}
static void Tail_dealloc(Tail *t) {
    PyTypeObject *type = Py_TYPE(t);
    Head *h = t->head;
    PyObject_GC_UnTrack(t);
    Tail_clear(t);
    if (h) {
        LOCK(h);
        if (t->place.next) { if (t->key) leave_fair(t); else unlink_tail(t); }
        if (t->attached && t->unfinished > 0) h->busy--;
        if (t->elder) t->elder->sibling = t->sibling; else h->tails = t->sibling;
        if (t->sibling) t->sibling->elder = t->elder;
        h->n_tails--;
        level_leave(ring_of(t), t->level);
        UNLOCK(h);
        if (!t->owner) head_free(h);
    }
    ring_free(&t->inner);
    Py_CLEAR(t->outer);
    Py_CLEAR(t->key);
    Py_CLEAR(t->owner);
    type->tp_free(t);
    Py_DECREF(type);
}
static PyObject *Multi_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs)) {
    PyObject *module = PyType_GetModuleByDef(type, &module_def);
    Multi *m = module ? (Multi *)type->tp_alloc(type, 0) : NULL;
    if (m && !(m->head = head_new(state_of(module)))) Py_CLEAR(m);
    return (PyObject *)m;
}
static int Multi_traverse(Multi *m, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(m));
    Py_VISIT(m->selection);
    if (m->head) {
        Py_VISIT(m->head->gate);
        for (size_t i = 0; m->head->table.buckets && i < (size_t)1 << m->head->table.bits; i++)
            for (Tail *t = m->head->table.buckets[i]; t; t = t->chain) Py_VISIT(t);
        Line *lines[] = {&m->head->takers, &m->head->joiners};
        for (int i = 0; i < 2; i++)
            for (Waiter *w = lines[i]->first; w; w = w->next) { Py_VISIT(w->object); Py_VISIT(w->owner); }
    }
    return 0;
}
static int Multi_clear(Multi *m) {
    if (m->head) {
        Waiter *w, *waiters = NULL;
        Tail *gone = NULL;
        LOCK(m->head);
        table_clear(m->head, &gone);
        for (w = m->head->takers.first; w; w = m->head->takers.first) { line_remove(&m->head->takers, w); if (!w->lock) { w->next = waiters; waiters = w; } }
        UNLOCK(m->head);
        while ((w = waiters)) { waiters = w->next; waiter_free(w); }
        drop_gone(gone);
    }
    Py_CLEAR(m->selection);
    return 0;
}
static void Multi_dealloc(Multi *m) {          /* each tail has a reference to us: there is none left */
    PyTypeObject *type = Py_TYPE(m);
    PyObject_GC_UnTrack(m);
    Multi_clear(m);
    if (m->head) head_free(m->head);
    type->tp_free(m);
    Py_DECREF(type);
}
#include "_ring_types.h"           /* the ring for Python: it needs State and unpack */
#include "_fair.h"                 /* fair queues: it needs all of the above */

static PyObject *Door_subscript(Door *d, PyObject *key) { return d->take(d->st, key); }
static int Door_traverse(Door *d, visitproc visit, void *arg) { Py_VISIT(Py_TYPE(d)); Py_VISIT(d->module); return 0; }
static int Door_clear(Door *d) { Py_CLEAR(d->module); return 0; }
static void Door_dealloc(Door *d) {
    PyTypeObject *type = Py_TYPE(d);
    PyObject_GC_UnTrack(d);
    Py_CLEAR(d->module);
    type->tp_free(d);
    Py_DECREF(type);
}

static PyMethodDef tail_methods[] = {
    {"put", METHOD(Tail_put), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("put($self, item, block=True, timeout=None)\n--\n\n"
     "Put `item` at the tail, waiting while the queue is full.\n\n"
     "Any object, None too. Waits until there is room, the queue is closed, or `timeout` seconds are over; with\n"
     "`block=False` not at all. Any thread; also from a signal handler, `__del__` or a weakref callback.\n\n"
     "Raises:\n"
     "    Full: there was no room in time. The exception's `item` is the element.\n"
     "    ShutDown: `shutdown()` was called, before or while waiting. `Detached` (a `ShutDown`): the sub-queue was\n"
     "        removed from its multi-queue. The exception's `item` is the element.\n"
     "    ValueError: `timeout` is negative.")},
    {"offer", METHOD(Tail_offer), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("offer($self, item, timeout=0.0)\n--\n\n"
     "Put `item` and return True, or return False when there was no room within `timeout` seconds.\n\n"
     "Raises:\n    ShutDown: as for `put`.")},
    {"put_first", METHOD(Tail_put_first), METH_O, PyDoc_STR("put_first($self, item)\n--\n\n"
     "Put `item` at the head, capacity notwithstanding: for an element that was taken and is given back.\n\n"
     "Does not wait. The take that it undoes still counts as in flight until `task_done()`.\n\n"
     "Raises:\n    ShutDown: as for `put`. The exception's `item` is the element.")},
    {"peek", METHOD(Tail_peek), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("peek($self, default=None)\n--\n\n"
     "The element at the head, which stays where it is, or `default`. It may be taken at any time.")},
    {"qsize", METHOD(Tail_qsize), METH_NOARGS, PyDoc_STR("qsize($self)\n--\n\nThe number of elements here, at this moment.")},
    {"empty", METHOD(Tail_empty), METH_NOARGS, PyDoc_STR("empty($self)\n--\n\nWas there nothing here, at this moment?")},
    {"full", METHOD(Tail_full), METH_NOARGS, PyDoc_STR("full($self)\n--\n\nWas there no room, at this moment?")},
    {"task_done", METHOD(Tail_task_done), METH_NOARGS, PyDoc_STR("task_done($self)\n--\n\n"
     "Say that an element that was taken is dealt with. Any thread.\n\n"
     "Raises:\n    ValueError: called more often than there were elements.")},
    {"join", METHOD(Tail_join), METH_NOARGS, PyDoc_STR("join($self)\n--\n\n"
     "Wait until `task_done()` was called for every element that was put and not discarded.")},
    {0}};
static PyType_Slot tail_slots[] = {
    {Py_tp_doc, (void *)"One queue with its own tail."}, {Py_tp_new, Tail_new}, {Py_tp_dealloc, Tail_dealloc},
    {Py_tp_traverse, Tail_traverse}, {Py_tp_clear, Tail_clear}, {Py_tp_methods, tail_methods}, {Py_sq_length, Tail_length}, {0}};
static PyType_Spec tail_spec = {"multiqueue.core._engine.Tail", sizeof(Tail), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, tail_slots};

static PyMethodDef multi_methods[] = {
    {"qsize", METHOD(Multi_qsize), METH_NOARGS, PyDoc_STR("qsize($self)\n--\n\n"
     "How many elements could be taken now: of sub-queues that are enabled and below their in-flight limit.")},
    {"empty", METHOD(Multi_empty), METH_NOARGS, PyDoc_STR("empty($self)\n--\n\nCould nothing be taken, at this moment?")},
    {"join", METHOD(Multi_join), METH_NOARGS, PyDoc_STR("join($self)\n--\n\n"
     "Wait until `task_done()` was called for every element that was put into the sub-queues attached now or\n"
     "added meanwhile, and not discarded.")},
    {0}};
static PyType_Slot multi_slots[] = {
    {Py_tp_doc, (void *)"Many tails that meet at one head."}, {Py_tp_new, Multi_new}, {Py_tp_dealloc, Multi_dealloc},
    {Py_tp_traverse, Multi_traverse}, {Py_tp_clear, Multi_clear}, {Py_tp_methods, multi_methods}, {0}};
static PyType_Spec multi_spec = {"multiqueue.core._engine.Multi", sizeof(Multi), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, multi_slots};

static PyType_Slot door_slots[] = {
    {Py_tp_doc, (void *)"An operation as a subscription: nothing strikes between its end and the next instruction."},
    {Py_tp_dealloc, Door_dealloc}, {Py_tp_traverse, Door_traverse}, {Py_tp_clear, Door_clear}, {Py_mp_subscript, Door_subscript}, {0}};
static PyType_Spec door_spec = {"multiqueue.core._engine.Door", sizeof(Door), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, door_slots};

/* configure(sync, native_lock, empty, shut_down, taken, fair_taken, refusal, ending, select, selected, put, get): what _multi_queue.py provides */
static PyObject *configure(PyObject *module, PyObject *args) {
    State *st = state_of(module);
    PyObject **fields[] = {&st->sync, &st->native_lock, &st->empty, &st->shut_down, &st->taken, &st->fair_taken, &st->refusal, &st->ending,
                           &st->select, &st->selected, &st->put, &st->get};
    Py_ssize_t n = sizeof fields / sizeof *fields;
    if (PyTuple_GET_SIZE(args) != n) { PyErr_Format(PyExc_TypeError, "configure takes %zd arguments", n); return NULL; }
    for (int i = 4; i < 6; i++) {
        PyObject *taken = PyTuple_GET_ITEM(args, i);
        if (!PyType_Check(taken) || !PyType_IsSubtype((PyTypeObject *)taken, &PyTuple_Type)) { PyErr_SetString(PyExc_TypeError, "taken must be a tuple class"); return NULL; }
    }
    for (Py_ssize_t i = 0; i < n; i++) Py_XSETREF(*fields[i], Py_NewRef(PyTuple_GET_ITEM(args, i)));
    Py_RETURN_NONE;
}
static PyMethodDef functions[] = {
    {"configure", configure, METH_VARARGS, NULL},
    {"put_some", METHOD(put_some), METH_FASTCALL, NULL}, {"bind", METHOD(bind_tail), METH_FASTCALL, NULL},
    {"attach", attach, METH_O, NULL}, {"detach", METHOD(detach), METH_FASTCALL, NULL},
    {"close", METHOD(close_one), METH_FASTCALL, NULL}, {"close_all", METHOD(close_all), METH_FASTCALL, NULL},
    {"is_closed", is_closed, METH_O, NULL}, {"assign", METHOD(assign), METH_FASTCALL, NULL},
    {"replace_reasons", METHOD(replace_reasons), METH_FASTCALL, NULL}, {"reasons", reasons, METH_O, NULL},
    {"figures", figures, METH_O, NULL}, {"waiting_takers", waiting_takers, METH_O, NULL}, {"ready", ready, METH_O, NULL},
    {"peek", METHOD(peek_multi), METH_FASTCALL, NULL}, {"snapshot", snapshot, METH_O, NULL},
    {"item", METHOD(item_at), METH_FASTCALL, NULL}, {"remove", METHOD(remove_item), METH_FASTCALL, NULL}, {"discard", discard, METH_O, NULL},
    {"replace", METHOD(replace), METH_FASTCALL, NULL}, {"give_back", METHOD(give_back), METH_FASTCALL, NULL},
    {"park", METHOD(park_object), METH_FASTCALL, NULL}, {"unpark", METHOD(unpark_object), METH_FASTCALL, NULL},
    {"stir", stir_tail, METH_O, NULL}, {"set_gate", METHOD(set_gate), METH_FASTCALL, NULL},
    {"set_hooked", set_hooked, METH_O, NULL}, {"set_selection", METHOD(set_selection), METH_FASTCALL, NULL},
    {"selection", selection, METH_O, NULL}, {"after_fork", after_fork, METH_NOARGS, NULL}, {"check", check, METH_O, NULL},
    {"set_fair", METHOD(set_fair), METH_FASTCALL, NULL}, {"keyed", METHOD(keyed), METH_FASTCALL, NULL},
    {"key_of", key_of_tail, METH_O, NULL}, {"put_keyed", METHOD(put_keyed), METH_FASTCALL, NULL},
    {"done", METHOD(done), METH_FASTCALL, NULL}, {"set_keyed", METHOD(set_keyed), METH_FASTCALL, NULL}, {"tails", tails, METH_O, NULL},
    {0}};

static int add_door(PyObject *module, const char *name, PyObject *(*take)(State *, PyObject *)) {
    State *st = state_of(module);
    Door *d = (Door *)st->door_type->tp_alloc(st->door_type, 0);
    if (!d) return -1;
    d->st = st;
    d->take = take;
    d->module = Py_NewRef(module);
#if defined(Py_GIL_DISABLED) && PY_VERSION_HEX >= 0x030E0000
    PyUnstable_EnableDeferredRefcount((PyObject *)d);          /* every take of every thread refers to it: counting those */
#elif defined(Py_GIL_DISABLED)                                 /* would have threads that share nothing wait for each other */
    d->ob_base.ob_ref_local = _Py_IMMORTAL_REFCNT_LOCAL;       /* and its module stays, once per interpreter */
#endif
    int failed = PyModule_AddObjectRef(module, name, (PyObject *)d);
    Py_DECREF(d);
    return failed;
}
static int module_exec(PyObject *module) {
    State *st = state_of(module);
    st->tail_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &tail_spec, NULL);
    st->multi_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &multi_spec, NULL);
    st->door_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &door_spec, NULL);
    st->ring_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &ring_spec, NULL);
    st->turn_type = (PyTypeObject *)PyType_FromModuleAndSpec(module, &turn_spec, NULL);
    st->allocate_lock = PyUnicode_InternFromString("allocate_lock");
    st->monotonic = PyUnicode_InternFromString("monotonic");
    st->release = PyUnicode_InternFromString("release");
    st->acquire = PyUnicode_InternFromString("acquire");
    if (PyErr_Occurred()) return -1;
    if (PyModule_AddType(module, st->tail_type) < 0 || PyModule_AddType(module, st->multi_type) < 0
        || PyModule_AddType(module, st->ring_type) < 0 || PyModule_AddType(module, st->turn_type) < 0) return -1;
    if (add_door(module, "due", door_due) < 0 || add_door(module, "get", door_get) < 0 || add_door(module, "poll", door_poll) < 0
        || add_door(module, "take", door_take) < 0 || add_door(module, "pair", door_pair) < 0 || add_door(module, "many", door_many) < 0 || add_door(module, "drop", door_drop) < 0) return -1;
    return 0;
}
#define STATE_OBJECTS(F) F(tail_type) F(multi_type) F(door_type) F(ring_type) F(turn_type) F(sync) F(allocate_lock) F(native_lock) F(monotonic) F(release) \
    F(acquire) F(empty) F(shut_down) F(taken) F(fair_taken) F(refusal) F(ending) F(select) F(selected) F(put) F(get)
static int module_traverse(PyObject *module, visitproc visit, void *arg) {
    State *st = state_of(module);
#define VISIT(field) Py_VISIT(st->field);
    STATE_OBJECTS(VISIT)
    return 0;
}
static int module_clear(PyObject *module) {
    State *st = state_of(module);
#define CLEAR(field) Py_CLEAR(st->field);
    STATE_OBJECTS(CLEAR)
    return 0;
}
static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "multiqueue.core._engine",
    PyDoc_STR("The engine of the core in C. `_multi_queue`, `_sub_queue` and `_queue` make classes of it."), sizeof(State), functions, module_slots,
    module_traverse, module_clear, NULL};
PyMODINIT_FUNC PyInit__engine(void) { return PyModuleDef_Init(&module_def); }
