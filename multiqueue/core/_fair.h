/* The tails of a fair queue: one for each key, which comes with the first element and goes with the last.
 *
 * Promise     1. There is one tail for equal keys. One that has nothing has gone, or fades: no element, none in flight under
 *                a limit, no putter that waits, nothing nested in it, no setting of its own. It is freed with its key.
 *             2. Each element is charged its cost / weight, at its tail and at those that this one is nested in: the bound
 *                of `_ring.h` holds in each ring. One that is given back after a take is not charged again.
 *             3. `__hash__` and `__eq__` of keys run outside of sections, on the thread that names the key.
 *
 * State       The head's lock guards the table and all fields of tails. The table refers to its tails. A bucket has them by
 *             `born`, ascending: who has compared a key with those up to some number, outside of the section, goes on
 *             behind it, and adds a tail where nothing is left to compare. Going compares nothing.
 *             A tail is in its ring if and only if it is eligible and it, or one nested in it, has something to give.
 *             What is in flight is counted under a limit alone: else `unfinished` is `count`, and who never calls
 *             task_done() has no tails that stay. `Head.busy` counts what is unfinished in the whole queue.
 *
 * Membership  A tail goes in the section after which nothing that was taken from it can come back; its references are
 *             dropped after that section. A putter that has found it before finds it GONE, and looks again.
 *
 * Charges     A tail that has nothing and is ahead of its line by its last element *fades*: it goes when the line has
 *             come so far, or nobody is in its level. So who puts one element at a time is charged for each. Those that
 *             fade stand in a line for each ring, and go at the next take, put or end of an element in it; each once. Where
 *             all costs and weights are 1 that would change nothing, and none fades.
 */

static inline int is_limited(Tail *t) { return t->max_in_flight != NO_LIMIT; }
static int is_idle(Tail *t) {
    return t->attached && !t->count && !t->nested && !t->putters.first && t->enabled && t->share == 1.0
        && t->max_in_flight == t->usual && t->capacity == t->head->capacity && (!is_limited(t) || t->unfinished <= 0);
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

#define LEAST_BITS 3
static inline Tail **bucket_of(Table *table, Py_hash_t hash) {
    return &table->buckets[(unsigned long long)hash * 0x9E3779B97F4A7C15ull >> (64 - table->bits)];
}
static void table_link(Table *table, Tail *t) {
    Tail **at = bucket_of(table, t->hash);
    while (*at && (*at)->born < t->born) at = &(*at)->chain;
    t->chain = *at;
    *at = t;
}
static int table_resize(Table *table, int bits) {    /* -1: no memory, and it stays as it is */
    Tail **old = table->buckets, **buckets = PyMem_Calloc((size_t)1 << bits, sizeof *buckets), *next;
    size_t size = old ? (size_t)1 << table->bits : 0;
    if (!buckets) return -1;
    table->buckets = buckets;
    table->bits = bits;
    for (size_t i = 0; i < size; i++) for (Tail *t = old[i]; t; t = next) { next = t->chain; table_link(table, t); }
    PyMem_Free(old);
    return 0;
}
/* The oldest tail of this hash that is younger than `last`. */
static Tail *table_next(Table *table, Py_hash_t hash, long long last) {
    Tail *t = *bucket_of(table, hash);
    while (t && (t->hash != hash || t->born <= last)) t = t->chain;
    return t;
}
static void come(Tail *t) {
    Head *h = t->head;
    Table *table = &h->table;
    t->born = ++table->born;
    t->attached = 1;
    t->closed = h->closed ? SHUT : OPEN;
    t->limit = h->closed ? -1 : t->capacity;
    if (t->outer) t->outer->nested++;
    table_link(table, (Tail *)Py_NewRef(t));
    if (++table->count > (Py_ssize_t)1 << table->bits) table_resize(table, table->bits + 1);
}
static void go(Tail *t, Tail **gone) {
    Table *table = &t->head->table;
    Tail **at = bucket_of(table, t->hash);
    while (*at != t) at = &(*at)->chain;
    *at = t->chain;
    if (--table->count < (Py_ssize_t)1 << table->bits >> 3 && table->bits > LEAST_BITS) table_resize(table, table->bits - 1);
    t->attached = 0;
    t->closed = GONE;
    t->limit = -1;
    if (t->outer) t->outer->nested--;
    t->chain = *gone;
    *gone = t;
}
static int is_ahead(Tail *t) { return t->head->uneven && t->level->cursor && t->place.served > t->level->line; }
/* Have `t` go, and those it is nested in, if they have nothing: to `gone`, to be dropped after the section. */
static void reap(Tail *t, Tail **gone) {
    for (; t && t->key; t = t->outer) {
        Fading *f = t->outer ? &t->outer->fading : &t->head->fading;
        if (is_idle(t) && !t->is_fading) {
            if (is_ahead(t)) {
                t->is_fading = 1;
                t->next_fading = NULL;
                if (f->first) f->last->next_fading = t; else f->first = t;
                f->last = t;
            }
            else go(t, gone);
        }
        for (Tail *each; (each = f->first) && !(is_idle(each) && is_ahead(each));) {
            f->first = each->next_fading;
            each->is_fading = 0;
            if (is_idle(each)) go(each, gone);
        }
    }
}
static void drop_gone(Tail *gone) { for (Tail *t; (t = gone);) { gone = t->chain; Py_DECREF(t); } }
static void reap_surely(Tail *t) {              /* outside of a section; an exception that is set stays */
    Tail *gone = NULL;
    int before = PyErr_Occurred() != NULL, struck = before, gated = enter_surely(t->head, &struck);
    reap(t, &gone);
    leave(t->head, gated);
    drop_gone(gone);
    if (struck && !before) strike_later();
}
static void table_clear(Head *h, Tail **gone) {
    for (size_t i = 0; h->table.buckets && i < (size_t)1 << h->table.bits; i++)
        for (Tail *t; (t = h->table.buckets[i]);) {
            h->table.buckets[i] = t->chain;
            t->attached = t->is_fading = 0;
            t->fading.first = NULL;
            t->closed = GONE;
            t->limit = -1;
            t->chain = *gone;
            *gone = t;
        }
    h->table.count = 0;
    h->fading.first = NULL;
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

static void leave_fair(Tail *t) { ring_leave(ring_of(t), t->level, &t->place); t->head->ready -= t->count; }
static void settle_fair(Tail *t) {
    for (; t; t = t->outer) {
        int has = t->count || t->inner.n_active, belongs = has && eligible(t);
        if (belongs && !t->place.next) { ring_resume(ring_of(t), t->level, &t->place); t->head->ready += t->count; }
        else if (!belongs && t->place.next) leave_fair(t);
        if (!has) t->place.round = 0;           /* what it has not used of its turn is not kept for later */
    }
}
static PyObject *pop_fair(Tail *t) {
    Head *h = t->head;
    PyObject *item = t->ring[t->first];
    double cost = costs_of(t)[t->first];
    t->first = (t->first + 1) & (t->size - 1);
    t->count--;
    h->left--;
    if (t->place.next) h->ready--;
    if (!is_limited(t)) t->unfinished--;
    for (Tail *each = t; each; each = each->outer) {
        if (each != t && is_limited(each)) each->unfinished++;
        if (cost) ring_charge(ring_of(each), each->level, &each->place, cost / each->share);
    }
    settle_fair(t);
    if (t->putters.first && t->count == t->limit - 1) wake_one(h, &t->putters);
    if (h->closed && !h->left && h->takers.first) wake_all(h, &h->takers);
    return item;
}
static void untake(Tail *t) {                   /* the element at its head is back */
    costs_of(t)[t->first] = 0;
    if (!is_limited(t)) t->unfinished++;
    for (Tail *each = t; each; each = each->outer) {
        if (each != t && is_limited(each) && each->unfinished > each->count) each->unfinished--;
        if (!each->attached) come(each);
    }
}

/* ---- keys ------------------------------------------------------------------------------------------------------- */

static Tail *tail_of_key(Multi *m, PyObject *key, int add);

/* The key of those that `key` is nested in: a new reference, or NULL. */
static PyObject *outer_key(PyObject *key) {
    Py_ssize_t n = PyTuple_CheckExact(key) ? PyTuple_GET_SIZE(key) : 0;
    return n < 2 ? NULL : n == 2 ? Py_NewRef(PyTuple_GET_ITEM(key, 0)) : PyTuple_GetSlice(key, 0, n - 1);
}
static Tail *tail_new(Multi *m, PyObject *key, Py_hash_t hash, int is_outer) {   /* NULL without an exception: it is shut */
    State *st = m->head->st;
    Tail *outer = NULL;
    PyObject *named = outer_key(key);
    if (named) {
        if (!Py_EnterRecursiveCall(" in a nested key")) { outer = tail_of_key(m, named, 2); Py_LeaveRecursiveCall(); }
        Py_DECREF(named);
    }
    if (PyErr_Occurred() || (named && !outer)) return NULL;
    Tail *t = (Tail *)st->tail_type->tp_alloc(st->tail_type, 0);
    if (!t) { Py_XDECREF(outer); return NULL; }
    Head *h = m->head;
    t->key = Py_NewRef(key);
    t->hash = hash;
    t->outer = outer;
    t->owner = Py_NewRef((PyObject *)m);
    t->limit = t->capacity = h->capacity;
    t->max_in_flight = t->usual = is_outer ? NO_LIMIT : h->max_in_flight;
    t->share = 1.0;
    t->enabled = 1;
    int gated = enter(h, NEVER);
    if (gated >= 0) { adopt(h, t); t->level = level_enter(ring_of(t), 0); leave(h, gated); }
    if (t->level) return t;
    if (gated >= 0) PyErr_NoMemory();
    Py_DECREF(t);
    return NULL;
}
/* The tail of `key`: a new reference. `add`: made if there is none, 2 for one that others are nested in.
 * NULL without an exception: there is none; with `add`: the queue is shut. */
static Tail *tail_of_key(Multi *m, PyObject *key, int add) {
    Head *h = m->head;
    while (PyTuple_CheckExact(key) && PyTuple_GET_SIZE(key) == 1) key = PyTuple_GET_ITEM(key, 0);
    Py_hash_t hash = PyObject_Hash(key);
    if (hash == -1) return NULL;
    Tail *made = NULL, *t = NULL;
    for (long long last = 0;;) {
        int gated = enter(h, NEVER), same = 0, is_over = gated < 0;
        if (is_over) break;
        if ((t = table_next(&h->table, hash, last))) Py_INCREF(t);
        else if (!add || h->closed) is_over = 1;
        else if (made && (!made->outer || made->outer->closed != GONE)) { come(made); t = made; made = NULL; is_over = 1; }
        leave(h, gated);
        if (is_over) break;
        if (t) {
            same = t->key == key ? 1 : PyObject_RichCompareBool(t->key, key, Py_EQ);
            if (same > 0) break;
            last = t->born;
            Py_CLEAR(t);
            if (same < 0) break;
        }
        else {
            Py_XDECREF(made);                   /* what it is nested in has gone */
            if (!(made = tail_new(m, key, hash, add == 2))) break;
        }
    }
    Py_XDECREF(made);
    return t;
}

/* ---- for the class in Python ------------------------------------------------------------------------------------ */

/* set_fair(multi, capacity, max_in_flight): it is a fair queue, and these are the limits of each key. */
static PyObject *set_fair(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 3) { PyErr_SetString(PyExc_TypeError, "set_fair takes 3 arguments"); return NULL; }
    MULTI(args[0])
    Head *h = ((Multi *)args[0])->head;
    if (h->fair) { PyErr_SetString(PyExc_TypeError, "a FairQueue is initialized once"); return NULL; }
    h->capacity = limit_of(args[1]);
    h->max_in_flight = limit_of(args[2]);
    h->ring.least = 0.0;
    if (PyErr_Occurred()) return NULL;
    if (table_resize(&h->table, LEAST_BITS) < 0) return PyErr_NoMemory();
    h->fair = 1;
    Py_RETURN_NONE;
}
#define FAIR(o) MULTI(o) if (!((Multi *)o)->head->fair) { PyErr_Format(PyExc_TypeError, "FairQueue.__init__() was not called of this %s", Py_TYPE(o)->tp_name); return NULL; }

/* keyed(multi, key): its tail, or None. */
static PyObject *keyed(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 2) { PyErr_SetString(PyExc_TypeError, "keyed takes 2 arguments"); return NULL; }
    FAIR(args[0])
    Tail *t = tail_of_key((Multi *)args[0], args[1], 0);
    if (!t && PyErr_Occurred()) return NULL;
    return t ? (PyObject *)t : Py_NewRef(Py_None);
}
static PyObject *key_of_tail(PyObject *module, PyObject *o) {
    TAIL(o)
    PyObject *key = ((Tail *)o)->key;
    return Py_NewRef(key ? key : Py_None);
}
/* put_keyed(multi, key, item, cost, block, timeout): None when it was put, else the tail that is full. */
static PyObject *put_keyed(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    State *st = state_of(module);
    if (n != 6) { PyErr_SetString(PyExc_TypeError, "put_keyed takes 6 arguments"); return NULL; }
    FAIR(args[0])
    int block;
    double deadline, cost = number_of("cost", args[3], 0);
    if (cost < 0 || wait_arguments(st, args[4], args[5], &block, &deadline) < 0) return NULL;
    for (;;) {
        Tail *t = tail_of_key((Multi *)args[0], args[1], 1);
        if (!t) return PyErr_Occurred() ? NULL : refuse(st, (Tail *)args[0], 1, args[2], Py_None);
        Outcome outcome = put_one(t, args[2], &cost, block, deadline);
        if (outcome == PUT) { Py_DECREF(t); Py_RETURN_NONE; }
        LOCK(t->head);
        int is_gone = t->closed == GONE;
        UNLOCK(t->head);
        if (!is_gone) reap_surely(t);
        if (outcome == FULL) return (PyObject *)t;
        if (outcome == CLOSED && !is_gone) refuse(st, (Tail *)args[0], 1, args[2], Py_None);
        Py_DECREF(t);
        if (outcome != CLOSED || !is_gone) return NULL;
    }
}
/* done(multi), done(multi, key): an element is dealt with. False: there was none. */
static PyObject *done(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 1 && n != 2) { PyErr_SetString(PyExc_TypeError, "done takes a queue and a key"); return NULL; }
    FAIR(args[0])
    Head *h = ((Multi *)args[0])->head;
    Tail *t = NULL, *gone = NULL;
    for (PyObject *key = n == 2 ? Py_NewRef(args[1]) : NULL, *outer; key; key = outer) {   /* or what it was nested in */
        t = tail_of_key((Multi *)args[0], key, 0);
        outer = t || PyErr_Occurred() ? NULL : outer_key(key);
        Py_DECREF(key);
    }
    if (PyErr_Occurred()) return NULL;
    int gated = enter(h, NEVER);
    if (gated < 0) { Py_XDECREF(t); return NULL; }
    int was_there = h->busy > 0;
    if (was_there) {
        if (!--h->busy && h->joiners.first) wake_all(h, &h->joiners);
        for (Tail *each = t; each; each = each->outer)
            if (is_limited(each) && each->unfinished > each->count) each->unfinished--;
        if (t) { t->finished++; settle_fair(t); reap(t, &gone); }
        if (h->takers.first && best(h)) wake_one(h, &h->takers);
    }
    leave(h, gated);
    drop_gone(gone);
    Py_XDECREF(t);
    return PyBool_FromLong(was_there);
}
/* `assign` of a fair queue's tail: "weight" or "max_in_flight". False: it has gone. */
static PyObject *assign_fair(Tail *t, PyObject *name, PyObject *value) {
    Head *h = t->head;
    int is_weight = PyUnicode_CompareWithASCIIString(name, "weight") == 0;
    double share = is_weight ? number_of("weight", value, 0) : 0;
    Py_ssize_t most = is_weight ? 0 : limit_of(value);
    if (PyErr_Occurred()) return NULL;
    Tail *gone = NULL;
    ENTER(h);
    int is_gone = t->closed == GONE;
    if (!is_gone && is_weight) { t->share = share; h->uneven |= share != 1.0; }
    else if (!is_gone) {
        if (!is_limited(t) || most == NO_LIMIT) t->unfinished = t->count;    /* it counts from now on, or no more */
        t->max_in_flight = most;
    }
    settle_fair(t);
    stir(h, t);
    reap(t, &gone);
    leave(h, gated);
    drop_gone(gone);
    return PyBool_FromLong(!is_gone);
}
/* set_keyed(multi, key, name, value, before): a setting of a key, or its "reasons" to pause. None: the queue is shut. False: the
 * reasons are not `before` any more. */
static PyObject *set_keyed(PyObject *module, PyObject *const *args, Py_ssize_t n) {
    if (n != 5 || !PyUnicode_Check(args[2])) { PyErr_SetString(PyExc_TypeError, "set_keyed takes 5 arguments, of them a name"); return NULL; }
    FAIR(args[0])
    int is_reasons = PyUnicode_CompareWithASCIIString(args[2], "reasons") == 0, is_gone;
    PyObject *answer = NULL;
    do {
        Py_XDECREF(answer);
        Tail *t = tail_of_key((Multi *)args[0], args[1], 1);
        if (!t) return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
        PyObject *all[] = {(PyObject *)t, is_reasons ? args[4] : args[2], args[3]};
        answer = is_reasons ? replace_reasons(module, all, 3) : assign(module, all, 3);
        LOCK(t->head);
        is_gone = answer == Py_False && t->closed == GONE;
        UNLOCK(t->head);
        if (answer != Py_True) reap_surely(t);
        Py_DECREF(t);
    } while (is_gone);
    return answer;
}
/* tails(multi): those that are there now. */
static PyObject *tails(PyObject *module, PyObject *o) {
    FAIR(o)
    Head *h = ((Multi *)o)->head;
    for (Py_ssize_t room = h->table.count;;) {
        PyObject *tuple = PyTuple_New(room);
        if (!tuple) return NULL;
        Py_ssize_t n = 0;
        LOCK(h);
        Py_ssize_t count = h->table.count;
        for (size_t i = 0; count <= room && i < (size_t)1 << h->table.bits; i++)
            for (Tail *t = h->table.buckets[i]; t; t = t->chain) PyTuple_SET_ITEM(tuple, n++, Py_NewRef(t));
        UNLOCK(h);
        if (count <= room) { if (n < room && _PyTuple_Resize(&tuple, n) < 0) return NULL; return tuple; }
        Py_DECREF(tuple);
        room = count + count / 8 + 8;
    }
}
