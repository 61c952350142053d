/* Lists of log-probabilities, and sampling masks. Called by step_draws.c, engine thread; arrays are the caller's.
 *
 * Invariant: add and take agree on a list's entries, since both derive them from the request and the vocabulary alone.
 */
#include "server/engine/step_lists.h"

#include <math.h>
#include <string.h>

_Static_assert(CLIME_MAX_TOP_LOGPROBS <= CLIME_LIST_TOP, "a request may ask for more than a device lists");

static int n_top_of(const struct clime_logp_options *want, int V) {
    return want->top < V ? want->top : V;
}

int clime_step_lists_add(struct clime_step_lists *l, int row, int V, float inv_temp,
                         const struct clime_logp_options *want, int32_t id) {
    bool ranked = want->ranks && id >= 0;
    if (!want->wanted || (want->top == 0 && want->n_ids == 0 && !ranked)) return -1;
    int at = l->n_entries;
    struct clime_logp_list *list = &l->list[l->n];
    CHECK(l->n < l->size);
    *list = (struct clime_logp_list){.row = row,
                                     .inv_temp = inv_temp,
                                     .n_top = n_top_of(want, V),
                                     .n_ids = want->n_ids,
                                     .ids = want->ids,
                                     .ranked = ranked,
                                     .rank_of = id};
    CHECK(clime_logp_list_entries(list) <= CLIME_LIST_ROOM);
    l->n_entries += (int)clime_logp_list_entries(list);
    l->n++;
    return at;
}

struct clime_lp_extra *clime_step_lists_take(const struct clime_id_logp *from, int V,
                                             const struct clime_logp_options *want, int32_t id) {
    int n = n_top_of(want, V) + want->n_ids;
    struct clime_lp_extra *x = xmalloc(sizeof *x + (size_t)n * sizeof x->at[0]);
    x->rank = want->ranks && id >= 0 ? from[n].id : 0;
    x->n_top = n - want->n_ids;
    x->n_ids = want->n_ids;
    for (int i = 0; i < n; i++) {
        x->at[i].id = from[i].id;
        x->at[i].logp = from[i].logp;
    }
    return x;
}

int clime_step_mask_room(const struct clime_output *o, int V) {
    int room = clime_output_mask_room(o);
    return room < V ? room : V;
}

int clime_step_masks_place(const struct clime_sampling *s, int n, int at, int *mask_at) {
    for (int k = 0; k < n; k++) {
        mask_at[k] = s[k].kept_room > 0 ? at : -1;
        at += s[k].kept_room;
    }
    return at;
}

struct clime_sampling_mask *clime_step_mask_take(const struct clime_drawn *d, const int32_t *ids, int room) {
    int n = d->n_kept < room ? d->n_kept : room;
    struct clime_sampling_mask *m = xmalloc(sizeof *m + (size_t)n * sizeof m->ids[0]);
    m->logp = fminf(d->logp_cut, 0); /* a single id may round to above 0 */
    m->lacks = d->n_kept > room;
    m->n = n;
    memcpy(m->ids, ids, (size_t)n * sizeof m->ids[0]);
    return m;
}
