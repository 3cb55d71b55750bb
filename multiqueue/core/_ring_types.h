/* `Ring` and `Turn` for Python: what `_ring.py` has, over the algorithm in `_ring.h`.
 *
 * State       The owner's lock guards them. On a free-threaded build a mutex of the module keeps an owner without a lock
 *             from worse than wrong turns: each operation here is one section of it, and nothing in Python runs in one.
 * References  A turn refers to its ring; a ring to the turns that are in it, and to its outer turn, which refers to the
 *             ring: a program that holds the outermost ring alone holds all the turns in it. Nested rings end by the
 *             collector; so no chain of them ends by recursion.
 */
typedef struct RingObject {
    PyObject_HEAD
    State *st;
    Ring ring;
    struct TurnObject *outer;     /* ours; NULL: it is in no other ring */
} RingObject;

typedef struct TurnObject {
    PyObject_HEAD
    RingObject *in;               /* ours */
    RingObject *inner;            /* the ring that it stands for, ours; then that one's `outer` is this */
    Level *level;
    double weight;
    Place place;                  /* while it is linked, a reference to this is the ring's */
    char held;                    /* taken out by `leave`: its inner ring does not put it in */
} TurnObject;

static inline TurnObject *turn_of(Place *p) { return (TurnObject *)((char *)p - offsetof(TurnObject, place)); }

static void turn_put_in(TurnObject *t, int is_resumed) {
    while (!t->place.next) {
        Ring *r = &t->in->ring;
        Py_ssize_t before = r->n_active;
        if (is_resumed) ring_resume(r, t->level, &t->place); else ring_join(r, t->level, &t->place);
        Py_INCREF(t);
        TurnObject *outer = t->in->outer;
        if (before || !outer || outer->held) break;
        t = outer;
    }
}
/* How many turns left: `t`, and the outer ones of rings that are empty then. The caller drops them after its section. */
static int turn_take_out(TurnObject *t) {
    int dropped = 0;
    while (t && t->place.next) {
        Ring *r = &t->in->ring;
        ring_leave(r, t->level, &t->place);
        dropped++;
        if (r->n_active) break;
        t = t->in->outer;
    }
    return dropped;
}
static void turn_drop(TurnObject *t, int dropped) {
    while (dropped--) { TurnObject *outer = t->in->outer; Py_DECREF(t); t = outer; }    /* that one's reference is next */
}
#define SMALLEST 1e-100           /* of costs and weights: no quotient of two, and no sum of those, is 0 or infinite */
#define LARGEST 1e100
static double number_of(const char *name, PyObject *o, int can_be_0) {    /* -1: exception */
    if (PyBool_Check(o) || !(PyFloat_Check(o) || PyLong_Check(o))) {
        PyErr_Format(PyExc_TypeError, "'%s' must be a number, not %R", name, o);
        return -1.0;
    }
    double n = PyFloat_AsDouble(o);
    if (n == -1.0 && PyErr_Occurred()) {
        if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1.0;
        PyErr_Clear();                          /* an int beyond all doubles */
        PyObject *zero = PyLong_FromLong(0);
        int is_above = zero ? PyObject_RichCompareBool(o, zero, Py_GT) : -1;
        Py_XDECREF(zero);
        if (is_above < 0) return -1.0;
        if (is_above) n = LARGEST * 2;
    }
    if ((can_be_0 && n == 0) || (n >= SMALLEST && n <= LARGEST)) return n;
    if (isfinite(n) && n > 0) {
        char *text = PyOS_double_to_string(n, 'g', 6, 0, NULL);
        if (text) PyErr_Format(PyExc_ValueError, "'%s' must be between 1e-100 and 1e+100, not %s: its quotients or sums would be 0 or infinite", name, text);
        PyMem_Free(text);
        return -1.0;
    }
    PyErr_Format(PyExc_ValueError, can_be_0 ? "'%s' must be a number of at least 0, not %R" : "'%s' must be a number above 0, not %R", name, o);
    return -1.0;
}
static int priority_of(PyObject *o, long long *priority) {
    int overflow;
    if (PyBool_Check(o) || !PyLong_Check(o)) { PyErr_Format(PyExc_TypeError, "'priority' must be an int, not %R", o); return -1; }
    *priority = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) PyErr_Format(PyExc_ValueError, "'priority' must fit 64 bits, not %R", o);
    return overflow ? -1 : 0;
}

/* ---- turns ------------------------------------------------------------------------------------------------------ */

static int Turn_init(TurnObject *t, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"ring", "weight", "priority", NULL};
    PyObject *ring, *weight_ = NULL, *priority_ = NULL;
    double weight = 1.0;
    long long priority = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OO", names, &ring, &weight_, &priority_)) return -1;
    State *st = PyModule_GetState(PyType_GetModuleByDef(Py_TYPE(t), &module_def));
    if (!PyObject_TypeCheck(ring, st->ring_type)) { PyErr_Format(PyExc_TypeError, "'ring' must be a Ring, not %R", ring); return -1; }
    if (weight_ && (weight = number_of("weight", weight_, 0)) < 0) return -1;
    if (priority_ && priority_of(priority_, &priority) < 0) return -1;
    RingObject *in = (RingObject *)ring;
    LOCK(st);
    int is_new = !t->in;
    Level *level = is_new ? level_enter(&in->ring, priority) : NULL;
    if (level) { t->level = level; t->weight = weight; t->in = (RingObject *)Py_NewRef(ring); }
    UNLOCK(st);
    if (level) return 0;
    if (is_new) PyErr_NoMemory(); else PyErr_SetString(PyExc_TypeError, "a Turn is initialized once");
    return -1;
}
#define BORN(t) if (!(t)->in) { PyErr_SetString(PyExc_TypeError, "Turn.__init__() was not called"); return NULL; }

static PyObject *turn_in(TurnObject *t, int is_resumed) {
    BORN(t)
    LOCK(t->in->st);
    t->held = 0;
    if (!t->inner || t->inner->ring.n_active) turn_put_in(t, is_resumed);
    UNLOCK(t->in->st);
    Py_RETURN_NONE;
}
static PyObject *Turn_join(TurnObject *t, PyObject *Py_UNUSED(ignored)) { return turn_in(t, 0); }
static PyObject *Turn_resume(TurnObject *t, PyObject *Py_UNUSED(ignored)) { return turn_in(t, 1); }
static PyObject *Turn_leave(TurnObject *t, PyObject *Py_UNUSED(ignored)) {
    BORN(t)
    LOCK(t->in->st);
    t->held = 1;
    int dropped = turn_take_out(t);
    UNLOCK(t->in->st);
    turn_drop(t, dropped);
    Py_RETURN_NONE;
}
static PyObject *Turn_charge(TurnObject *t, PyObject *const *args, Py_ssize_t n, PyObject *kwnames) {
    static const char *const names[] = {"cost"};
    PyObject *a[1] = {NULL};
    double cost = 1.0;
    BORN(t)
    if (unpack("charge", names, 1, 0, args, n, kwnames, a) < 0 || (a[0] && (cost = number_of("cost", a[0], 0)) < 0)) return NULL;
    State *st = t->in->st;
    LOCK(st);
    for (; t; t = t->in->outer) ring_charge(&t->in->ring, t->level, &t->place, cost / t->weight);
    UNLOCK(st);
    Py_RETURN_NONE;
}
static PyObject *Turn_get_ring(TurnObject *t, void *Py_UNUSED(closure)) { BORN(t) return Py_NewRef(t->in); }
static PyObject *Turn_get_is_in(TurnObject *t, void *Py_UNUSED(closure)) { return PyBool_FromLong(t->place.next != NULL); }
static PyObject *Turn_get_weight(TurnObject *t, void *Py_UNUSED(closure)) { return PyFloat_FromDouble(t->weight); }
static PyObject *Turn_get_priority(TurnObject *t, void *Py_UNUSED(closure)) { BORN(t) return PyLong_FromLongLong(t->level->priority); }
#define KEPT(o, name) if (!(o)) { PyErr_SetString(PyExc_AttributeError, name " cannot be deleted"); return -1; }
static int Turn_set_weight(TurnObject *t, PyObject *o, void *Py_UNUSED(closure)) {
    KEPT(o, "weight")
    double weight = number_of("weight", o, 0);
    if (weight < 0) return -1;
    t->weight = weight;
    return 0;
}
static int Turn_set_priority(TurnObject *t, PyObject *o, void *Py_UNUSED(closure)) {
    long long priority;
    KEPT(o, "priority")
    if (!t->in) { PyErr_SetString(PyExc_TypeError, "Turn.__init__() was not called"); return -1; }
    if (priority_of(o, &priority) < 0) return -1;
    State *st = t->in->st;
    LOCK(st);
    Level *level = level_enter(&t->in->ring, priority), *old = t->level;
    int dropped = 0;
    if (level) {
        int was_in = t->place.next != NULL;
        dropped = turn_take_out(t);
        ring_move(&t->place, old, level);
        t->level = level;
        level_leave(&t->in->ring, old);
        if (was_in) turn_put_in(t, 0);
    }
    UNLOCK(st);
    if (!level) { PyErr_NoMemory(); return -1; }
    turn_drop(t, dropped);
    return 0;
}
static int Turn_traverse(TurnObject *t, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(t));
    Py_VISIT(t->in);
    Py_VISIT(t->inner);
    return 0;
}
static int Turn_clear(TurnObject *Py_UNUSED(t)) { return 0; }    /* its ring's tp_clear breaks each cycle */
static void Turn_dealloc(TurnObject *t) {      /* it is linked no more, and stands for no ring: those would be references */
    PyTypeObject *type = Py_TYPE(t);
    RingObject *in = t->in;
    PyObject_GC_UnTrack(t);
    if (in) {
        LOCK(in->st);
        level_leave(&in->ring, t->level);
        UNLOCK(in->st);
        Py_DECREF(in);
    }
    type->tp_free(t);
    Py_DECREF(type);
}
static PyMethodDef turn_methods[] = {
    {"join", METHOD(Turn_join), METH_NOARGS, PyDoc_STR("join($self)\n--\n\nIt can be served from now on, last in the round that goes on.")},
    {"resume", METHOD(Turn_resume), METH_NOARGS, PyDoc_STR("resume($self)\n--\n\n"
     "As `join`, after a pause: with a turn in this round still, it is the next to be served.")},
    {"leave", METHOD(Turn_leave), METH_NOARGS, PyDoc_STR("leave($self)\n--\n\n"
     "It can not be served: nothing waits, it is at a limit, or paused. If it was its turn, its follower has it.")},
    {"charge", METHOD(Turn_charge), METH_FASTCALL | METH_KEYWORDS, PyDoc_STR("charge($self, cost=1.0)\n--\n\n"
     "It was served a message of this cost, in its turn or out of it, and so were the rings that it stands in.\n\n"
     "Raises:\n    ValueError: `cost` is not a number above 0.")},
    {0}};
static PyGetSetDef turn_attributes[] = {
    {"ring", (getter)Turn_get_ring, NULL, PyDoc_STR("The ring it was made for."), NULL},
    {"is_in", (getter)Turn_get_is_in, NULL, PyDoc_STR("Does it take turns now?"), NULL},
    {"weight", (getter)Turn_get_weight, (setter)Turn_set_weight,
     PyDoc_STR("Its share beside others of its priority. Assigned, it counts from the next charge on."), NULL},
    {"priority", (getter)Turn_get_priority, (setter)Turn_set_priority,
     PyDoc_STR("Lower ones are served first. Assigned, it joins at the end of the other level's round."), NULL},
    {0}};
static PyType_Slot turn_slots[] = {
    {Py_tp_doc, (void *)"Turn(ring, *, weight=1.0, priority=0)\n--\n\n"
     "A tail's place among others. Make a class of yours from it: `Ring.due` answers with the very object."},
    {Py_tp_new, PyType_GenericNew}, {Py_tp_init, Turn_init}, {Py_tp_dealloc, Turn_dealloc}, {Py_tp_traverse, Turn_traverse},
    {Py_tp_clear, Turn_clear}, {Py_tp_methods, turn_methods}, {Py_tp_getset, turn_attributes}, {0}};
static PyType_Spec turn_spec = {"multiqueue.core._engine.Turn", sizeof(TurnObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, turn_slots};

/* ---- rings ------------------------------------------------------------------------------------------------------ */

static int Ring_init(RingObject *r, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"outer", "least", NULL};
    PyObject *outer_ = Py_None, *least_ = NULL;
    double least = 0.0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O$O", names, &outer_, &least_)) return -1;
    State *st = r->st;
    TurnObject *outer = outer_ == Py_None ? NULL : (TurnObject *)outer_;
    if (outer && !PyObject_TypeCheck(outer_, st->turn_type)) { PyErr_Format(PyExc_TypeError, "'outer' must be a Turn, not %R", outer_); return -1; }
    if (least_ && (least = number_of("least", least_, 1)) < 0) return -1;
    LOCK(st);
    int is_new = !r->outer && !r->ring.n_levels, is_free = !outer || (outer->in && !outer->inner && !outer->place.next);
    if (is_new && is_free) {
        r->ring.least = least;
        if (outer) { outer->inner = (RingObject *)Py_NewRef((PyObject *)r); r->outer = (TurnObject *)Py_NewRef(outer_); }
    }
    UNLOCK(st);
    if (!is_new) PyErr_SetString(PyExc_TypeError, "a Ring is initialized once");
    else if (!is_free) PyErr_SetString(PyExc_ValueError, "'outer' must be a turn that stands for no ring yet and has not joined its own");
    return is_new && is_free ? 0 : -1;
}
static PyObject *Ring_new(PyTypeObject *type, PyObject *Py_UNUSED(args), PyObject *Py_UNUSED(kwargs)) {
    PyObject *module = PyType_GetModuleByDef(type, &module_def);
    RingObject *r = module ? (RingObject *)type->tp_alloc(type, 0) : NULL;
    if (r) r->st = PyModule_GetState(module);
    return (PyObject *)r;
}
static PyObject *Ring_due(RingObject *r, PyObject *Py_UNUSED(ignored)) {
    State *st = r->st;
    LOCK(st);
    Place *p = ring_due(&r->ring);
    while (p && turn_of(p)->inner) p = ring_due(&turn_of(p)->inner->ring);
    PyObject *due = p ? Py_NewRef(turn_of(p)) : NULL;
    UNLOCK(st);
    return due ? due : Py_NewRef(Py_None);
}
static PyObject *Ring_check_invariants(RingObject *o, PyObject *Py_UNUSED(ignored)) {
    const char *wrong = NULL;
    Ring *r = &o->ring;
    Py_ssize_t active = 0;
    for (Py_ssize_t i = 0; i < r->n_levels && !wrong; i++) {
        Level *l = r->levels[i];
        Place *p = l->cursor;
        HOLDS(i == 0 || r->levels[i - 1]->priority < l->priority, "levels stand in ascending order, each once");
        if (!p) continue;
        HOLDS(active < r->n_active && r->active[active] == l, "the levels with members are listed as active");
        HOLDS(p->round == l->round, "it is the turn of one who has a turn in this round");
        active++;
        int is_past = 0;
        do {
            is_past = is_past || p->round != l->round;
            double limit = l->line + (is_past ? fmax(l->over, r->least) : 0);
            HOLDS(p->next->prev == p && turn_of(p)->level == l, "the circle is closed");
            HOLDS(p->round == l->round + is_past, "those of the next round stand behind those of this one");
            HOLDS(p->served <= limit * (1 + 1e-12) + 1e-9, "nobody is further ahead than the next line");
            p = p->next;
        } while (p != l->cursor && !wrong);
    }
    HOLDS(active == r->n_active, "no other level is active");
    if (wrong) { PyErr_SetString(PyExc_AssertionError, wrong); return NULL; }
    Py_RETURN_NONE;
}
static int Ring_traverse(RingObject *o, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(o));
    Py_VISIT(o->outer);
    for (Py_ssize_t i = 0; i < o->ring.n_active; i++) {
        Place *first = o->ring.active[i]->cursor, *p = first;
        do { Py_VISIT(turn_of(p)); p = p->next; } while (p != first);
    }
    return 0;
}
static int Ring_clear(RingObject *o) {
    for (;;) {                                  /* the turns go, the levels stay until their turns have ended */
        LOCK(o->st);
        Place *p = ring_due(&o->ring);
        TurnObject *t = p ? turn_of(p) : NULL;
        if (t) ring_leave(&o->ring, t->level, p);
        UNLOCK(o->st);
        if (!t) break;
        Py_DECREF(t);
    }
    TurnObject *outer = o->outer;
    if (outer) {
        LOCK(o->st);
        outer->inner = NULL;
        int dropped = turn_take_out(outer);
        UNLOCK(o->st);
        turn_drop(outer, dropped);
        Py_CLEAR(o->outer);
        Py_DECREF(o);                           /* that of `outer->inner`; the collector has one of its own */
    }
    return 0;
}
static void Ring_dealloc(RingObject *o) {      /* each turn, and the outer one, has a reference to us: none is left */
    PyTypeObject *type = Py_TYPE(o);
    PyObject_GC_UnTrack(o);
    ring_free(&o->ring);
    type->tp_free(o);
    Py_DECREF(type);
}
static PyMethodDef ring_methods[] = {
    {"due", METHOD(Ring_due), METH_NOARGS, PyDoc_STR("due($self)\n--\n\n"
     "Whose turn it is: one that stands for no ring. None when nobody is in. Asking changes nothing.")},
    {"check_invariants", METHOD(Ring_check_invariants), METH_NOARGS, PyDoc_STR("check_invariants($self)\n--\n\n"
     "Assert what `_ring.h` proves of each level. For tests.")},
    {0}};
static PyType_Slot ring_slots[] = {
    {Py_tp_doc, (void *)"Ring(outer=None, *, least=0.0)\n--\n\n"
     "Many turns, of which one is due: by strict priority, and within one in turns by weight and cost."},
    {Py_tp_new, Ring_new}, {Py_tp_init, Ring_init}, {Py_tp_dealloc, Ring_dealloc}, {Py_tp_traverse, Ring_traverse},
    {Py_tp_clear, Ring_clear}, {Py_tp_methods, ring_methods}, {0}};
static PyType_Spec ring_spec = {"multiqueue.core._engine.Ring", sizeof(RingObject), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, ring_slots};
