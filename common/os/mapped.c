/* Mapped files (see mapped.h). Called by readers of weights; owns the mappings, their table, and SIGBUS.
 *
 * The handler runs on the thread that touched the page. It only reads the table and maps zeros over that page and the
 * rest of the mapping, so the thread continues; any other fault gets the default action, which ends the process.
 */
#include "common/os/mapped.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 256

static struct place {
    atomic_uintptr_t begin, end; /* 0, 0 = free */
    atomic_bool was_cut;
} places[MOST];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards allocation of slots */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static uintptr_t page_bytes;

static void on_sigbus(int number, siginfo_t *info, void *context) {
    const uintptr_t at = (uintptr_t)info->si_addr;
    const int saved = errno;
    (void)context;
    for (int i = 0; i < MOST; i++) {
        uintptr_t begin = atomic_load(&places[i].begin), end = atomic_load(&places[i].end);
        if (at < begin || at >= end) continue;
        uintptr_t page = at & ~(page_bytes - 1);
        atomic_store(&places[i].was_cut, true);
        if (mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            break;
        errno = saved;
        return;
    }
    signal(number, SIG_DFL); /* the same instruction faults again */
}

static void ask_page(void) {
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
}

static int take_place(const void *at, size_t bytes) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < MOST && atomic_load(&places[i].end)) i++;
    if (i < MOST) {
        atomic_store(&places[i].was_cut, false);
        atomic_store(&places[i].begin, (uintptr_t)at);
        atomic_store(&places[i].end, (uintptr_t)at + bytes);
    }
    pthread_mutex_unlock(&lock);
    return i < MOST ? i : -1;
}

static void give_place(int i) {
    atomic_store(&places[i].end, 0);
}

static enum clime_err map(const char *path, struct clime_mapped *m, struct clime_error *e) {
    /* O_NONBLOCK: opening a FIFO would block until it has a writer. */
    m->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (m->fd < 0)
        return clime_fail(e, errno == ENOENT ? CLIME_ERR_NOT_FOUND : CLIME_ERR_IO, "cannot open %s: %s", path,
                          strerror(errno));
    if (fstat(m->fd, &m->st) || !S_ISREG(m->st.st_mode))
        return clime_fail(e, CLIME_ERR_INPUT, "%s is not a regular file", path);
    m->bytes = (size_t)m->st.st_size;
    if (!m->bytes) return CLIME_OK;
    void *at = mmap(NULL, m->bytes, PROT_READ, MAP_PRIVATE, m->fd, 0);
    if (at == MAP_FAILED) return clime_fail(e, CLIME_ERR_IO, "cannot map %s: %s", path, strerror(errno));
    m->at = at;
    m->place = take_place(at, m->bytes);
    if (m->place < 0) return clime_fail(e, CLIME_ERR_LIMIT, "cannot map %s: %d files are mapped already", path, MOST);
    (void)madvise(at, m->bytes, MADV_SEQUENTIAL); /* a hint: read ahead */
    return CLIME_OK;
}

enum clime_err clime_mapped_open(const char *path, struct clime_mapped *out, struct clime_error *e) {
    const struct sigaction a = {.sa_sigaction = on_sigbus, .sa_flags = SA_SIGINFO | SA_NODEFER};
    pthread_once(&once, ask_page);
    sigaction(SIGBUS, &a, NULL); /* each time: a library may have set its own */
    *out = (struct clime_mapped){.fd = -1, .place = -1};
    enum clime_err rc = map(path, out, e);
    if (rc) clime_mapped_close(out);
    return rc;
}

enum clime_err clime_mapped_check(const struct clime_mapped *m, struct clime_error *e) {
    struct stat now;
    bool was_cut = m->place >= 0 && atomic_load(&places[m->place].was_cut);
    if (was_cut || fstat(m->fd, &now))
        return clime_fail(e, CLIME_ERR_IO, "it was cut, or could not be read, while it was loaded");
    if (now.st_size != m->st.st_size || now.st_mtim.tv_sec != m->st.st_mtim.tv_sec ||
        now.st_mtim.tv_nsec != m->st.st_mtim.tv_nsec)
        return clime_fail(e, CLIME_ERR_IO, "it was written to while it was loaded: replace files by rename");
    return CLIME_OK;
}

void clime_mapped_close(struct clime_mapped *m) {
    if (m->at) munmap((void *)m->at, m->bytes);
    if (m->place >= 0) give_place(m->place);
    if (m->fd >= 0) close(m->fd);
    *m = (struct clime_mapped){.fd = -1, .place = -1};
}
