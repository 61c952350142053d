/* The exchanges of a context. See exchange.h. Called by context.c and the trainer, main thread.
 *
 * Invariant: nothing is summed here. Rows of heads' elements are permuted (gather), sent, and permuted again. The order
 * is by turn, then by rank: the heads of each rank's group for this rank's rows. A turn's data to send is in `parts` at
 * Dh elements per head, received data at its own width, which is never further, so finished turns keep their
 * results. */
#include "model/context/exchange.h"

#include <stdlib.h>

static const char what[] = "exchanging the rows of a sequence";

static size_t bytes_of(const struct clime_context *c, int n_elements) {
    return (size_t)n_elements * clime_dtype_bytes(clime_dev_info(c->dev)->dt);
}

/* Heads per row before the groups of a turn of rank r. */
static int heads_before(const struct clime_context *c, int kind, int turn, int r) {
    int n = 0;
    for (int i = 0; i <= turn; i++)
        for (int of = 0; of < (i < turn ? c->n : r); of++) n += clime_context_count(c, kind, of * c->turns + i);
    return n;
}

void clime_context_rows(struct clime_context *c, int T) {
    const int most = T * c->heads.H;
    if (T == c->T) return;
    c->T = T;
    int32_t *to_heads = xmalloc((size_t)most * sizeof *to_heads), *to_rows = xmalloc((size_t)most * sizeof *to_rows);
    for (int kind = 0; kind < CLIME_CONTEXT_KINDS; kind++) {
        const int H = c->first[kind][c->n * c->turns];
        int32_t at = 0;
        for (int i = 0; i < c->turns; i++)
            for (int g = i; g < c->n * c->turns; g += c->turns)
                for (int t = 0; t < T; t++)
                    for (int h = c->first[kind][g]; h < c->first[kind][g + 1]; h++, at++) {
                        to_heads[at] = t * H + h;
                        to_rows[t * H + h] = at;
                    }
        if (at == 0) continue;
        c->ops->copy_in(c->dev, c->to_heads[kind], to_heads, (size_t)at * sizeof *to_heads);
        c->ops->copy_in(c->dev, c->to_rows[kind], to_rows, (size_t)at * sizeof *to_rows);
    }
    free(to_heads);
    free(to_rows);
}

/* Between all pairs of the context: sends bytes [out[r], out[r + 1]) of `from` to rank r and receives its bytes at
 * [in[r], in[r + 1]) of `to`; the rank's own are copied. */
static void exchange(struct clime_context *c, const void *from, const size_t *out, void *to, const size_t *in) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    int n_sends = 0, n_receives = 0;
    char *source = (char *)(uintptr_t)from, *place = to;
    if (c->error.code) return;
    for (int k = 1; k < c->n; k++) {
        const int r = (c->me + k) % c->n, rank = c->links->rank - c->me + r;
        if (out[r] < out[r + 1]) sends[n_sends++] = (struct clime_move){rank, source + out[r], out[r + 1] - out[r]};
        if (in[r] < in[r + 1]) receives[n_receives++] = (struct clime_move){rank, place + in[r], in[r + 1] - in[r]};
    }
    if (out[c->me] < out[c->me + 1])
        c->ops->copy(c->dev, place + in[c->me], source + out[c->me], out[c->me + 1] - out[c->me]);
    if (c->n > 1) clime_links_exchange(c->links, what, sends, n_sends, receives, n_receives, &c->error);
}

/* Byte offsets of each rank's group of a turn over this rank's rows, and of each rank's rows of the group here. */
static void places(const struct clime_context *c, int kind, int turn, int width, size_t *of_heads, size_t *of_rows) {
    const size_t head = (size_t)c->T * bytes_of(c, width);
    const int first = heads_before(c, kind, turn, 0), own = clime_context_count(c, kind, clime_context_own(c, turn));
    for (int r = 0; r <= c->n; r++) {
        of_heads[r] = (size_t)(heads_before(c, kind, turn, r) - first) * head;
        of_rows[r] = (size_t)(r * own) * head;
    }
}

/* Start of the turn's heads in `parts`, at `width` elements each. */
static void *part(const struct clime_context *c, int kind, int turn, int width) {
    return (char *)c->parts + (size_t)heads_before(c, kind, turn, 0) * (size_t)c->T * bytes_of(c, width);
}

void clime_context_to_heads(struct clime_context *c, int kind, int turn, int width, const void *x, void *y) {
    size_t of_heads[CLIME_GROUP_MAX + 1], of_rows[CLIME_GROUP_MAX + 1];
    const int first = heads_before(c, kind, turn, 0), n = heads_before(c, kind, turn, c->n) - first;
    void *send = part(c, kind, turn, c->heads.Dh);
    places(c, kind, turn, width, of_heads, of_rows);
    c->ops->gather(c->dev, c->T * n, width, c->to_heads[kind] + (size_t)c->T * (size_t)first, x, send);
    exchange(c, send, of_heads, y, of_rows);
}

void clime_context_to_rows(struct clime_context *c, int kind, int turn, int width, const void *y, void *x) {
    size_t of_heads[CLIME_GROUP_MAX + 1], of_rows[CLIME_GROUP_MAX + 1];
    places(c, kind, turn, width, of_heads, of_rows);
    exchange(c, y, of_rows, part(c, kind, turn, width), of_heads);
    if (turn + 1 < c->turns) return;
    c->ops->gather(c->dev, c->T * heads_before(c, kind, turn, c->n), width, c->to_rows[kind], c->parts, x);
}

void clime_context_own_rows(struct clime_context *c, int width, const void *x, void *y) {
    size_t at[CLIME_GROUP_MAX + 1];
    for (int r = 0; r <= c->n; r++) at[r] = (size_t)(r * c->T) * bytes_of(c, width);
    exchange(c, x, at, y, at);
}

/* Replicates x, of which rank r has filled the bytes [at[r], at[r + 1]). */
static void share(struct clime_context *c, const char *why, const size_t *at, void *x) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    int n_sends = 0, n_receives = 0;
    char *own = (char *)x + at[c->me];
    if (c->error.code || c->n == 1) return;
    for (int k = 1; k < c->n; k++) {
        const int r = (c->me + k) % c->n, rank = c->links->rank - c->me + r;
        if (at[c->me] < at[c->me + 1]) sends[n_sends++] = (struct clime_move){rank, own, at[c->me + 1] - at[c->me]};
        if (at[r] < at[r + 1]) receives[n_receives++] = (struct clime_move){rank, (char *)x + at[r], at[r + 1] - at[r]};
    }
    clime_links_exchange(c->links, why, sends, n_sends, receives, n_receives, &c->error);
}

void clime_context_all_rows(struct clime_context *c, int width, const void *x, void *y) {
    size_t at[CLIME_GROUP_MAX + 1];
    for (int r = 0; r <= c->n; r++) at[r] = (size_t)(r * c->T) * bytes_of(c, width);
    c->ops->copy(c->dev, (char *)y + at[c->me], x, at[1]);
    share(c, what, at, y);
}

void clime_context_share(struct clime_context *c, const int *from, void *x) {
    size_t at[CLIME_GROUP_MAX + 1];
    for (int r = 0; r <= c->n; r++) at[r] = (size_t)from[r] * 4;
    share(c, "sharing the figures of a pack", at, x);
}
