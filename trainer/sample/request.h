/* Sample request: the prompt, seed, sampling, reward and deadline of one sample. Filled by the rollout or evaluation;
 * owned by the client (trainer/rollout/client.h) until it returns. */
#ifndef CLIME_TRAINER_SAMPLE_REQUEST_H
#define CLIME_TRAINER_SAMPLE_REQUEST_H

#include <stdatomic.h>

#include "common/options/options.h"
#include "trainer/sample/sample.h"
#include "trainer/sample/turns.h"

struct clime_sampling_options { /* of one request */
    double temperature, top_p;
    int64_t top_k; /* -1 = off */
    int64_t min_new_tokens;
    int64_t max_response_len, max_context_len; /* tokens; max_context_len 0 = none */
    struct clime_opt_list stop, stop_token_ids;
    bool skip_special_tokens; /* in the text that is graded and stored */
    bool kept;                /* top_p or top_k applies: the server returns the ids each token was drawn from */
    bool routing;             /* the server returns a hash of the chosen experts for each token's row */
    const struct clime_config *experts; /* and the experts too: of this model; NULL = not requested */
};

/* Maximum response tokens: the response limit, cut by the context limit. 0 = the prompt fills the context. */
static inline int64_t clime_sampling_room(const struct clime_sampling_options *s, int32_t n_prompt) {
    int64_t room = s->max_response_len;
    if (s->max_context_len && s->max_context_len - n_prompt < room) room = s->max_context_len - n_prompt;
    return room < 0 ? 0 : room;
}

/* An answer so far, from its first token, over all tries. */
struct clime_partial {
    const int32_t *ids; /* [n] */
    const float *logp;  /* [n] */
    int n;
    int64_t cached_tokens, version; /* of the prompt; of the weights that sampled the last token */
};

/* Callbacks for the client that waits for an answer, a session's turn. Called by the thread that makes the answer. */
struct clime_listener {
    bool (*gone)(void *arg); /* the client left: the request is ABORTED and the server's work cancelled */
    /* Called as tokens arrive; NULL: only the whole answer is wanted. False: the tokens differ from those passed
     * before, as after a failed try with new weights: the request FAILS. */
    bool (*news)(void *arg, const struct clime_partial *so_far);
    void *arg;
};

struct clime_request {
    struct clime_sample *sample; /* in: ids, seed, label, metadata, tokens to continue; out: all other fields */
    const struct clime_sampling_options *sampling;
    const char *rm_type, *reward_key; /* may be NULL */
    const char *prompt;               /* text, for rewards outside this process */
    int group_size;                   /* > 0: rewarded together with the group's other members, this many in all, */
    int64_t gathering;                /* which share this number, from clime_client_gathering */
    const char *input;                /* the dataset's value under the input key, JSON; for environments */
    char rid[112];                    /* run.token/rollout/group/member/attempt; ".try" is appended */
    int32_t experts_from;             /* session turn: the first position whose experts are unknown */
    int64_t version;                  /* of the weights; answers of older weights are refused */
    const _Atomic int64_t *newest;    /* newest version that may replace it meanwhile; NULL = none may */
    int64_t deadline_us;              /* clime_now_us scale */
    const atomic_bool *stop;          /* set by the owner: return ABORTED instead of retrying; may be NULL */
    const struct clime_listener *listener; /* NULL = none */
    bool teach;                            /* the teacher scores it before its reward is requested */
    bool scored;                           /* no reward is wanted */
    void *owner;                           /* for the owner's use */
    /* out */
    int n_tries, n_stale;           /* requests sent; answers refused as stale */
    struct clime_turn_counts turns; /* of its session, if any */
    int64_t reward_us;              /* from the sample's end to its reward, waits included */
    bool rewarded;                  /* the reward stage was reached; a sample that failed then failed there */
};

/* Maximum requests in progress. */
#define CLIME_REQUESTS_MAX 65536

static inline bool clime_request_left(const struct clime_request *r) {
    return r->listener && r->listener->gone(r->listener->arg);
}

static inline bool clime_request_stopped(const struct clime_request *r) {
    return (r->stop && atomic_load(r->stop)) || clime_request_left(r);
}

#endif
