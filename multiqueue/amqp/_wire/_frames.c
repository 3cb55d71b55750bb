/* The functions of `plain.py`, which run for every message, with the same answers: that module says what they are.
 *
 * Promise     Nothing is read past the end of what is given, whatever its lengths say: each is compared with what is left
 *             before it is added to anything. What is not plain (no whole frame, no content in three frames, a block that
 *             Python has to look at) is left where it is, so that every error is found and worded in Python.
 * Threads     No state. A list or a buffer that is given belongs to the caller alone: `whole_frames` lets go of the GIL while
 *             it copies long bodies out of it.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

enum { METHOD = 1, HEADER = 2, BODY = 3, HEARTBEAT = 8, END = 0xCE, HEAD = 7, OVERHEAD = 8, HEADER_START = 12 };
enum { EARLY = 64 }; /* as in plain.py */
typedef const unsigned char *Bytes;

static uint32_t two(Bytes at) { return (uint32_t)at[0] << 8 | at[1]; }
static uint32_t four(Bytes at) { return two(at) << 16 | two(at + 2); }
static uint64_t eight(Bytes at) { return (uint64_t)four(at) << 32 | four(at + 4); }
static int is_type(int kind) { return kind == METHOD || kind == HEADER || kind == BODY || kind == HEARTBEAT; }

static int count_is(const char *name, Py_ssize_t given, Py_ssize_t wanted) {
    if (given == wanted) return 1;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, wanted, given);
    return 0;
}

/* The size of the payload of the whole frame that begins `at`, of which `left` bytes are there; -1: there is none. */
static int64_t whole(Bytes at, Py_ssize_t left, uint64_t largest) {
    if (left < OVERHEAD || !is_type(at[0])) return -1;
    uint32_t size = four(at + 3);
    if (size > largest || size > (uint64_t)(left - OVERHEAD) || at[HEAD + size] != END) return -1;
    return size;
}

static int append(PyObject *frames, int kind, uint32_t channel, PyObject *payload) {
    PyObject *frame = payload ? PyTuple_New(3) : NULL, *number = NULL, *type = NULL;
    if (!frame || !(type = PyLong_FromLong(kind)) || !(number = PyLong_FromLong((long)channel))) {
        Py_XDECREF(frame);
        Py_XDECREF(type);
        Py_XDECREF(payload);
        return -1;
    }
    PyTuple_SET_ITEM(frame, 0, type);
    PyTuple_SET_ITEM(frame, 1, number);
    PyTuple_SET_ITEM(frame, 2, payload);
    int failed = PyList_Append(frames, frame);
    Py_DECREF(frame);
    return failed;
}

/* Copies that are still to be made, into bytes that nobody else has yet: together, and without the GIL where they are long. */
enum { MOST_COPIES = 128, LONG = 64 * 1024 };
typedef struct {
    struct { char *to; Bytes from; size_t size; } each[MOST_COPIES];
    int count;
    size_t size;
} Copies;

static void make(Copies *copies) {
    PyThreadState *state = copies->size >= LONG ? PyEval_SaveThread() : NULL;
    for (int i = 0; i < copies->count; i++) memcpy(copies->each[i].to, copies->each[i].from, copies->each[i].size);
    if (state) PyEval_RestoreThread(state);
    copies->count = 0, copies->size = 0;
}

static void later(Copies *copies, char *to, Bytes from, size_t size) {
    if (copies->count == MOST_COPIES) make(copies);
    copies->each[copies->count].to = to, copies->each[copies->count].from = from, copies->each[copies->count++].size = size;
    copies->size += size;
}

static PyObject *cut(Bytes data, Py_ssize_t at, Py_ssize_t end, uint64_t largest, Py_ssize_t most, PyObject *frames, Copies *copies) {
    Py_ssize_t count = 0, begun = 0;
    int joins = most >= 0;
    int64_t size, of = -1, left = 0; /* the channel whose header came last, and what its content lacks */
    while ((size = whole(data + at, end - at, largest)) >= 0) {
        int kind = data[at];
        uint32_t channel = two(data + at + 1);
        Bytes payload = data + at + HEAD;
        at += OVERHEAD + (Py_ssize_t)size;
        count++;
        if (joins && kind == HEADER && size >= HEADER_START) {
            uint64_t body = eight(payload + 4);
            of = channel, left = body > INT64_MAX ? INT64_MAX : (int64_t)body;
            if (left > end - at && left <= most && left / EARLY <= end - at) begun = (Py_ssize_t)left;
        } else if (joins && kind == BODY && channel == of) {
            left -= size;
            Py_ssize_t behind = at, total = (Py_ssize_t)size, parts = 1;
            int64_t more;
            while ((more = whole(data + behind, end - behind, largest)) > 0 && data[behind] == BODY
                   && two(data + behind + 1) == channel && more <= left) {
                left -= more, total += (Py_ssize_t)more, parts++;
                behind += OVERHEAD + (Py_ssize_t)more;
            }
            PyObject *joined = PyBytes_FromStringAndSize(NULL, total);
            if (joined) {
                char *to = PyBytes_AS_STRING(joined);
                later(copies, to, payload, (size_t)size);
                to += size;
                for (; at < behind; to += more, at += OVERHEAD + (Py_ssize_t)more) {
                    more = four(data + at + 3);
                    later(copies, to, data + at + HEAD, (size_t)more);
                }
                count += parts - 1;
            }
            if (append(frames, kind, channel, joined) < 0) return NULL;
            continue;
        }
        if (append(frames, kind, channel, PyBytes_FromStringAndSize((const char *)payload, (Py_ssize_t)size)) < 0) return NULL;
        if (begun) break;
    }
    PyObject *body = begun ? PyBytes_FromStringAndSize(NULL, begun) : Py_NewRef(Py_None);
    return body ? Py_BuildValue("nnN", at, count, body) : NULL;
}

/* whole_frames(data, at, largest, most, frames) -> (at, count, body). Nobody looks at the body before it is filled. */
static PyObject *whole_frames(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    if (!count_is("whole_frames", given, 5)) return NULL;
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    unsigned long long largest = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[2]);
    Py_ssize_t most = PyErr_Occurred() ? 0 : PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (!PyList_CheckExact(args[4])) return PyErr_Format(PyExc_TypeError, "frames are a list");
    Py_buffer data;
    if (PyObject_GetBuffer(args[0], &data, PyBUF_SIMPLE) < 0) return NULL;
    Copies copies = {.count = 0, .size = 0};
    PyObject *done = at < 0 || at > data.len ? PyErr_Format(PyExc_ValueError, "at is %zd of %zd bytes", at, data.len)
                                             : cut(data.buf, at, data.len, largest, most, args[4], &copies);
    if (done) make(&copies); /* else nobody looks at what is in the list, and the last of it may be gone */
    PyBuffer_Release(&data);
    return done;
}

/* fill_body(body, filled, left, data, at, channel, largest) -> (filled, left, at) */
static PyObject *fill_body(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    if (!count_is("fill_body", given, 7)) return NULL;
    Py_ssize_t numbers[5]; /* filled, left, at, channel, largest */
    for (int i = 0; i < 5; i++) {
        numbers[i] = PyLong_AsSsize_t(args[(const int[]){1, 2, 4, 5, 6}[i]]);
        if (numbers[i] == -1 && PyErr_Occurred()) return NULL;
    }
    Py_ssize_t filled = numbers[0], left = numbers[1], at = numbers[2], channel = numbers[3];
    if (!PyBytes_CheckExact(args[0])) return PyErr_Format(PyExc_TypeError, "a body is bytes");
    Py_ssize_t size = PyBytes_GET_SIZE(args[0]);
    Py_buffer data;
    if (PyObject_GetBuffer(args[3], &data, PyBUF_SIMPLE) < 0) return NULL;
    if (filled < 0 || filled > size || left < -1 || left > size - filled || at < 0 || at > data.len) {
        PyBuffer_Release(&data);
        return PyErr_Format(PyExc_ValueError, "filled %zd, left %zd of %zd; at %zd of %zd bytes", filled, left, size, at, data.len);
    }
    for (Bytes from = data.buf; left >= 0 || filled < size;) {
        if (left < 0) {
            if (data.len - at < HEAD || from[at] != BODY || two(from + at + 1) != channel) break;
            uint32_t more = four(from + at + 3);
            if (!more || more > numbers[4] || more > size - filled) break;
            left = (Py_ssize_t)more, at += HEAD;
        }
        Py_ssize_t here = left < data.len - at ? left : data.len - at;
        memcpy(PyBytes_AS_STRING(args[0]) + filled, from + at, (size_t)here);
        filled += here, left -= here, at += here;
        if (left || at == data.len || from[at] != END) break;
        left = -1, at++;
    }
    PyBuffer_Release(&data);
    return Py_BuildValue("nnn", filled, left, at);
}

/* The payload of frame `index`, if it is of this type and channel, else NULL without an error. Borrowed. */
static PyObject *payload_of(PyObject *frames, Py_ssize_t index, long kind, long channel) {
    PyObject *frame = PyList_GET_ITEM(frames, index);
    if (!PyTuple_CheckExact(frame) || PyTuple_GET_SIZE(frame) != 3) return NULL;
    PyObject *type = PyTuple_GET_ITEM(frame, 0), *number = PyTuple_GET_ITEM(frame, 1), *payload = PyTuple_GET_ITEM(frame, 2);
    if (!PyLong_CheckExact(type) || !PyLong_CheckExact(number) || !PyBytes_CheckExact(payload)) return NULL;
    int overflow = 0;
    return PyLong_AsLongAndOverflow(type, &overflow) == kind && PyLong_AsLongAndOverflow(number, &overflow) == channel ? payload
                                                                                                                       : NULL;
}

/* What a run begins with: the channel of frame `at`, or -1 with an error. */
static long begin_run(const char *name, PyObject *const *args, Py_ssize_t given, Py_ssize_t *at, Py_ssize_t *most) {
    if (!count_is(name, given, 3)) return -1;
    *at = PyLong_AsSsize_t(args[1]);
    *most = PyErr_Occurred() ? 0 : PyLong_AsSsize_t(args[2]);
    if (PyErr_Occurred()) return -1;
    if (!PyList_CheckExact(args[0]) || *at < 0 || *at >= PyList_GET_SIZE(args[0])) {
        PyErr_Format(PyExc_IndexError, "%s: there is no frame %zd in the list", name, *at);
        return -1;
    }
    PyObject *frame = PyList_GET_ITEM(args[0], *at);
    if (!PyTuple_CheckExact(frame) || PyTuple_GET_SIZE(frame) != 3) {
        PyErr_Format(PyExc_TypeError, "%s: a frame is a tuple of three", name);
        return -1;
    }
    long channel = PyLong_AsLong(PyTuple_GET_ITEM(frame, 1));
    return channel < 0 && !PyErr_Occurred() ? (PyErr_SetString(PyExc_ValueError, "a channel is not negative"), -1) : channel;
}

#define DATA(bytes) ((Bytes)PyBytes_AS_STRING(bytes))
#define SIZE(bytes) PyBytes_GET_SIZE(bytes)
static int are_same(PyObject *one, PyObject *other) {
    return SIZE(one) == SIZE(other) && memcmp(DATA(one), DATA(other), (size_t)SIZE(one)) == 0;
}

/* acks_in_a_row(frames, at, most) -> tags */
static PyObject *acks_in_a_row(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Py_ssize_t at, most;
    long channel = begin_run("acks_in_a_row", args, given, &at, &most);
    PyObject *tags = channel < 0 ? NULL : PyList_New(0);
    for (; tags && most > 0 && at < PyList_GET_SIZE(args[0]); at++, most--) {
        PyObject *ack = payload_of(args[0], at, METHOD, channel);
        if (!ack || SIZE(ack) != 13 || four(DATA(ack)) != 0x003C0050 || DATA(ack)[12]) break;
        PyObject *tag = PyLong_FromUnsignedLongLong(eight(DATA(ack) + 4));
        if (!tag || PyList_Append(tags, tag) < 0) Py_CLEAR(tags);
        Py_XDECREF(tag);
    }
    return tags;
}

/* contents_in_a_row(frames, at, most) -> contents. What two neighbours have alike is one object. */
static PyObject *contents_in_a_row(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    Py_ssize_t at, most;
    long channel = begin_run("contents_in_a_row", args, given, &at, &most);
    PyObject *contents = channel < 0 ? NULL : PyList_New(0), *method = NULL, *properties = NULL;
    for (; contents && most > 0 && at < PyList_GET_SIZE(args[0]) - 2; at += 3, most--) {
        PyObject *publish = payload_of(args[0], at, METHOD, channel);
        if (!publish || SIZE(publish) < 4 || four(DATA(publish)) != 0x003C0028) break;
        PyObject *header = payload_of(args[0], at + 1, HEADER, channel), *body = payload_of(args[0], at + 2, BODY, channel);
        if (!header || !body || SIZE(header) < 14 || !SIZE(body) || four(DATA(header)) != 0x003C0000
            || eight(DATA(header) + 4) != (uint64_t)SIZE(body)) break;
        if (!method || !are_same(method, publish)) method = publish; /* the frames keep it alive */
        Py_ssize_t size = SIZE(header) - HEADER_START;
        if (!properties || SIZE(properties) != size || memcmp(DATA(properties), DATA(header) + HEADER_START, (size_t)size) != 0)
            Py_XSETREF(properties, PyBytes_FromStringAndSize((const char *)DATA(header) + HEADER_START, size));
        PyObject *content = properties ? PyTuple_Pack(3, method, properties, body) : NULL;
        if (!content || PyList_Append(contents, content) < 0) Py_CLEAR(contents);
        Py_XDECREF(content);
    }
    Py_XDECREF(properties);
    return contents;
}

static unsigned char *put_head(unsigned char *to, int kind, unsigned long channel, uint64_t size) {
    to[0] = (unsigned char)kind, to[1] = (unsigned char)(channel >> 8), to[2] = (unsigned char)channel;
    for (int i = 0; i < 4; i++) to[3 + i] = (unsigned char)(size >> (24 - 8 * i));
    return to + HEAD;
}
static unsigned char *put_eight(unsigned char *to, uint64_t value) {
    for (int i = 0; i < 8; i++) to[i] = (unsigned char)(value >> (56 - 8 * i));
    return to + 8;
}
static unsigned char *put_bytes(unsigned char *to, PyObject *bytes) {
    memcpy(to, DATA(bytes), (size_t)SIZE(bytes));
    return to + SIZE(bytes);
}

/* The bytes of a delivery that are not in every one of its run; -1 with an error: it is none. */
static Py_ssize_t size_of(PyObject *content, PyObject *prefix) {
    if (!PyTuple_CheckExact(content) || PyTuple_GET_SIZE(content) != 3) goto wrong;
    uint64_t sum = 0;
    for (int i = 0; i < 3; i++) {
        PyObject *part = PyTuple_GET_ITEM(content, i);
        if (!PyBytes_CheckExact(part)) goto wrong;
        if ((uint64_t)SIZE(part) + (uint64_t)SIZE(prefix) + 16 > UINT32_MAX) {
            PyErr_SetString(PyExc_OverflowError, "a part of a delivery is too large for a frame");
            return -1;
        }
        sum += (uint64_t)SIZE(part);
    }
    return (Py_ssize_t)sum;
wrong:
    PyErr_SetString(PyExc_TypeError, "a content is a tuple of names, properties and body, as bytes");
    return -1;
}

static unsigned char *put_delivery(unsigned char *to, unsigned long channel, PyObject *prefix, uint64_t tag, int redelivered,
                                   PyObject *content) {
    PyObject *names = PyTuple_GET_ITEM(content, 0), *properties = PyTuple_GET_ITEM(content, 1), *body = PyTuple_GET_ITEM(content, 2);
    to = put_head(to, METHOD, channel, (uint64_t)SIZE(prefix) + 9 + (uint64_t)SIZE(names));
    to = put_eight(put_bytes(to, prefix), tag);
    *to++ = (unsigned char)redelivered;
    to = put_bytes(to, names);
    *to++ = END;
    to = put_head(to, HEADER, channel, HEADER_START + (uint64_t)SIZE(properties));
    memcpy(to, "\0\x3c\0\0", 4);
    to = put_bytes(put_eight(to + 4, (uint64_t)SIZE(body)), properties);
    *to++ = END;
    to = put_bytes(put_head(to, BODY, channel, (uint64_t)SIZE(body)), body);
    *to++ = END;
    return to;
}

/* deliver_frames(channel, prefix, first_tag, redelivered, contents) -> bytes */
static PyObject *deliver_frames(PyObject *module, PyObject *const *args, Py_ssize_t given) {
    if (!count_is("deliver_frames", given, 5)) return NULL;
    unsigned long channel = PyLong_AsUnsignedLong(args[0]);
    unsigned long long tag = PyErr_Occurred() ? 0 : PyLong_AsUnsignedLongLong(args[2]);
    if (PyErr_Occurred()) return NULL;
    PyObject *prefix = args[1], *flags = args[3], *contents = args[4];
    if (!PyBytes_CheckExact(prefix) || !PyList_CheckExact(flags) || !PyList_CheckExact(contents))
        return PyErr_Format(PyExc_TypeError, "a prefix of bytes and two lists are needed");
    Py_ssize_t count = PyList_GET_SIZE(contents), total = 0;
    if (PyList_GET_SIZE(flags) != count)
        return PyErr_Format(PyExc_ValueError, "%zd contents, and flags for %zd", count, PyList_GET_SIZE(flags));
    if (channel > UINT16_MAX || (count && tag > UINT64_MAX - (uint64_t)(count - 1)))
        return PyErr_Format(PyExc_OverflowError, "channel %lu or tag %llu does not fit", channel, tag);
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_ssize_t size = size_of(PyList_GET_ITEM(contents, i), prefix), around = SIZE(prefix) + 9 + HEADER_START + 3 * OVERHEAD;
        if (size < 0) return NULL;
        if (size > PY_SSIZE_T_MAX - around - total) return PyErr_NoMemory();
        total += size + around;
        PyObject *flag = PyList_GET_ITEM(flags, i);
        if (flag != Py_True && flag != Py_False) return PyErr_Format(PyExc_TypeError, "redelivered is a list of booleans");
    }
    PyObject *frames = PyBytes_FromStringAndSize(NULL, total);
    if (!frames) return NULL;
    unsigned char *to = (unsigned char *)PyBytes_AS_STRING(frames);
    for (Py_ssize_t i = 0; i < count; i++)
        to = put_delivery(to, channel, prefix, tag + (uint64_t)i, PyList_GET_ITEM(flags, i) == Py_True, PyList_GET_ITEM(contents, i));
    return frames;
}

static PyObject *text(Bytes data, Py_ssize_t size) {
    PyObject *decoded = PyUnicode_DecodeUTF8((const char *)data, size, NULL);
    if (!decoded && PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) PyErr_Clear();
    return decoded;
}

/* A table at `at`, up to `end`, of plain values: text, booleans, integers. NULL without an error: it is none. */
static PyObject *plain_table(Bytes at, Bytes end) {
    PyObject *table = PyDict_New();
    while (table && at < end) {
        Py_ssize_t size = *at++;
        PyObject *name = size < end - at ? text(at, size) : NULL, *value = NULL;
        if (!name) goto odd;
        at += size;
        int kind = *at++; /* it is there: `size` is less than what is left */
        Py_ssize_t left = end - at;
        if (kind == 'S' && left >= 4 && four(at) <= (uint64_t)(left - 4)) {
            value = text(at + 4, (Py_ssize_t)four(at));
            at += 4 + four(at);
        } else if (kind == 'I' && left >= 4) {
            value = PyLong_FromLong((int32_t)four(at));
            at += 4;
        } else if ((kind == 'l' || kind == 'L') && left >= 8) {
            value = PyLong_FromLongLong((int64_t)eight(at));
            at += 8;
        } else if (kind == 't' && left >= 1) {
            value = PyBool_FromLong(*at++);
        }
        int failed = value ? PyDict_SetItem(table, name, value) : -1;
        Py_DECREF(name);
        Py_XDECREF(value);
        if (failed < 0) goto odd;
    }
    if (table && at == end) return table;
odd:
    Py_XDECREF(table);
    return NULL;
}

/* plain_properties(block) -> dict, or None: Python has to look at it. */
static PyObject *plain_properties(PyObject *module, PyObject *block) {
    static const struct { unsigned flag; char kind; const char *name; } fields[] = {
        {0x8000, 't', "content_type"}, {0x4000, 't', "content_encoding"}, {0x2000, 'F', "headers"},
        {0x1000, 'o', "delivery_mode"}, {0x0800, 'o', "priority"}, {0x0400, 't', "correlation_id"},
        {0x0200, 't', "reply_to"}, {0x0100, 't', "expiration"}, {0x0080, 't', "message_id"}, {0x0040, 'q', "timestamp"},
        {0x0020, 't', "type"}, {0x0010, 't', "user_id"}, {0x0008, 't', "app_id"}, {0x0004, 't', "cluster_id"}};
    if (!PyBytes_CheckExact(block)) return PyErr_Format(PyExc_TypeError, "a block of properties is bytes");
    Bytes at = DATA(block), end = at + SIZE(block);
    if (SIZE(block) < 2) Py_RETURN_NONE;
    unsigned flags = two(at);
    if (flags & 3) Py_RETURN_NONE;
    PyObject *found = PyDict_New();
    at += 2;
    for (size_t i = 0; found && i < sizeof fields / sizeof *fields; i++) {
        if (!(flags & fields[i].flag)) continue;
        PyObject *value = NULL;
        Py_ssize_t left = end - at;
        if (fields[i].kind == 't' && left >= 1 && *at <= left - 1) {
            value = text(at + 1, *at);
            at += 1 + *at;
        } else if (fields[i].kind == 'o' && left >= 1) {
            value = PyLong_FromLong(*at++);
        } else if (fields[i].kind == 'q' && left >= 8) {
            value = PyLong_FromUnsignedLongLong(eight(at));
            at += 8;
        } else if (fields[i].kind == 'F' && left >= 4 && four(at) <= (uint64_t)(left - 4)) {
            Bytes stop = at + 4 + four(at);
            value = plain_table(at + 4, stop);
            at = stop;
        }
        if (!value || PyDict_SetItemString(found, fields[i].name, value) < 0) Py_CLEAR(found);
        Py_XDECREF(value);
    }
    if (PyErr_Occurred()) {
        Py_XDECREF(found);
        return NULL;
    }
    if (found && at == end) return found;
    Py_XDECREF(found);
    Py_RETURN_NONE;
}

#define FAST(function) {#function, (PyCFunction)(void (*)(void))function, METH_FASTCALL, NULL}
static PyMethodDef functions[] = {FAST(whole_frames), FAST(fill_body), FAST(acks_in_a_row), FAST(contents_in_a_row), FAST(deliver_frames),
    {"plain_properties", plain_properties, METH_O, NULL}, {0}};
static PyModuleDef_Slot module_slots[] = {
#if PY_VERSION_HEX >= 0x030C0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030D0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0}};
static struct PyModuleDef module_def = {PyModuleDef_HEAD_INIT, "multiqueue.amqp._wire._frames", NULL, 0, functions, module_slots, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit__frames(void) { return PyModuleDef_Init(&module_def); }
