/* See weights_gather.h. Called by the server's weight updates, under their lock; owns the list of received tensors.
 */
#include "model/weights/weights_gather.h"

#include <stdlib.h>
#include <string.h>

#include "model/weights/convert.h"
#include "model/weights/weights_map.h"

#define MAX_NUMBERS ((int64_t)1 << 38) /* of a tensor: more than any has; sums over many do not overflow */

struct clime_weights_gather {
    struct clime_weights_seen seen;
};

struct clime_weights_gather *clime_weights_gather_new(const struct clime_config *c, const struct clime_layout *l) {
    struct clime_weights_gather *g = xcalloc(1, sizeof *g);
    clime_weights_seen_init(&g->seen, c, l);
    return g;
}

void clime_weights_gather_free(struct clime_weights_gather *g) {
    if (!g) return;
    clime_weights_seen_free(&g->seen);
    free(g);
}

static enum clime_st_dtype type_of(struct clime_str dtype) {
    static const char prefix[] = "torch.";
    size_t n = sizeof prefix - 1;
    if (dtype.len > n && !memcmp(dtype.ptr, prefix, n)) dtype = (struct clime_str){dtype.ptr + n, dtype.len - n};
    if (clime_str_is(dtype, "bfloat16")) return CLIME_ST_BF16;
    if (clime_str_is(dtype, "float16") || clime_str_is(dtype, "half")) return CLIME_ST_F16;
    return clime_str_is(dtype, "float32") || clime_str_is(dtype, "float") ? CLIME_ST_F32 : CLIME_ST_OTHER;
}

enum clime_err clime_weights_gather_take(struct clime_weights_gather *g, const char *name, struct clime_str dtype,
                                         int n_dim, const int64_t *dim, struct clime_gather_tensor *out,
                                         struct clime_error *e) {
    const struct clime_slice *known = clime_layout_find(g->seen.l, name);
    enum clime_st_dtype type = type_of(dtype);
    struct clime_st_tensor t = {.name = name, .dtype = "", .type = type, .n_dim = n_dim};
    int64_t n = 1;
    if (known && g->seen.have[known - g->seen.l->slices])
        return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%s\" came twice in one update", name);
    if (type == CLIME_ST_OTHER)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%.200s\": dtype must be bfloat16, float16 or float32", name);
    if (n_dim > CLIME_ST_MAX_DIMS)
        return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%.200s\" has %d dimensions", name, n_dim);
    for (int i = 0; i < n_dim; i++) {
        t.dim[i] = dim[i];
        if (__builtin_mul_overflow(n, dim[i], &n) || n > MAX_NUMBERS)
            return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%.200s\" is too large", name);
    }
    if (n == 0) return clime_fail(e, CLIME_ERR_INPUT, "tensor \"%.200s\" has no numbers", name);
    enum clime_err err = clime_weights_place(&g->seen, &t, &out->to, e);
    if (err) return err;
    out->type = type;
    out->bytes = (size_t)n * clime_st_width(type);
    out->as_it_is = out->to && type == clime_st_of(out->to->type);
    return CLIME_OK;
}

void clime_weights_gather_convert(const struct clime_gather_tensor *t, const void *h_bytes, void *h_out) {
    clime_convert(t->type, t->to->type, (size_t)t->to->n, h_bytes, h_out);
}

int clime_weights_gather_count(const struct clime_weights_gather *g) {
    int n = 0;
    for (int i = 0; i < g->seen.l->n_slices; i++) n += g->seen.have[i];
    return n;
}

const bool *clime_weights_gather_have(const struct clime_weights_gather *g) {
    return g->seen.have;
}
