/* Statistics of a rollout and of an evaluation. Called by rl and eval on the main thread; owns nothing. Sums run in
 * sample order, so equal samples give equal figures. */
#include "trainer/rollout/stats.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/json/tree.h"
#include "trainer/reward/mixture.h"
#include "trainer/rollout/repetition.h"

static int by_value(const void *a, const void *b) {
    int x = *(const int *)a, y = *(const int *)b;
    return (x > y) - (x < y);
}

void clime_length_stats(struct clime_sample *const *samples, int n, struct clime_length_stats *out) {
    CHECK(n > 0);
    int *len = xcalloc((size_t)n, sizeof *len);
    double sum = 0;
    for (int i = 0; i < n; i++) {
        len[i] = samples[i]->n_response;
        sum += len[i];
    }
    qsort(len, (size_t)n, sizeof *len, by_value);
    *out = (struct clime_length_stats){
        .mean = sum / n, .median = (len[(n - 1) / 2] + len[n / 2]) / 2.0, .min = len[0], .max = len[n - 1]};
    free(len);
}

void clime_length_stats_add(struct clime_metrics_line *m, const char *prefix, const struct clime_length_stats *s) {
    const struct {
        const char *name;
        double v;
    } rows[] = {{"mean", s->mean}, {"median", s->median}, {"max", s->max}, {"min", s->min}};
    char key[256];
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        snprintf(key, sizeof key, "%sresponse_len/%s", prefix, rows[i].name);
        clime_metrics_line_add(m, key, rows[i].v);
    }
}

double clime_mean_reward(struct clime_sample *const *samples, int n) {
    double sum = 0;
    int members = 0;
    for (int i = 0, end; i < n; i = end) { /* a member's parts count once, with their mean */
        double own = samples[i]->reward;
        for (end = i + 1; end < n && samples[end]->part > 0; end++) own += samples[end]->reward;
        sum += own / (end - i);
        members++;
    }
    return sum / members;
}

/* Over the rewarded samples. */
static void add_deviation(struct clime_metrics_line *m, struct clime_sample *const *s, int n) {
    double sum = 0, squares = 0, low = INFINITY, high = -INFINITY;
    int scored = 0;
    for (int i = 0; i < n; i++) {
        if (!s[i]->has_reward) continue;
        sum += s[i]->reward;
        low = fmin(low, s[i]->reward);
        high = fmax(high, s[i]->reward);
        scored++;
    }
    if (scored < 2) return;
    for (int i = 0; i < n; i++)
        if (s[i]->has_reward) squares += (s[i]->reward - sum / scored) * (s[i]->reward - sum / scored);
    clime_metrics_line_add(m, "rollout/raw_reward_std", low == high ? 0 : sqrt(squares / (scored - 1)));
    clime_metrics_line_add(m, "rollout/raw_reward_min", low);
    clime_metrics_line_add(m, "rollout/raw_reward_max", high);
}

/* Adds the share of groups with identical rewards, and zero_std/count_R for each such reward R (to one decimal). */
static void add_zero_std(struct clime_metrics_line *m, struct clime_sample *const *s, int n) {
    enum { MOST = 64 };
    struct {
        double r;
        int n;
    } seen[MOST];
    int n_seen = 0, n_groups = 0, n_same = 0;
    char key[64];
    for (int i = 0, end; i < n; i = end) {
        bool same = true;
        for (end = i + 1; end < n && s[end]->group == s[i]->group; end++) same = same && s[end]->reward == s[i]->reward;
        n_groups++;
        n_same += same;
        if (!same) continue;
        double r = round(s[i]->reward * 10) / 10;
        int k = 0;
        while (k < n_seen && seen[k].r != r) k++;
        if (k == MOST) continue;
        if (k == n_seen) {
            seen[n_seen].r = r;
            seen[n_seen++].n = 0;
        }
        seen[k].n++;
    }
    if (n_groups < n) clime_metrics_line_add(m, "rollout/zero_std_frac", (double)n_same / n_groups);
    for (int k = 0; k < n_seen; k++) {
        snprintf(key, sizeof key, "rollout/zero_std/count_%.1f", seen[k].r);
        clime_metrics_line_int(m, key, seen[k].n);
    }
}

/* Adds the parts of weighted sums: rollout/reward/PART, the mean over samples with that part. */
static void add_parts(struct clime_metrics_line *m, const struct clime_rollout *r) {
    struct {
        char name[80];
        double sum;
        int n;
    } parts[CLIME_MIXTURE_PARTS];
    char key[120];
    int n_parts = 0;
    for (int i = 0; i < r->n; i++) {
        const char *json = r->samples[i]->reward_json;
        struct cJSON *tree = NULL;
        struct clime_error e = {0};
        if (!json || !strstr(json, "\"parts\"") || clime_tree_parse(json, strlen(json), &tree, &e)) continue;
        const struct cJSON *list = clime_tree_get(tree, "parts");
        bool is_sum = list && clime_tree_kind(list) == CLIME_JSON_OBJECT;
        for (const struct cJSON *p = is_sum ? clime_tree_first(list) : NULL; p; p = clime_tree_next(p)) {
            int k = 0;
            while (k < n_parts && strcmp(parts[k].name, clime_tree_key(p)) != 0) k++;
            if (k == CLIME_MIXTURE_PARTS || strlen(clime_tree_key(p)) >= sizeof parts[k].name) continue;
            if (k == n_parts) {
                memset(&parts[n_parts++], 0, sizeof parts[0]);
                memcpy(parts[k].name, clime_tree_key(p), strlen(clime_tree_key(p)));
            }
            parts[k].sum += clime_tree_num(p, 0);
            parts[k].n++;
        }
        clime_tree_free(tree);
    }
    for (int k = 0; k < n_parts; k++) {
        snprintf(key, sizeof key, "rollout/reward/%.79s", parts[k].name);
        clime_metrics_line_add(m, key, parts[k].sum / parts[k].n);
    }
}

/* Adds unused groups by reason; filters' reasons have slime's names. */
static void add_drops(struct clime_metrics_line *m, const struct clime_rl_options *o, const struct clime_rollout *r) {
    char key[128];
    int failed = 0;
    for (int i = 0; i < r->n_drops; i++) {
        if (r->drops[i].cause == CLIME_DROP_FAILED) failed += r->drops[i].n;
        if (r->drops[i].cause != CLIME_DROP_FILTER) continue;
        snprintf(key, sizeof key, "rollout/dynamic_filter/drop_%s", r->drops[i].reason);
        clime_metrics_line_int(m, key, r->drops[i].n);
    }
    clime_metrics_line_int(m, "rollout/dropped_groups", failed);
    clime_metrics_line_int(m, o->partial_rollout ? "rollout/open_groups" : "rollout/surplus_groups", r->n_left);
}

/* Adds how many steps the trained tokens' versions are behind the weights. */
static void add_staleness(struct clime_metrics_line *m, const struct clime_rl_options *o, const struct clime_rollout *r,
                          int64_t version) {
    int64_t sum = 0, most = 0, tokens = 0, old = 0;
    int partial = 0, carried = 0, mixed_kv = 0, replayed = 0;
    for (int i = 0; i < r->n; i++) {
        const struct clime_sample *s = r->samples[i];
        partial += s->n_versions > 1;
        mixed_kv += s->mixed_kv != 0;
        replayed += s->experts != NULL;
        carried += s->rollout != r->id;
        for (int k = 0, at = 0; k < s->n_versions; at += s->versions[k++].n) {
            int64_t behind = version - s->versions[k].version, n = 0;
            if (behind > 0 && o->learner.objective.mask_offpolicy) continue; /* not trained on */
            for (int j = 0; j < s->versions[k].n; j++) n += s->mask[at + j] != 0;
            tokens += n;
            sum += n * behind;
            old += behind > 0 ? n : 0;
            if (n && behind > most) most = behind;
        }
    }
    clime_metrics_line_add(m, "rollout/staleness/mean", (double)sum / (double)(tokens > 0 ? tokens : 1));
    clime_metrics_line_int(m, "rollout/staleness/max", most);
    clime_metrics_line_add(m, "rollout/staleness/offpolicy_frac", (double)old / (double)(tokens > 0 ? tokens : 1));
    clime_metrics_line_int(m, "rollout/partial_samples", partial);
    if (o->fully_async) clime_metrics_line_int(m, "rollout/mixed_kv_samples", mixed_kv);
    if (o->sampling.experts) clime_metrics_line_int(m, "rollout/replayed_samples", replayed);
    clime_metrics_line_int(m, "rollout/carried_samples", carried);
    if (o->max_staleness >= 0) clime_metrics_line_int(m, "rollout/staleness/reset_samples", r->n_reset);
}

/* Adds the sessions' turn counts: the drift report. */
static void add_turns(struct clime_metrics_line *m, const struct clime_turn_counts *c) {
    char key[64];
    int64_t branched = 0;
    if (!clime_turn_counts_all(c)) return;
    for (int i = 0; i < CLIME_N_TURN_KINDS; i++) {
        snprintf(key, sizeof key, "rollout/turns/%s", clime_turn_kinds[i].name);
        clime_metrics_line_int(m, key, c->n[i]);
        branched += i >= CLIME_TURN_TEMPLATE ? c->n[i] : 0;
    }
    clime_metrics_line_int(m, "rollout/turns/branched", branched);
}

/* Adds the learner's estimates. */
static void add_estimate(struct clime_metrics_line *m, const struct clime_rl_options *o,
                         const struct clime_estimate_stats *estimate) {
    clime_metrics_line_add(m, "rollout/advantages", estimate->advantage);
    if (estimate->has_old) clime_metrics_line_add(m, "rollout/log_probs", estimate->log_probs);
    if (o->learner.objective.use_opd) clime_metrics_line_add(m, "rollout/opd_reverse_kl", estimate->opd_reverse_kl);
    if (estimate->has_values) {
        clime_metrics_line_add(m, "rollout/values", estimate->values);
        clime_metrics_line_add(m, "rollout/returns", estimate->returns);
    }
    if (estimate->has_ref) {
        clime_metrics_line_add(m, "rollout/ref_log_probs", estimate->ref_log_probs);
        clime_metrics_line_add(m, "rollout/kl", estimate->kl);
    }
}

void clime_rollout_stats_add(struct clime_metrics_line *m, const struct clime_rl_options *o,
                             const struct clime_rollout *r, int64_t version,
                             const struct clime_estimate_stats *estimate) {
    struct clime_length_stats len;
    double of_limit = 0, logp = 0; /* of sampled tokens; others have none */
    int64_t sampled = 0, cached = 0, prompt = 0;
    int truncated = 0, repeats = 0;
    for (int i = 0; i < r->n; i++) {
        const struct clime_sample *s = r->samples[i];
        repeats += clime_has_repetition(s->response);
        for (int k = 0; k < s->n_response; k++) {
            logp += s->mask[k] ? (double)s->logp[k] : 0;
            sampled += s->mask[k] != 0;
        }
        cached += s->cached_tokens;
        prompt += s->n_prompt;
        truncated += s->status == CLIME_SAMPLE_TRUNCATED;
        int64_t room = clime_sampling_room(&o->sampling, s->n_prompt);
        of_limit += room > 0 ? (double)s->n_response / (double)room : 1;
    }
    clime_metrics_line_add(m, "rollout/raw_reward", clime_mean_reward(r->samples, r->n));
    add_parts(m, r);
    if (estimate) add_estimate(m, o, estimate);
    if (sampled) clime_metrics_line_add(m, "rollout/rollout_log_probs", logp / (double)sampled);
    clime_metrics_line_add(m, "rollout/truncated_ratio", (double)truncated / r->n);
    clime_metrics_line_add(m, "rollout/prefix_cache_hit_rate", (double)cached / (double)prompt);
    clime_metrics_line_add(m, "rollout/avg_cached_tokens_per_sample", (double)cached / r->n);
    clime_metrics_line_add(m, "rollout/repetition_frac", (double)repeats / r->n);
    add_drops(m, o, r);
    clime_metrics_line_int(m, "rollout/stale_refused", r->n_stale);
    add_turns(m, &r->turns);
    clime_length_stats(r->samples, r->n, &len);
    clime_length_stats_add(m, "rollout/", &len);
    clime_metrics_line_add(m, "rollout/response_len/of_limit", of_limit / r->n);
    if (!o->rm_type || strcmp(o->rm_type, "none")) add_deviation(m, r->samples, r->n);
    add_zero_std(m, r->samples, r->n);
    if (o->partial_rollout || o->async) add_staleness(m, o, r, version);
}
