/* Loaded with LD_PRELOAD: a disk whose FAIL_AT-th sync fails with EIO, once, and that is written down. With QUOTA a full
 * disk says EDQUOT to what writes, as to a user who is over his quota.
 *
 * In RECORD_TO stands what the process did to the files under RECORD_DIR, in order: w(rite), t(runcate), c(reate),
 * u(nlink), n(ame changed, the data is the new one), s(ync, noted when it is done), f(ailed sync), and as m(ark) what it
 * said on standard output.
 * A record: kind, length of the path, offset, length of the data, path, data. Without RECORD_DIR nothing is written. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST 4096
static char *paths[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int record_to = -1;

#define REAL(type, name) ((type)dlsym(RTLD_NEXT, name))
typedef ssize_t (*write_type)(int, const void *, size_t);
typedef ssize_t (*pwrite_type)(int, const void *, size_t, off64_t);
typedef int (*open_type)(const char *, int, ...);
typedef int (*descriptor_type)(int);
typedef int (*truncate_type)(int, off64_t);
typedef int (*unlink_type)(const char *);
typedef int (*rename_type)(const char *, const char *);

static void note(char kind, const char *path, uint64_t offset, const void *data, uint32_t length) {
    uint16_t path_length = (uint16_t)strlen(path);
    struct iovec parts[6] = {{&kind, 1}, {&path_length, 2}, {&offset, 8}, {&length, 4},
                             {(void *)path, path_length}, {(void *)data, data ? length : 0}};
    pthread_mutex_lock(&lock);
    if (record_to < 0) {
        const char *to = getenv("RECORD_TO");
        record_to = REAL(open_type, "open")(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    if (writev(record_to, parts, 6) < 0) abort();
    pthread_mutex_unlock(&lock);
}

static int is_ours(const char *path) {
    const char *directory = getenv("RECORD_DIR");
    return directory != NULL && strncmp(path, directory, strlen(directory)) == 0;
}

static const char *path_of(int descriptor) {
    return descriptor >= 0 && descriptor < MOST ? paths[descriptor] : NULL;
}

static int opened(const char *path, int flags, int descriptor, int was_there) {
    if (descriptor >= 0 && descriptor < MOST && is_ours(path)) {
        paths[descriptor] = strdup(path);
        if ((flags & O_CREAT) && !was_there) note('c', path, 0, NULL, 0);
    }
    return descriptor;
}

#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        int mode = va_arg(rest, int);                                           \
        va_end(rest);                                                           \
        int was_there = access(path, F_OK) == 0;                                \
        return opened(path, flags, REAL(open_type, #name)(path, flags, mode), was_there); \
    }
OPEN(open)
OPEN(open64)

int close(int descriptor) {
    if (descriptor >= 0 && descriptor < MOST) paths[descriptor] = NULL;
    return REAL(descriptor_type, "close")(descriptor);
}

static ssize_t said(ssize_t done) {
    if (done < 0 && errno == ENOSPC && getenv("QUOTA")) errno = EDQUOT;
    return done;
}

ssize_t write(int descriptor, const void *data, size_t length) {
    ssize_t done = said(REAL(write_type, "write")(descriptor, data, length));
    if (descriptor == 1 && done > 0 && getenv("RECORD_DIR")) note('m', "", 0, data, (uint32_t)done);
    if (path_of(descriptor) && done > 0) {
        off64_t end = lseek64(descriptor, 0, SEEK_CUR);
        note('w', path_of(descriptor), (uint64_t)(end - done), data, (uint32_t)done);
    }
    return done;
}

#define PWRITE(name)                                                                    \
    ssize_t name(int descriptor, const void *data, size_t length, off64_t offset) {     \
        ssize_t done = said(REAL(pwrite_type, #name)(descriptor, data, length, offset)); \
        if (path_of(descriptor) && done > 0)                                            \
            note('w', path_of(descriptor), (uint64_t)offset, data, (uint32_t)done);     \
        return done;                                                                    \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

/* Python's os.pwritev is one of the second pair where the C library has it. */
typedef ssize_t (*pwritev_type)(int, const struct iovec *, int, off64_t, int);
static ssize_t written(int descriptor, const struct iovec *parts, off64_t offset, ssize_t done) {
    for (ssize_t left = path_of(descriptor) ? done : 0; left > 0; parts++) {
        ssize_t some = left < (ssize_t)parts->iov_len ? left : (ssize_t)parts->iov_len;
        note('w', path_of(descriptor), (uint64_t)(offset + done - left), parts->iov_base, (uint32_t)some);
        left -= some;
    }
    return done;
}

#define PWRITEV(name, flags_parameter, flags)                                                                   \
    ssize_t name(int descriptor, const struct iovec *parts, int count, off64_t offset flags_parameter) {        \
        return written(descriptor, parts, offset,                                                               \
                       REAL(pwritev_type, #name)(descriptor, parts, count, offset, flags));                     \
    }
#define COMMA_INT_FLAGS , int flags
PWRITEV(pwritev, , 0)
PWRITEV(pwritev64, , 0)
PWRITEV(pwritev2, COMMA_INT_FLAGS, flags)
PWRITEV(pwritev64v2, COMMA_INT_FLAGS, flags)

#define TRUNCATE(name)                                                                  \
    int name(int descriptor, off64_t length) {                                          \
        int done = REAL(truncate_type, #name)(descriptor, length);                      \
        if (path_of(descriptor) && done == 0) note('t', path_of(descriptor), (uint64_t)length, NULL, 0); \
        return done;                                                                    \
    }
TRUNCATE(ftruncate)
TRUNCATE(ftruncate64)

static int fails(void) {
    static int count = 0;
    const char *at = getenv("FAIL_AT");
    return at != NULL && __sync_add_and_fetch(&count, 1) == atoi(at);
}

#define SYNC(name)                                                                      \
    int name(int descriptor) {                                                          \
        if (fails()) {                                                                  \
            if (path_of(descriptor)) note('f', path_of(descriptor), 0, NULL, 0);        \
            errno = EIO;                                                                \
            return -1;                                                                  \
        }                                                                               \
        int done = REAL(descriptor_type, #name)(descriptor);                            \
        if (path_of(descriptor) && done == 0) note('s', path_of(descriptor), 0, NULL, 0); \
        return done;                                                                    \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    int done = REAL(unlink_type, "unlink")(path);
    if (done == 0 && is_ours(path)) note('u', path, 0, NULL, 0);
    return done;
}

int rename(const char *from, const char *to) {
    int done = REAL(rename_type, "rename")(from, to);
    if (done != 0 || !is_ours(from)) return done;
    note('n', from, 0, to, (uint32_t)strlen(to));
    for (int descriptor = 0; descriptor < MOST; descriptor++)
        if (paths[descriptor] && strcmp(paths[descriptor], from) == 0) paths[descriptor] = strdup(to);
    return done;
}
