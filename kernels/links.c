/* The collectives, as exchanges. Called by the owner of the links; owns nothing. */
#include "kernels/links.h"

enum clime_err clime_links_open(const struct clime_ops *ops, struct clime_dev *d, struct clime_group *g,
                                struct clime_links **out, struct clime_error *e) {
    *out = NULL;
    return ops->links_open(d, g, out, e);
}

void clime_links_close(struct clime_links *l) {
    if (l) l->ops->links_close(l);
}

enum clime_err clime_links_exchange(struct clime_links *l, const char *what, const struct clime_move *sends,
                                    int n_sends, const struct clime_move *receives, int n_receives,
                                    struct clime_error *e) {
    return l->ops->links_exchange(l, what, sends, n_sends, receives, n_receives, e);
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

enum clime_err clime_links_all_to_all(struct clime_links *l, const char *what, void *send, const size_t *from,
                                      void *receive, struct clime_error *e) {
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

enum clime_err clime_links_broadcast(struct clime_links *l, const char *what, int root, void *buf, size_t bytes,
                                     struct clime_error *e) {
    struct clime_move sends[CLIME_GROUP_MAX], receive = {root, buf, bytes};
    int n = 0;
    for (int q = 0; q < l->world && l->rank == root; q++)
        if (q != root) sends[n++] = (struct clime_move){q, buf, bytes};
    return clime_links_exchange(l, what, sends, n, &receive, l->rank != root, e);
}
