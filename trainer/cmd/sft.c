/* clime-train sft: samples (trainer/data/sft_data.h) to cross-entropy steps. Runs alone on the main thread.
 *
 * Samples go through the learner's ordinary step with cross-entropy weights instead of a policy loss. The order is a
 * function of the seed, so a run can be repeated; there are no checkpoints in between. */
#include "trainer/cmd/sft.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/options.h"
#include "common/rng.h"
#include "model/folder.h"
#include "trainer/data/sft_data.h"
#include "trainer/learn/learner.h"
#include "trainer/observe/metrics_log.h"

#define LOG_EVERY_US 2000000
#define LOSS_WINDOW 16

struct sft_options {
    struct clime_learner_options learner;
    struct clime_sft_data_options set;
    const char *save_hf, *metrics, *device, *dtype;
    int64_t num_epoch, global_batch_size, seed, threads, max_tokens, max_len, warmup, decay, print_samples;
    double target_loss;
    int schedule, recompute;
    bool no_shuffle;
};

static enum clime_err parse(int argc, char **argv, struct sft_options *o, struct clime_error *e) {
    struct clime_learner_options *l = &o->learner;
    const struct clime_opt table[] = {
        {"data", CLIME_OPT_SECTION, .help = "model and data"},
        {"hf-checkpoint", CLIME_OPT_STRING, &l->hf_checkpoint, NULL, "DIR", "model to start from"},
        {"prompt-data", CLIME_OPT_STRING, &o->set.data.prompt_data, NULL, "FILE", "JSONL, or FILE@[a:b] for a slice"},
        {"input-key", CLIME_OPT_STRING, &o->set.data.input_key, "prompt", "KEY",
         "member with the prompt (text or messages)"},
        {"label-key", CLIME_OPT_STRING, &o->set.data.label_key, "response", "KEY", "member with the response"},
        {"apply-chat-template", CLIME_OPT_BOOL, &o->set.data.apply_chat_template, NULL, NULL,
         "render prompts as messages"},
        {"messages-key", CLIME_OPT_STRING, &o->set.messages_key, NULL, "KEY",
         "member with a whole conversation: every assistant message is trained; instead of prompt and response"},
        {"tool-key", CLIME_OPT_STRING, &o->set.data.tool_key, "tools", "KEY", "tools for the chat template"},
        {"apply-chat-template-kwargs", CLIME_OPT_STRING, &o->set.data.apply_chat_template_kwargs, NULL, "JSON",
         "more variables for the chat template"},
        {"no-shuffle", CLIME_OPT_BOOL, &o->no_shuffle, NULL, NULL, "keep the file's order in every epoch"},
        {"seed", CLIME_OPT_INT, &o->seed, "1234", "N", "seed of the order", 0, 9e15},
        {"save-hf", CLIME_OPT_STRING, &o->save_hf, NULL, "DIR", "where the trained model goes"},
        {"metrics", CLIME_OPT_STRING, &o->metrics, NULL, "FILE", "write a JSON object a step: loss, grad_norm, lr"},
        {"print-samples", CLIME_OPT_INT, &o->print_samples, "0", "N",
         "print the first N samples as JSON lines (ids, and mask: 1 = trained) and stop", 0, 1e9},
        {"training", CLIME_OPT_SECTION, .help = "training"},
        {"num-epoch", CLIME_OPT_INT, &o->num_epoch, "1", "N", "passes over the data", 1, 1e6},
        {"target-loss", CLIME_OPT_DOUBLE, &o->target_loss, "0", "X",
         "stop once the mean loss of the last 16 steps is this low; 0 = run all passes", 0, 1e9},
        {"global-batch-size", CLIME_OPT_INT, &o->global_batch_size, "32", "N", "samples a step", 1, 1e6},
        {"lr", CLIME_OPT_DOUBLE, &l->lr, "1e-5", "X", "learning rate", 0, 10},
        {"min-lr", CLIME_OPT_DOUBLE, &l->min_lr, "0", "X", "where decay ends", 0, 10},
        {"lr-decay-style", CLIME_OPT_CHOICE, &o->schedule, "constant", "constant|linear|cosine", "schedule"},
        {"lr-warmup-iters", CLIME_OPT_INT, &o->warmup, "0", "N", "steps of linear warm-up", 0, 1e9},
        {"lr-decay-iters", CLIME_OPT_INT, &o->decay, "0", "N", "steps until min-lr; 0 = the whole run", 0, 1e9},
        {"weight-decay", CLIME_OPT_DOUBLE, &l->weight_decay, "0.01", "X", "decoupled decay of matrices", 0, 10},
        {"adam-beta1", CLIME_OPT_DOUBLE, &l->adam_beta1, "0.9", "X", "first moment", 0, 1},
        {"adam-beta2", CLIME_OPT_DOUBLE, &l->adam_beta2, "0.98", "X", "second moment", 0, 1},
        {"adam-eps", CLIME_OPT_DOUBLE, &l->adam_eps, "1e-8", "X", "epsilon", 0, 1},
        {"clip-grad", CLIME_OPT_DOUBLE, &l->clip_grad, "1", "X", "global norm; 0 = off", 0, 1e9},
        {"only-train-params-name-list", CLIME_OPT_LIST, &l->only_train, NULL, "REGEX",
         "train only tensors in whose Hugging Face name one of these is found; the others keep their bits, without "
         "gradients and moments"},
        {"freeze-params-name-list", CLIME_OPT_LIST, &l->freeze, NULL, "REGEX", "train all but those"},
        {"calculate-per-token-loss", CLIME_OPT_BOOL, &l->objective.calculate_per_token_loss, NULL, NULL,
         "mean over tokens instead of over samples"},
        {"max-tokens-per-gpu", CLIME_OPT_INT, &o->max_tokens, "4096", "N", "rows of a packed micro-batch", 16, 1 << 24},
        {"max-len", CLIME_OPT_INT, &o->max_len, "0", "N",
         "longer samples are left out and counted; 0 = the model's limit", 0, 1 << 24},
        {"recompute-granularity", CLIME_OPT_CHOICE, &o->recompute, "none", "none|selective|full",
         "to save memory, compute again in the backward pass: norms, rotation and SwiGLU, or whole layers"},
        {"optimizer-cpu-offload", CLIME_OPT_BOOL, &l->optimizer_cpu_offload, NULL, NULL,
         "on a GPU: master weights and moments in host memory, updated by the CPU to the same bits"},
        {"device", CLIME_OPT_SECTION, .help = "device"},
        {"device", CLIME_OPT_STRING, &o->device, "auto", "NAME", "auto, cpu or cuda"},
        {"dtype", CLIME_OPT_STRING, &o->dtype, "auto", "TYPE", "auto (the checkpoint's), bf16 or f32"},
        {"threads", CLIME_OPT_INT, &o->threads, "0", "N", "compute threads; 0 = all cores", 0, 1024},
    };
    enum clime_err err =
        clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, NULL, 0,
                            "clime-train sft --hf-checkpoint DIR --prompt-data FILE --save-hf DIR [options]\n"
                            "Supervised fine-tuning, loss on the response.",
                            e);
    if (err) return err;
    if (!l->hf_checkpoint || !o->set.data.prompt_data || !(o->save_hf || o->print_samples))
        return clime_fail(e, CLIME_ERR_INPUT, "sft needs --hf-checkpoint, --prompt-data and --save-hf");
    l->objective.sft = true;
    l->schedule = (enum clime_schedule)o->schedule;
    l->lr_warmup_iters = o->warmup;
    l->max_tokens_per_gpu = (int)o->max_tokens;
    l->recompute = (enum clime_recompute)o->recompute;
    l->model = (struct clime_model_options){
        .device = o->device, .dtype = o->dtype, .dev = {.n_threads = (int)o->threads, .deterministic = true}};
    o->set.data.shuffle = !o->no_shuffle;
    o->set.data.seed = (uint64_t)o->seed;
    return CLIME_OK;
}

static void print_samples(const struct clime_sft_set *set, int64_t n) {
    struct clime_buf line;
    clime_buf_init(&line, 1 << 30);
    for (int i = 0; i < set->n && i < n; i++) {
        const struct clime_sample *s = set->samples[i];
        struct clime_jw w;
        clime_buf_clear(&line);
        clime_jw_init(&w, &line);
        clime_jw_object(&w);
        clime_jw_key(&w, "ids");
        clime_jw_array(&w);
        for (int k = 0; k < s->n_prompt + s->n_response; k++) clime_jw_int(&w, s->ids[k]);
        clime_jw_close(&w);
        clime_jw_key(&w, "mask");
        clime_jw_array(&w);
        for (int k = 0; k < s->n_prompt; k++) clime_jw_int(&w, 0);
        for (int k = 0; k < s->n_response; k++) clime_jw_int(&w, s->mask[k]);
        clime_jw_close(&w);
        clime_jw_close(&w);
        puts(clime_buf_str(&line).ptr);
    }
    clime_buf_free(&line);
}

/* Fisher-Yates by (seed, epoch). */
static void epoch_order(const struct sft_options *o, int64_t epoch, int32_t *order, int n) {
    const uint64_t key[] = {(uint64_t)o->seed, (uint64_t)epoch};
    struct clime_rng rng;
    clime_rng_init(&rng, clime_hash64(key, 2));
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; o->set.data.shuffle && i > 0; i--) {
        int k = (int)clime_rng_below(&rng, (uint64_t)i + 1);
        int32_t keep = order[i];
        order[i] = order[k];
        order[k] = keep;
    }
}

/* One step over batch[n]; adds its time and tokens to the progress. */
static enum clime_err run_step(struct clime_learner *l, const struct sft_options *o,
                               const struct clime_sample *const *batch, int n, struct clime_step_stats *stats,
                               struct clime_error *e) {
    int32_t *lengths = xcalloc((size_t)n, sizeof *lengths);
    for (int i = 0; i < n; i++) lengths[i] = batch[i]->n_prompt + batch[i]->n_response;
    struct clime_pack_options po = {.max_tokens = (int)o->max_tokens, .dynamic = true};
    struct clime_packing packing;
    clime_pack_make(lengths, n, &po, &packing);
    const struct clime_step_input in = {
        .samples = batch, .n = n, .packing = &packing, .version = -1, .global_batch = n};
    enum clime_err err = clime_learner_step(l, &in, stats, e);
    clime_pack_free(&packing);
    free(lengths);
    return err;
}

/* The mean loss of the last LOSS_WINDOW steps: one batch's loss is too noisy to stop by. */
struct recent_loss {
    double last[LOSS_WINDOW];
    int64_t n;
};

static bool reached(struct recent_loss *r, double loss, double target) {
    r->last[r->n++ % LOSS_WINDOW] = loss;
    double sum = 0;
    for (int i = 0; i < LOSS_WINDOW; i++) sum += r->last[i];
    return r->n >= LOSS_WINDOW && sum / LOSS_WINDOW <= target;
}

/* One line of --metrics, under slime's names. */
static void write_metrics(FILE *f, int64_t step, const struct clime_step_stats *s) {
    struct clime_metrics_line m;
    clime_metrics_line_begin(&m, "train", step, step);
    clime_metrics_line_add(&m, "train/loss", s->loss);
    clime_metrics_line_add(&m, "train/grad_norm", s->grad_norm);
    clime_metrics_line_add(&m, "train/lr-pg_0", s->lr);
    clime_metrics_line_int(&m, "train/tokens", s->trained_tokens);
    fprintf(f, "%s\n", clime_metrics_line_end(&m));
    clime_metrics_line_free(&m);
}

static enum clime_err train(struct clime_learner *l, const struct sft_options *o, const struct clime_sft_set *set,
                            struct clime_error *e) {
    int batch_size = o->global_batch_size < set->n ? (int)o->global_batch_size : set->n;
    int64_t steps_per_epoch = set->n / batch_size; /* a tail that fills no batch comes in another epoch's order */
    int32_t *order = xcalloc((size_t)set->n, sizeof *order);
    const struct clime_sample **batch = xcalloc((size_t)batch_size, sizeof(struct clime_sample *));
    int64_t t0 = clime_now_us(), told = t0, tokens = 0, updates = 0, total = steps_per_epoch * o->num_epoch;
    struct clime_step_stats stats = {0};
    struct recent_loss recent = {0};
    bool done = false;
    enum clime_err err = CLIME_OK;
    FILE *metrics = o->metrics ? fopen(o->metrics, "w") : NULL;
    if (o->metrics && !metrics) err = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", o->metrics, strerror(errno));
    for (int64_t step = 0; step < total && !done && !err; step++) {
        int64_t at = step % steps_per_epoch;
        if (at == 0) epoch_order(o, step / steps_per_epoch, order, set->n);
        for (int i = 0; i < batch_size; i++) batch[i] = set->samples[order[at * batch_size + i]];
        err = run_step(l, o, batch, batch_size, &stats, e);
        if (err) break;
        tokens += stats.tokens;
        updates += !stats.skipped;
        if (stats.skipped)
            LOG_WARN("step %lld is skipped: its gradient is not finite (loss %g)", (long long)step + 1, stats.loss);
        if (metrics) write_metrics(metrics, step + 1, &stats);
        done = step + 1 == total || (o->target_loss > 0 && reached(&recent, stats.loss, o->target_loss));
        int64_t now = clime_now_us();
        if (now - told < LOG_EVERY_US && !done) continue;
        told = now;
        printf("step %lld/%lld  loss %.4f  grad_norm %.3f  lr %.2e  %.0f tok/s\n", (long long)step + 1,
               (long long)total, stats.loss, stats.grad_norm, stats.lr, (double)tokens * 1e6 / (double)(now - t0));
        fflush(stdout);
    }
    if (metrics && fclose(metrics) && !err)
        err = clime_fail(e, CLIME_ERR_IO, "writing %s: %s", o->metrics, strerror(errno));
    if (!err && updates == 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "no step changed the weights: of %lld none had a finite gradient",
                         (long long)total);
    free(batch);
    free(order);
    return err;
}

int clime_sft_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct sft_options o = {0};
    struct clime_config cfg;
    struct clime_sft_set set = {0};
    struct clime_learner *l = NULL;
    enum clime_err err = parse(argc, argv, &o, &e);
    const int parts = CLIME_FOLDER_TOKENIZER | (o.print_samples ? 0 : CLIME_FOLDER_WEIGHTS);
    if (!err) err = clime_folder_check("hf-checkpoint", o.learner.hf_checkpoint, parts, &e);
    if (!err) err = clime_config_load(o.learner.hf_checkpoint, &cfg, &e);
    if (err) goto done;
    int max_len = o.max_len && o.max_len < cfg.max_pos ? (int)o.max_len : cfg.max_pos;
    err = clime_sft_set_load(&o.set, o.learner.hf_checkpoint, max_len, &set, &e);
    if (err) goto done;
    if (set.n_untrained) LOG_WARN("%d conversations have no token to train on and are left out", set.n_untrained);
    if (set.n_too_long) LOG_WARN("%d samples are longer than the limit and left out", set.n_too_long);
    if (o.print_samples) {
        print_samples(&set, o.print_samples);
        goto done;
    }
    int batch = o.global_batch_size < set.n ? (int)o.global_batch_size : set.n;
    o.learner.max_seq_len = set.longest;
    o.learner.lr_decay_iters = o.decay ? o.decay : set.n / batch * o.num_epoch;
    err = clime_learner_open(&o.learner, &l, &e);
    if (!err) err = train(l, &o, &set, &e);
    if (!err) err = clime_learner_export(l, o.save_hf, &e);
    if (!err) printf("%s: trained on %d samples\n", o.save_hf, set.n);
done:
    if (err) LOG_ERROR("sft: %s", e.msg);
    clime_learner_close(l);
    clime_sft_set_free(&set);
    free(o.learner.only_train.items);
    free(o.learner.freeze.items);
    return err ? 1 : 0;
}
