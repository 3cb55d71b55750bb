/* Runs of a fair queue's entries, which arrive, are taken and go together: `Runs` of `fair_runs.py`, which says what it
 * promises and what a statement here is there.
 *
 * Promise     Entries and lanes are objects of the classes that it was made for, or of one beneath; anything else raises
 *             TypeError. Their slots are read and set where the descriptors of these classes say that they are.
 *             What raises has changed nothing of its entry and its lane; those before it in the run have arrived, are
 *             taken and in `run`, or have gone.
 * Threads     The queue's lock guards entries, lanes and this. No user code runs: what is called is the tenants'.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifndef Py_T_OBJECT_EX
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

enum { TAKEN = 2, SHORT = 64 };   /* as in Python */
enum { KEY, LANE, COST, WHERE, SIZE, EXPIRES_AT, REFUSED_BY, ARRIVED_AT, OF_ENTRY };
enum { NAME, ARRIVED, RETURNED, HOLES, BYTES, BUSY_SINCE, IS_BLOCKED, IN_FLIGHT, HALF_MINUTE, SERVED, OF_LANE };
static const char *const entry_names[] = {"key", "lane", "cost", "where", "size", "expires_at", "refused_by", "arrived_at"};
static const char *const lane_names[] = {"name", "arrived", "returned", "holes", "waiting_bytes", "busy_since", "is_blocked",
    "in_flight", "half_minute", "served"};

typedef struct {
    PyObject_HEAD
    PyTypeObject *entry, *lane;
    Py_ssize_t entry_at[OF_ENTRY], lane_at[OF_LANE];
    PyObject *usual, *ring;       /* a tenant as most come; and its ring */
    PyObject *by_name, *known, *own, *changed;   /* the tenants, and the names of those that are not as most */
    PyObject *join, *leave, *charge, *due;       /* of a turn; and of the ring */
    PyObject *taken, *paid, *nothing;            /* what a taken entry has in `where` and in `cost`; () */
    Py_ssize_t n_slots, slots[];  /* of a tenant: those that a new one has from the usual one */
} Runs;

#define SLOT(object, at) (*(PyObject **)((char *)(object) + (at)))
#define E(name) SLOT(entry, self->entry_at[name])
#define L(name) SLOT(lane, self->lane_at[name])

static Py_ssize_t offset_of(PyTypeObject *kind, const char *name) {   /* of a slot, or -1 */
    PyObject *slot = PyObject_GetAttrString((PyObject *)kind, name);
    if (!slot) return -1;
    Py_ssize_t offset = -1;
    PyMemberDescrObject *d = (PyMemberDescrObject *)slot;
    if (Py_IS_TYPE(slot, &PyMemberDescr_Type) && d->d_member->type == Py_T_OBJECT_EX
        && PyType_IsSubtype(kind, ((PyDescrObject *)d)->d_type)) offset = d->d_member->offset;
    else PyErr_Format(PyExc_TypeError, "'%s' of %R is no slot", name, kind);
    Py_DECREF(slot);
    return offset;
}

static void set(PyObject *object, Py_ssize_t at, PyObject *value) {   /* takes the reference */
    PyObject *before = SLOT(object, at);
    SLOT(object, at) = value;
    Py_XDECREF(before);
}
static PyObject *more_by(PyObject *number, int step) {
    long long value = PyLong_AsLongLong(number);
    return value == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(value + step);
}
static int ignored(PyObject *result) { Py_XDECREF(result); return result ? 0 : -1; }

/* None of the slots that are used is empty. */
static int is_whole(PyObject *object, PyTypeObject *kind, const Py_ssize_t *at, int from, int n) {
    if (!PyObject_TypeCheck(object, kind)) { PyErr_Format(PyExc_TypeError, "%R is no %R", object, kind); return 0; }
    for (int i = from; i < n; i++)
        if (!SLOT(object, at[i])) { PyErr_Format(PyExc_AttributeError, "a slot of %R is empty", kind); return 0; }
    return 1;
}
#define IS_ENTRY(o) is_whole(o, self->entry, self->entry_at, 0, OF_ENTRY)
#define IS_LANE(o) is_whole(o, self->lane, self->lane_at, NAME + 1, OF_LANE)

/* A usual tenant's first message: what `comes` would do, for a third; NULL without an exception: `comes` must. */
static PyObject *come(Runs *self, PyObject *key) {
    if (self->own == Py_None || !PyUnicode_CheckExact(key)) return NULL;
    int is_other = PyDict_Contains(self->own, key);
    if (!is_other) is_other = PyDict_Contains(self->changed, key);
    if (is_other) return NULL;
    PyObject *lane = PyObject_CallOneArg((PyObject *)Py_TYPE(self->usual), self->ring);
    if (!lane) return NULL;
    for (Py_ssize_t i = 0; i < self->n_slots; i++) set(lane, self->slots[i], Py_XNewRef(SLOT(self->usual, self->slots[i])));
    set(lane, self->lane_at[NAME], Py_NewRef(key));
    if (PyDict_SetItem(self->by_name, key, lane) == 0 && ignored(PyObject_CallOneArg(self->known, lane)) == 0) return lane;
    Py_DECREF(lane);
    return NULL;
}

static PyObject *arrive(Runs *self, PyObject *const *args, Py_ssize_t given) {
    if (given != 2) return PyErr_Format(PyExc_TypeError, "arrive takes entries and comes");
    PyObject *entries = PySequence_Fast(args[0], "entries are a sequence");
    for (Py_ssize_t i = 0; entries && i < PySequence_Fast_GET_SIZE(entries); i++) {
        PyObject *entry = Py_NewRef(PySequence_Fast_GET_ITEM(entries, i)), *lane = NULL;
        if (!IS_ENTRY(entry)) goto failed;
        lane = Py_XNewRef(PyDict_GetItemWithError(self->by_name, E(KEY)));
        if (!lane && !PyErr_Occurred()) lane = come(self, E(KEY));
        if (!lane && !PyErr_Occurred()) lane = PyObject_CallOneArg(args[1], entry);
        if (!lane || !IS_LANE(lane)) goto failed;
        set(entry, self->entry_at[LANE], Py_NewRef(lane));
        PyObject *arrived = L(ARRIVED), *more = NULL;
        int has_none = PyObject_Size(arrived) == 0, is_idle = has_none && PyObject_Size(L(RETURNED)) == 0;
        PyObject *bytes = is_idle ? Py_NewRef(E(SIZE)) : PyNumber_Add(L(BYTES), E(SIZE));
        int failed = !bytes;
        if (!failed && has_none) failed = !(more = PyTuple_Pack(1, entry));
        else if (!failed && PyTuple_CheckExact(arrived)) failed = !(more = PySequence_List(arrived)) || PyList_Append(more, entry) < 0;
        else if (!failed) failed = (PyList_CheckExact(arrived) ? PyList_Append(arrived, entry) : ignored(PyObject_CallMethod(arrived, "append", "O", entry))) < 0;
        if (!failed && is_idle && L(IS_BLOCKED) != Py_True) failed = ignored(PyObject_CallOneArg(self->join, lane)) < 0;
        if (failed) { Py_XDECREF(bytes); Py_XDECREF(more); goto failed; }
        set(lane, self->lane_at[BYTES], bytes);
        if (is_idle) set(lane, self->lane_at[BUSY_SINCE], Py_NewRef(E(ARRIVED_AT)));
        if (more) set(lane, self->lane_at[ARRIVED], more);
        Py_DECREF(lane);
        Py_DECREF(entry);
        continue;
    failed:
        Py_XDECREF(lane);
        Py_DECREF(entry);
        Py_CLEAR(entries);
    }
    if (!entries) return NULL;
    Py_DECREF(entries);
    Py_RETURN_NONE;
}

/* An entry of cost 1, the first of a lane whose entries all came once: as `takes`. */
static int take_first(Runs *self, PyObject *lane, PyObject *entry, PyObject *half_minute) {
    int is_only = PyTuple_CheckExact(L(ARRIVED)) || PyObject_Size(L(ARRIVED)) == 1;
    if (!is_only && PyLong_AsLong(L(SERVED)) % SHORT == 0 && ignored(PyObject_CallMethod(lane, "become_long", NULL)) < 0) return -1;
    int is_late = L(HALF_MINUTE) != half_minute ? PyObject_RichCompareBool(L(HALF_MINUTE), half_minute, Py_NE) : 0;
    if (is_late < 0 || (is_late && ignored(PyObject_CallMethod(lane, "enter_half_minute", "O", half_minute)) < 0)) return -1;
    PyObject *arrived = L(ARRIVED), *bytes = PyNumber_Subtract(L(BYTES), E(SIZE));
    PyObject *in_flight = bytes ? more_by(L(IN_FLIGHT), 1) : NULL, *served = in_flight ? more_by(L(SERVED), 1) : NULL;
    if (!served || ignored(PyObject_CallOneArg(self->charge, lane)) < 0 || (is_only && ignored(PyObject_CallOneArg(self->leave, lane)) < 0)
        || (!PyTuple_CheckExact(arrived) && PySequence_DelItem(arrived, 0) < 0)) {
        Py_XDECREF(bytes); Py_XDECREF(in_flight); Py_XDECREF(served);
        return -1;
    }
    if (PyTuple_CheckExact(arrived)) set(lane, self->lane_at[ARRIVED], Py_NewRef(self->nothing));
    set(lane, self->lane_at[BYTES], bytes);
    set(lane, self->lane_at[IN_FLIGHT], in_flight);
    set(lane, self->lane_at[SERVED], served);
    set(entry, self->entry_at[WHERE], Py_NewRef(self->taken));
    set(entry, self->entry_at[COST], Py_NewRef(self->paid));
    return 0;
}

static PyObject *take(Runs *self, PyObject *const *args, Py_ssize_t given) {
    if (given != 6 || !PyList_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "take needs a list, most, most_bytes, half_minute, takes and limits");
    PyObject *run = args[0], *half_minute = args[3], *limits = args[5];
    long long most = PyLong_AsLongLong(args[1]), most_bytes = PyLong_AsLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    while (PyList_GET_SIZE(run) < most && most_bytes > 0) {
        PyObject *lane = PyObject_CallNoArgs(self->due), *entry = NULL;
        if (lane == Py_None) { Py_DECREF(lane); break; }
        int failed = !lane || !IS_LANE(lane), ends = 0;
        if (!failed) {
            int is_odd = PyObject_Size(L(RETURNED)) > 0 || PyLong_AsLong(L(HOLES)) != 0;
            entry = is_odd ? PyObject_GetAttrString(lane, "first") : PySequence_GetItem(L(ARRIVED), 0);
            failed = !entry || !IS_ENTRY(entry);
            if (!failed && !(ends = E(EXPIRES_AT) != Py_None || E(REFUSED_BY) != Py_None)) {
                most_bytes -= PyLong_AsLongLong(E(SIZE));
                if (PyErr_Occurred() || PyList_Append(run, entry) < 0) failed = 2;
                else if (is_odd || !PyFloat_CheckExact(E(COST)) || PyFloat_AS_DOUBLE(E(COST)) != 1.0)
                    failed = ignored(PyObject_CallOneArg(args[4], entry)) < 0;
                else
                    failed = take_first(self, lane, entry, half_minute) < 0 || (limits != Py_None && ignored(PyObject_CallOneArg(limits, lane)) < 0);
                if (failed == 1 && E(WHERE) != self->taken) PyList_SetSlice(run, PyList_GET_SIZE(run) - 1, PyList_GET_SIZE(run), NULL);
            }
        }
        Py_XDECREF(entry);
        Py_XDECREF(lane);
        if (failed) return NULL;
        if (ends) break;
    }
    return PyLong_FromLongLong(most_bytes);
}

static PyObject *end(Runs *self, PyObject *const *args, Py_ssize_t given) {
    if (given != 2) return PyErr_Format(PyExc_TypeError, "end takes entries and moves");
    PyObject *entries = PySequence_Fast(args[0], "entries are a sequence");
    for (Py_ssize_t i = 0; entries && i < PySequence_Fast_GET_SIZE(entries); i++) {
        PyObject *entry = Py_NewRef(PySequence_Fast_GET_ITEM(entries, i)), *lane;
        long where = IS_ENTRY(entry) ? PyLong_AsLong(E(WHERE)) : -1;
        int failed = PyErr_Occurred() != NULL;
        if (!failed && where != TAKEN) failed = ignored(PyObject_CallOneArg(args[1], entry)) < 0;
        else if (!failed) {
            PyObject *in_flight = IS_LANE(lane = E(LANE)) ? more_by(L(IN_FLIGHT), -1) : NULL;
            if (in_flight) set(lane, self->lane_at[IN_FLIGHT], in_flight);
            else failed = 1;
        }
        Py_DECREF(entry);
        if (failed) Py_CLEAR(entries);
    }
    if (!entries) return NULL;
    Py_DECREF(entries);
    Py_RETURN_NONE;
}

/* ---- the type --------------------------------------------------------------------------------------------------- */

static PyObject *runs_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"entry", "lane", "usual", "slots", "by_name", "known", "own", "changed", NULL};
    PyTypeObject *entry, *lane;
    PyObject *usual, *slots, *by_name, *known, *own, *changed;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!OO!O!OOO!:Runs", names, &PyType_Type, &entry, &PyType_Type, &lane, &usual,
                                     &PyTuple_Type, &slots, &PyDict_Type, &by_name, &known, &own, &PyDict_Type, &changed)) return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(slots);
    PyTypeObject *tenant = Py_TYPE(usual);
    if (!PyType_IsSubtype(tenant, lane) || !(own == Py_None || PyDict_Check(own)))
        return PyErr_Format(PyExc_TypeError, "%R is no usual %R, or %R no dict", usual, lane, own);
    Runs *self = (Runs *)type->tp_alloc(type, n);
    if (!self) return NULL;
    self->n_slots = n;
    self->entry = (PyTypeObject *)Py_NewRef(entry), self->lane = (PyTypeObject *)Py_NewRef(lane);
    self->usual = Py_NewRef(usual), self->by_name = Py_NewRef(by_name), self->known = Py_NewRef(known);
    self->own = Py_NewRef(own), self->changed = Py_NewRef(changed);
    int failed = 0;
    for (int i = 0; i < OF_ENTRY && !failed; i++) failed |= (self->entry_at[i] = offset_of(entry, entry_names[i])) < 0;
    for (int i = 0; i < OF_LANE && !failed; i++) failed |= (self->lane_at[i] = offset_of(i == NAME ? tenant : lane, lane_names[i])) < 0;
    for (Py_ssize_t i = 0; i < n && !failed; i++) {
        const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(slots, i));
        failed |= !name || (self->slots[i] = offset_of(tenant, name)) < 0;
    }
    if (failed || !(self->ring = PyObject_GetAttrString(usual, "ring")) || !(self->join = PyObject_GetAttrString((PyObject *)lane, "join")) || !(self->leave = PyObject_GetAttrString((PyObject *)lane, "leave"))
        || !(self->charge = PyObject_GetAttrString((PyObject *)lane, "charge")) || !(self->due = PyObject_GetAttrString(self->ring, "due"))
        || !(self->taken = PyLong_FromLong(TAKEN)) || !(self->paid = PyFloat_FromDouble(-1.0)) || !(self->nothing = PyTuple_New(0)))
        Py_CLEAR(self);
    return (PyObject *)self;
}

#define EACH(DO) DO(self->entry); DO(self->lane); DO(self->usual); DO(self->ring); DO(self->by_name); DO(self->known); \
    DO(self->own); DO(self->changed); DO(self->join); DO(self->leave); DO(self->charge); DO(self->due); DO(self->taken); DO(self->paid); DO(self->nothing)
static int runs_traverse(Runs *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    EACH(Py_VISIT);
    return 0;
}
static int runs_clear(Runs *self) {
    EACH(Py_CLEAR);
    return 0;
}
static void runs_dealloc(Runs *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    runs_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

#define METHOD(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL, NULL}
static PyMethodDef runs_methods[] = {METHOD(arrive), METHOD(take), METHOD(end), {0}};
static PyType_Slot runs_slots[] = {{Py_tp_new, runs_new}, {Py_tp_dealloc, runs_dealloc}, {Py_tp_traverse, runs_traverse},
    {Py_tp_clear, runs_clear}, {Py_tp_methods, runs_methods}, {0, NULL}};
static PyType_Spec runs_spec = {"multiqueue.broker._queue._fair_runs.Runs", sizeof(Runs), sizeof(Py_ssize_t),
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, runs_slots};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &runs_spec, NULL);
    int failed = type ? PyModule_AddObjectRef(module, "Runs", type) : -1;
    Py_XDECREF(type);
    return failed;
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
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "multiqueue.broker._queue._fair_runs", NULL, 0, NULL, module_slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__fair_runs(void) { return PyModuleDef_Init(&module_def); }
