/* Loaded with LD_PRELOAD: the FAIL_AT-th fsync or fdatasync of the process fails with EIO, once.
 * The numbers are told to nobody: the store must do without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>

static int fails(void) {
    static int count = 0;
    const char *at = getenv("FAIL_AT");
    return at != NULL && __sync_add_and_fetch(&count, 1) == atoi(at);
}

int fsync(int descriptor) {
    if (fails()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(descriptor);
}

int fdatasync(int descriptor) {
    if (fails()) { errno = EIO; return -1; }
    return ((int (*)(int))dlsym(RTLD_NEXT, "fdatasync"))(descriptor);
}
