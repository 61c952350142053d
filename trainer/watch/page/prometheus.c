/* GET /metrics: Prometheus metrics of the page's runs. On the server's threads.
 *
 * A run's series are read from its ledger at each scrape and labelled with its folder: the newest line of metrics per
 * kind, the newest score per evaluation set, the alarms' last events. So a trainer that just started reports its run's
 * past, and `clime-train page` reports ended runs. Series known only to the training process (its servers, requests in
 * flight) are set by it, without that label. docs/metrics.md lists the names; a test compares. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/metrics.h"
#include "common/page/assets.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/metrics.h"
#include "trainer/ledger/summary.h"
#include "trainer/watch/alarms.h"
#include "trainer/watch/page/page_int.h"

#define MAX_TEXT ((size_t)16 << 20)
#define ANSWER_US 5000000 /* for one run's ledger */
#define MAX_LABELS 5000

struct series {
    const char *kind, *figure; /* of a line */
    const char *name, *stage;  /* stage: NULL, or that label's value */
    const char *help;
};

#define STAGE "clime_train_stage_seconds"
#define STAGE_HELP "Seconds that a stage of the newest rollout took, or of the newest step"

static const struct series table[] = {
    {"perf", "rollout", "clime_train_rollout", NULL, "Newest rollout that was trained on, from 0"},
    {"train", "step", "clime_train_step", NULL, "Newest optimizer step, from 1"},
    {"rollout", "rollout/raw_reward", "clime_train_reward_mean", NULL, "Mean reward of the newest rollout"},
    {"rollout", "rollout/raw_reward_std", "clime_train_reward_std", NULL, "Deviation of its rewards"},
    {"rollout", "rollout/raw_reward_min", "clime_train_reward_min", NULL, "Its least reward"},
    {"rollout", "rollout/raw_reward_max", "clime_train_reward_max", NULL, "Its greatest reward"},
    {"rollout", "rollout/zero_std_frac", "clime_train_groups_alike_ratio", NULL,
     "Share of its groups whose rewards are all the same"},
    {"rollout", "rollout/response_len/mean", "clime_train_response_tokens_mean", NULL, "Mean tokens of its responses"},
    {"rollout", "rollout/response_len/max", "clime_train_response_tokens_max", NULL, "Most tokens of a response"},
    {"rollout", "rollout/truncated_ratio", "clime_train_truncated_ratio", NULL,
     "Share of its samples that the length limit ended"},
    {"rollout", "rollout/dropped_groups", "clime_train_dropped_groups", NULL,
     "Groups that it dropped because a sample failed"},
    {"rollout", "rollout/staleness/mean", "clime_train_staleness_steps_mean", NULL,
     "Mean age of its trained tokens in optimizer steps"},
    {"rollout", "rollout/staleness/max", "clime_train_staleness_steps_max", NULL, "Greatest age of a trained token"},
    {"rollout", "rollout/turns/extended", "clime_train_turns_extended", NULL,
     "Turns of its sessions that went on from their exact tokens"},
    {"rollout", "rollout/turns/branched", "clime_train_turns_branched", NULL,
     "Turns of its sessions that began a branch, because the client or the template made another past"},
    {"rollout", "rollout/prefix_cache_hit_rate", "clime_train_prefix_cache_hit_ratio", NULL,
     "Share of its prompt tokens that the servers had in their cache"},
    {"train", "train/loss", "clime_train_loss", NULL, "Loss of the newest step"},
    {"train", "train/entropy_loss", "clime_train_entropy", NULL, "Mean entropy of the policy over its tokens"},
    {"train", "train/grad_norm", "clime_train_grad_norm", NULL, "Its gradient norm"},
    {"train", "train/lr-pg_0", "clime_train_learning_rate", NULL, "Its learning rate"},
    {"train", "train/pg_clipfrac", "clime_train_clipped_ratio", NULL, "Share of its tokens that the loss clips"},
    {"train", "train/ppo_kl", "clime_train_ppo_kl", NULL, "Mean log-probability lost since sampling"},
    {"train", "train/kl_loss", "clime_train_kl_loss", NULL, "Its distance from the reference"},
    {"train", "train/train_rollout_logprob_abs_diff", "clime_train_gap_max", NULL,
     "Greatest difference between a server's log-probability and the trainer's; 0 by contract"},
    {"train", "train/logprob_gap_tokens", "clime_train_gap_tokens", NULL, "Tokens that were compared for it"},
    {"train", "train/skipped", "clime_train_step_skipped", NULL, "1 when its gradient was not finite"},
    {"train", "train/tokens", "clime_train_step_tokens", NULL, "Tokens that went through it"},
    {"train", "perf/actor_train_tok_per_s", "clime_train_step_tokens_per_second", NULL, "Its speed"},
    {"train", "perf/forward_time", STAGE, "forward", STAGE_HELP},
    {"train", "perf/backward_time", STAGE, "backward", STAGE_HELP},
    {"train", "perf/ref_log_probs_time", STAGE, "reference", STAGE_HELP},
    {"train", "perf/optimizer_time", STAGE, "optimizer", STAGE_HELP},
    {"perf", "perf/rollout_time", STAGE, "rollout", STAGE_HELP},
    {"perf", "perf/train_time", STAGE, "train", STAGE_HELP},
    {"perf", "perf/train_wait_time", STAGE, "wait", STAGE_HELP},
    {"perf", "perf/update_weights_time", STAGE, "update_weights", STAGE_HELP},
    {"perf", "perf/save_model_time", STAGE, "save", STAGE_HELP},
    {"perf", "perf/step_time", STAGE, "whole", STAGE_HELP},
    {"perf", "perf/reward_time", STAGE, "reward_of_a_sample", STAGE_HELP},
    {"perf", "perf/tokens_per_gpu_per_sec", "clime_train_generated_tokens_per_second", NULL,
     "Tokens that a GPU of the servers generated in a second"},
    {"perf", "perf/trainer_idle_ratio", "clime_train_trainer_idle_ratio", NULL,
     "Share of its time that the trainer waited for the newest rollout"},
    {"perf", "perf/rollout_idle_ratio", "clime_train_rollout_idle_ratio", NULL,
     "Share of the time in which nothing was generated"},
    {"perf", "perf/memory_planned_bytes", "clime_train_memory_planned_bytes", NULL,
     "Memory of the device that the trainer's plan has"},
    {"perf", "perf/memory_used_bytes", "clime_train_memory_used_bytes", NULL,
     "Memory of the device that is in use since the plan was made, at the newest rollout"},
    {"perf", "perf/disk_free_ratio", "clime_train_disk_free_ratio", NULL,
     "Free share of the run folder's file system at the newest rollout"},
};

struct scrape {
    const char *run; /* label value, escaped */
    bool raised[CLIME_ALARMS];
};

/* Escapes backslash, quote and line break in a label's value (exposition format). */
static void escape(const char *text, char *out, size_t size) {
    size_t at = 0;
    for (; *text && at + 2 < size; text++) {
        if (*text == '\\' || *text == '"' || *text == '\n') out[at++] = '\\';
        out[at++] = (char)(*text == '\n' ? 'n' : *text);
    }
    out[at] = 0;
}

static void set(const struct scrape *s, const char *name, const char *label, const char *value, const char *help,
                double v) {
    char labels[MAX_LABELS];
    if (label)
        snprintf(labels, sizeof labels, "run=\"%s\",%s=\"%s\"", s->run, label, value);
    else
        snprintf(labels, sizeof labels, "run=\"%s\"", s->run);
    clime_metric_set(clime_metric_gauge(name, labels, help), v);
}

static void set_figure(void *arg, struct clime_str kind, struct clime_str name, double v) {
    for (size_t i = 0; i < CLIME_COUNT(table); i++) {
        const struct series *t = &table[i];
        if (clime_str_is(kind, t->kind) && clime_str_is(name, t->figure))
            set(arg, t->name, t->stage ? "stage" : NULL, t->stage, t->help, v);
    }
}

static void set_line(void *arg, const char *line) {
    clime_metrics_figures(line, set_figure, arg);
}

static void set_score(void *arg, const struct clime_eval_point *p) { /* a set's points come in order of steps */
    char value[512];
    escape(p->name, value, sizeof value);
    set(arg, "clime_train_eval_score", "set", value, "Newest score of an evaluation set", p->score);
}

static void note_alarm(void *arg, const char *detail) {
    struct scrape *s = arg;
    bool raised;
    int id = clime_alarm_event(detail, &raised);
    if (id >= 0) s->raised[id] = raised;
}

static int64_t file_bytes(const char *ledger, const char *suffix) {
    struct stat st;
    char *path = xasprintf("%s%s", ledger, suffix);
    int64_t bytes = stat(path, &st) ? 0 : st.st_size;
    free(path);
    return bytes;
}

static enum clime_err read_ledger(struct scrape *s, struct clime_db *db, struct clime_error *e) {
    static const char *const kinds[] = {"rollout", "train", "perf"};
    enum clime_err rc = CLIME_OK;
    for (size_t i = 0; i < CLIME_COUNT(kinds) && !rc; i++) rc = clime_metrics_newest(db, kinds[i], set_line, s, e);
    if (!rc) rc = clime_summary_evals(db, set_score, s, e);
    if (!rc) rc = clime_events_each(db, "alarm", note_alarm, s, e);
    for (int i = 0; i < CLIME_ALARMS && !rc; i++)
        set(s, "clime_train_alarm", "alarm", clime_alarm_rules[i].name, "1 while the alarm is raised (docs/alarms.md)",
            s->raised[i]);
    return rc;
}

static void scrape_run(struct clime_page_run *r) {
    char label[4200];
    struct scrape s = {.run = label};
    struct clime_db *db;
    struct clime_error e = {0};
    escape(r->dir, label, sizeof label);
    enum clime_err rc = clime_page_acquire(r, &db, &e);
    if (!rc) {
        clime_db_deadline(db, clime_now_us() + ANSWER_US);
        rc = read_ledger(&s, db, &e);
        clime_db_deadline(db, 0);
        clime_page_release(r, db, rc == CLIME_OK);
    }
    set(&s, "clime_train_ledger_readable", NULL, NULL, "1 when the run's ledger could be read for this answer", !rc);
    set(&s, "clime_train_ledger_bytes", NULL, NULL, "Size of the ledger, with what is not checkpointed yet",
        (double)(file_bytes(r->ledger, "") + file_bytes(r->ledger, "-wal")));
}

void clime_page_prometheus(struct clime_http_request *rq, void *page) {
    struct clime_page *p = page;
    struct clime_buf text;
    clime_buf_init(&text, MAX_TEXT);
    for (int i = 0; i < p->n_runs; i++) scrape_run(&p->runs[i]);
    clime_metrics_write(&text);
    clime_http_metrics(rq, &text);
    clime_http_reply(rq, 200, "text/plain; version=0.0.4; charset=utf-8", clime_page_headers, clime_buf_str(&text));
    clime_buf_free(&text);
}
