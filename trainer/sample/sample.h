/* One sample: a prompt, what the policy sampled for it, and what became of it. The unit of the ledger and of training.
 *
 * ids are exactly what the server was given and returned; text is never tokenised again.
 * A sample is identified by (rollout, group, member): rollout counts from 0 in a run, group is the prompt's number in
 * the run (grows for ever), member counts 0..n-1 within the group. The order of samples everywhere is by this triple.
 *
 * A member that an environment or a generate hook made may fan out into several samples, its parts 0, 1, ...: each is
 * trained on, and together they count as the one sample (in steps, denominators, groups' means). Part 0 stands for the
 * member until the rollout has it; the others hang from it.
 */
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
    CLIME_SAMPLE_FAILED,    /* generation or reward gave an error after its retries; never reward 0 */
};

struct clime_version_run { /* n consecutive response tokens sampled under this weight version */
    int64_t version;
    int32_t n;
};

/* Why no token of a sample is trained on; the numbers are the ledger's. */
enum clime_removed {
    CLIME_REMOVED_NOT,
    CLIME_REMOVED_FILTER, /* --rollout-sample-filter-path */
    CLIME_REMOVED_BAD,    /* a reward or advantage of its group is not finite */
};

struct clime_sample {
    int64_t row_id; /* in the ledger; 0 = not stored */
    int64_t rollout, group;
    int32_t member, part;
    struct clime_sample *next; /* the member's next part, owned; NULL once the parts go their own ways */
    uint64_t seed;             /* hash64(run seed, rollout, group, member) */
    enum clime_sample_status status;

    int32_t n_prompt, n_response;
    int32_t *ids;        /* [n_prompt + n_response], owned */
    float *logp;         /* [n_response] the server's number for each response token, owned */
    float *teacher_logp; /* [n_response] a teacher's number for each (--use-opd); NULL = none; owned */
    uint32_t *kept_n; /* [n_response] how many ids each token was drawn from; 0 = of no set: it was not sampled; NULL =
                         nothing was cut (--rollout-top-p, --rollout-top-k); owned */
    int32_t *kept;    /* [n_kept] these ids, token after token, ascending; owned, and so is */
    float *kept_logp; /* [n_response] the server's number over them: what the loss is of; logp stays of all ids */
    int64_t n_kept;
    uint32_t *routing; /* [n_response] a hash of the experts that drew each token, 0 = not known; NULL =
                          no one said; owned */
    uint8_t *experts;  /* [n_prompt + n_response - 1, expert_bytes] those that a server's routers chose
                          (trainer/sample/experts.h); NULL = they are not kept; owned */
    int32_t expert_bytes;
    enum clime_removed removed;         /* other than NOT: no token of it is trained on in its step */
    uint8_t *mask;                      /* [n_response] 1 = the policy sampled it and it is trained on, owned */
    struct clime_version_run *versions; /* cover n_response tokens, owned */
    int32_t n_versions;
    int32_t mixed_kv; /* the first response token, counted from 1, whose context held KV kept over an update; 0 = none.
                         Such a sample is left out of the gap */

    float temperature;  /* of the sampling; 1 when greedy */
    char *response;     /* decoded text, owned */
    char *label;        /* JSON value text or NULL, owned */
    char *metadata;     /* JSON object text or NULL, owned */
    char *own_metadata; /* what an environment or generate hook says instead: JSON object or NULL, owned */
    char *finish;       /* finish_reason JSON, owned */
    double reward;      /* valid when has_reward */
    bool has_reward;
    char *reward_json;              /* the whole object of a reward that is one, else NULL, owned */
    char *error;                    /* why FAILED, owned */
    char *device;                   /* kind of device that sampled it, owned */
    int64_t t_submit_us, t_done_us; /* wall clock */
    int32_t cached_tokens;
};

/* What the algorithm said about a sample before its step. Recorded with the step, so that a step that runs again needs
 * neither the code nor the weights that made it. */
struct clime_estimate {
    float advantage;    /* mean over its trained tokens; each token's own when adv is NULL */
    float *adv;         /* [n_response] or NULL, owned */
    float *old;         /* [n_response] the trainer's log-probabilities when training on the rollout began; NULL = the
                           server's are taken; owned */
    float *value, *ret; /* [n_response] the critic's values then, and what they are trained towards; NULL = no critic */
};
void clime_estimates_free(struct clime_estimate *e, int n); /* and the array; NULL is fine */

struct clime_sample *clime_sample_new(void);
/* One that is to be sampled: a prompt of n ids, label and metadata (JSON or NULL) are copied. */
struct clime_sample *clime_sample_pending(int64_t rollout, int64_t group, int32_t member, uint64_t seed,
                                          const int32_t *ids, int32_t n, const char *label, const char *metadata);
void clime_sample_restart(struct clime_sample *s); /* pending again: forgets everything but prompt and identity */
size_t clime_sample_experts_bytes(const struct clime_sample *s); /* of all positions; 0 = they are not kept */
/* The sum of kept_n. It may not be n_kept where a sample was read from outside. */
int64_t clime_sample_count_kept(const struct clime_sample *s);
bool clime_sample_finished(const struct clime_sample *s);                      /* sampled to its end and rewarded */
void clime_sample_fail(struct clime_sample *s, const struct clime_error *why); /* FAILED, without a reward */
void clime_sample_drop_token(struct clime_sample *s);                          /* forgets the last response token */
uint64_t clime_sample_checksum(const struct clime_sample *s); /* of what decides: who it is, its tokens and numbers */
void clime_sample_free(struct clime_sample *s);               /* NULL is fine */
int clime_sample_order(const struct clime_sample *a,
                       const struct clime_sample *b);     /* by (rollout, group, member, part) */
int clime_sample_parts(const struct clime_sample *s);     /* how many hang together; 1 = only s */
double clime_sample_reward(const struct clime_sample *s); /* the mean over them */
/* Every part a sample of its own: *list grows, parts behind each other. Returns how many there are. */
int clime_samples_flatten(struct clime_sample ***list, int n);

#endif
