/* Shared memory of a group (see memory.h): rank 0's unnamed file, which the others open through its descriptor. */
#include "common/group/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct where {
    int64_t pid, fd;
};

static void *map(int fd, size_t bytes) {
    void *p = fd < 0 ? MAP_FAILED : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static enum clime_err make(struct clime_group *g, size_t bytes, int *fd, void **out, struct clime_error *e) {
    *fd = memfd_create("clime-group", MFD_CLOEXEC);
    if (*fd >= 0 && !ftruncate(*fd, (off_t)bytes)) *out = map(*fd, bytes);
    if (!*out)
        return clime_fail(e, CLIME_ERR_LIMIT, "%d ranks need %zu bytes of shared memory: %s", clime_group_world(g),
                          bytes, strerror(errno));
    struct where w = {getpid(), *fd};
    enum clime_err rc = CLIME_OK;
    for (int r = 1; r < clime_group_world(g) && !rc; r++) rc = clime_group_send(g, r, &w, sizeof w, e);
    return rc;
}

static enum clime_err find(struct clime_group *g, size_t bytes, int *fd, void **out, struct clime_error *e) {
    struct clime_buf b;
    struct where w;
    char path[64];
    clime_buf_init(&b, sizeof w);
    enum clime_err rc = clime_group_receive(g, 0, "shared memory", clime_group_limit_us(g), &b, e);
    if (!rc && b.len != sizeof w) rc = clime_fail(e, CLIME_ERR_INTERNAL, "rank 0 does not say where its memory is");
    if (!rc) {
        memcpy(&w, b.data, sizeof w);
        snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)w.pid, (long long)w.fd);
        *fd = open(path, O_RDWR | O_CLOEXEC);
        *out = map(*fd, bytes);
        if (!*out)
            rc = clime_fail(e, CLIME_ERR_UNAVAILABLE, "rank 0's shared memory (%s) cannot be mapped: %s", path,
                            strerror(errno));
    }
    clime_buf_free(&b);
    return rc;
}

enum clime_err clime_group_memory(struct clime_group *g, size_t bytes, void **out, struct clime_error *e) {
    int fd = -1;
    *out = NULL;
    enum clime_err rc = clime_group_rank(g) ? find(g, bytes, &fd, out, e) : make(g, bytes, &fd, out, e);
    if (!rc) rc = clime_group_agree(g, "shared memory", e); /* all ranks have mapped it: close the descriptor */
    if (fd >= 0) close(fd);
    if (rc && *out) {
        munmap(*out, bytes);
        *out = NULL;
    }
    return rc;
}
