/* Memory shared with other processes of the host, for the CPU table: anonymous files (memfd), mapped by both sides; and
 * memory that can be released and keeps its address.
 *
 * Called by the context's owner thread; owns the list of shared allocations and mappings until they are freed. A handle
 * is (magic, process, descriptor, bytes); the other side opens the descriptor under /proc, which the kernel allows to
 * the same user only, and refuses anything but a memfd. A mapping is read-only, so that a server cannot write into a
 * trainer's weights.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/checksum.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/finite.h"

struct clime_cpu_share {
    void *p;
    size_t bytes;
    int fd; /* -1: mapped from another process */
    struct clime_cpu_share *next;
};

struct handle {
    uint64_t magic, bytes;
    int64_t pid, fd;
};

#define MAGIC 0x314d454d454d4c43u /* "CLMEMEM1" */

static void remember(struct clime_dev *d, void *p, size_t bytes, int fd) {
    struct clime_cpu_share *s = xmalloc(sizeof *s);
    *s = (struct clime_cpu_share){p, bytes, fd, d->shares};
    d->shares = s;
}

enum clime_err clime_cpu_alloc_shared(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                      struct clime_error *e) {
    *out = NULL;
    int fd = memfd_create("clime", MFD_CLOEXEC);
    void *p = fd < 0 || ftruncate(fd, (off_t)bytes) ? MAP_FAILED
                                                    : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        if (fd >= 0) close(fd);
        return clime_fail(e, CLIME_ERR_LIMIT, "%s needs %zu bytes of shared memory, which are not to be had", what,
                          bytes);
    }
    remember(d, p, bytes, fd);
    *out = p;
    return CLIME_OK;
}

enum clime_err clime_cpu_share_export(struct clime_dev *d, const void *p, uint8_t handle[CLIME_SHARE_BYTES],
                                      struct clime_error *e) {
    struct clime_cpu_share *s = d->shares;
    while (s && s->p != p) s = s->next;
    if (!s || s->fd < 0) return clime_fail(e, CLIME_ERR_UNAVAILABLE, "this memory was not made to be shared");
    struct handle h = {MAGIC, s->bytes, getpid(), s->fd};
    memset(handle, 0, CLIME_SHARE_BYTES);
    memcpy(handle, &h, sizeof h);
    return CLIME_OK;
}

enum clime_err clime_cpu_share_open(struct clime_dev *d, const uint8_t handle[CLIME_SHARE_BYTES], size_t bytes,
                                    bool *same_unit, void **out, struct clime_error *e) {
    struct handle h;
    char path[64];
    struct stat st;
    memcpy(&h, handle, sizeof h);
    *out = NULL;
    if (h.magic != MAGIC) return clime_fail(e, CLIME_ERR_INPUT, "the handle is none of a CPU's");
    if (h.bytes < bytes)
        return clime_fail(e, CLIME_ERR_INPUT, "the handle maps %llu bytes of %zu", (unsigned long long)h.bytes, bytes);
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)h.pid, (long long)h.fd);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    void *p = MAP_FAILED;
    if (fd >= 0 && fcntl(fd, F_GET_SEALS) >= 0 && !fstat(fd, &st) && (uint64_t)st.st_size >= h.bytes)
        p = mmap(NULL, (size_t)h.bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    if (p == MAP_FAILED)
        return clime_fail(e, CLIME_ERR_INPUT, "the handle does not map: %s holds no shared memory of %llu bytes", path,
                          (unsigned long long)h.bytes);
    remember(d, p, (size_t)h.bytes, -1);
    *same_unit = true;
    *out = p;
    return CLIME_OK;
}

/* false: p is not shared memory of this context */
static bool share_free(struct clime_dev *d, void *p) {
    for (struct clime_cpu_share **at = &d->shares; *at; at = &(*at)->next) {
        struct clime_cpu_share *s = *at;
        if (s->p != p) continue;
        *at = s->next;
        munmap(s->p, s->bytes);
        if (s->fd >= 0) close(s->fd);
        free(s);
        return true;
    }
    return false;
}

void clime_cpu_free(struct clime_dev *d, void *p) {
    if (!share_free(d, p)) free(p);
}

void clime_cpu_share_close(struct clime_dev *d, void *p) {
    CHECK(share_free(d, p));
}

/* The kernel allocates pages at first touch and frees them with MADV_DONTNEED; released memory is made inaccessible, so
 * that a use of it is caught. */
enum clime_err clime_cpu_alloc_fixed(struct clime_dev *d, size_t bytes, const char *what, void **out,
                                     struct clime_error *e) {
    size_t available, total;
    clime_cpu_memory(d, &available, &total);
    void *p = bytes > total
                  ? MAP_FAILED
                  : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    *out = NULL;
    if (p == MAP_FAILED)
        return clime_fail(e, CLIME_ERR_LIMIT, "%s needs %zu bytes; this machine has %zu, %zu of them free", what, bytes,
                          total, available);
    (void)madvise(p, bytes, MADV_HUGEPAGE);
    remember(d, p, bytes, -1);
    *out = p;
    return CLIME_OK;
}

static size_t bytes_of(const struct clime_dev *d, const void *p) {
    struct clime_cpu_share *s = d->shares;
    while (s && s->p != p) s = s->next;
    CHECK(s);
    return s->bytes;
}

void clime_cpu_give_back(struct clime_dev *d, void *p) {
    size_t bytes = bytes_of(d, p);
    CHECK(madvise(p, bytes, MADV_DONTNEED) == 0 && mprotect(p, bytes, PROT_NONE) == 0);
}

enum clime_err clime_cpu_take_back(struct clime_dev *d, void *p, struct clime_error *e) {
    (void)e;
    CHECK(mprotect(p, bytes_of(d, p), PROT_READ | PROT_WRITE) == 0);
    return CLIME_OK;
}

bool clime_cpu_finite(struct clime_dev *d, enum clime_dtype type, size_t n, const void *x) {
    (void)d;
    return clime_all_finite(type, n, x);
}

uint64_t clime_cpu_checksum(struct clime_dev *d, uint64_t first, size_t bytes, const void *p) {
    uint64_t sum = 0, word;
    (void)d;
    for (size_t at = 0; at < bytes; at += sizeof word) {
        size_t n = bytes - at < sizeof word ? bytes - at : sizeof word;
        word = 0;
        memcpy(&word, (const char *)p + at, n);
        sum += clime_checksum_term(word, first + at / sizeof word);
    }
    return sum;
}

void clime_cpu_bind(struct clime_dev *d) {
    (void)d; /* memory and thread pool belong to the process */
}
