/* Process memory (see memory.h). Called by the trainer for its metrics. */
#include "common/os/memory.h"

#include <stdio.h>
#include <unistd.h>

size_t clime_resident_bytes(void) {
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return 0;
    if (fscanf(f, "%*u %zu", &pages) != 1) pages = 0;
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}
