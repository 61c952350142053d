/* Evaluation sets of a run: --eval-prompt-data, or the YAML file of --eval-config with slime's members.
 *
 *   eval:                       # optional
 *     defaults:                 # for every set that does not override it; default: the --eval-... options
 *       max_response_len: 1024
 *     datasets:                 # a list, or a mapping from names
 *       - name: aime
 *         path: aime.jsonl
 *         rm_type: math
 *         n_samples_per_eval_prompt: 16
 *
 * Filled once when options are parsed, then read by all threads. */
#ifndef CLIME_TRAINER_OPTIONS_EVAL_SETS_H
#define CLIME_TRAINER_OPTIONS_EVAL_SETS_H

#include "common/arena.h"
#include "trainer/sample/request.h"

struct clime_eval_set {
    const char *name, *file;
    const char *input_key, *label_key, *tool_key, *metadata_key, *apply_chat_template_kwargs;
    bool apply_chat_template;
    const char *rm_type, *reward_key;  /* may be NULL */
    const char *metadata_overrides;    /* JSON object merged over each prompt's metadata, or NULL */
    int64_t n_samples, max_prompt_len; /* 0 = no limit */
    struct clime_sampling_options sampling;
};

struct clime_eval_sets {
    struct clime_eval_set *sets; /* [n] */
    int n;
    struct clime_arena words; /* storage of a file's sets */
};

/* Builds sets from pairs NAME FILE, or one FILE named after itself; other settings are copied from `like`. */
enum clime_err clime_eval_sets_of_pairs(const struct clime_opt_list *pairs, const struct clime_eval_set *like,
                                        struct clime_eval_sets *out, struct clime_error *e);
/* Reads the sets of a file. Refuses an unknown member by name. */
enum clime_err clime_eval_sets_read(const char *path, const struct clime_eval_set *like, struct clime_eval_sets *out,
                                    struct clime_error *e);
void clime_eval_sets_free(struct clime_eval_sets *s); /* zero-initialised is fine */

#endif
