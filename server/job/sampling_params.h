/* Sampling parameters of one request: SGLang's names and defaults, read from JSON, checked, and shared by every
 * endpoint that generates. Immutable once a job is submitted; strings are borrowed from the job's arena.
 */
#ifndef CLIME_SERVER_JOB_SAMPLING_PARAMS_H
#define CLIME_SERVER_JOB_SAMPLING_PARAMS_H

#include "common/json/members.h"
#include "text/grammar/search.h"
#include "text/grammar/source.h"
#include "text/ids.h"

#define CLIME_MAX_STOP 32        /* stop strings of a request */
#define CLIME_MAX_STOP_BYTES 512 /* per stop string, regular expression or bad word */
#define CLIME_MAX_STOP_REGEX 8
#define CLIME_MAX_BAD_WORDS 1024
#define CLIME_MAX_STOP_IDS 64
#define CLIME_MAX_BIAS 4096
#define CLIME_MAX_ALLOWED (1 << 20)
#define CLIME_MAX_N 512

struct clime_bias {
    int32_t id;
    float add;
};

struct clime_sampling_params {
    int64_t max_new_tokens; /* -1 = up to the context length */
    int64_t min_new_tokens;
    double temperature, top_p, min_p;
    int64_t top_k; /* <= 0 = off */
    double frequency_penalty, presence_penalty, repetition_penalty;
    int64_t n;
    bool has_seed;
    uint64_t seed;
    bool ignore_eos, skip_special_tokens, no_stop_trim;
    int64_t stream_interval; /* tokens between events of a stream */
    int n_stop;
    struct clime_str stop[CLIME_MAX_STOP];
    int n_stop_regex;
    struct clime_str stop_regex[CLIME_MAX_STOP_REGEX];
    struct clime_search **compiled; /* [n_stop_regex], sampling_prepare.h */
    int n_stop_ids;
    int32_t stop_ids[CLIME_MAX_STOP_IDS];
    int n_bias;
    struct clime_bias *bias; /* ascending id, each id once */
    int n_allowed;           /* allowed_token_ids; 0 = all ids */
    const int32_t *allowed;
    int n_bad_words;
    struct clime_str *bad_words;
    int n_bad;
    struct clime_ids *bad;               /* the words as ids, one or two per word; sampling_prepare.h */
    struct clime_grammar_source grammar; /* kind NONE = none; the output sets its lead */
};

void clime_sampling_defaults(struct clime_sampling_params *p);

/* The members of /generate's sampling_params (and of the OpenAI endpoints, which carry the same names), for
 * clime_members_read into a struct clime_sampling_params. Wrong types and values set the scanner's error; null means
 * the default. */
extern const struct clime_members clime_sampling_members;

/* Overrides p's values with those present in DIR/generation_config.json, if it exists (the defaults of transformers'
 * generate). CLIME_ERR_INPUT for a malformed file. */
enum clime_err clime_sampling_model_defaults(const char *dir, struct clime_sampling_params *p, struct clime_error *e);

/* Cross-field checks: min against max new tokens, ids against the vocabulary. CLIME_ERR_INPUT. */
enum clime_err clime_sampling_check(const struct clime_sampling_params *p, int32_t n_vocab, struct clime_error *e);

/* True when top_k or top_p exclude ids. */
static inline bool clime_sampling_cuts(const struct clime_sampling_params *p, int32_t n_vocab) {
    return (p->top_k > 0 && p->top_k < n_vocab) || p->top_p < 1;
}

static inline bool clime_sampling_greedy(const struct clime_sampling_params *p) {
    return p->temperature < 1e-6;
}

#endif
