/* Which folder the initial weights come from, and whether all folders of models can be what they are given for. Called
 * by open.c, main thread; reads options and configurations, no weights.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "model/weights/folder.h"
#include "model/weights/layout.h"
#include "trainer/run/run.h"

static bool same_folder(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* The servers that are started here make their model from --hf-checkpoint, and get these weights. */
static enum clime_err check_shape(const char *option, const char *dir, const char *servers, struct clime_error *e) {
    struct clime_config c[2];
    struct clime_layout l[2];
    if (same_folder(dir, servers)) return CLIME_OK;
    if (clime_config_load(dir, &c[0], e) || clime_config_load(servers, &c[1], e)) return e->code;
    for (int i = 0; i < 2; i++) clime_layout_make(&c[i], &l[i]);
    bool same = l[0].hash == l[1].hash;
    for (int i = 0; i < 2; i++) clime_layout_free(&l[i]);
    if (same) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "--%s %s: the initial weights are its, and it has another architecture or shape than "
                      "--hf-checkpoint %s",
                      option, dir, servers);
}

/* slime's rule: --load where it exists, else --ref-load, else --hf-checkpoint. Its recipes name one folder in --load
 * and --save; that one exists from the first start on and holds checkpoints, which recovery finds by the ledger. */
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
    return o->router_url ? CLIME_OK : check_shape(option, rl->initial_dir, o->hf_checkpoint, e);
}
