/* What a run was given, compared with what it was begun with. Called at every start, main thread; owns nothing.
 * By content, not by path: a run and its files may be moved, and a file that was changed in place is found. The initial
 * weights are version 0 in the ledger. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/json/tree.h"
#include "trainer/learn/manifest.h"
#include "trainer/ledger/inputs.h"
#include "trainer/run/run.h"

/* ---- options ---- */

static bool same_value(const struct cJSON *x, const struct cJSON *y) {
    if (!x || !y || clime_tree_kind(x) != clime_tree_kind(y) || clime_tree_size(x) != clime_tree_size(y)) return false;
    if (clime_tree_kind(x) == CLIME_JSON_ARRAY) {
        const struct cJSON *b = clime_tree_first(y);
        for (const struct cJSON *a = clime_tree_first(x); a; a = clime_tree_next(a), b = clime_tree_next(b))
            if (!same_value(a, b)) return false;
        return true;
    }
    return !strcmp(clime_tree_str(x, ""), clime_tree_str(y, "")) && clime_tree_num(x, 0) == clime_tree_num(y, 0) &&
           clime_tree_bool(x, false) == clime_tree_bool(y, false);
}

/* Names the first option whose value differs between the record and now. What the record does not know came into being
 * after it: then the run has the default, and goes on with it. */
enum clime_err clime_rl_compare_options(const struct clime_rl *rl, const char *defaults_json, struct clime_error *e) {
    const char *recorded = rl->run.options, *now = rl->o.options_json;
    struct cJSON *a = NULL, *b = NULL, *defaults = NULL;
    if (!strcmp(recorded, now)) return CLIME_OK;
    enum clime_err rc = clime_tree_parse(recorded, strlen(recorded), &a, e);
    if (!rc) rc = clime_tree_parse(now, strlen(now), &b, e);
    if (!rc) rc = clime_tree_parse(defaults_json, strlen(defaults_json), &defaults, e);
    for (const struct cJSON *x = rc ? NULL : clime_tree_first(b); x && !rc; x = clime_tree_next(x)) {
        const struct cJSON *was = clime_tree_get(a, clime_tree_key(x));
        if (!was) was = clime_tree_get(defaults, clime_tree_key(x));
        if (was && !same_value(x, was)) /* neither: the hash of a library, whose path is compared */
            rc = clime_fail(
                e, CLIME_ERR_INPUT,
                "--%s differs from what this run was begun with; it decides what comes out, so another value "
                "needs another run folder",
                clime_tree_key(x));
    }
    clime_tree_free(a);
    clime_tree_free(b);
    clime_tree_free(defaults);
    return rc;
}

/* ---- files and models ---- */

static enum clime_err put_sum(struct clime_rl *rl, const char *name, uint64_t sum, const char *option, const char *path,
                              struct clime_error *e) {
    char hex[17], *what = xasprintf("%s %s", option, path);
    snprintf(hex, sizeof hex, "%016" PRIx64, sum);
    enum clime_err rc = clime_input_put(rl->ledger, name, hex, what, e);
    free(what);
    return rc;
}

/* The files that say how text becomes tokens and back, and the model's shape. */
static enum clime_err sum_folder(const char *dir, uint64_t *sum, struct clime_error *e) {
    char *json = xasprintf("%s/tokenizer.json", dir);
    const char *names[] = {
        "config.json",           "generation_config.json",  access(json, F_OK) ? "tiktoken.model" : "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"};
    struct clime_checksum all;
    enum clime_err rc = CLIME_OK;
    clime_checksum_init(&all);
    for (size_t i = 0; i < CLIME_COUNT(names) && !rc; i++) {
        char *path = xasprintf("%s/%s", dir, names[i]);
        uint64_t one = 0;
        if (!access(path, F_OK)) rc = clime_file_checksum(path, &one, e);
        clime_checksum_add(&all, &one, sizeof one);
        free(path);
    }
    free(json);
    *sum = clime_checksum_done(&all);
    return rc;
}

enum clime_err clime_rl_record_data(struct clime_rl *rl, const uint64_t *prompts, struct clime_error *e) {
    uint64_t folder;
    enum clime_err rc = sum_folder(rl->o.hf_checkpoint, &folder, e);
    if (!rc)
        rc = put_sum(rl, "model-folder", folder, "the configuration or tokenizer of --hf-checkpoint",
                     rl->o.hf_checkpoint, e);
    if (!rc && rl->o.evaluate)
        rc = put_sum(rl, "evaluation", clime_evaluation_checksum(&rl->eval),
                     "the evaluation, by its options and by what its files say,", "--eval-...", e);
    if (rc || !prompts) return rc;
    return put_sum(rl, "prompts", *prompts, "what --prompt-data says in",
                   rl->o.prompt_data.n > 1 ? "its sources" : rl->o.prompt_data.items[0], e);
}

enum clime_err clime_rl_record_models(struct clime_rl *rl, struct clime_error *e) {
    struct clime_given_sha256 sha;
    enum clime_err rc = clime_learner_given_sha256(rl->learner, &sha, e);
    const struct {
        const char *name, *sha256, *what;
    } given[] = {{"reference", sha.reference, "the reference model"},
                 {"critic", sha.critic, "the critic's initial model"},
                 {"critic-frozen", sha.critic_frozen, "what is frozen of the critic's model"}};
    for (size_t i = 0; i < CLIME_COUNT(given) && !rc; i++)
        if (given[i].sha256[0]) rc = clime_input_put(rl->ledger, given[i].name, given[i].sha256, given[i].what, e);
    return rc;
}
