/* Sample: a prompt, the sampled response, and its results. The unit of the ledger and of training.
 *
 * ids are exactly the tokens sent to and returned by the server; text is never tokenised again. A sample is identified
 * by (rollout, group, member): rollout counts from 0 in a run, group is the prompt's number in the run (always
 * growing), member counts 0..n-1 within the group. Samples are ordered by this triple everywhere.
 *
 * A member made by an environment or a generate hook may fan out into several samples, its parts 0, 1, ...: each is
 * trained on, and together they count as one sample (in steps, denominators, groups' means). Part 0 represents the
 * member until it reaches the rollout; the others are linked from it. */
#ifndef CLIME_TRAINER_SAMPLE_SAMPLE_H
#define CLIME_TRAINER_SAMPLE_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct clime_error;

enum clime_sample_status {
    CLIME_SAMPLE_PENDING,   /* not generated yet */
    CLIME_SAMPLE_COMPLETED, /* finish reason stop */
    CLIME_SAMPLE_TRUNCATED, /* finish reason length */
    CLIME_SAMPLE_ABORTED,   /* stopped on request; partial tokens are kept */
    CLIME_SAMPLE_FAILED,    /* generation or reward failed after its retries; never reward 0 */
};

struct clime_version_run { /* n consecutive response tokens sampled by this weight version */
    int64_t version;
    int32_t n;
};

/* Why no token of a sample is trained on; values are stored in the ledger. */
enum clime_removed {
    CLIME_REMOVED_NOT,
    CLIME_REMOVED_FILTER, /* --rollout-sample-filter-path */
    CLIME_REMOVED_BAD,    /* a reward or advantage of its group is not finite */
};

struct clime_sample {
    int64_t row_id; /* in the ledger; 0 = not stored */
    int64_t rollout, group;
    int32_t member, part;
    struct clime_sample *next; /* the member's next part, owned; NULL once the parts are separated */
    uint64_t seed;             /* hash64(run seed, rollout, group, member) */
    enum clime_sample_status status;

    int32_t n_prompt, n_response;
    int32_t *ids;        /* [n_prompt + n_response], owned */
    float *logp;         /* [n_response] the server's log-probability of each response token, owned */
    float *teacher_logp; /* [n_response] a teacher's log-probabilities (--use-opd); NULL = none; owned */
    uint32_t *kept_n;    /* [n_response] number of ids each token was drawn from; 0 = not sampled; NULL = no cut
                            (--rollout-top-p, --rollout-top-k); owned */
    int32_t *kept;       /* [n_kept] these ids, token by token, ascending; owned */
    float *kept_logp;    /* [n_response] the server's log-probability over these ids, used by the loss (logp is over all
                            ids); owned */
    int64_t n_kept;
    uint32_t *routing; /* [n_response] hash of each token's experts, 0 = unknown; NULL = not reported; owned */
    uint8_t *experts;  /* [n_prompt + n_response - 1, expert_bytes] the experts the server's routers chose
                          (trainer/sample/experts.h); NULL = not kept; owned */
    int32_t expert_bytes;
    enum clime_removed removed;         /* other than NOT: no token is trained on in its step */
    uint8_t *mask;                      /* [n_response] 1 = sampled by the policy and trained on, owned */
    struct clime_version_run *versions; /* cover n_response tokens, owned */
    int32_t n_versions;
    int32_t mixed_kv; /* first response token, from 1, whose context had KV kept over an update; 0 = none. Such a sample
                         is excluded from the gap */

    float temperature;  /* sampling temperature; 1 when greedy */
    char *response;     /* decoded text, owned */
    char *label;        /* JSON value text or NULL, owned */
    char *metadata;     /* JSON object text or NULL, owned */
    char *own_metadata; /* replacement from an environment or generate hook: JSON object or NULL, owned */
    char *finish;       /* finish_reason JSON, owned */
    double reward;      /* valid when has_reward */
    bool has_reward;
    char *reward_json;              /* the whole object if the reward is one, else NULL, owned */
    char *error;                    /* why FAILED, owned */
    char *device;                   /* kind of device that sampled it, owned */
    int64_t t_submit_us, t_done_us; /* wall clock */
    int32_t cached_tokens;
};

/* The algorithm's results for a sample before its step. Recorded with the step, so repeating it needs neither the code
 * nor the weights that made them. */
struct clime_estimate {
    float advantage; /* mean over its trained tokens; every token's own when adv is NULL */
    float *adv;      /* [n_response] or NULL, owned */
    float *old;      /* [n_response] the trainer's log-probabilities when training on the rollout began; NULL = use the
                        server's; owned */
    float *value, *ret; /* [n_response] the critic's values then, and their targets; NULL = no critic */
};
void clime_estimates_free(struct clime_estimate *e, int n); /* frees the array too; NULL is fine */

struct clime_sample *clime_sample_new(void);
/* A PENDING sample: copies a prompt of n ids, label and metadata (JSON or NULL). */
struct clime_sample *clime_sample_pending(int64_t rollout, int64_t group, int32_t member, uint64_t seed,
                                          const int32_t *ids, int32_t n, const char *label, const char *metadata);
void clime_sample_restart(struct clime_sample *s);               /* PENDING again: keeps only prompt and identity */
size_t clime_sample_experts_bytes(const struct clime_sample *s); /* all positions; 0 = not kept */
/* The sum of kept_n. May differ from n_kept in a sample read from outside. */
int64_t clime_sample_count_kept(const struct clime_sample *s);
bool clime_sample_finished(const struct clime_sample *s);                      /* sampled to its end and rewarded */
void clime_sample_fail(struct clime_sample *s, const struct clime_error *why); /* FAILED, without a reward */
void clime_sample_drop_token(struct clime_sample *s);                          /* drops the last response token */
uint64_t clime_sample_checksum(const struct clime_sample *s);                  /* of identity, tokens and numbers */
void clime_sample_free(struct clime_sample *s);                                /* NULL is fine */
int clime_sample_order(const struct clime_sample *a,
                       const struct clime_sample *b);     /* by (rollout, group, member, part) */
int clime_sample_parts(const struct clime_sample *s);     /* number of parts; 1 = only s */
double clime_sample_reward(const struct clime_sample *s); /* mean over the parts */
/* Separates all parts into samples of their own: *list grows, parts in sequence. Returns the new count. */
int clime_samples_flatten(struct clime_sample ***list, int n);

#endif
