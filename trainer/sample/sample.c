/* Samples in memory: created empty, filled by the rollout client or from the ledger, freed (sample.h). A sample belongs
 * to one thread at a time and moves between threads through queues. */
#include "trainer/sample/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/hash.h"

struct clime_sample *clime_sample_new(void) {
    struct clime_sample *s = xcalloc(1, sizeof *s);
    s->temperature = 1.0f;
    return s;
}

struct clime_sample *clime_sample_pending(int64_t rollout, int64_t group, int32_t member, uint64_t seed,
                                          const int32_t *ids, int32_t n, const char *label, const char *metadata) {
    struct clime_sample *s = clime_sample_new();
    s->rollout = rollout;
    s->group = group;
    s->member = member;
    s->seed = seed;
    s->n_prompt = n;
    s->ids = xmalloc((size_t)n * sizeof *s->ids + 1);
    memcpy(s->ids, ids, (size_t)n * sizeof *s->ids);
    s->label = label ? xstrdup(label) : NULL;
    s->metadata = metadata ? xstrdup(metadata) : NULL;
    return s;
}

static void free_result(struct clime_sample *s) {
    free(s->logp);
    free(s->teacher_logp);
    free(s->kept_n);
    free(s->kept);
    free(s->kept_logp);
    free(s->routing);
    free(s->experts);
    free(s->mask);
    free(s->versions);
    free(s->response);
    free(s->own_metadata);
    free(s->finish);
    free(s->reward_json);
    free(s->error);
    free(s->device);
    clime_sample_free(s->next);
}

void clime_sample_restart(struct clime_sample *s) {
    free_result(s);
    *s = (struct clime_sample){.row_id = s->row_id,
                               .rollout = s->rollout,
                               .group = s->group,
                               .member = s->member,
                               .seed = s->seed,
                               .n_prompt = s->n_prompt,
                               .ids = s->ids,
                               .temperature = 1.0f,
                               .label = s->label,
                               .metadata = s->metadata};
}

size_t clime_sample_experts_bytes(const struct clime_sample *s) {
    const size_t len = (size_t)s->n_prompt + (size_t)s->n_response;
    return s->experts && len ? (len - 1) * (size_t)s->expert_bytes : 0;
}

int64_t clime_sample_count_kept(const struct clime_sample *s) {
    int64_t n = 0;
    for (int32_t j = 0; s->kept_n && j < s->n_response; j++) n += s->kept_n[j];
    return n;
}

bool clime_sample_finished(const struct clime_sample *s) {
    return (s->status == CLIME_SAMPLE_COMPLETED || s->status == CLIME_SAMPLE_TRUNCATED) && s->has_reward;
}

void clime_sample_fail(struct clime_sample *s, const struct clime_error *why) {
    s->status = CLIME_SAMPLE_FAILED;
    s->has_reward = false;
    clime_sample_free(s->next);
    s->next = NULL;
    free(s->error);
    s->error = xasprintf("%s: %s", clime_err_name(why->code), why->msg);
}

void clime_sample_drop_token(struct clime_sample *s) {
    CHECK(s->n_response > 0 && s->n_versions > 0);
    s->n_response--;
    if (s->kept_n) s->n_kept -= s->kept_n[s->n_response];
    if (s->mixed_kv > s->n_response) s->mixed_kv = 0;
    if (--s->versions[s->n_versions - 1].n == 0) s->n_versions--;
    free(s->teacher_logp); /* belongs to an answer that is no longer finished */
    s->teacher_logp = NULL;
}

/* Excludes status and lease, which change while the rest does not. Zero has no sign and a NaN reward is none, as in the
 * ledger. */
uint64_t clime_sample_checksum(const struct clime_sample *s) {
    struct clime_checksum c;
    size_t n = (size_t)s->n_response;
    bool rewarded = s->has_reward && !isnan(s->reward);
    const int64_t words[] = {s->rollout,  s->group,      s->member,   s->part,  (int64_t)s->seed,
                             s->n_prompt, s->n_response, s->mixed_kv, rewarded, s->teacher_logp != NULL};
    const double reals[] = {(double)s->temperature, rewarded ? s->reward + 0.0 : 0};
    clime_checksum_init(&c);
    clime_checksum_add(&c, words, sizeof words);
    clime_checksum_add(&c, reals, sizeof reals);
    for (int i = 0; i < s->n_versions; i++) {
        const int64_t run[] = {s->versions[i].version, s->versions[i].n};
        clime_checksum_add(&c, run, sizeof run);
    }
    clime_checksum_add(&c, s->ids, ((size_t)s->n_prompt + n) * sizeof *s->ids);
    if (s->logp) clime_checksum_add(&c, s->logp, n * sizeof *s->logp);
    if (s->teacher_logp) clime_checksum_add(&c, s->teacher_logp, n * sizeof *s->teacher_logp);
    if (s->kept_n) {
        clime_checksum_add(&c, s->kept_n, n * sizeof *s->kept_n);
        clime_checksum_add(&c, s->kept, (size_t)s->n_kept * sizeof *s->kept);
        clime_checksum_add(&c, s->kept_logp, n * sizeof *s->kept_logp);
    }
    if (s->routing) clime_checksum_add(&c, s->routing, n * sizeof *s->routing);
    if (s->experts) clime_checksum_add(&c, s->experts, clime_sample_experts_bytes(s));
    if (s->mask) clime_checksum_add(&c, s->mask, n);
    return clime_checksum_done(&c);
}

void clime_sample_free(struct clime_sample *s) {
    if (!s) return;
    free_result(s);
    free(s->ids);
    free(s->label);
    free(s->metadata);
    free(s);
}

void clime_estimates_free(struct clime_estimate *e, int n) {
    for (int i = 0; e && i < n; i++) {
        free(e[i].adv);
        free(e[i].old);
        free(e[i].value);
        free(e[i].ret);
    }
    free(e);
}

int clime_sample_order(const struct clime_sample *a, const struct clime_sample *b) {
    if (a->rollout != b->rollout) return a->rollout < b->rollout ? -1 : 1;
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->member != b->member) return a->member < b->member ? -1 : 1;
    if (a->part != b->part) return a->part < b->part ? -1 : 1;
    return 0;
}

int clime_sample_parts(const struct clime_sample *s) {
    int n = 0;
    for (; s; s = s->next) n++;
    return n;
}

double clime_sample_reward(const struct clime_sample *s) {
    double sum = 0;
    for (const struct clime_sample *p = s; p; p = p->next) sum += p->reward;
    return sum / clime_sample_parts(s);
}

int clime_samples_flatten(struct clime_sample ***list, int n) {
    int total = 0, at = 0;
    for (int i = 0; i < n; i++) total += clime_sample_parts((*list)[i]);
    struct clime_sample **out = xcalloc((size_t)total + 1, sizeof *out);
    for (int i = 0; i < n; i++)
        for (struct clime_sample *s = (*list)[i], *next; s; s = next) {
            next = s->next;
            s->next = NULL;
            out[at++] = s;
        }
    free(*list);
    *list = out;
    return total;
}
