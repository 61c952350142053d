/* A model over several ranks: its share, and the exchanges between ranks. See ranks.h.
 *
 * Called by the owner of the model, in the same order on every rank; owns the share and the table of matrices.
 * Invariant: nothing is summed across ranks. Every output of a product is computed whole on one rank, from rows that
 * all have, so its bits do not depend on the number of ranks (docs/devices.md).
 *
 * A failed exchange is recorded like a device failure: later ones do nothing, later results are undefined, and the end
 * of a step checks it (clime_model_ranks_check). Logits are gathered as they are, and rank 0 alone takes their
 * statistics and samples: this costs reading them once more over a link, and edits, truncation and lists need all of
 * them in one place anyway.
 */
#include "model/ranks.h"

#include <stdlib.h>

#include "model/rope.h"

#define PIECE ((int64_t)8 << 20) /* most bytes of one exchange of weights */
enum { SPANS = 64 };             /* and most parts of tensors */
#define HOMEWARD "bringing rows of experts home"

size_t clime_model_piece_bytes(const struct clime_model *m) {
    bool bounces = m->ranks.n > 1 && m->ranks.rank == 0 && m->ops->own_memory;
    return bounces ? PIECE : 0;
}

/* ---- the share ------------------------------------------------------------------------------------------------- */

static struct clime_heads heads_of(const struct clime_config *c, int n_ranks) {
    int HK = c->HK > n_ranks ? c->HK / n_ranks : 1;
    float scale = clime_rope_attention_scale(c);
    if (c->latent.R)
        return (struct clime_heads){c->H / n_ranks, 1, c->latent.R + c->latent.Dr, scale, .Dv = c->latent.R};
    return (struct clime_heads){c->H / n_ranks, HK, c->Dh, scale, .common_keys = c->qkv_bias};
}

static void head_rows(const struct clime_model *m, int rank, int64_t *from, int64_t *to) {
    clime_layout_head_rows(&m->layout, rank, m->ranks.n, from, to);
}

/* Sets the matrices that products read: the joined tensors of the layers, and the head. held[n_slices]: bytes of each
 * table row on this rank. */
static void make_matrices(struct clime_model *m, const int64_t *held) {
    const struct clime_layout *l = &m->layout;
    int64_t from, to;
    m->matrix = xcalloc((size_t)l->n_slices, sizeof *m->matrix);
    for (int i = 0, end; i < l->n_slices; i = end) {
        struct clime_matrix w = {.K = (int)l->slices[i].dim[1]};
        const int64_t row = l->slices[i].bytes / l->slices[i].dim[0];
        bool is_matrix =
            l->slices[i].kind == CLIME_PARAM_MATRIX && !l->slices[i].by_head && (i != l->embed || i == l->head);
        for (end = i; end < l->n_slices && (end == i || l->slices[end].joined); end++)
            if (is_matrix) w.N += (int)(held[end] / row);
        w.n_experts = l->slices[i].n_experts / (l->slices[i].cut.rule == CLIME_SHARD_EXPERT ? m->ranks.n : 1);
        if (w.n_experts) w.N /= w.n_experts;
        if (is_matrix) m->matrix[i] = w;
    }
    head_rows(m, m->ranks.rank, &from, &to);
    m->matrix[l->head].N = (int)(to - from);
}

void clime_model_place(struct clime_model *m) {
    for (int i = m->shard.n_parts; i-- > 0;) /* the first part of a row last */
        m->place[m->shard.parts[i].slice] = m->shard.parts[i].local;
}

enum clime_err clime_model_lay(struct clime_model *m, struct clime_error *e) {
    const struct clime_layout *l = &m->layout;
    enum clime_err rc = clime_layout_shard(l, m->ranks.rank, m->ranks.n, &m->shard, e);
    if (rc) return rc;
    int64_t *held = xcalloc((size_t)l->n_slices, sizeof *held);
    m->place = xmalloc((size_t)l->n_slices * sizeof *m->place);
    clime_model_place(m);
    for (int i = 0; i < m->shard.n_parts; i++) held[m->shard.parts[i].slice] += m->shard.parts[i].bytes;
    make_matrices(m, held);
    free(held);
    m->heads = heads_of(&m->cfg, m->ranks.n);
    return CLIME_OK;
}

const void *clime_tied_head(const struct clime_model *m) {
    int64_t from, to;
    head_rows(m, m->ranks.rank, &from, &to);
    const struct clime_slice *s = &m->layout.slices[m->layout.head];
    return clime_model_at(m, m->place[m->layout.head] + from * (s->bytes / s->dim[0]));
}

void clime_model_put(void *arg, int64_t offset, const void *data, int64_t bytes) {
    struct clime_model *m = arg;
    if (m->ring) {
        clime_ring_put(m, offset, data, bytes);
        return;
    }
    if (m->ranks.n == 1) {
        m->ops->copy_in(m->dev, clime_model_at(m, offset), data, (size_t)bytes);
        return;
    }
    struct clime_shard_part p;
    for (int i = clime_shard_first(&m->shard, offset); clime_shard_cut(&m->shard, i, offset, bytes, &p); i++)
        m->ops->copy_in(m->dev, clime_model_at(m, p.local), (const char *)data + (p.global - offset), (size_t)p.bytes);
}

int64_t clime_model_read_share(const struct clime_model *m, int64_t offset, int64_t bytes, void *h_out) {
    struct clime_shard_part p;
    int64_t all = 0;
    CHECK(m->flat && !m->released);
    for (int i = clime_shard_first(&m->shard, offset); clime_shard_cut(&m->shard, i, offset, bytes, &p); i++) {
        m->ops->copy_out(m->dev, (char *)h_out + all, clime_model_at(m, p.local), (size_t)p.bytes);
        all += p.bytes;
    }
    return all;
}

/* ---- exchanges --------------------------------------------------------------------------------------------------- */

void clime_model_link(struct clime_model *m, struct clime_links *links) {
    CHECK(links->world == m->ranks.n && links->rank == m->ranks.rank);
    m->ranks.links = links;
}

bool clime_model_records(const struct clime_model *m) {
    return m->ops->graph_begin && (!m->ranks.links || m->ranks.links->records); /* no links: not sharded */
}

enum clime_err clime_model_ranks_check(const struct clime_model *m, struct clime_error *e) {
    if (m->ranks.err && e) *e = m->ranks.error;
    return m->ranks.err;
}

void clime_model_ranks_fail(struct clime_model *m, const struct clime_error *why) {
    if (m->ranks.err) return;
    m->ranks.err = why->code;
    m->ranks.error = *why;
}

static void even_columns(const struct clime_model *m, size_t row_bytes, size_t at[CLIME_GROUP_MAX + 1]) {
    size_t n = (size_t)m->ranks.n;
    CHECK(row_bytes % n == 0);
    for (size_t r = 0; r <= n; r++) at[r] = row_bytes / n * r;
}

static void vocab_columns(const struct clime_model *m, size_t at[CLIME_GROUP_MAX + 1]) {
    int64_t from, to;
    at[0] = 0;
    for (int r = 0; r < m->ranks.n; r++) {
        head_rows(m, r, &from, &to);
        at[r + 1] = (size_t)to * sizeof(float);
    }
}

static void gather(struct clime_model *m, const char *what, int root, int T, int each, const size_t *at, void *parts,
                   void *y) {
    struct clime_error e;
    if (!m->ranks.err && clime_links_gather_rows(m->ranks.links, what, root, T, each, at, parts, y, &e))
        clime_model_ranks_fail(m, &e);
}

void *clime_ranks_mine(const struct clime_model *m, int T, size_t row_bytes, void *parts, void *y) {
    size_t at[CLIME_GROUP_MAX + 1];
    if (m->ranks.n == 1) return y;
    even_columns(m, row_bytes, at);
    return (char *)parts + (size_t)T * at[m->ranks.rank];
}

void clime_ranks_gather(struct clime_model *m, int T, int each, size_t row_bytes, void *parts, void *y) {
    size_t at[CLIME_GROUP_MAX + 1];
    if (m->ranks.n == 1) return;
    even_columns(m, row_bytes, at);
    gather(m, "gathering activations", -1, T, each, at, parts, y);
}

void clime_ranks_product(struct clime_model *m, int T, const void *x, int w, int bias, int N, void *parts, void *y) {
    enum clime_dtype dt = clime_model_dt(m);
    size_t row = (size_t)N * clime_dtype_bytes(dt);
    void *mine = clime_ranks_mine(m, T, row, parts, y);
    m->ops->gemm(m->dev, dt, T, x, &m->matrix[w], mine);
    if (bias >= 0) m->ops->bias(m->dev, T, m->matrix[w].N, mine, clime_weight(m, bias));
    clime_ranks_gather(m, T, 1, row, parts, y);
}

/* ---- whole experts -------------------------------------------------------------------------------------------- */

const int32_t *clime_ranks_own(const struct clime_model *m, const int32_t *start) {
    return start + m->ranks.rank * (m->cfg.router.E / m->ranks.n);
}

/* By exchanges of the exact sizes, which the host must know. */
static void home_by_exchange(struct clime_model *m, const int32_t *start, const int32_t *cuts, const void *rows,
                             void *parts, void *y) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    int32_t h_start[CLIME_MAX_EXPERTS + 1] = {0};
    int n = m->ranks.n, rank = m->ranks.rank, E = m->cfg.router.E, each = E / n, N = m->cfg.D / n;
    size_t row = (size_t)N * clime_dtype_bytes(clime_model_dt(m));
    m->ops->copy_out(m->dev, h_start, start, ((size_t)E + 1) * sizeof *h_start);
    size_t first = (size_t)h_start[rank * each], own = (size_t)h_start[(rank + 1) * each] - first;
    for (int k = 0; k < n; k++) {
        int q = (rank + k) % n;
        size_t from = (size_t)h_start[q * each], theirs = (size_t)h_start[(q + 1) * each] - from;
        char *to = k ? (char *)parts + (size_t)(k - 1) * own * row : (char *)y + first * row;
        if (own)
            m->ops->gather(m->dev, (int)own, N, cuts, (const char *)rows + (first * (size_t)n + (size_t)q) * row, to);
        if (!k) continue;
        sends[k - 1] = (struct clime_move){q, to, own * row};
        receives[k - 1] = (struct clime_move){q, (char *)y + from * row, theirs * row};
    }
    struct clime_error e;
    if (!m->ranks.err && clime_links_exchange(m->ranks.links, HOMEWARD, sends, n - 1, receives, n - 1, &e))
        clime_model_ranks_fail(m, &e);
}

void clime_ranks_home(struct clime_model *m, int R, const int32_t *start, const int32_t *cuts, const void *rows,
                      void *parts, void *y) {
    size_t row = (size_t)(m->cfg.D / m->ranks.n) * clime_dtype_bytes(clime_model_dt(m));
    if (!m->ranks.links->records)
        home_by_exchange(m, start, cuts, rows, parts, y);
    else if (!m->ranks.err)
        clime_links_home(m->ranks.links, HOMEWARD, R, row, start, m->cfg.router.E / m->ranks.n, rows, y);
}

float *clime_ranks_my_logits(const struct clime_model *m, int R, float *parts, float *logits) {
    size_t at[CLIME_GROUP_MAX + 1];
    if (m->ranks.n == 1) return logits;
    vocab_columns(m, at);
    return (float *)(void *)((char *)parts + (size_t)R * at[m->ranks.rank]);
}

void clime_ranks_gather_logits(struct clime_model *m, int R, float *parts, float *logits) {
    size_t at[CLIME_GROUP_MAX + 1];
    if (m->ranks.n == 1) return;
    vocab_columns(m, at);
    gather(m, "gathering logits", 0, R, 1, at, parts, logits);
}

void clime_model_share_ids(struct clime_model *m, int T, int32_t *ids) {
    size_t at[CLIME_GROUP_MAX + 1] = {0};
    for (int r = 1; r <= m->ranks.n; r++) at[r] = (size_t)T * sizeof *ids;
    gather(m, "handing out drawn tokens", -1, 1, 1, at, ids, ids);
}

/* ---- new weights ---------------------------------------------------------------------------------------------- */

struct span { /* of a part: one move */
    int64_t global, local, bytes;
};

struct cursor { /* progress in a shard's parts: whole ones before `part`, and `at` bytes of it */
    int part;
    int64_t at;
};

/* The spans of the next exchange: at most PIECE bytes, of up to SPANS parts. Both sides cut alike; a layer of experts
 * has hundreds of small ones. */
static int next_spans(const struct clime_shard *s, struct cursor *c, struct span out[SPANS]) {
    int64_t room = PIECE;
    int n = 0;
    while (c->part < s->n_parts && n < SPANS && room > 0) {
        const struct clime_shard_part *p = &s->parts[c->part];
        int64_t take = p->bytes - c->at < room ? p->bytes - c->at : room;
        if (take) out[n++] = (struct span){p->global + c->at, p->local + c->at, take};
        room -= take;
        c->at += take;
        if (c->at < p->bytes) continue;
        c->part++;
        c->at = 0;
    }
    return n;
}

/* Sends rank its share of the whole weights; from the host through the device's staging buffer. */
static enum clime_err send_share(struct clime_model *m, int rank, const char *flat, char *piece,
                                 struct clime_error *e) {
    struct span spans[SPANS];
    struct clime_move moves[SPANS];
    struct cursor c = {0};
    struct clime_shard s;
    enum clime_err rc = clime_layout_shard(&m->layout, rank, m->ranks.n, &s, e);
    for (int n; !rc && (n = next_spans(&s, &c, spans)) > 0;) {
        size_t at = 0;
        for (int i = 0; i < n; i++) {
            const char *from = flat + spans[i].global;
            moves[i] = (struct clime_move){rank, (void *)(uintptr_t)from, (size_t)spans[i].bytes};
            if (!piece) continue;
            moves[i].at = piece + at;
            m->ops->copy_in(m->dev, piece + at, from, moves[i].bytes);
            at += moves[i].bytes;
        }
        rc = clime_links_exchange(m->ranks.links, "handing out weights", moves, n, NULL, 0, e);
    }
    clime_shard_free(&s);
    return rc;
}

static void take_own(struct clime_model *m, const char *flat, bool host) {
    for (int i = 0; i < m->shard.n_parts; i++) {
        const struct clime_shard_part *p = &m->shard.parts[i];
        (host ? m->ops->copy_in : m->ops->copy)(m->dev, clime_model_at(m, p->local), flat + p->global,
                                                (size_t)p->bytes);
    }
}

static enum clime_err taken(struct clime_model *m, enum clime_err rc, struct clime_error *e) {
    if (!rc)
        clime_model_repack(m);
    else if (!m->ranks.err)
        clime_model_ranks_fail(m, e);
    return rc;
}

enum clime_err clime_model_hand_out(struct clime_model *m, const void *flat, bool host, struct clime_error *e) {
    enum clime_err rc = clime_model_ranks_check(m, e);
    CHECK(m->ranks.rank == 0 && m->flat && !m->foreign && !m->released);
    for (int r = 1; r < m->ranks.n && !rc; r++) rc = send_share(m, r, flat, host ? m->ranks.piece : NULL, e);
    if (!rc) take_own(m, flat, host);
    return taken(m, rc, e);
}

enum clime_err clime_model_take_share(struct clime_model *m, struct clime_error *e) {
    struct span spans[SPANS];
    struct clime_move moves[SPANS];
    struct cursor c = {0};
    enum clime_err rc = clime_model_ranks_check(m, e);
    CHECK(m->ranks.rank > 0 && m->flat && !m->foreign && !m->released);
    for (int n; !rc && (n = next_spans(&m->shard, &c, spans)) > 0;) {
        for (int i = 0; i < n; i++)
            moves[i] = (struct clime_move){0, clime_model_at(m, spans[i].local), (size_t)spans[i].bytes};
        rc = clime_links_exchange(m->ranks.links, "taking weights", NULL, 0, moves, n, e);
    }
    return taken(m, rc, e);
}
