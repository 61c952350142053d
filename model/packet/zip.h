/* zstd, level 1 (zip.c is the only includer of its header). Any thread. */
#ifndef CLIME_MODEL_PACKET_ZIP_H
#define CLIME_MODEL_PACKET_ZIP_H

#include <stdbool.h>
#include <stddef.h>

size_t clime_zip_bound(size_t n);                                      /* upper bound of the packed size of n bytes */
size_t clime_zip(const void *data, size_t n, void *out, size_t size);  /* returns bytes written; size is the bound */
bool clime_unzip(const void *data, size_t n, void *out, size_t n_out); /* false: not n_out bytes, or damaged */

#endif
