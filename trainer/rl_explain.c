/* --explain: what a run would do, in words and figures, before it does it. Called by clime_rl_main; pure text. */
#include <inttypes.h>

#include "trainer/algorithm/loss.h"
#include "trainer/rl_run.h"

static void explain_loss(const struct clime_rl_options *o, struct clime_buf *out) {
    static const char *const kl[] = {"d", "d^2 / 2", "exp(-d) - 1 + d", "clamp(exp(-d) - 1 + d, -10, 10)"};
    const struct clime_learner_options *l = &o->learner;
    clime_buf_adds(out, "loss\n");
    if (l->disable_rewards_normalization)
        clime_buf_adds(out, "  A = reward\n");
    else if (l->disable_grpo_std_normalization)
        clime_buf_adds(out, "  A = reward - mean(group)\n");
    else
        clime_buf_adds(out, "  A = (reward - mean(group)) / (std(group) + 1e-6), std with n - 1\n");
    clime_buf_printf(out,
                     "  r = exp(logp - logp_server), logp = log softmax(logits / %g)\n"
                     "  pg = max(-r A, -clip(r, 1 - %g, 1 + %g) A)\n",
                     o->sampling.temperature, l->eps_clip, l->eps_clip_high);
    if (l->use_kl_loss)
        clime_buf_printf(out, "  kl = %s with d = logp - logp_reference (%s)\n", kl[l->kl_loss_type], l->ref_load);
    clime_buf_adds(out, "  loss = pg");
    if (l->use_kl_loss) clime_buf_printf(out, " + %g kl", l->kl_loss_coef);
    if (l->entropy_coef != 0) clime_buf_printf(out, " - %g entropy", l->entropy_coef);
    clime_buf_adds(out, "\ndenominators\n");
    if (l->calculate_per_token_loss)
        clime_buf_adds(out, "  the sum over the tokens of a step, divided by the number of its trained tokens\n");
    else
        clime_buf_printf(out,
                         "  each sample: the sum over its tokens, divided by the number of its trained tokens;\n"
                         "  a step: the sum over its samples, divided by the global batch of %" PRId64 "\n",
                         o->global_batch_size);
    clime_buf_adds(out, "  fixed before the step: packing and micro-batches change the result by rounding only\n");
}

static void explain_run(const struct clime_rl *rl, struct clime_buf *out) {
    static const char *const schedule[] = {"constant", "linear", "cosine"};
    const struct clime_rl_options *o = &rl->o;
    const struct clime_learner_options *l = &o->learner;
    clime_buf_printf(out,
                     "run\n  %" PRId64 " rollouts of %" PRId64 " prompts x %" PRId64 " samples = %" PRId64
                     " step(s) of %" PRId64 " samples each\n  %d prompts; group g is prompt g of epoch g / %d, %s\n",
                     rl->num_rollout, o->rollout_batch_size, o->n_samples_per_prompt, o->num_steps_per_rollout,
                     o->global_batch_size, rl->data.n, rl->data.n,
                     o->rollout_shuffle ? "shuffled by seed and epoch" : "in the file's order");
    clime_buf_printf(out, "  initial weights %s\n", rl->initial_dir);
    clime_buf_printf(out,
                     "  AdamW lr %g (%s, warm-up %" PRId64 ", to %g after %" PRId64
                     " steps), betas %g %g, eps %g, decay %g, clip %g\n",
                     l->lr, schedule[l->schedule], l->lr_warmup_iters, l->min_lr, l->lr_decay_iters, l->adam_beta1,
                     l->adam_beta2, l->adam_eps, l->weight_decay, l->clip_grad);
}

void clime_rl_explain(const struct clime_rl *rl, struct clime_buf *out) {
    explain_run(rl, out);
    explain_loss(&rl->o, out);
    clime_buf_adds(out, "memory plan\n");
    clime_learner_describe(rl->learner, out);
    clime_buf_adds(out, "options without effect\n");
    size_t before = out->len;
    clime_rl_inert_explain(&rl->o, out);
    if (rl->o.pack.balance) clime_buf_adds(out, "  --balance-data: the trainer is one rank\n");
    if (rl->o.learner.use_kl_loss && !clime_loss_needs_ref(&rl->o.learner))
        clime_buf_adds(out, "  --use-kl-loss: its coefficient is 0, so the reference model is not run\n");
    if (rl->o.over_sampling_batch_size)
        clime_buf_adds(out, "  --over-sampling-batch-size: it is the rollout batch size\n");
    if (out->len == before) clime_buf_adds(out, "  none\n");
}
