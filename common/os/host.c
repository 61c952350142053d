/* Host identity (see host.h), to detect processes of one machine. Called by server and trainer. */
#include "common/os/host.h"

#include <stdio.h>
#include <string.h>

void clime_host_id(char *out, size_t size) {
    out[0] = 0;
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!f) return;
    if (fgets(out, (int)size, f)) out[strcspn(out, "\n")] = 0;
    fclose(f);
}
