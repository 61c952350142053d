/* clime-train export: converts a checkpoint folder to a Hugging Face folder. Runs alone on the main thread. The
 * checkpoint holds only master weights and moments; shape, tokenizer, template and frozen weights come from
 * --hf-checkpoint. */
#include "trainer/cmd/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "common/options/options.h"
#include "model/weights/folder.h"
#include "trainer/learn/learner.h"
#include "trainer/learn/manifest.h"

static enum clime_err check_checkpoint(const char *dir, struct clime_error *e) {
    char *state = xasprintf("%s/state.json", dir);
    bool there = access(state, R_OK) == 0;
    free(state);
    return there ? CLIME_OK
                 : clime_fail(e, CLIME_ERR_NOT_FOUND,
                              "%s: no state.json there; a run's checkpoints are the folders RUN/checkpoints/step_...",
                              dir);
}

int clime_export_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct clime_learner_options o = {.max_tokens_per_gpu = 16, .max_seq_len = 16};
    const char *where[2] = {NULL, NULL}, *device, *dtype;
    struct clime_learner *l = NULL;
    const struct clime_opt table[] = {
        {"hf-checkpoint", CLIME_OPT_STRING, &o.hf_checkpoint, NULL, "DIR", "the folder the run started from"},
        {"device", CLIME_OPT_STRING, &device, "auto", "NAME", "auto, cpu or cuda: the kind the checkpoint was made on"},
        {"dtype", CLIME_OPT_STRING, &dtype, "auto", "TYPE", "auto, bf16 or f32 (or bfloat16, float32)"},
        {"only-train-params-name-list", CLIME_OPT_LIST, &o.only_train, NULL, "REGEX",
         "as the run had it: a checkpoint holds what was trained"},
        {"freeze-params-name-list", CLIME_OPT_LIST, &o.freeze, NULL, "REGEX", "the same"},
    };
    enum clime_err err = clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, where, 2,
                                             "clime-train export CHECKPOINT OUT --hf-checkpoint DIR\n"
                                             "Writes a checkpoint's weights as a Hugging Face folder.",
                                             &e);
    if (!err && (!where[1] || !o.hf_checkpoint))
        err = clime_fail(&e, CLIME_ERR_INPUT, "export needs CHECKPOINT, OUT and --hf-checkpoint");
    o.model = (struct clime_model_options){.device = device, .dtype = dtype, .dev = {.deterministic = true}};
    if (!err) err = clime_model_check_dtype(dtype, &e);
    if (!err) err = clime_folder_check("hf-checkpoint", o.hf_checkpoint, CLIME_FOLDER_WEIGHTS, &e);
    if (!err) err = check_checkpoint(where[0], &e);
    if (!err) err = clime_manifest_check_outside(where[1], &e);
    if (!err) err = clime_folder_check_place(where[1], &e);
    if (!err) err = clime_learner_open(&o, &l, &e);
    if (!err) err = clime_learner_load(l, where[0], &e);
    if (!err) err = clime_learner_export(l, where[1], &e);
    char hex[65];
    if (!err) err = clime_learner_sha256(l, hex, &e);
    if (!err) printf("%s: weights sha256 %s\n", where[1], hex);
    if (err) LOG_ERROR("export: %s", e.msg);
    clime_learner_close(l);
    return err ? 1 : 0;
}
