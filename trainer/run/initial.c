/* Chooses the folder of the initial weights, and checks that every model folder suits its purpose. Called by open.c,
 * main thread; reads options and configurations, no weights. */
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "model/weights/folder.h"
#include "model/weights/weights_map.h"
#include "trainer/run/run.h"

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* Servers build their model from --hf-checkpoint and receive these weights, so the shapes must match. */
static enum clime_err check_shape(const char *option, const char *dir, const char *servers, struct clime_error *e) {
    struct clime_config c[2];
    if (same_folder(dir, servers)) return CLIME_OK;
    if (clime_config_load(dir, &c[0], e) || clime_config_load(servers, &c[1], e)) return e->code;
    char *a = xasprintf("--%s %s", option, dir), *b = xasprintf("--hf-checkpoint %s", servers);
    enum clime_err rc = clime_config_compare(a, &c[0], b, &c[1], e);
    if (rc) clime_error_prefix(e, "the initial weights have another architecture or shape than the servers'");
    free(a);
    free(b);
    return rc;
}

static void put_nowhere(void *arg, int64_t offset, const void *data, int64_t bytes) {
    (void)arg, (void)offset, (void)data, (void)bytes;
}

enum clime_err clime_rl_weights_sum(const char *dir, enum clime_dtype dt, uint64_t *sum, struct clime_error *e) {
    struct clime_config c;
    struct clime_layout l;
    enum clime_err rc = clime_config_load(dir, &c, e);
    if (rc) return rc;
    clime_layout_make(&c, dt, &l);
    rc = clime_weights_import_blocks(dir, &c, &l, put_nowhere, NULL, sum, e);
    clime_layout_free(&l);
    return rc;
}

/* By slime's rule a reference alone also becomes the policy. That is never meant when a KL term is added to a command,
 * so both options are required. A run that has begun continues. */
enum clime_err clime_rl_check_initial(const struct clime_rl *rl, struct clime_error *e) {
    const struct clime_rl_options *o = &rl->o;
    const char *option = rl->initial_dir == o->load       ? "load"
                         : rl->initial_dir == o->ref_load ? "ref-load"
                                                          : "hf-checkpoint";
    uint64_t given, reference;
    bool begun;
    LOG_INFO("the initial weights are those of --%s %s", option, rl->initial_dir);
    if (rl->initial_dir != o->ref_load || o->load || same_folder(o->ref_load, o->hf_checkpoint)) return CLIME_OK;
    enum clime_err rc = clime_version_any(clime_ledger_reader(rl->ledger), &begun, e);
    if (rc || begun) return rc;
    if (!clime_folder_has_weights(o->hf_checkpoint)) return CLIME_OK; /* only a tokenizer: no ambiguity */
    if (clime_rl_weights_sum(o->hf_checkpoint, CLIME_F32, &given, e) ||
        clime_rl_weights_sum(o->ref_load, CLIME_F32, &reference, e))
        return e->code;
    if (given == reference) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "--ref-load %.150s without --load: the policy would begin with its weights, which are others "
                      "than those of --hf-checkpoint %.150s; say --load with the folder that it is to begin with",
                      o->ref_load, o->hf_checkpoint);
}

/* slime's rule: --load where it exists, else --ref-load, else --hf-checkpoint. Its recipes name one folder in --load
 * and --save; it exists from the first start on and holds checkpoints, which recovery finds through the ledger. */
enum clime_err clime_rl_choose_initial(struct clime_rl *rl, struct clime_error *e) {
    const struct clime_rl_options *o = &rl->o;
    const char *critic = o->learner.critic_load;
    if (o->load && access(o->load, F_OK) == 0 && !same_folder(o->load, rl->checkpoint_dir)) {
        rl->initial_dir = o->load;
        if (clime_folder_check("load", o->load, 0, e))
            return clime_fail(
                e, CLIME_ERR_INPUT,
                "--load %s is no Hugging Face folder; a checkpoint becomes one with clime-train export, and "
                "a run resumes from its run folder by itself",
                o->load);
    } else {
        rl->initial_dir = o->ref_load ? o->ref_load : o->hf_checkpoint;
    }
    if (clime_folder_check("hf-checkpoint", o->hf_checkpoint, CLIME_FOLDER_TOKENIZER, e) ||
        (o->ref_load && clime_folder_check("ref-load", o->ref_load, CLIME_FOLDER_WEIGHTS, e)) ||
        (critic && clime_folder_check("critic-load", critic, CLIME_FOLDER_WEIGHTS, e)))
        return e->code;
    const char *option = rl->initial_dir == o->load       ? "load"
                         : rl->initial_dir == o->ref_load ? "ref-load"
                                                          : "hf-checkpoint";
    if (clime_folder_check(option, rl->initial_dir, CLIME_FOLDER_WEIGHTS, e)) return e->code;
    return check_shape(option, rl->initial_dir, o->hf_checkpoint, e);
}
