/* What a run was given, compared with what it was begun with. Called at every start, main thread; owns nothing.
 * By content, not by path: a run and its files may be moved, and a file that was changed in place is found. The initial
 * weights are version 0 in the ledger. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/hash.h"
#include "trainer/learn/manifest.h"
#include "trainer/ledger/inputs.h"
#include "trainer/run/run.h"

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
    static const char *const names[] = {"config.json",           "generation_config.json",  "tokenizer.json",
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
    *sum = clime_checksum_done(&all);
    return rc;
}

enum clime_err clime_rl_record_data(struct clime_rl *rl, struct clime_error *e) {
    uint64_t folder;
    enum clime_err rc = sum_folder(rl->o.hf_checkpoint, &folder, e);
    if (!rc)
        rc = put_sum(rl, "model-folder", folder, "the configuration or tokenizer of --hf-checkpoint",
                     rl->o.hf_checkpoint, e);
    if (rc || rl->o.evaluate) return rc;
    return put_sum(rl, "prompts", clime_dataset_checksum(&rl->data), "what --prompt-data says in", rl->o.prompt_data,
                   e);
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
