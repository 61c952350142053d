/* Facts about this run's computing and sampling: made once, recorded (inputs.c), and compared with each server's report
 * when the fleet accepts it. Called by open.c and inputs.c, main thread; owned by the run. */
#include "model/policy.h"
#include "model/weights/folder.h"
#include "trainer/run/run.h"

/* External servers evaluated with their own folder must have that folder's weights. */
static enum clime_err put_weights(struct clime_rl *rl, struct clime_error *e) {
    const char *dir = rl->o.hf_checkpoint;
    uint64_t whole, half;
    const bool own = (rl->o.evaluate && !rl->o.eval_versions) || rl->o.rollout_only;
    if (!own || !rl->o.router_url || !clime_folder_has_weights(dir)) return CLIME_OK;
    enum clime_err rc = clime_rl_weights_sum(dir, CLIME_F32, &whole, e);
    if (!rc) rc = clime_rl_weights_sum(dir, CLIME_BF16, &half, e);
    if (rc) return rc;
    clime_facts_put_checksum(&rl->served, "float32", whole);
    clime_facts_put_checksum(&rl->served, "bfloat16", half);
    return CLIME_OK;
}

enum clime_err clime_rl_make_truth(struct clime_rl *rl, struct clime_error *e) {
    const char *dir = rl->o.hf_checkpoint;
    struct clime_tokenizer *own = NULL;
    struct clime_config c;
    if (rl->truth.n) return CLIME_OK;
    enum clime_err rc = clime_config_load(dir, &c, e);
    if (!rc && !rl->tokenizer) rc = clime_tokenizer_load(dir, &own, e);
    if (!rc) rc = clime_policy_facts(&c, own ? own : rl->tokenizer, dir, &rl->truth, e);
    if (!rc) rl->max_pos = c.max_pos;
    if (!rc) rc = put_weights(rl, e);
    clime_tokenizer_free(own);
    return rc;
}
