/* Current waits of a trainer: the signal, the thread that answers it, and the reader's side. Called by trainer/run/ and
 * by report.
 *
 * The handler only writes to an eventfd. Invariant: the signal is sent only to a process that has the run's lock file
 * open: another one with a reused number would be killed. */
#include "trainer/watch/now.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/os/waits.h"

#define MAX_TEXT ((size_t)1 << 20)
#define ANSWER_US 10000000
#define LOOK_US 20000

static volatile sig_atomic_t asked_fd = -1;

struct clime_now {
    char *path;
    int fd;
    pthread_t thread;
    atomic_bool stop;
};

static void asked(int signal) {
    uint64_t one = 1;
    int e = errno;
    (void)signal;
    if (asked_fd >= 0 && write(asked_fd, &one, sizeof one) < 0) errno = 0; /* full: already requested */
    errno = e;
}

static void answer(const struct clime_now *n) {
    struct clime_buf text;
    struct clime_error e;
    char when[32];
    clime_wall_format(clime_wall_us(), when);
    clime_buf_init(&text, MAX_TEXT);
    clime_buf_printf(&text, "%s, process %d waits for\n", when, (int)getpid());
    size_t head = text.len;
    clime_waits_write(&text);
    if (text.len == head) clime_buf_adds(&text, "       nothing: it computes\n");
    if (clime_atomic_save(n->path, text.data, text.len, &e)) LOG_WARN("%s", e.msg);
    for (char *line = text.data, *end; *line; line = end + 1) {
        end = line + strcspn(line, "\n");
        LOG_INFO("%.*s", (int)(end - line), line);
        if (!*end) break;
    }
    clime_buf_free(&text);
}

static void *now_main(void *arg) {
    struct clime_now *n = arg;
    uint64_t count;
    pthread_setname_np(pthread_self(), "waits");
    for (;;) {
        if (read(n->fd, &count, sizeof count) != sizeof count) continue; /* EINTR */
        if (atomic_load(&n->stop)) return NULL;
        answer(n);
    }
}

enum clime_err clime_now_open(const char *run, int lock_fd, struct clime_now **out, struct clime_error *e) {
    struct clime_now *n = *out = xcalloc(1, sizeof *n);
    struct sigaction a = {.sa_handler = asked, .sa_flags = SA_RESTART};
    atomic_init(&n->stop, false);
    n->path = xasprintf("%s/waits.txt", run);
    n->fd = eventfd(0, EFD_CLOEXEC);
    if (n->fd < 0 || pthread_create(&n->thread, NULL, now_main, n)) {
        if (n->fd >= 0) close(n->fd);
        free(n->path);
        free(n);
        *out = NULL;
        return clime_fail(e, CLIME_ERR_INTERNAL, "cannot start the thread that says what is waited for");
    }
    asked_fd = n->fd;
    CHECK(sigaction(SIGUSR1, &a, NULL) == 0);
    if (ftruncate(lock_fd, 0) || dprintf(lock_fd, "%d\n", (int)getpid()) < 0)
        LOG_WARN("%s/lock: %s", run, strerror(errno));
    return CLIME_OK;
}

void clime_now_close(struct clime_now *n) {
    uint64_t one = 1;
    if (!n) return;
    asked_fd = -1;
    atomic_store(&n->stop, true);
    CHECK(write(n->fd, &one, sizeof one) == sizeof one);
    pthread_join(n->thread, NULL);
    close(n->fd);
    free(n->path);
    free(n);
}

/* ---- reader's side ---- */

static bool has_open(int pid, const struct stat *file) {
    char path[64];
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *dir = opendir(path);
    for (struct dirent *d; dir && !found && (d = readdir(dir));) {
        struct stat at;
        found = d->d_name[0] != '.' && !fstatat(dirfd(dir), d->d_name, &at, 0) && at.st_ino == file->st_ino &&
                at.st_dev == file->st_dev;
    }
    if (dir) closedir(dir);
    return found;
}

/* The process id of the run's trainer; 0 = none. */
static int worker_of(const char *run) {
    char *path = xasprintf("%s/lock", run), text[16] = "";
    struct stat at;
    FILE *f = fopen(path, "r");
    int pid = f && fgets(text, sizeof text, f) ? (int)strtol(text, NULL, 10) : 0;
    if (pid > 0 && (fstat(fileno(f), &at) || !has_open(pid, &at))) pid = 0;
    if (f) fclose(f);
    free(path);
    return pid;
}

static char *read_text(const char *path) {
    struct clime_buf text;
    char piece[4096];
    FILE *f = fopen(path, "r");
    clime_buf_init(&text, MAX_TEXT);
    for (size_t n; f && (n = fread(piece, 1, sizeof piece, f)) > 0;) clime_buf_add(&text, piece, n);
    if (f) fclose(f);
    return clime_buf_take(&text);
}

enum clime_err clime_now_ask(const char *run, char **text, struct clime_error *e) {
    char *path = xasprintf("%s/waits.txt", run);
    struct stat before = {0}, now;
    int64_t limit = clime_now_us() + ANSWER_US;
    int pid = worker_of(run);
    enum clime_err rc = CLIME_OK;
    *text = NULL;
    if (stat(path, &before)) before.st_ino = 0;
    if (pid <= 0)
        rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "no trainer works on %s", run);
    else if (kill(pid, SIGUSR1))
        rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "the trainer of %s, process %d: %s", run, pid, strerror(errno));
    while (!rc && (stat(path, &now) || (now.st_ino == before.st_ino && now.st_mtim.tv_sec == before.st_mtim.tv_sec &&
                                        now.st_mtim.tv_nsec == before.st_mtim.tv_nsec))) {
        if (clime_now_us() > limit)
            rc = clime_fail(e, CLIME_ERR_TIMEOUT,
                            "the trainer of %s, process %d, does not say within %d s what it waits for", run, pid,
                            ANSWER_US / 1000000);
        else
            clime_sleep_us(LOOK_US);
    }
    if (!rc) *text = read_text(path);
    free(path);
    return rc;
}
