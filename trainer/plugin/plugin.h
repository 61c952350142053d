/* Plugin interface of clime-train: rewards, advantages, loss and more from your shared library.
 *
 *   cc -shared -fPIC -O2 -I CLIME -o mine.so mine.c
 *   clime-train rl --custom-advantage-function-path mine.so ...
 *
 * A library needs only this header; example: examples/custom_algorithm.c. It exports one object,
 *
 *   const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .name = "mine", .advantages = my_advantages};
 *
 * and each option that names the library uses the matching member. Functions are called on the trainer's main thread,
 * one at a time; with --async `filter` and `buffer` on another thread, while others may run; `reward` and `generate` on
 * their own threads, several at a time. To keep clime's promise (the same bits in every run, and after a crash) a
 * function must depend on its arguments alone. Arguments are borrowed for the length of the call.
 *
 * A function returns 0; or any other value after it wrote the reason to `error`: the run stops with that message.
 *
 * Stability: members are only added at the end of these structs; CLIME_PLUGIN_ABI changes when a member changes its
 * meaning. The library states the sizes it was compiled with; clime-train loads older ones and refuses newer ones. */
#ifndef CLIME_TRAINER_PLUGIN_PLUGIN_H
#define CLIME_TRAINER_PLUGIN_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CLIME_PLUGIN_ABI 1

struct clime_plugin_sample {
    int64_t rollout, group; /* samples with the same group answer the same prompt */
    int32_t member;         /* samples with the same group and member are one answer's parts */
    int32_t n_prompt, n_response;
    const int32_t *ids;                         /* [n_prompt + n_response] */
    const uint8_t *mask;                        /* [n_response] 1 = sampled by the policy and trained on */
    const float *logp;                          /* [n_response] the server's log-probabilities */
    const char *response;                       /* decoded, or NULL */
    const char *label, *metadata, *reward_json; /* JSON, or NULL */
    double reward;
    int32_t truncated; /* 1 = it ended by the length limit */
    int32_t part;      /* its index among its member's samples */
    int32_t finished;  /* 1 = sampled to its end and rewarded; 0 only in `buffer` */
    int64_t oldest,
        newest; /* versions (optimizer steps) of the weights that sampled its first and last token, -1 = none */
};

/* A whole rollout. Trained tokens are stored by sample: sample i has first[i] .. first[i + 1]. */
struct clime_plugin_rollout {
    int32_t n_samples;
    const struct clime_plugin_sample *const *samples; /* [n_samples] */
    int64_t n_tokens;
    const int64_t *first;  /* [n_samples + 1] */
    const int32_t *place;  /* [n_tokens] position in the response */
    const double *reward;  /* [n_samples] output of `rewards`, else the samples' own */
    const float *old;      /* [n_tokens] log-probabilities in the ratio's denominator; NULL in `rewards` */
    const float *ref, *kl; /* [n_tokens] reference and KL for --kl-coef; NULL without it and in `rewards` */
    double kl_coef, gamma;
};

/* The trained tokens of one sample in a step. */
struct clime_plugin_loss {
    const struct clime_plugin_sample *sample;
    int32_t n;
    const int32_t *place;             /* [n] */
    const float *logp, *old, *behave; /* [n] current; in the ratio's denominator; the server's */
    const float *ref;                 /* [n] NULL without a KL term in the loss */
    const float *entropy;             /* [n] */
    const float *adv;                 /* [n] */
    const double *w;                  /* [n] weight in the loss, denominators and corrections included */
    double eps_clip, eps_clip_high;
};

/* A filter's verdict on a group; all zero at the call. */
struct clime_plugin_verdict {
    int32_t keep;                   /* 1 = train on it */
    int32_t keep_when_insufficient; /* 1 = train on it if dropping it would require more sampling */
    char reason[64];                /* reason for a drop: one word, counted in rollout/dynamic_filter/drop_REASON */
};

/* A group left over by an earlier rollout: samples that are finished, partial, or without tokens. */
struct clime_plugin_group {
    int64_t rollout, group; /* rollout: the one that opened it */
    int32_t n_samples;
    const struct clime_plugin_sample *const *samples; /* [n_samples] */
};

/* One answer to reward: text as for clime-train grade's type "command"; label and metadata are JSON. */
struct clime_plugin_question {
    const char *prompt, *response, *label, *metadata; /* "" = none */
    uint64_t seed;                                    /* of the sample */
};

/* ---- samples made by the library: --custom-generate-function-path (docs/environments.md) ---- */

/* One answer of the policy. Valid until the session's next `generate`. */
struct clime_plugin_turn {
    int32_t number;    /* in the session, from 0 */
    int32_t n_context; /* tokens before it */
    int32_t n;
    const int32_t *ids; /* [n] sampled tokens, the one that ended it included */
    const float *logp;  /* [n] the server's */
    const char *text;   /* decoded, without the end-of-turn token */
    int32_t truncated;  /* 1 = ended by a token limit, 0 = by a stop token or string */
    int64_t text_bytes; /* length of text, which may contain NULs */
};

enum clime_plugin_outcome { /* result of a call; details: `why` */
                            CLIME_PLUGIN_OK,
                            CLIME_PLUGIN_LIMIT,  /* the session has used up its turns or tokens: due to the policy */
                            CLIME_PLUGIN_BAD,    /* an argument is wrong */
                            CLIME_PLUGIN_FAILED, /* the policy returned no answer */
                            CLIME_PLUGIN_OVER    /* the task is over: return; the return value is ignored */
};

/* Calls available to `generate`, with the task's session as the first argument, from its own thread. clime stores what
 * the policy sampled, with the server's log-probabilities and versions; all other tokens of a context come from the
 * library and have mask 0. */
struct clime_plugin_calls {
    /* Samples the next answer. ids NULL: after the newest turn and everything appended since. Else after exactly these
     * ids: they extend the turn whose tokens they begin with; otherwise they are a branch, which leaves existing turns
     * unchanged. max_new 0: all that the session has left. Sampling parameters are the run's; a library may lower the
     * number of tokens and add up to 16 stop strings. */
    int (*generate)(void *session, const int32_t *ids, int32_t n_ids, int32_t max_new, const char *const *stop,
                    int32_t n_stop, const struct clime_plugin_turn **out);
    /* Appends an observation, tokens or text to tokenise, after the newest turn. Part of the sample once an answer
     * follows. */
    int (*append)(void *session, const int32_t *ids, int32_t n);
    int (*append_text)(void *session, const char *text);
    /* The policy's tokenizer; a result is valid until its next call. */
    int (*tokenize)(void *session, const char *text, const int32_t **ids, int32_t *n);
    int (*detokenize)(void *session, const int32_t *ids, int32_t n, const char **text);
    /* Sets the sample's reward, or an object for --reward-key. Without either, the run's --rm-type grades the response.
     */
    int (*set_reward)(void *session, double reward);
    int (*set_reward_json)(void *session, const char *object);
    /* Replaces the prompt's metadata with a JSON object, for rewards and the functions of this header. */
    int (*set_metadata)(void *session, const char *object);
    /* Marks the sample as ended by a limit; by default its last answer decides. */
    int (*set_truncated)(void *session);
    /* The reason for the session's last result other than CLIME_PLUGIN_OK. */
    const char *(*why)(void *session);
    /* Makes the path of this turn a sample of the task; set_* calls apply to it from here on. By default only the last
     * turn's path is one. A task's samples share its member and count as one together; an answer in several of them is
     * trained in the first. */
    int (*keep)(void *session, int32_t turn);
};

/* One sample to make. Valid until `generate` returns. */
struct clime_plugin_task {
    void *session;
    const struct clime_plugin_calls *calls;
    int64_t rollout, group;
    int32_t member;
    int32_t evaluation;                        /* 1 = not trained on */
    uint64_t seed;                             /* for the library's randomness; the same after a restart */
    int32_t n_ids;                             /* the prompt */
    const int32_t *ids;                        /* [n_ids] */
    const char *prompt;                        /* as text, after the chat template if the run applies one */
    const char *input;                         /* JSON: the row's value under --input-key */
    const char *label, *metadata;              /* JSON, or NULL */
    double temperature, top_p;                 /* of the run */
    int32_t top_k;                             /* -1 = off */
    int32_t max_response_len, max_context_len; /* tokens after the first context; in all, 0 = no limit */
    int32_t max_turns;                         /* 0 = no limit */
};

struct clime_plugin {
    uint32_t abi, bytes, sample_bytes, rollout_bytes, loss_bytes; /* CLIME_PLUGIN_HEAD */
    const char *name;

    /* --custom-reward-post-process-path: sets reward[n_samples]. Replaces the estimator's step within a group (subtract
     * the mean, divide by the deviation), as in slime. */
    int (*rewards)(const struct clime_plugin_rollout *r, double *reward, char *error, size_t error_bytes);

    /* --custom-advantage-function-path: sets adv[n_tokens] in place of the estimator; --normalize-advantages applies
     * after it. */
    int (*advantages)(const struct clime_plugin_rollout *r, float *adv, char *error, size_t error_bytes);

    /* --loss-type custom_loss, --custom-loss-function-path: the policy term in place of the estimator's. Sets pg[n],
     * unweighted, and g[n], the derivative of sum_u w[u] pg[u] by logp. KL and entropy terms are added as configured. A
     * term may depend on all tokens of its sample but not on other samples: packing must not change results. */
    int (*loss)(const struct clime_plugin_loss *l, double *pg, double *g, char *error, size_t error_bytes);

    /* --dynamic-sampling-filter-path: decides whether to train on this finished group of n samples. */
    int (*filter)(const struct clime_plugin_sample *const *samples, int32_t n, struct clime_plugin_verdict *v,
                  char *error, size_t error_bytes);

    /* --custom-rm-path: sets reward[n] for n answers: one, or with --group-rm all answers of a group. Called on the
     * reward threads, several at a time. A call longer than --rm-timeout is a failure; it cannot be stopped, so its
     * thread is abandoned and its arguments stay valid. A failure is a state of these samples (their group is dropped
     * and counted), not the end of the run. */
    int (*reward)(const struct clime_plugin_question *const *q, int32_t n, double *reward, char *error,
                  size_t error_bytes);
    uint32_t question_bytes; /* CLIME_PLUGIN_HEAD */

    /* --custom-generate-function-path: makes one sample with any number of policy turns; trained on is the path of the
     * last turn, or the paths it keeps. Called on its own thread, many at a time. A failure is a state of this sample
     * (its group is dropped and counted), never reward 0. Making no call for --environment-lease-timeout, or running
     * past --rollout-request-timeout, is a failure too: the function cannot be stopped, but its calls then return
     * CLIME_PLUGIN_OVER. */
    int (*generate)(const struct clime_plugin_task *t, char *error, size_t error_bytes);
    uint32_t task_bytes, calls_bytes, turn_bytes; /* CLIME_PLUGIN_HEAD */

    /* --buffer-filter-path: selects which of the n left-over groups, oldest first, a rollout resumes, and their order.
     * On entry order[n] is 0, 1, ... and *n_order is n; groups not selected stay for later rollouts. version: of the
     * weights about to sample. Called once, before the rollout's first request. */
    int (*buffer)(int64_t rollout, int64_t version, const struct clime_plugin_group *const *groups, int32_t n,
                  int32_t *order, int32_t *n_order, char *error, size_t error_bytes);
    uint32_t group_bytes; /* CLIME_PLUGIN_HEAD */

    /* --rollout-sample-filter-path: selects which of a rollout's n samples, by group, member and part, are not trained
     * on. remove[n] is 0 on entry. Their rewards still count in their groups, and the samples in their steps. */
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
