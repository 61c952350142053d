/* The collectives of links.h, built on exchanges. Called by the owner of the links; owns nothing. */
#include "kernels/links.h"

enum clime_err clime_links_open(const struct clime_ops *ops, struct clime_dev *d, struct clime_group *g,
                                struct clime_links **out, struct clime_error *e) {
    *out = NULL;
    return ops->links_open(d, g, out, e);
}

void clime_links_close(struct clime_links *l) {
    if (l) l->ops->links_close(l);
}

static enum clime_err begin(struct clime_links *l, const char *what, bool put, const struct clime_move *sends,
                            int n_sends, const struct clime_move *receives, int n_receives, uint32_t *number,
                            struct clime_error *e) {
    for (int i = 0; i < n_sends; i++) l->moved.sent_bytes += sends[i].bytes;
    return l->ops->links_begin(l, what, put, sends, n_sends, receives, n_receives, number, e);
}

enum clime_err clime_links_exchange(struct clime_links *l, const char *what, const struct clime_move *sends,
                                    int n_sends, const struct clime_move *receives, int n_receives,
                                    struct clime_error *e) {
    uint32_t number;
    enum clime_err rc = clime_links_begin(l, what, sends, n_sends, receives, n_receives, &number, e);
    if (!rc) clime_links_end(l, number);
    return rc;
}

enum clime_err clime_links_begin(struct clime_links *l, const char *what, const struct clime_move *sends, int n_sends,
                                 const struct clime_move *receives, int n_receives, uint32_t *number,
                                 struct clime_error *e) {
    return begin(l, what, false, sends, n_sends, receives, n_receives, number, e);
}

enum clime_err clime_links_window(struct clime_links *l, void *at, size_t bytes, struct clime_error *e) {
    CHECK(l->n_windows < CLIME_LINKS_WINDOWS);
    l->window[l->n_windows++] = (struct clime_links_window){at, bytes};
    return l->ops->links_window ? l->ops->links_window(l, at, bytes, e) : CLIME_OK;
}

static bool in_window(const struct clime_links *l, const void *at, size_t bytes) {
    const char *from = at;
    for (int i = 0; i < l->n_windows; i++)
        if (from >= l->window[i].at && from + bytes <= l->window[i].at + l->window[i].bytes) return true;
    return false;
}

enum clime_err clime_links_put(struct clime_links *l, const char *what, const struct clime_move *sends, int n_sends,
                               const struct clime_move *receives, int n_receives, uint32_t *number,
                               struct clime_error *e) {
    for (int i = 0; i < n_sends; i++) CHECK(in_window(l, sends[i].to, sends[i].bytes));
    for (int i = 0; i < n_receives; i++) CHECK(in_window(l, receives[i].at, receives[i].bytes));
    return begin(l, what, true, sends, n_sends, receives, n_receives, number, e);
}

void clime_links_end(struct clime_links *l, uint32_t number) {
    l->ops->links_end(l, number);
}

enum clime_err clime_links_all_gather(struct clime_links *l, const char *what, void *buf, const size_t *from,
                                      struct clime_error *e) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    int n = 0;
    for (int k = 1; k < l->world; k++, n++) {
        int q = (l->rank + k) % l->world;
        sends[n] = (struct clime_move){q, (char *)buf + from[l->rank], from[l->rank + 1] - from[l->rank]};
        receives[n] = (struct clime_move){q, (char *)buf + from[q], from[q + 1] - from[q]};
    }
    return clime_links_exchange(l, what, sends, n, receives, n, e);
}

/* Sends all ranks' columns to the rank that wants the rows. */
static enum clime_err columns_to(struct clime_links *l, const char *what, int root, const size_t *from, char *parts,
                                 struct clime_error *e) {
    struct clime_move moves[CLIME_GROUP_MAX];
    int n = 0;
    for (int r = 0; r < l->world; r++)
        if (r != root && (l->rank == root || l->rank == r))
            moves[n++] = (struct clime_move){l->rank == root ? r : root, parts + from[r], from[r + 1] - from[r]};
    return l->rank == root ? clime_links_exchange(l, what, NULL, 0, moves, n, e)
                           : clime_links_exchange(l, what, moves, n, NULL, 0, e);
}

enum clime_err clime_links_gather_rows(struct clime_links *l, const char *what, int root, int T, int each,
                                       const size_t *at, void *parts, void *y, struct clime_error *e) {
    size_t from[CLIME_GROUP_MAX + 1];
    int R = T * each;
    for (int r = 0; r <= l->world; r++) from[r] = (size_t)R * at[r];
    if (l->records && T <= CLIME_LINKS_FEW_ROWS) {
        l->ops->links_rows(l, what, root, R, at, (char *)parts + from[l->rank], y);
        return CLIME_OK;
    }
    enum clime_err rc =
        root < 0 ? clime_links_all_gather(l, what, parts, from, e) : columns_to(l, what, root, from, parts, e);
    if (!rc && y != parts && (root < 0 || root == l->rank)) l->ops->join_columns(l->dev, R, l->world, at, parts, y);
    return rc;
}

void clime_links_home(struct clime_links *l, const char *what, int R, size_t row_bytes, const int32_t *start, int each,
                      const void *rows, void *y) {
    CHECK(l->records);
    if (R > 0) l->ops->links_home(l, what, R, row_bytes, start, each, rows, y);
}
