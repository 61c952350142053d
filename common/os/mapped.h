/* A file mapped for reading, that another program may cut or rewrite meanwhile: no SIGBUS ends the process. Any thread;
 * one owner a mapping. */
#ifndef CLIME_COMMON_OS_MAPPED_H
#define CLIME_COMMON_OS_MAPPED_H

#include <stdint.h>
#include <sys/stat.h>

#include "common/err.h"

struct clime_mapped {
    const uint8_t *at; /* NULL: the file is empty */
    size_t bytes;
    int fd;         /* -1 = not open */
    int place;      /* in the table that the handler looks into; -1 = none */
    struct stat st; /* when it was opened */
};

/* Maps a regular file whole. CLIME_ERR_NOT_FOUND, CLIME_ERR_IO, CLIME_ERR_INPUT (no regular file), CLIME_ERR_LIMIT (256
 * are mapped already). Messages name the path. Each call installs the process's handler of SIGBUS: what is read
 * behind the end of a file that was cut is zeros. */
enum clime_err clime_mapped_open(const char *path, struct clime_mapped *out, struct clime_error *e);
/* After reading: CLIME_ERR_IO when the file was cut or written to since it was opened, or could not be read: what was
 * read is not one file then. A file that was replaced by rename is still the one that was opened. */
enum clime_err clime_mapped_check(const struct clime_mapped *m, struct clime_error *e);
void clime_mapped_close(struct clime_mapped *m);

#endif
