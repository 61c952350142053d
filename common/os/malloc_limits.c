/* Limits of glibc's malloc (see malloc_limits.h). Main thread, before anything else; owns nothing. */
#include "common/os/malloc_limits.h"

#include <limits.h>
#include <malloc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIMIT "glibc.malloc.tcache_max=128" /* seven blocks in each of 7 sizes: enough for most JSON */
#define KEPT_AT_END_BYTES (1 << 20)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { OTHER_MALLOC = true };
#else
enum { OTHER_MALLOC = false };
#endif

void clime_malloc_limits(char **argv, size_t give_back_bytes) {
    mallopt(M_MMAP_THRESHOLD, (int)give_back_bytes);
    mallopt(M_TRIM_THRESHOLD, KEPT_AT_END_BYTES);
    const char *set = getenv("GLIBC_TUNABLES");
    char self[PATH_MAX], all[4096];
    if (OTHER_MALLOC || (set && strstr(set, "glibc.malloc.tcache_"))) return;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return;
    self[n] = 0;
    bool any = set && *set;
    int len = snprintf(all, sizeof all, "%s%s" LIMIT, any ? set : "", any ? ":" : "");
    if (len >= (int)sizeof all || setenv("GLIBC_TUNABLES", all, 1)) return;
    execv(self, argv);
    if (any)
        setenv("GLIBC_TUNABLES", set, 1);
    else
        unsetenv("GLIBC_TUNABLES");
}
