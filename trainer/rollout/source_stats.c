/* Rewards by source. Called by the loop for a rollout's metrics line; owns nothing. The source is read from the ledger,
 * because a group may be left over from an earlier start. */
#include "trainer/rollout/source_stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/rollout/stats.h"

struct sums {
    double reward;
    int members, samples;
};

static void add_lines(struct clime_metrics_line *m, const char *name, const struct sums *s) {
    char key[256];
    snprintf(key, sizeof key, "rollout/reward/source/%s", name);
    if (s->members) clime_metrics_line_add(m, key, s->reward / s->members);
    snprintf(key, sizeof key, "rollout/samples/source/%s", name);
    clime_metrics_line_int(m, key, s->samples);
}

enum clime_err clime_source_stats_add(struct clime_metrics_line *m, struct clime_db *db, const struct clime_dataset *d,
                                      const struct clime_rollout *r, struct clime_error *e) {
    struct sums *sums = xcalloc((size_t)d->n_parts + 1, sizeof *sums);
    enum clime_err rc = CLIME_OK;
    for (int i = 0, end; d->n_parts > 1 && i < r->n && !rc; i = end) {
        char *name;
        for (end = i + 1; end < r->n && r->samples[end]->group == r->samples[i]->group;) end++;
        int members = 1, k = 0;
        for (int j = i + 1; j < end; j++) members += r->samples[j]->member != r->samples[j - 1]->member;
        if ((rc = clime_group_source(db, r->samples[i]->group, &name, e))) break;
        while (k < d->n_parts && strcmp(d->names[k], name ? name : "") != 0) k++;
        sums[k].reward += clime_mean_reward(r->samples + i, end - i) * members;
        sums[k].members += members;
        sums[k].samples += end - i;
        free(name);
    }
    for (int k = 0; d->n_parts > 1 && k < d->n_parts && !rc; k++) {
        bool again = false; /* sources with the same name share a line */
        for (int j = 0; j < k; j++) again = again || !strcmp(d->names[j], d->names[k]);
        if (!again) add_lines(m, d->names[k], &sums[k]);
    }
    free(sums);
    return rc;
}
