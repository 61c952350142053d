/* zstd, level 1 (zip.c is the only includer of its header). Any thread. */
#ifndef CLIME_MODEL_PACKET_ZIP_H
#define CLIME_MODEL_PACKET_ZIP_H

#include <stdbool.h>
#include <stddef.h>

size_t clime_zip_bound(size_t n);                                      /* bytes that n may take at most */
size_t clime_zip(const void *data, size_t n, void *out, size_t size);  /* bytes written; size is the bound */
bool clime_unzip(const void *data, size_t n, void *out, size_t n_out); /* false: it is not n_out bytes, or damaged */

#endif
