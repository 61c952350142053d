/* Group selection: counts the groups of a rollout. Called by the rollout on its thread. Owns the list of groups.
 * Invariants: n_accepted <= target, and a decision never changes. */
#include "trainer/sample/chooser.h"

#include <stdlib.h>

#include "common/err.h"

void clime_chooser_init(struct clime_chooser *c, int target, int batch, bool in_order) {
    CHECK(target > 0 && batch > 0);
    *c = (struct clime_chooser){.target = target, .wanted = target, .batch = batch, .in_order = in_order};
}

void clime_chooser_free(struct clime_chooser *c) {
    free(c->groups);
    free(c->ended);
    *c = (struct clime_chooser){0};
}

bool clime_chooser_full(const struct clime_chooser *c) {
    return c->n_accepted == c->target;
}

static int in_batches(const struct clime_chooser *c, int n) {
    return (n + c->batch - 1) / c->batch * c->batch;
}

int clime_chooser_missing(const struct clime_chooser *c) {
    int missing = c->wanted - (c->n - c->n_dropped), part = c->n_carried % c->batch; /* of a partial batch */
    return missing <= 0 ? 0 : in_batches(c, missing + part) - part;
}

void clime_chooser_add(struct clime_chooser *c, int n) {
    c->groups = xrealloc(c->groups, (size_t)(c->n + n) * sizeof *c->groups);
    c->ended = xrealloc(c->ended, (size_t)(c->n + n) * sizeof *c->ended);
    for (int i = 0; i < n; i++) c->groups[c->n++] = (struct clime_chosen){0};
}

static void end(struct clime_chooser *c, int group) {
    CHECK(group >= 0 && group < c->n && !c->groups[group].ended);
    c->groups[group].ended = true;
    c->ended[c->n_ended++] = group;
}

void clime_chooser_finish(struct clime_chooser *c, int group, const struct clime_verdict *v) {
    end(c, group);
    c->groups[group].verdict = *v;
}

void clime_chooser_fail(struct clime_chooser *c, int group) {
    end(c, group);
    c->groups[group].failed = true;
}

void clime_chooser_reopen(struct clime_chooser *c, int group) {
    int i = c->taken;
    CHECK(!c->in_order && c->groups[group].ended && c->groups[group].decision == CLIME_UNDECIDED);
    while (c->ended[i] != group) i++;
    for (c->n_ended--; i < c->n_ended; i++) c->ended[i] = c->ended[i + 1];
    c->groups[group] = (struct clime_chosen){0};
}

void clime_chooser_next(struct clime_chooser *c, int *place) {
    int n = 0;
    CHECK(!c->in_order);
    for (int g = 0; g < c->n; g++) {
        place[g] = c->groups[g].decision == CLIME_UNDECIDED ? n : -1;
        if (place[g] >= 0) c->groups[n++] = c->groups[g];
    }
    c->n_ended -= c->taken;
    for (int i = 0; i < c->n_ended; i++) c->ended[i] = place[c->ended[c->taken + i]];
    c->n = c->n_carried = n;
    c->taken = c->n_accepted = c->n_dropped = 0;
}

static int next_to_decide(struct clime_chooser *c) {
    if (c->in_order) return c->next < c->n && c->groups[c->next].ended ? c->next++ : -1;
    return c->taken < c->n_ended ? c->ended[c->taken++] : -1;
}

/* True when dropping group g would require another batch. In order, the drops before it determine how many groups were
 * submitted at its turn; groups added by later drops do not count, even if present. */
static bool insufficient(const struct clime_chooser *c, const struct clime_chosen *g) {
    int n_dropped = c->n_dropped + (c->in_order ? g->skipped : 0);
    int n = c->in_order ? in_batches(c, c->target + n_dropped) : c->n;
    return n - n_dropped - 1 < c->target;
}

int clime_chooser_decide(struct clime_chooser *c) {
    int i = clime_chooser_full(c) ? -1 : next_to_decide(c);
    if (i < 0) return -1;
    struct clime_chosen *g = &c->groups[i];
    bool accept = !g->failed && (g->verdict.keep || (g->verdict.keep_when_insufficient && insufficient(c, g)));
    g->decision = accept ? CLIME_ACCEPTED : CLIME_DROPPED;
    if (accept)
        c->n_accepted++;
    else
        c->n_dropped++;
    return i;
}
