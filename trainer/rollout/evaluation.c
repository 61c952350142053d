/* Evaluation (see evaluation.h). Called by the loop between rollouts and by clime-train eval, on the main thread.
 *
 * Owns the sets; samples live for one evaluation. An evaluation is recorded in one transaction; after a crash it runs
 * again. The seeds do not depend on the step, so two evaluations differ only by their weights.
 */
#include "trainer/rollout/evaluation.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "trainer/ledger/evals.h"
#include "trainer/ledger/samples.h"
#include "trainer/rollout/alike.h"
#include "trainer/rollout/scores.h"
#include "trainer/rollout/stats.h"
#include "trainer/rollout/windowed.h"

#define MOST_SAMPLES (1 << 24) /* over all sets, as for a rollout */

/* ---- sets ---- */

static enum clime_err load_set(const struct clime_eval_set *o, const struct clime_tokenizer *t,
                               struct clime_dataset *out, struct clime_error *e) {
    struct clime_data_options d = {.sources = &o->file,
                                   .n_sources = 1,
                                   .input_key = o->input_key,
                                   .label_key = o->label_key,
                                   .metadata_key = o->metadata_key,
                                   .tool_key = o->tool_key,
                                   .metadata_overrides = o->metadata_overrides,
                                   .apply_chat_template = o->apply_chat_template,
                                   .apply_chat_template_kwargs = o->apply_chat_template_kwargs,
                                   .max_prompt_len = (int)o->max_prompt_len};
    return clime_dataset_load(&d, t, out, e);
}

enum clime_err clime_evaluation_load(const struct clime_rl_options *o, const struct clime_tokenizer *t,
                                     struct clime_evaluation *out, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    int64_t n_samples = 0;
    *out = (struct clime_evaluation){.sets = xcalloc((size_t)o->eval_sets.n + 1, sizeof *out->sets)};
    for (int i = 0; i < o->eval_sets.n && !rc; i++) {
        struct clime_evaluation_set *s = &out->sets[out->n_sets++];
        s->o = &o->eval_sets.sets[i];
        rc = load_set(s->o, t, &s->data, e);
        for (int k = 0; k < s->data.n && !rc; k++) {
            int n = s->data.prompts[k].n_ids;
            int len = n + (int)clime_sampling_room(&s->o->sampling, n);
            if (len > out->max_len) out->max_len = len;
        }
        n_samples += s->data.n * s->o->n_samples;
        if (!rc && n_samples > MOST_SAMPLES)
            rc = clime_fail(e, CLIME_ERR_LIMIT, "an evaluation of more than 2^24 samples: set %s has %d prompts x %lld",
                            s->o->name, s->data.n, (long long)s->o->n_samples);
    }
    if (rc) clime_evaluation_free(out);
    return rc;
}

static void add_text(struct clime_checksum *c, const char *text) {
    size_t bytes = text ? strlen(text) + 1 : 0;
    clime_checksum_add(c, &bytes, sizeof bytes);
    clime_checksum_add(c, text, bytes);
}

static void add_list(struct clime_checksum *c, const struct clime_opt_list *l) {
    clime_checksum_add(c, &l->n, sizeof l->n);
    for (int i = 0; i < l->n; i++) add_text(c, l->items[i]);
}

uint64_t clime_evaluation_checksum(const struct clime_evaluation *v) {
    struct clime_checksum c;
    clime_checksum_init(&c);
    for (int i = 0; i < v->n_sets; i++) {
        const struct clime_eval_set *o = v->sets[i].o;
        const struct clime_sampling_options *s = &o->sampling;
        const double reals[] = {s->temperature, s->top_p};
        const int64_t numbers[] = {o->n_samples,        s->top_k,           s->min_new_tokens,
                                   s->max_response_len, s->max_context_len, s->skip_special_tokens};
        uint64_t data = clime_dataset_checksum(&v->sets[i].data);
        add_text(&c, o->name);
        add_text(&c, o->rm_type);
        add_text(&c, o->reward_key);
        clime_checksum_add(&c, reals, sizeof reals);
        clime_checksum_add(&c, numbers, sizeof numbers);
        add_list(&c, &s->stop);
        add_list(&c, &s->stop_token_ids);
        clime_checksum_add(&c, &data, sizeof data);
    }
    return clime_checksum_done(&c);
}

void clime_evaluation_free(struct clime_evaluation *v) {
    for (int i = 0; i < v->n_sets; i++) clime_dataset_free(&v->sets[i].data);
    free(v->sets);
    *v = (struct clime_evaluation){0};
}

/* ---- generation ---- */

struct job { /* all samples of one evaluation: set by set, prompt by prompt */
    struct clime_sample **samples;
    struct clime_request *requests;
    int *first; /* [n_sets + 1] */
    int n;
};

static void make_sample(struct job *j, const struct clime_evaluation_context *c, const struct clime_evaluation_set *v,
                        int set, int prompt, int member, int64_t step) {
    const struct clime_prompt *p = &v->data.prompts[prompt];
    /* rollout numbers are never negative, so these seeds differ from all training seeds */
    const uint64_t words[4] = {c->run->seed, (uint64_t)(-1 - (int64_t)set), (uint64_t)prompt, (uint64_t)member};
    struct clime_sample *s = j->samples[j->n] =
        clime_sample_pending(-1, prompt, member, clime_hash64(words, 4), p->ids, p->n_ids, p->label, p->metadata);
    struct clime_request *r = &j->requests[j->n++];
    *r = (struct clime_request){.sample = s,
                                .sampling = &v->o->sampling,
                                .rm_type = v->o->rm_type,
                                .reward_key = v->o->reward_key,
                                .prompt = p->text,
                                .input = p->input,
                                .version = step};
    snprintf(r->rid, sizeof r->rid, "%s/eval-%" PRId64 "/%d.%d/%d/%" PRId64, c->run->start, step, set, prompt, member,
             c->run->incarnation);
}

/* An answer with several parts gets the mean of their rewards; only the first part is recorded. */
static enum clime_err merge_parts(void *arg, struct clime_request *r, struct clime_error *e) {
    struct clime_sample *s = r->sample;
    (void)arg, (void)e;
    if (!s->next) return CLIME_OK;
    s->reward = clime_sample_reward(s);
    clime_sample_free(s->next);
    s->next = NULL;
    return CLIME_OK;
}

struct telling {
    struct clime_progress *progress;
    int64_t step;
};

static void tell(void *arg, int done, int n) {
    const struct telling *t = arg;
    clime_progress_live(t->progress, "eval at step %" PRId64 ": %d of %d samples", t->step, done, n);
}

static enum clime_err generate(struct job *j, const struct clime_evaluation_context *c, int64_t step,
                               struct clime_error *e) {
    struct telling telling = {c->progress, step};
    struct clime_windowed w = {.client = c->client,
                               .fleet = c->fleet,
                               .limit_us = (int64_t)(c->o->rollout_request_timeout * 1e6),
                               .back = merge_parts,
                               .tell = tell,
                               .arg = &telling};
    return clime_windowed_run(&w, j->requests, j->n, e);
}

/* ---- statistics ---- */

/* Adds the mean over prompts and half the width of its 95 % interval. */
static void add_interval(struct clime_metrics_line *m, const char *key, const struct clime_scores *scores) {
    char name[300];
    clime_metrics_line_add(m, key, scores->mean);
    snprintf(name, sizeof name, "%s-ci95", key);
    if (scores->n > 1) clime_metrics_line_add(m, name, clime_scores_ci95(scores));
}

/* Adds the set's metrics to the line and fills its record. */
static void summarise(struct clime_metrics_line *m, const struct clime_evaluation_set *set,
                      struct clime_sample *const *s, int n, struct clime_eval_record *r) {
    char key[256];
    struct clime_length_stats len;
    int tries = (int)set->o->n_samples, scored = 0, truncated = 0;
    const char *name = set->o->name;
    struct clime_scores scores;
    for (int i = 0; i < n; i++) {
        scored += s[i]->has_reward;
        truncated += s[i]->status == CLIME_SAMPLE_TRUNCATED;
    }
    clime_scores_of_rewards(s, n, tries, &scores);
    r->name = name;
    r->rm_type = set->o->rm_type;
    r->score = scored ? clime_mean_scored(s, n) : NAN;
    r->n_prompts = set->data.n;
    r->n_failed = n - scored;
    r->samples = s;
    r->n = n;
    snprintf(key, sizeof key, "eval/%s", name);
    clime_metrics_line_add(m, key, r->score);
    snprintf(key, sizeof key, "eval/%s-ci95", name);
    if (scores.n > 1) clime_metrics_line_add(m, key, clime_scores_ci95(&scores));
    snprintf(key, sizeof key, "eval/%s-truncated_ratio", name);
    clime_metrics_line_add(m, key, (double)truncated / n);
    if (r->n_failed) {
        snprintf(key, sizeof key, "eval/%s-failed", name);
        clime_metrics_line_int(m, key, r->n_failed);
    }
    clime_length_stats(s, n, &len);
    snprintf(key, sizeof key, "eval/%s/", name);
    clime_length_stats_add(m, key, &len);
    for (int k = 1; k <= tries && tries > 1; k *= 2) {
        snprintf(key, sizeof key, "eval/%s-pass@%d", name, k);
        clime_scores_of_pass(s, n, tries, k, &scores);
        if (scores.n) add_interval(m, key, &scores);
    }
}

/* Shows a set's score and size, and the number of failed samples with the last reason. */
static void show(struct clime_progress *progress, const struct clime_eval_record *r, double seconds) {
    char failed[256] = "";
    for (int i = 0; i < r->n; i++)
        if (!r->samples[i]->has_reward)
            snprintf(failed, sizeof failed, ", %d OF %d SAMPLES FAILED, the last one: %.160s", r->n_failed, r->n,
                     r->samples[i]->error ? r->samples[i]->error : "it has no reward");
    clime_progress_row(progress, "eval     %-12s step %-5" PRId64 " score %.4f over %d prompts%s  (%.1f s)", r->name,
                       r->step, r->score, r->n_prompts, failed, seconds);
}

/* Records the finished samples of all sets and shows the scores. */
static enum clime_err record(struct clime_evaluation *v, const struct clime_evaluation_context *c, const struct job *j,
                             int64_t step, int64_t rollout, double seconds, struct clime_error *e) {
    struct clime_eval_record *records = xcalloc((size_t)v->n_sets, sizeof *records);
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "eval", rollout, step);
    clime_metrics_line_int(&m, "eval/step", step);
    for (int i = 0; i < v->n_sets; i++) {
        records[i] = (struct clime_eval_record){.step = step, .rollout = rollout};
        summarise(&m, &v->sets[i], j->samples + j->first[i], j->first[i + 1] - j->first[i], &records[i]);
    }
    clime_metrics_line_add(&m, "perf/eval_time", seconds);
    const char *line = clime_metrics_line_end(&m);
    enum clime_err rc = CLIME_OK;
    for (int i = 0; i < v->n_sets && c->before_record && !rc; i++) rc = c->before_record(c->arg, &records[i], e);
    if (!rc) rc = clime_evals_put(c->ledger, records, v->n_sets, line, e);
    if (!rc) clime_metrics_log_append(c->log, line);
    for (int i = 0; i < v->n_sets && !rc; i++) show(c->progress, &records[i], seconds);
    if (!rc) clime_alike_see_evaluation(c->alarms, c->o, records, v->n_sets);
    clime_metrics_line_free(&m);
    free(records);
    return rc;
}

enum clime_err clime_evaluation_run(struct clime_evaluation *v, const struct clime_evaluation_context *c, int64_t step,
                                    int64_t rollout, struct clime_error *e) {
    int total = 0;
    int64_t t0 = clime_now_us();
    for (int i = 0; i < v->n_sets; i++) total += v->sets[i].data.n * (int)v->sets[i].o->n_samples;
    struct job j = {.samples = xcalloc((size_t)total, sizeof *j.samples),
                    .requests = xcalloc((size_t)total, sizeof *j.requests),
                    .first = xcalloc((size_t)v->n_sets + 1, sizeof *j.first)};
    for (int i = 0; i < v->n_sets; i++) {
        for (int p = 0; p < v->sets[i].data.n; p++)
            for (int t = 0; t < v->sets[i].o->n_samples; t++) make_sample(&j, c, &v->sets[i], i, p, t, step);
        j.first[i + 1] = j.n;
    }
    enum clime_err rc = generate(&j, c, step, e);
    if (rc)
        clime_client_stop(c->client); /* requests in flight are ours again */
    else
        rc = record(v, c, &j, step, rollout, (double)(clime_now_us() - t0) / 1e6, e);
    clime_samples_free(j.samples, j.n);
    free(j.requests);
    free(j.first);
    return rc;
}
