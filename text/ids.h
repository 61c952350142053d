/* Vectors of token ids. The caller owns them; not thread-safe. */
#ifndef CLIME_TEXT_IDS_H
#define CLIME_TEXT_IDS_H

#include <stddef.h>
#include <stdint.h>

/* A vector of ids. Zero-initialise; free with clime_ids_free. */
struct clime_ids {
    int32_t *data;
    size_t len;
    size_t size;
};
void clime_ids_push(struct clime_ids *v, int32_t id);
void clime_ids_append(struct clime_ids *v, const int32_t *ids, size_t n);
void clime_ids_free(struct clime_ids *v); /* the vector is reusable */

#endif
