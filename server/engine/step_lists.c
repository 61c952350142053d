/* Lists of log-probabilities. Called by server/engine/step.c, engine thread; the array is the runner's.
 *
 * Invariant: a list has the same entries when it is asked for and when it is taken, since both follow from the request
 * and the vocabulary alone.
 */
#include "server/engine/step_lists.h"

_Static_assert(CLIME_MAX_TOP_LOGPROBS <= CLIME_LIST_TOP, "a request may ask for more than a device lists");

static int n_top_of(const struct clime_logp_options *want, int V) {
    return want->top < V ? want->top : V;
}

int clime_step_lists_add(struct clime_step_lists *l, int row, int V, float inv_temp,
                         const struct clime_logp_options *want) {
    if (!want->wanted || (want->top == 0 && want->n_ids == 0)) return -1;
    int at = l->n_entries, n_top = n_top_of(want, V);
    CHECK(l->n < l->size && n_top + want->n_ids <= CLIME_LIST_ROOM);
    l->list[l->n++] = (struct clime_logp_list){
        .row = row, .inv_temp = inv_temp, .n_top = n_top, .n_ids = want->n_ids, .ids = want->ids};
    l->n_entries += n_top + want->n_ids;
    return at;
}

struct clime_lp_extra *clime_step_lists_take(const struct clime_id_logp *from, int V,
                                             const struct clime_logp_options *want) {
    int n = n_top_of(want, V) + want->n_ids;
    struct clime_lp_extra *x = xmalloc(sizeof *x + (size_t)n * sizeof x->at[0]);
    x->n_top = n - want->n_ids;
    x->n_ids = want->n_ids;
    for (int i = 0; i < n; i++) {
        x->at[i].id = from[i].id;
        x->at[i].logp = from[i].logp;
    }
    return x;
}
