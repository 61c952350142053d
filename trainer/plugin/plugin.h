/* Functions of your own in clime-train: rewards, advantages, loss, from a shared library.
 *
 *   cc -shared -fPIC -O2 -I CLIME -o mine.so mine.c
 *   clime-train rl --custom-advantage-function-path mine.so ...
 *
 * This header is all that a library needs; examples/custom_algorithm.c is one. The library exports one object,
 *
 *   const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .name = "mine", .advantages = my_advantages};
 *
 * and each option that names the library uses the member that belongs to it. The functions are called on the trainer's
 * main thread, one at a time; with --async `filter` and `buffer` on another one, while the others may run; `reward` and
 * `generate` on threads of their own, several at a time. To keep what clime promises (the same bits in every run, and
 * again after a crash) they must depend on nothing but their arguments. What they are given is borrowed for the length
 * of the call.
 *
 * A function returns 0, or anything else after writing the reason into `error`: the run stops and says it.
 *
 * Stability: members are only ever added at the end of these structs, and CLIME_PLUGIN_ABI changes when one changes its
 * meaning. The library states the sizes it was compiled with; clime-train loads older ones and refuses newer ones.
 */
#ifndef CLIME_TRAINER_PLUGIN_PLUGIN_H
#define CLIME_TRAINER_PLUGIN_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLIME_PLUGIN_ABI 1

struct clime_plugin_sample {
    int64_t rollout, group; /* samples of one group number answer the same prompt */
    int32_t member;         /* samples of one group and member are what one answer fanned out into */
    int32_t n_prompt, n_response;
    const int32_t *ids;                         /* [n_prompt + n_response] */
    const uint8_t *mask;                        /* [n_response] 1 = the policy sampled it and it is trained on */
    const float *logp;                          /* [n_response] the server's log-probabilities */
    const char *response;                       /* decoded, or NULL */
    const char *label, *metadata, *reward_json; /* JSON, or NULL */
    double reward;
    int32_t truncated; /* 1 = it ended by the length limit */
    int32_t part;      /* its number among the samples of its member */
    int32_t finished;  /* 1 = sampled to its end and rewarded; 0 only in `buffer` */
    int64_t oldest,
        newest; /* versions (optimizer steps) of the weights that sampled its first and last token, -1 = none */
};

/* A whole rollout. Its trained tokens stand sample by sample: those of sample i are first[i] .. first[i + 1]. */
struct clime_plugin_rollout {
    int32_t n_samples;
    const struct clime_plugin_sample *const *samples; /* [n_samples] */
    int64_t n_tokens;
    const int64_t *first;  /* [n_samples + 1] */
    const int32_t *place;  /* [n_tokens] place in the response */
    const double *reward;  /* [n_samples] as `rewards` made them, else the samples' own */
    const float *old;      /* [n_tokens] log-probabilities that ratios are taken against; NULL in `rewards` */
    const float *ref, *kl; /* [n_tokens] reference and KL of --kl-coef; NULL without it and in `rewards` */
    double kl_coef, gamma;
};

/* The trained tokens of one sample, during a step. */
struct clime_plugin_loss {
    const struct clime_plugin_sample *sample;
    int32_t n;
    const int32_t *place;             /* [n] */
    const float *logp, *old, *behave; /* [n] now; that ratios are taken against; the server's */
    const float *ref;                 /* [n] NULL without a KL term in the loss */
    const float *entropy;             /* [n] */
    const float *adv;                 /* [n] */
    const double *w;                  /* [n] weight in the loss: denominators and corrections are inside */
    double eps_clip, eps_clip_high;
};

/* What a filter says of a group; all zero when it is called. */
struct clime_plugin_verdict {
    int32_t keep;                   /* 1 = train on it */
    int32_t keep_when_insufficient; /* 1 = train on it all the same where dropping it would mean to sample more */
    char reason[64];                /* why not: one word, counted in rollout/dynamic_filter/drop_REASON */
};

/* A group that an earlier rollout left over: finished samples, cut ones with the tokens they have, and such without. */
struct clime_plugin_group {
    int64_t rollout, group; /* the rollout that opened it */
    int32_t n_samples;
    const struct clime_plugin_sample *const *samples; /* [n_samples] */
};

/* One answer to be rewarded: text as clime-train grade's "command" type sees it, JSON for label and metadata. */
struct clime_plugin_question {
    const char *prompt, *response, *label, *metadata; /* "" where there is none */
    uint64_t seed;                                    /* of the sample */
};

/* ---- samples made by the library: --custom-generate-function-path (docs/environments.md) ---- */

/* One answer of the policy. Valid until the session's next `generate`. */
struct clime_plugin_turn {
    int32_t number;    /* in the session, from 0 */
    int32_t n_context; /* tokens before it */
    int32_t n;
    const int32_t *ids; /* [n] what was sampled; the token that ended it is the last */
    const float *logp;  /* [n] the server's */
    const char *text;   /* decoded, without the token that ends a turn */
    int32_t truncated;  /* 1 = it ended by a limit of tokens, 0 = by a stop token or string */
    int64_t text_bytes; /* of text, in which a policy may write NULs too */
};

enum clime_plugin_outcome { /* what a call returns; `why` says more */
                            CLIME_PLUGIN_OK,
                            CLIME_PLUGIN_LIMIT,  /* the session has had its turns or tokens: the policy's doing */
                            CLIME_PLUGIN_BAD,    /* an argument is wrong */
                            CLIME_PLUGIN_FAILED, /* the policy gave no answer */
                            CLIME_PLUGIN_OVER    /* the task is over: return, whatever you return is not looked at */
};

/* What `generate` may do, with its task's session as the first argument, from the thread that it was called on. What
 * the policy sampled is kept by clime, with the log-probabilities and versions of the server; everything else in a
 * context is the library's and has mask 0. */
struct clime_plugin_calls {
    /* The next answer, after the newest turn and what was appended since; or, with ids not NULL, after exactly these
     * ids: they go on from the turn whose tokens they begin with, and others are a branch that changes nothing that is
     * there. max_new 0: as many as the session has left. Sampling parameters are the run's; a library may lower the
     * number of tokens and add up to 16 stop strings. */
    int (*generate)(void *session, const int32_t *ids, int32_t n_ids, int32_t max_new, const char *const *stop,
                    int32_t n_stop, const struct clime_plugin_turn **out);
    /* Tokens, or text to be tokenised, after the newest turn: an observation. Part of the sample once an answer follows
     * it. */
    int (*append)(void *session, const int32_t *ids, int32_t n);
    int (*append_text)(void *session, const char *text);
    /* The policy's tokenizer; what it sets is valid until its next call. */
    int (*tokenize)(void *session, const char *text, const int32_t **ids, int32_t *n);
    int (*detokenize)(void *session, const int32_t *ids, int32_t n, const char **text);
    /* The sample's reward; an object for --reward-key. Without either the run's --rm-type judges the response. */
    int (*set_reward)(void *session, double reward);
    int (*set_reward_json)(void *session, const char *object);
    /* JSON object that takes the place of the prompt's metadata, for rewards and functions of this header. */
    int (*set_metadata)(void *session, const char *object);
    /* The sample counts as one that ended by a limit; else its last answer decides that. */
    int (*set_truncated)(void *session);
    /* Why the last call of this session that did not return CLIME_PLUGIN_OK did not. */
    const char *(*why)(void *session);
    /* The path of this turn is one of the samples that the task gives: what set_* say from here on is about it. Without
     * it the path of the last turn is the only one. Samples of one task share its member and count as one together; an
     * answer that several of them hold is trained in the first. */
    int (*keep)(void *session, int32_t turn);
};

/* One sample to be made. Valid until `generate` returns. */
struct clime_plugin_task {
    void *session;
    const struct clime_plugin_calls *calls;
    int64_t rollout, group;
    int32_t member;
    int32_t evaluation;                        /* 1 = nothing is trained on it */
    uint64_t seed;                             /* for the library's own randomness; the same after a restart */
    int32_t n_ids;                             /* the prompt */
    const int32_t *ids;                        /* [n_ids] */
    const char *prompt;                        /* as text, after the chat template where the run applies one */
    const char *input;                         /* JSON: the line's value under --input-key */
    const char *label, *metadata;              /* JSON, or NULL */
    double temperature, top_p;                 /* of the run */
    int32_t top_k;                             /* -1 = off */
    int32_t max_response_len, max_context_len; /* tokens after the first context; in all, 0 = no limit */
    int32_t max_turns;                         /* 0 = no limit */
};

struct clime_plugin {
    uint32_t abi, bytes, sample_bytes, rollout_bytes, loss_bytes; /* CLIME_PLUGIN_HEAD */
    const char *name;

    /* --custom-reward-post-process-path: sets reward[n_samples]. It takes the place of what the estimator does within a
     * group (subtracting the mean, dividing by the deviation), as in slime. */
    int (*rewards)(const struct clime_plugin_rollout *r, double *reward, char *error, size_t error_bytes);

    /* --custom-advantage-function-path: sets adv[n_tokens], in place of the estimator's; --normalize-advantages comes
     * after it. */
    int (*advantages)(const struct clime_plugin_rollout *r, float *adv, char *error, size_t error_bytes);

    /* --loss-type custom_loss, --custom-loss-function-path: the policy term, in place of the estimator's. Sets pg[n],
     * not weighted, and g[n], the derivative of sum_u w[u] pg[u] by logp. KL and entropy terms are added as the options
     * say. A term may depend on all tokens of its sample, not on other samples: packing must not change results. */
    int (*loss)(const struct clime_plugin_loss *l, double *pg, double *g, char *error, size_t error_bytes);

    /* --dynamic-sampling-filter-path: is this finished group of n samples worth training on? */
    int (*filter)(const struct clime_plugin_sample *const *samples, int32_t n, struct clime_plugin_verdict *v,
                  char *error, size_t error_bytes);

    /* --custom-rm-path: sets reward[n] for n answers: one, or with --group-rm all answers of one group. Called on the
     * reward threads, several at a time. A call that has not returned within --rm-timeout is a failure, and its thread
     * is left to it: it cannot be stopped, and what it looks at stays. A failure is a state of these samples (their
     * group is dropped and counted), not the end of the run. */
    int (*reward)(const struct clime_plugin_question *const *q, int32_t n, double *reward, char *error,
                  size_t error_bytes);
    uint32_t question_bytes; /* CLIME_PLUGIN_HEAD */

    /* --custom-generate-function-path: makes one sample, by any number of turns with the policy: the path of the last
     * one is what is trained on, or those that it keeps. Called on a thread of its own, many at a time. Failing is a
     * state of this sample (its group is dropped and counted), never reward 0, and so is making no call for
     * --environment-lease-timeout, or not being done by --rollout-request-timeout: the function cannot be stopped, but
     * its calls say CLIME_PLUGIN_OVER from then on. */
    int (*generate)(const struct clime_plugin_task *t, char *error, size_t error_bytes);
    uint32_t task_bytes, calls_bytes, turn_bytes; /* CLIME_PLUGIN_HEAD */

    /* --buffer-filter-path: with which of the n groups that are left over, oldest first, a rollout goes on, and in
     * which order. order[n] is 0, 1, ... and *n_order is n when it is called; what it leaves out stays for later
     * rollouts. version: of the weights that are about to sample. Called once, before the rollout's first request. */
    int (*buffer)(int64_t rollout, int64_t version, const struct clime_plugin_group *const *groups, int32_t n,
                  int32_t *order, int32_t *n_order, char *error, size_t error_bytes);
    uint32_t group_bytes; /* CLIME_PLUGIN_HEAD */

    /* --rollout-sample-filter-path: which of a rollout's n samples, by group, member and part, are not trained on:
     * remove[n] is 0 when it is called. Their rewards count in their groups all the same, and they in their steps. */
    int (*sample_filter)(int64_t rollout, const struct clime_plugin_sample *const *samples, int32_t n, uint8_t *remove,
                         char *error, size_t error_bytes);
};

#define CLIME_PLUGIN_HEAD                                                                                              \
    .abi = CLIME_PLUGIN_ABI, .bytes = sizeof(struct clime_plugin), .sample_bytes = sizeof(struct clime_plugin_sample), \
    .rollout_bytes = sizeof(struct clime_plugin_rollout), .loss_bytes = sizeof(struct clime_plugin_loss),              \
    .question_bytes = sizeof(struct clime_plugin_question), .task_bytes = sizeof(struct clime_plugin_task),            \
    .calls_bytes = sizeof(struct clime_plugin_calls), .turn_bytes = sizeof(struct clime_plugin_turn),                  \
    .group_bytes = sizeof(struct clime_plugin_group)

extern const struct clime_plugin clime_plugin; /* yours */

#ifdef __cplusplus
}
#endif

#endif
