/* A machine that lets its programs down, to be preloaded by test_hostile_machine.py.
 *
 *   HOSTILE_CLOCK     the time of day leaps by a day, there and back, ten times a second
 *   HOSTILE_FULL      the files under this folder take HOSTILE_ROOM bytes of a process, and no more
 *   HOSTILE_READONLY  no ledger can be opened for writing
 *   HOSTILE_HOST      nothing says which boot of the host this is
 *   HOSTILE_NAMES     nothing is ever heard of a host under .invalid; this file says that somebody has asked
 *   HOSTILE_THREADS   a process gets so many threads in its life, and no more; its children get all that they ask for
 *   HOSTILE_DEVICES   a rank whose device D (LOCAL_RANK) has a file in this folder is killed when it has received as
 * often as the file says, and afterwards at every start
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* ---- the clock ---- */

int clock_gettime(clockid_t id, struct timespec *t) {
    static __typeof__(&clock_gettime) real;
    struct timespec steady;
    if (!real) real = REAL(clock_gettime);
    int rc = real(id, t);
    if (rc || id != CLOCK_REALTIME || !getenv("HOSTILE_CLOCK")) return rc;
    real(CLOCK_MONOTONIC, &steady);
    t->tv_sec += (steady.tv_nsec / 100000000 % 3 - 1) * 86400;
    return 0;
}

int gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    *t = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* ---- the disk ---- */

static atomic_llong written;

static int has_room(int fd, size_t n) {
    const char *folder = getenv("HOSTILE_FULL");
    char link[64], path[PATH_MAX];
    if (!folder || fd < 3) return 1;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    path[len < 0 ? 0 : len] = 0;
    if (strncmp(path, folder, strlen(folder))) return 1;
    return atomic_fetch_add(&written, (long long)n) + (long long)n <= strtoll(getenv("HOSTILE_ROOM"), NULL, 10);
}

ssize_t write(int fd, const void *data, size_t n) {
    static __typeof__(&write) real;
    if (!real) real = REAL(write);
    if (!has_room(fd, n)) return errno = ENOSPC, -1;
    return real(fd, data, n);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off64_t at) {
    static __typeof__(&pwrite64) real;
    if (!real) real = REAL(pwrite64);
    if (!has_room(fd, n)) return errno = ENOSPC, -1;
    return real(fd, data, n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) {
    return pwrite64(fd, data, n, at);
}

/* ---- the ledger ---- */

static int refuses(const char *path, int flags) {
    size_t n = strlen(path);
    return getenv("HOSTILE_READONLY") && (flags & O_ACCMODE) != O_RDONLY && n > 9 && !strcmp(path + n - 9, "ledger.db");
}

int open64(const char *path, int flags, ...) {
    static __typeof__(&open64) real;
    va_list more;
    if (!real) real = REAL(open64);
    if (refuses(path, flags)) return errno = EACCES, -1;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return real(path, flags, mode);
}

int open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;
    va_end(more);
    return open64(path, flags, mode);
}

/* ---- the host ---- */

FILE *fopen(const char *path, const char *how) {
    static __typeof__(&fopen) real;
    if (!real) real = REAL(fopen);
    if (getenv("HOSTILE_HOST") && strstr(path, "/boot_id")) return errno = ENOENT, NULL;
    return real(path, how);
}

/* ---- names ---- */

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    static __typeof__(&getaddrinfo) real;
    const char *asked = getenv("HOSTILE_NAMES");
    if (!real) real = REAL(getaddrinfo);
    if (!asked || !name || !strstr(name, ".invalid") || (hints->ai_flags & AI_NUMERICHOST))
        return real(name, service, hints, out);
    close(open(asked, O_CREAT | O_WRONLY, 0600));
    for (;;) pause();
}

/* ---- threads ---- */

static int most_threads = -1;

/* A program may call exec, which keeps its number. */
__attribute__((constructor)) static void count_threads(void) {
    const char *most = getenv("HOSTILE_THREADS"), *whose = getenv("HOSTILE_THREADS_OF");
    char self[16];
    snprintf(self, sizeof self, "%d", (int)getpid());
    if (most && !whose) setenv("HOSTILE_THREADS_OF", whose = self, 1);
    if (most && !strcmp(whose, self)) most_threads = (int)strtol(most, NULL, 10);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *arg) {
    static __typeof__(&pthread_create) real;
    static atomic_int n;
    if (!real) real = REAL(pthread_create);
    if (most_threads >= 0 && atomic_fetch_add(&n, 1) >= most_threads) return EAGAIN;
    return real(thread, attr, run, arg);
}

/* ---- devices ---- */

static int receives_left = INT_MAX;
static char broken[PATH_MAX];

static void break_down(void) {
    FILE *f = fopen(broken, "w");
    if (f) fputs("0", f), fclose(f);
    raise(SIGKILL);
}

__attribute__((constructor)) static void look_at_device(void) {
    const char *folder = getenv("HOSTILE_DEVICES"), *device = getenv("LOCAL_RANK");
    if (!folder || !device) return;
    snprintf(broken, sizeof broken, "%s/%s", folder, device);
    FILE *f = fopen(broken, "r");
    if (!f) return;
    if (fscanf(f, "%d", &receives_left) != 1) receives_left = 0;
    fclose(f);
    if (receives_left == 0) break_down();
}

ssize_t recv(int fd, void *to, size_t n, int flags) {
    static __typeof__(&recv) real;
    if (!real) real = REAL(recv);
    if (receives_left != INT_MAX && receives_left-- == 0) break_down();
    return real(fd, to, n, flags);
}
