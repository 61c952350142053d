/* Vectors of token ids (see ids.h). */
#include "text/ids.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"

void clime_ids_push(struct clime_ids *v, int32_t id) {
    if (v->len == v->size) {
        v->size = v->size ? v->size * 2 : 64;
        v->data = xrealloc(v->data, v->size * sizeof *v->data);
    }
    v->data[v->len++] = id;
}

void clime_ids_append(struct clime_ids *v, const int32_t *ids, size_t n) {
    if (v->size - v->len < n) {
        while (v->size - v->len < n) v->size = v->size ? v->size * 2 : 64;
        v->data = xrealloc(v->data, v->size * sizeof *v->data);
    }
    if (n) memcpy(v->data + v->len, ids, n * sizeof *ids);
    v->len += n;
}

void clime_ids_free(struct clime_ids *v) {
    free(v->data);
    memset(v, 0, sizeof *v);
}
