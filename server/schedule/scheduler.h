/* The scheduler: admission, chunked prefill, KV pages, preemption, prompt sharing.
 *
 * Pure bookkeeping over sequences, pages and the prefix cache: no model, no device, no clock, so that property tests
 * can drive it alone. A step: clime_sched_plan, the caller runs the rows, clime_sched_done, the caller appends the
 * sampled tokens. Before done, clime_sched_plan_ahead may plan the next step from counts alone. clime_sched_guess adds
 * rows of guessed tokens to a plan; wrong ones are rolled back.
 *
 * Order: first come, first served, by arrival. Each running sequence with one row left runs it (decode); the token
 * budget goes to prefill, in arrival order. When pages run out, the sequence that arrived last releases its pages and
 * waits again at its old place, to be recomputed later (preemption by recompute).
 * Owner: the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_SCHEDULER_H
#define CLIME_SERVER_SCHEDULE_SCHEDULER_H

#include "server/schedule/prefix_cache.h"
#include "server/schedule/seq.h"

#define CLIME_FIRST_VERSION 1

struct clime_sched_options {
    int max_running;
    int chunk;    /* prefill rows a step */
    int n_pages;  /* in the pool */
    bool cache;   /* share prompts between requests */
    bool choices; /* keep the experts that every position chose */
};

struct clime_step_item {
    struct clime_seq *seq;
    int first, n_rows; /* rows first .. first + n_rows */
    bool sample;       /* the rows from the last known token on draw, each the token of the next position */
    int n_guesses;     /* the last rows' tokens are guesses: in seq->ids after the known ones */
    int n_right;       /* guesses confirmed by the draws before them; set before clime_sched_done */
    int from;          /* planned ahead: the previous step's item that draws this one's token */
};

struct clime_page_copy {
    int32_t from, to;
};

struct clime_step_plan {
    struct clime_step_item *items; /* [max_running], ascending arrival */
    int n_items;
    int T;                          /* total rows */
    bool ahead;                     /* one row an item, whose token is not known yet */
    int mark;                       /* the runner's: mark of its draws; -1: drawn at finish */
    bool undrawn;                   /* the runner's: started; its draws wait for the previous step's tokens */
    struct clime_page_copy *copies; /* [max_running] to make before the rows run */
    int n_copies;
};

enum clime_inflight {                           /* what becomes of running sequences at a weight update */
                      CLIME_INFLIGHT_KEEP,      /* continue with the KV they have */
                      CLIME_INFLIGHT_RECOMPUTE, /* recompute it under the new weights */
                      CLIME_INFLIGHT_ABORT      /* the caller removes them first */
};

struct clime_sched {
    struct clime_sched_options opts;
    struct clime_pages pages;
    struct clime_prefix prefix;
    struct clime_seq **running; /* [max_running], ascending arrival */
    int n_running;
    struct clime_seq *first, *last; /* waiting */
    struct clime_seq **alike;       /* hash buckets of prompt-sharing sequences, waiting and running, by prompt_hash */
    int n_waiting;
    int64_t n_waiting_tokens; /* known tokens of waiting sequences */
    bool held;                /* no waiting sequence can start until one leaves or arrives */
    int64_t closed_from;      /* arrivals from here on do not start; INT64_MAX = admission is open */
    uint64_t version;         /* CLIME_FIRST_VERSION: no update has changed the weights yet */
    /* called before a running sequence's pages are released; or NULL */
    void (*retracting)(void *arg, struct clime_seq *q);
    void *retracting_arg;
    int64_t n_prompt_tokens, n_hit_tokens; /* of admitted prompts, for the hit rate */
    int64_t n_preempted;
};

void clime_sched_init(struct clime_sched *s, const struct clime_sched_options *o);
void clime_sched_free(struct clime_sched *s);
void clime_step_plan_init(struct clime_step_plan *p, int max_running);
void clime_step_plan_free(struct clime_step_plan *p);

void clime_sched_add(struct clime_sched *s, struct clime_seq *q);    /* a new one; it waits */
void clime_sched_remove(struct clime_sched *s, struct clime_seq *q); /* ended or aborted: pages released */
void clime_sched_plan(struct clime_sched *s, struct clime_step_plan *plan);

/* Adds up to n rows of guessed tokens to an item that decodes. Takes free pages only, without eviction or preemption.
 * Returns how many fit; the caller writes that many guesses after the known tokens. */
int clime_sched_guess(struct clime_sched *s, struct clime_step_plan *plan, struct clime_step_item *item, int n);

/* Plans the step after `now`, whose rows are running and whose tokens are not known: every running sequence draws in
 * `now` and continues, except those whose last token that is. False (run nothing ahead) if the next step may differ: a
 * sequence could start, no page is left, or a prompt is not finished. The caller removes sequences found to have ended
 * from `next`; any step that the device runs after it may take their pages. */
bool clime_sched_plan_ahead(struct clime_sched *s, const struct clime_step_plan *now, struct clime_step_plan *next);

/* The plan's rows have run: counts their KV and caches full pages. Right guesses become known tokens; the caller
 * appends the token drawn by each item's last right row. */
void clime_sched_done(struct clime_sched *s, const struct clime_step_plan *plan);

void clime_sched_retract_all(struct clime_sched *s);            /* every running sequence waits again, without pages */
void clime_sched_flush(struct clime_sched *s);                  /* empties the prefix cache */
void clime_sched_new_version(struct clime_sched *s, bool keep); /* !keep: recompute */

bool clime_sched_has_work(const struct clime_sched *s);   /* a sequence runs or may start */
int clime_sched_n_let_in(const struct clime_sched *s);    /* sequences that run or may start */
int clime_sched_used_tokens(const struct clime_sched *s); /* positions in held or cached pages, rounded up to pages */

/* Recounts every reference and flag; aborts on a violation. For tests and debug builds. */
void clime_sched_check(const struct clime_sched *s);

#endif
