/* A sequence inside the engine: one output's tokens, KV pages and progress.
 *
 * Positions: ids[0 .. n_total) are known tokens; KV is in the pages for positions [0, n_kv). A step runs rows from n_kv
 * on; the logits of row n_total - 1 give token n_total. Within a step, ids from n_total on may hold guesses
 * (clime_sched_guess). Owner: the submitting thread until it is in the engine's inbox; then the engine thread.
 */
#ifndef CLIME_SERVER_SCHEDULE_SEQ_H
#define CLIME_SERVER_SCHEDULE_SEQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/job/job.h"
#include "server/schedule/draft_index.h"

struct clime_logit_edits;

enum clime_seq_state { CLIME_SEQ_WAITING, CLIME_SEQ_RUNNING, CLIME_SEQ_GONE };

struct clime_seq {
    int64_t id;
    int64_t arrival; /* order of service; survives preemption */
    enum clime_seq_state state;
    struct clime_output *out;        /* not touched by scheduler, pages or cache */
    struct clime_logit_edits *edits; /* NULL = none */

    int32_t *ids; /* [max_total] */
    int n_prompt, n_total, max_total;
    int n_kv;
    int32_t *pages; /* [pages of max_total]; the first n_pages are held */
    int n_pages;

    /* sharing */
    uint64_t salt, prompt_hash;
    uint64_t epoch;       /* cache epoch when its first page was taken */
    int n_shared;         /* leading pages that are in the cache */
    int prompt_logp_next; /* the next prompt position that needs its log-probability; n_prompt = none. The row before
                           * it, and all after, must run here: neither cache nor leader may supply them */
    bool share_prompt;    /* may wait for a sequence with the same prompt and fork its pages */
    struct clime_seq *leader; /* while waiting: the sequence that computes our prompt; NULL = none */
    int n_followers;          /* sequences that it leads */
    bool mixed;               /* an update kept its KV: what it writes now depends on several versions */
    int cached_tokens;        /* positions from the cache or a leader at first admission */
    bool admitted;            /* once */
    int64_t queued_us;        /* submission time, for the queue timeout */
    int n_retractions;
    int32_t *choices; /* the engine's: experts of n_choices positions, kept when its pages were released; or NULL */
    int n_choices;
    int n_learned; /* ids learned by drafting */
    struct clime_draft_trust trust;
    struct clime_draft_counts drafts;

    struct clime_seq *next, *prev;             /* waiting list, ascending arrival */
    struct clime_seq *alike_next, *alike_prev; /* bucket by prompt_hash (scheduler.c) */
};

struct clime_seq_options { /* of the engine */
    int V;
    const int32_t *eos; /* [n_eos] */
    int n_eos;
    bool cache; /* prompts are shared between requests */
};

/* Makes the output's sequence; the scheduler does not know it yet. before: a sequence of the same job that may have the
 * same prompt, or NULL. */
struct clime_seq *clime_seq_new(struct clime_output *o, const struct clime_seq_options *opts,
                                const struct clime_seq *before);
void clime_seq_free(struct clime_seq *q); /* NULL is fine */

#endif
