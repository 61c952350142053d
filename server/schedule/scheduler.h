/* What runs in the next step: admission, chunked prefill, pages, preemption, sharing.
 *
 * Pure bookkeeping over sequences, pages and the prefix cache: no model, no device, no clock, so that property tests
 * can drive it alone. A step is: clime_sched_plan, the caller runs the rows, then clime_sched_done, and the caller
 * appends the sampled tokens. Before done, clime_sched_plan_ahead may plan the step that follows from counts alone.
 * clime_sched_guess adds rows of guessed tokens to a plan; what of them was wrong leaves no trace.
 *
 * Order: first come, first served, by arrival. Each running sequence that has one row left runs it (decode); what is
 * left of the token budget goes to prefill, in arrival order. When pages run out, the sequence that arrived last gives
 * up its own and waits again at its old place; it is computed anew later (preemption by recompute).
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
    bool choices; /* which experts every position chose is kept */
};

struct clime_step_item {
    struct clime_seq *seq;
    int first, n_rows; /* rows first .. first + n_rows */
    bool sample;       /* the rows from the last known token on draw, each the token of the position after its own */
    int n_guesses;     /* the last rows' tokens are guessed: seq->ids has them behind the known ones */
    int n_right;       /* of those, how many the draws before them have confirmed; set before clime_sched_done */
    int from;          /* planned ahead: the item of the step before that draws this one's token */
};

struct clime_page_copy {
    int32_t from, to;
};

struct clime_step_plan {
    struct clime_step_item *items; /* [max_running], ascending arrival */
    int n_items;
    int T;                          /* rows in all */
    bool ahead;                     /* one row an item, and its token is not known yet */
    int mark;                       /* the runner's: by which its draws come; -1: they are made when it is finished */
    bool undrawn;                   /* the runner's: started, and its draws wait for the tokens of the step before */
    struct clime_page_copy *copies; /* [max_running] to make before the rows run */
    int n_copies;
};

enum clime_inflight {                           /* what becomes of running sequences at a weight update */
                      CLIME_INFLIGHT_KEEP,      /* go on with the KV they have */
                      CLIME_INFLIGHT_RECOMPUTE, /* compute it anew under the new weights */
                      CLIME_INFLIGHT_ABORT      /* the caller removes them first */
};

struct clime_sched {
    struct clime_sched_options opts;
    struct clime_pages pages;
    struct clime_prefix prefix;
    struct clime_seq **running; /* [max_running], ascending arrival */
    int n_running;
    struct clime_seq *first, *last; /* waiting */
    struct clime_seq **alike;       /* buckets of those that share prompts, waiting and running, by prompt_hash */
    int n_waiting;
    int64_t n_waiting_tokens; /* known ones, of those who wait */
    bool held;                /* of those who wait nobody can start before a sequence leaves or comes */
    int64_t closed_from;      /* who arrived then or later does not start; INT64_MAX = the door is open */
    uint64_t version;         /* CLIME_FIRST_VERSION: no update has changed the weights yet */
    /* before one that runs gives its pages up; NULL = nobody asks */
    void (*retracting)(void *arg, struct clime_seq *q);
    void *retracting_arg;
    int64_t n_prompt_tokens, n_hit_tokens; /* of admitted prompts, for the hit rate */
    int64_t n_preempted;
};

void clime_sched_init(struct clime_sched *s, const struct clime_sched_options *o);
void clime_sched_free(struct clime_sched *s);
void clime_step_plan_init(struct clime_step_plan *p, int max_running);
void clime_step_plan_free(struct clime_step_plan *p);

void clime_sched_add(struct clime_sched *s, struct clime_seq *q);    /* new: waits */
void clime_sched_remove(struct clime_sched *s, struct clime_seq *q); /* ended or aborted: pages released */
void clime_sched_plan(struct clime_sched *s, struct clime_step_plan *plan);

/* Room in the plan for up to n rows more of an item that decodes: of tokens guessed to follow its last known one. Takes
 * free pages for them, nobody else's. Returns how many there is room for; the caller writes so many guesses behind the
 * known tokens. */
int clime_sched_guess(struct clime_sched *s, struct clime_step_plan *plan, struct clime_step_item *item, int n);

/* The step after `now`, whose rows are running and whose tokens are not known: every running sequence draws in `now`
 * and goes on, but for those whose last token that is. False, and nothing is to be run ahead, where what follows may
 * be something else: somebody could start, a page lacks, or a prompt is not done with. Sequences that
 * turn out to have ended are the caller's to take out of `next`; their pages may be taken by any step that the device
 * runs after it. */
bool clime_sched_plan_ahead(struct clime_sched *s, const struct clime_step_plan *now, struct clime_step_plan *next);

/* The plan's rows have run: their KV counts, full pages go to the cache. Guesses that were right become known tokens;
 * the token that each item's last right row drew is the caller's to append. */
void clime_sched_done(struct clime_sched *s, const struct clime_step_plan *plan);

void clime_sched_retract_all(struct clime_sched *s);            /* every running sequence waits again, without pages */
void clime_sched_flush(struct clime_sched *s);                  /* empties the prefix cache */
void clime_sched_new_version(struct clime_sched *s, bool keep); /* !keep: recompute */

bool clime_sched_has_work(const struct clime_sched *s);   /* somebody runs or may start */
int clime_sched_n_let_in(const struct clime_sched *s);    /* how many run or may start */
int clime_sched_used_tokens(const struct clime_sched *s); /* positions in held or cached pages, in whole pages */

/* Recounts every reference and flag; aborts when something does not hold. For tests and debug builds. */
void clime_sched_check(const struct clime_sched *s);

#endif
