/* File limits (see files.h). Called in main and when starting children; owns the initial limit. */
#include "common/os/files.h"

#include <signal.h>
#include <sys/resource.h>

#define MOST 1048576 /* some machines allow 2^30, too much for tables sized by the limit */

static int64_t given = -1;

static int64_t capped(rlim_t n) {
    return n == RLIM_INFINITY || n > MOST ? MOST : (int64_t)n;
}

void clime_files_raise(void) {
    struct rlimit l;
    signal(SIGXFSZ, SIG_IGN);
    if (getrlimit(RLIMIT_NOFILE, &l)) return;
    if (given < 0) given = capped(l.rlim_cur);
    rlim_t want = (rlim_t)capped(l.rlim_max);
    if (l.rlim_cur != RLIM_INFINITY && l.rlim_cur >= want) return;
    l.rlim_cur = want;
    setrlimit(RLIMIT_NOFILE, &l); /* raising to the hard limit is always allowed */
}

int64_t clime_files_limit(void) {
    struct rlimit l;
    return getrlimit(RLIMIT_NOFILE, &l) ? 1024 : capped(l.rlim_cur);
}

int64_t clime_files_given(void) {
    return given < 0 ? clime_files_limit() : given;
}
