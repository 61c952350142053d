/* Exchanges of all ranks with all, by the moves that the programs make in other patterns (kernels/links.h). */
#ifndef CLIME_TESTS_UNIT_EXCHANGES_H
#define CLIME_TESTS_UNIT_EXCHANGES_H

#include "kernels/links.h"

/* Rank r's bytes [from[q], from[q + 1]) of send go to rank q, which has room for those of all ranks, r's at
 * receive + r * (bytes of q's part). What a rank keeps for itself is not copied. from: [world + 1], the same on all. */
static enum clime_err all_to_all(struct clime_links *l, const char *what, void *send, const size_t *from, void *receive,
                                 struct clime_error *e) {
    struct clime_move sends[CLIME_GROUP_MAX], receives[CLIME_GROUP_MAX];
    size_t part = from[l->rank + 1] - from[l->rank];
    int n = 0;
    for (int k = 1; k < l->world; k++, n++) {
        int q = (l->rank + k) % l->world;
        sends[n] = (struct clime_move){q, (char *)send + from[q], from[q + 1] - from[q]};
        receives[n] = (struct clime_move){q, (char *)receive + (size_t)q * part, part};
    }
    return clime_links_exchange(l, what, sends, n, receives, n, e);
}

/* From root's buf to all others'. */
static enum clime_err spread(struct clime_links *l, const char *what, int root, void *buf, size_t bytes,
                             struct clime_error *e) {
    struct clime_move sends[CLIME_GROUP_MAX], receive = {root, buf, bytes};
    int n = 0;
    for (int q = 0; q < l->world && l->rank == root; q++)
        if (q != root) sends[n++] = (struct clime_move){q, buf, bytes};
    return clime_links_exchange(l, what, sends, n, &receive, l->rank != root, e);
}

#endif
