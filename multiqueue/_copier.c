/* Objects made by copying one: `Copier` of `_copies.py`, which says what it promises.
 *
 * Promise     A copier takes only classes whose objects consist of slots and nothing else, which it looks at once: each
 *             word behind the head of such an object is one slot, empty or a reference. So copies are made word by word.
 *             Each template is of that class, or of one beneath it that adds nothing; anything else raises TypeError.
 * Threads     No state that changes. Lists and templates belong to the caller.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#ifndef Py_T_OBJECT_EX
#include <structmember.h>
#define Py_T_OBJECT_EX T_OBJECT_EX
#endif

enum { MOST = 64 }; /* slots of a class */
#define HEAD ((Py_ssize_t)sizeof(PyObject))
#define WORD ((Py_ssize_t)sizeof(PyObject *))
#define SLOTS(object) ((PyObject **)((char *)(object) + HEAD))

typedef struct {
    PyObject_HEAD
    PyTypeObject *kind;
    Py_ssize_t words;      /* how many slots */
    Py_ssize_t each, all;  /* how many differ from one copy to the next, and how many from the template */
    Py_ssize_t place[MOST]; /* of these: the slot */
} Copier;

static int is_of_slots(PyTypeObject *type) {
    return PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) && type->tp_itemsize == 0 && type->tp_dictoffset == 0
           && type->tp_weaklistoffset == 0;
}

/* Where the slots of a class are, from its descriptors; 0: each word is one. */
static int look_at(PyTypeObject *kind, Py_ssize_t words) {
    char found[MOST] = {0};
    Py_ssize_t count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kind->tp_mro); i++) {
        PyObject *names = PyObject_GetAttrString(PyTuple_GET_ITEM(kind->tp_mro, i), "__dict__");
        PyObject *values = names ? PyMapping_Values(names) : NULL;
        Py_XDECREF(names);
        if (!values) return -1;
        for (Py_ssize_t j = 0; j < PyList_GET_SIZE(values); j++) {
            PyObject *value = PyList_GET_ITEM(values, j);
            if (!Py_IS_TYPE(value, &PyMemberDescr_Type)) continue;
            PyMemberDef *member = ((PyMemberDescrObject *)value)->d_member;
            Py_ssize_t word = (member->offset - HEAD) / WORD;
            if (member->type == Py_T_OBJECT_EX && member->offset >= HEAD && word < words && !found[word]) found[word] = 1, count++;
        }
        Py_DECREF(values);
    }
    return count == words ? 0 : 1;
}

static Py_ssize_t place_of(PyTypeObject *kind, PyObject *name) {
    PyObject *slot = PyObject_GetAttr((PyObject *)kind, name);
    if (!slot) return -1;
    Py_ssize_t place = -1;
    if (Py_IS_TYPE(slot, &PyMemberDescr_Type) && ((PyMemberDescrObject *)slot)->d_member->type == Py_T_OBJECT_EX)
        place = (((PyMemberDescrObject *)slot)->d_member->offset - HEAD) / WORD;
    else
        PyErr_Format(PyExc_TypeError, "%R of %R is no slot", name, kind);
    Py_DECREF(slot);
    return place;
}

static PyObject *copier_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"kind", "each", "all", NULL};
    PyTypeObject *kind;
    PyObject *each, *all = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!|O!:Copier", names, &PyType_Type, &kind, &PyTuple_Type, &each,
                                     &PyTuple_Type, &all)) return NULL;
    Py_ssize_t words = (kind->tp_basicsize - HEAD) / WORD, of_each = PyTuple_GET_SIZE(each), of_all = all ? PyTuple_GET_SIZE(all) : 0;
    int is_odd = !is_of_slots(kind) || words > MOST || of_each < 1 || of_each + of_all > words;
    if (!is_odd) is_odd = look_at(kind, words);
    if (is_odd) return is_odd < 0 ? NULL : PyErr_Format(PyExc_TypeError, "%R is no class of slots alone", kind);
    Copier *self = (Copier *)type->tp_alloc(type, 0);
    if (!self) return NULL;
    self->kind = (PyTypeObject *)Py_NewRef((PyObject *)kind);
    self->words = words, self->each = of_each, self->all = of_all;
    for (Py_ssize_t i = 0; i < of_each + of_all; i++) {
        self->place[i] = place_of(kind, i < of_each ? PyTuple_GET_ITEM(each, i) : PyTuple_GET_ITEM(all, i - of_each));
        if (self->place[i] < 0) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static PyObject *copy(Copier *self, PyObject *template) {
    PyTypeObject *type = Py_TYPE(template);
    if (type != self->kind
        && !(PyType_IsSubtype(type, self->kind) && is_of_slots(type) && type->tp_basicsize == self->kind->tp_basicsize))
        return PyErr_Format(PyExc_TypeError, "%R is no template for a %R", type, self->kind);
    PyObject *made = type->tp_alloc(type, 0);
    if (made)
        for (Py_ssize_t i = 0; i < self->words; i++) SLOTS(made)[i] = Py_XNewRef(SLOTS(template)[i]);
    return made;
}

static PyObject *copies(Copier *self, PyObject *const *args, Py_ssize_t given) {
    if (given != 1 + self->each + self->all)
        return PyErr_Format(PyExc_TypeError, "copies takes %zd arguments, not %zd", 1 + self->each + self->all, given);
    Py_ssize_t count = -1, are_many = PyList_CheckExact(args[0]);
    for (Py_ssize_t i = are_many ? 0 : 1; i <= self->each; i++) {
        if (!PyList_CheckExact(args[i])) return PyErr_Format(PyExc_TypeError, "a value for each copy: lists are needed");
        if (count >= 0 && count != PyList_GET_SIZE(args[i]))
            return PyErr_Format(PyExc_ValueError, "lists of %zd and %zd values", count, PyList_GET_SIZE(args[i]));
        count = PyList_GET_SIZE(args[i]);
    }
    PyObject *made = PyList_New(count);
    for (Py_ssize_t at = 0; made && at < count; at++) {
        PyObject *template = are_many ? PyList_GetItem(args[0], at) : args[0], *one = template ? copy(self, template) : NULL;
        if (!one) {
            Py_CLEAR(made);
            break;
        }
        PyList_SET_ITEM(made, at, one);
        for (Py_ssize_t i = 0; i < self->each + self->all; i++) {
            PyObject *value = i < self->each ? PyList_GetItem(args[1 + i], at) : args[1 + i];
            if (!value) {
                Py_CLEAR(made);
                break;
            }
            Py_XSETREF(SLOTS(one)[self->place[i]], Py_NewRef(value));
        }
    }
    return made;
}

static int copier_traverse(Copier *self, visitproc visit, void *arg) {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->kind);
    return 0;
}
static int copier_clear(Copier *self) {
    Py_CLEAR(self->kind);
    return 0;
}
static void copier_dealloc(Copier *self) {
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    copier_clear(self);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef copier_methods[] = {{"copies", (PyCFunction)(void (*)(void))copies, METH_FASTCALL, NULL}, {0}};
static PyType_Slot copier_slots[] = {{Py_tp_new, copier_new}, {Py_tp_dealloc, copier_dealloc}, {Py_tp_traverse, copier_traverse},
    {Py_tp_clear, copier_clear}, {Py_tp_methods, copier_methods}, {0, NULL}};
static PyType_Spec copier_spec = {"multiqueue._copier.Copier", sizeof(Copier), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE, copier_slots};

static int module_exec(PyObject *module) {
    PyObject *type = PyType_FromModuleAndSpec(module, &copier_spec, NULL);
    int failed = type ? PyModule_AddObjectRef(module, "Copier", type) : -1;
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
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "multiqueue._copier", NULL, 0, NULL, module_slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__copier(void) { return PyModuleDef_Init(&module_def); }
