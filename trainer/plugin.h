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
 * main thread, one at a time; with --async `filter` on another one, while the others may run; `reward` on threads of
 * its own. To keep what clime promises (the same bits in every run, and again after a crash) they must depend on
 * nothing but their arguments. What they are given is borrowed for the length of the call.
 *
 * A function returns 0, or anything else after writing the reason into `error`: the run stops and says it.
 *
 * Stability: members are only ever added at the end of these structs, and CLIME_PLUGIN_ABI changes when one changes its
 * meaning. The library states the sizes it was compiled with; clime-train loads older ones and refuses newer ones.
 */
#ifndef CLIME_TRAINER_PLUGIN_H
#define CLIME_TRAINER_PLUGIN_H

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

/* One answer to be rewarded: text as clime-train grade's "command" type sees it, JSON for label and metadata. */
struct clime_plugin_question {
    const char *prompt, *response, *label, *metadata; /* "" where there is none */
    uint64_t seed;                                    /* of the sample */
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
     * reward threads, several at a time. --rm-timeout is looked at when it returns: it cannot be stopped. A failure is
     * a state of these samples (their group is dropped and counted), not the end of the run. */
    int (*reward)(const struct clime_plugin_question *const *q, int32_t n, double *reward, char *error,
                  size_t error_bytes);
    uint32_t question_bytes; /* CLIME_PLUGIN_HEAD */
};

#define CLIME_PLUGIN_HEAD                                                                                              \
    .abi = CLIME_PLUGIN_ABI, .bytes = sizeof(struct clime_plugin), .sample_bytes = sizeof(struct clime_plugin_sample), \
    .rollout_bytes = sizeof(struct clime_plugin_rollout), .loss_bytes = sizeof(struct clime_plugin_loss),              \
    .question_bytes = sizeof(struct clime_plugin_question)

extern const struct clime_plugin clime_plugin; /* yours */

#ifdef __cplusplus
}
#endif

#endif
