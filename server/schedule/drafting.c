/* Adds guessed rows to decode steps. Called by the engine, engine thread; owns the index and the step times.
 *
 * Invariant: nothing here can change a token, a log-probability or where a sequence ends; a guess only adds a row whose
 * result counts when the draws confirm it. So the choice may depend on the clock. A step with guesses cannot start
 * ahead of the previous step's results: its tokens must be known first. After a search that found no guess worth a row,
 * or no room, the next searches are 1, 3, 7, then 15 steps apart.
 */
#include "server/schedule/drafting.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/schedule/draft_cost.h"
#include "server/schedule/draft_index.h"
#include "server/schedule/logit_edits.h"

enum {
    FAMILIES = 1 << 12,     /* remembered prompts that are learned */
    LONGEST_PROMPT = 32768, /* at most its last tokens are learned */
    LONGEST_REST = 15       /* steps between two searches */
};

struct candidate {
    float chance;
    int item, k;
};

struct clime_drafting {
    struct clime_drafting_options opts;
    struct clime_draft_index *index;
    struct clime_draft_cost cost;
    uint64_t *families;           /* [FAMILIES] by their lower bits; 0 = none */
    int rest, n_left;             /* steps between searches, and until the next */
    struct candidate *candidates; /* [most_rows * most_of_one] */
    float *chance;                /* [most_rows * most_of_one] */
    int *n_chosen;                /* [most_rows] guesses of each item */
};

struct clime_drafting *clime_drafting_open(const struct clime_drafting_options *o) {
    CHECK(o->most_rows >= 2 && o->most_of_one >= 2);
    struct clime_drafting *d = xcalloc(1, sizeof *d);
    size_t n = (size_t)o->most_rows * (size_t)o->most_of_one;
    d->opts = *o;
    d->index = clime_draft_index_open(CLIME_DRAFT_SLOTS);
    clime_draft_cost_init(&d->cost);
    d->families = xcalloc(FAMILIES, sizeof *d->families);
    d->candidates = xcalloc(n, sizeof *d->candidates);
    d->chance = xcalloc(n, sizeof *d->chance);
    d->n_chosen = xcalloc((size_t)o->most_rows, sizeof *d->n_chosen);
    return d;
}

void clime_drafting_close(struct clime_drafting *d) {
    if (!d) return;
    clime_draft_index_close(d->index);
    free(d->families);
    free(d->candidates);
    free(d->chance);
    free(d->n_chosen);
    free(d);
}

bool clime_drafting_looks(const struct clime_drafting *d) {
    return d->n_left == 0;
}

/* ---- learning ---------------------------------------------------------------------------------------------- */

/* A prompt is learned once for all its samples. */
static void learn_prompt(struct clime_drafting *d, struct clime_seq *q) {
    uint64_t *known = &d->families[q->prompt_hash % FAMILIES];
    int first = q->n_prompt > LONGEST_PROMPT ? q->n_prompt - LONGEST_PROMPT : 1;
    for (int i = first; i < q->n_prompt && *known != q->prompt_hash; i++)
        clime_draft_index_learn(d->index, q->prompt_hash, q->ids, i, NULL);
    *known = q->prompt_hash;
    q->n_learned = q->n_prompt;
}

void clime_drafting_learn(struct clime_drafting *d, struct clime_seq *q) {
    if (q->n_learned == 0) learn_prompt(d, q);
    for (; q->n_learned < q->n_total; q->n_learned++)
        clime_draft_index_learn(d->index, q->prompt_hash, q->ids, q->n_learned, &q->trust);
}

/* ---- guessing ---------------------------------------------------------------------------------------------- */

static bool only_decodes(const struct clime_step_plan *plan) {
    for (int i = 0; i < plan->n_items; i++)
        if (plan->items[i].n_rows - plan->items[i].n_guesses != 1 || !plan->items[i].sample) return false;
    return true;
}

static bool may_guess(const struct clime_seq *q) {
    return q->n_learned == q->n_total && (!q->edits || clime_logit_edits_fixed(q->edits));
}

static int likeliest_first(const void *a, const void *b) {
    const struct candidate *x = a, *y = b;
    if (x->chance != y->chance) return x->chance < y->chance ? 1 : -1;
    return x->item != y->item ? (x->item > y->item) - (x->item < y->item) : (x->k > y->k) - (x->k < y->k);
}

/* Collects all items' guesses, likeliest first; those of one item stay in order. */
static int collect(struct clime_drafting *d, const struct clime_step_plan *plan) {
    int n = 0;
    for (int i = 0; i < plan->n_items; i++) {
        struct clime_seq *q = plan->items[i].seq;
        int most = d->opts.most_of_one - 1, room = q->max_total - 1 - q->n_total;
        if (!may_guess(q)) continue;
        int found = clime_draft_index_guess(d->index, q->prompt_hash, q->ids, q->n_total, most < room ? most : room,
                                            &q->trust, d->chance);
        for (int k = 0; k < found; k++) d->candidates[n++] = (struct candidate){d->chance[k], i, k};
    }
    if (n > 1) qsort(d->candidates, (size_t)n, sizeof *d->candidates, likeliest_first);
    for (int i = 0; i < n; i++) d->chance[i] = d->candidates[i].chance;
    return n;
}

/* Sets the next search; unsuccessful ones back off. */
static void rest(struct clime_drafting *d, bool found) {
    d->rest = found || !d->opts.adaptive ? 0 : d->rest < LONGEST_REST ? 2 * d->rest + 1 : LONGEST_REST;
    d->n_left = d->rest;
}

void clime_drafting_plan(struct clime_drafting *d, struct clime_sched *s, struct clime_step_plan *plan) {
    if (d->n_left > 0 || !only_decodes(plan)) return;
    if (plan->n_items >= d->opts.most_rows) { /* no room */
        rest(d, false);
        return;
    }
    if (d->opts.adaptive && !clime_draft_cost_known(&d->cost, plan->n_items)) {
        d->n_left = CLIME_DRAFT_KNOWN; /* measure plain steps first, as the baseline */
        return;
    }
    int n = collect(d, plan), room = d->opts.most_rows - plan->n_items, n_seqs = plan->n_items;
    if (n > room) n = room;
    if (d->opts.adaptive) n = clime_draft_cost_choose(&d->cost, n_seqs, d->chance, n);
    memset(d->n_chosen, 0, (size_t)n_seqs * sizeof *d->n_chosen);
    for (int i = 0; i < n; i++) d->n_chosen[d->candidates[i].item]++;
    for (int i = 0; i < n_seqs; i++)
        if (d->n_chosen[i] > 0) clime_sched_guess(s, plan, &plan->items[i], d->n_chosen[i]);
    rest(d, plan->T > n_seqs);
}

void clime_drafting_done(struct clime_drafting *d, const struct clime_step_plan *plan, int64_t us) {
    if (d->n_left > 0) d->n_left--;
    if (us > 0 && only_decodes(plan)) clime_draft_cost_step(&d->cost, plan->T, plan->T > plan->n_items, (float)us);
}
