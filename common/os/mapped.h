/* A file mapped for reading that another program may truncate or rewrite meanwhile, without SIGBUS. Any thread; one
 * owner per mapping. */
#ifndef CLIME_COMMON_OS_MAPPED_H
#define CLIME_COMMON_OS_MAPPED_H

#include <stdint.h>
#include <sys/stat.h>

#include "common/err.h"

struct clime_mapped {
    const uint8_t *at; /* NULL: the file is empty */
    size_t bytes;
    int fd;         /* -1 = not open */
    int place;      /* index in the SIGBUS handler's table; -1 = none */
    struct stat st; /* at open */
};

/* Maps a whole regular file. CLIME_ERR_NOT_FOUND, CLIME_ERR_IO, CLIME_ERR_INPUT (no regular file), CLIME_ERR_LIMIT (256
 * are mapped already). Messages name the path. Each call installs the process's SIGBUS handler: reads past the end of a
 * truncated file return zeros. */
enum clime_err clime_mapped_open(const char *path, struct clime_mapped *out, struct clime_error *e);
/* Call after reading: CLIME_ERR_IO when the file was truncated, written to since open, or unreadable, so the data read
 * may be mixed. A file replaced by rename is still the opened one. */
enum clime_err clime_mapped_check(const struct clime_mapped *m, struct clime_error *e);
void clime_mapped_close(struct clime_mapped *m);

#endif
