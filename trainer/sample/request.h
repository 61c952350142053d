/* What it takes to make one sample: its prompt and seed, how it is sampled and rewarded, until when. Filled by who
 * wants the sample (rollout, evaluation), in the hands of who makes it (trainer/rollout/client.h) until it comes back.
 */
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
    int64_t max_response_len, max_context_len; /* tokens; context 0 = no own limit */
    struct clime_opt_list stop, stop_token_ids;
    bool skip_special_tokens; /* in the text that is graded and stored */
    bool kept;                /* top_p or top_k cuts, and the server says of each token what was left */
    bool routing;             /* the server says which experts its routers chose, as a hash of each token's row */
    const struct clime_config *experts; /* it says them too: of this model; NULL = nobody asks */
};

/* Tokens that a response may have: the response limit, cut by the context limit. 0 = the prompt fills the context. */
static inline int64_t clime_sampling_room(const struct clime_sampling_options *s, int32_t n_prompt) {
    int64_t room = s->max_response_len;
    if (s->max_context_len && s->max_context_len - n_prompt < room) room = s->max_context_len - n_prompt;
    return room < 0 ? 0 : room;
}

/* What has come of an answer: of its first token on, whatever tries it took. */
struct clime_partial {
    const int32_t *ids; /* [n] */
    const float *logp;  /* [n] */
    int n;
    int64_t cached_tokens, version; /* of the prompt; of the weights that sampled the last token */
};

/* Who waits for one answer, a client of a session's turn. Asked and told by the thread that makes the answer. */
struct clime_listener {
    bool (*gone)(void *arg); /* nobody wants the answer any more: its request is ABORTED, and the server's work ends */
    /* Told while tokens come; NULL: the answer is wanted whole. False: other tokens than it was told of before, as
     * after a try that broke off and weights that changed: the request FAILS. */
    bool (*news)(void *arg, const struct clime_partial *so_far);
    void *arg;
};

struct clime_request {
    struct clime_sample *sample; /* in: ids, seed, label, metadata, tokens to continue; out: everything else */
    const struct clime_sampling_options *sampling;
    const char *rm_type, *reward_key; /* may be NULL */
    const char *prompt;               /* text, for rewards outside this process */
    int group_size;                   /* > 0: rewarded together with the group's other members, that many in all, */
    int64_t gathering;                /* which have this number, from clime_client_gathering */
    const char *input;                /* what the dataset has under the input key, JSON; for environments */
    char rid[112];                    /* run.token/rollout/group/member/attempt; ".try" is appended */
    int32_t experts_from;             /* of a session's turn: the first position whose experts are not known yet */
    int64_t version;                  /* of the weights; an answer of older ones is refused */
    const _Atomic int64_t *newest;    /* of the versions that may take its place meanwhile; NULL = none may */
    int64_t deadline_us;              /* clime_now_us scale */
    const atomic_bool *stop;          /* set by the owner: come back ABORTED instead of trying again; may be NULL */
    const struct clime_listener *listener; /* NULL = none */
    bool teach;                            /* the teacher scores it before the reward is asked for */
    bool scored;                           /* no reward is wanted */
    void *owner;                           /* for the owner's use */
    /* out */
    int n_tries, n_stale;           /* requests sent; answers refused for their version */
    struct clime_turn_counts turns; /* of its session, where it had one */
    int64_t reward_us;              /* from the end of the sample to its reward, with all waits */
    bool rewarded;                  /* that was come to; a sample that failed then failed at its reward */
};

/* The most requests that are in the hands of who makes them at a time. */
#define CLIME_REQUESTS_MAX 65536

static inline bool clime_request_left(const struct clime_request *r) {
    return r->listener && r->listener->gone(r->listener->arg);
}

static inline bool clime_request_stopped(const struct clime_request *r) {
    return (r->stop && atomic_load(r->stop)) || clime_request_left(r);
}

#endif
