/* clime-train sft: prompt and response to cross-entropy steps. Runs alone on the main thread.
 *
 * A line's prompt is rendered and tokenised as rl does it (trainer/data.h); the response is tokenised on its own and
 * the end-of-turn token follows, so the ids at the border are the ones that sampling would see. Samples go through the
 * learner's ordinary step with cross-entropy weights instead of a policy loss. */
#include "trainer/sft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/json/scan.h"
#include "common/log.h"
#include "common/options.h"
#include "common/rng.h"
#include "trainer/data.h"
#include "trainer/learner.h"

#define MAX_RESPONSE_BYTES ((size_t)1 << 24)
#define LOG_EVERY_US 2000000
#define LOSS_WINDOW 16

struct sft_options {
    struct clime_learner_options learner;
    struct clime_data_options data;
    const char *save_hf, *device, *dtype;
    int64_t num_epoch, global_batch_size, seed, threads, max_tokens, max_len, warmup, decay;
    double target_loss;
    int schedule, recompute;
    bool no_shuffle;
};

static enum clime_err parse(int argc, char **argv, struct sft_options *o, struct clime_error *e) {
    struct clime_learner_options *l = &o->learner;
    const struct clime_opt table[] = {
        {"data", CLIME_OPT_SECTION, .help = "model and data"},
        {"hf-checkpoint", CLIME_OPT_STRING, &l->hf_checkpoint, NULL, "DIR", "model to start from"},
        {"prompt-data", CLIME_OPT_STRING, &o->data.prompt_data, NULL, "FILE", "JSONL, or FILE@[a:b] for a slice"},
        {"input-key", CLIME_OPT_STRING, &o->data.input_key, "prompt", "KEY",
         "member with the prompt (text or messages)"},
        {"label-key", CLIME_OPT_STRING, &o->data.label_key, "response", "KEY", "member with the response"},
        {"apply-chat-template", CLIME_OPT_BOOL, &o->data.apply_chat_template, NULL, NULL, "render prompts as messages"},
        {"no-shuffle", CLIME_OPT_BOOL, &o->no_shuffle, NULL, NULL, "keep the file's order in every epoch"},
        {"seed", CLIME_OPT_INT, &o->seed, "1234", "N", "seed of the order", 0, 9e15},
        {"save-hf", CLIME_OPT_STRING, &o->save_hf, NULL, "DIR", "where the trained model goes"},
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
        {"calculate-per-token-loss", CLIME_OPT_BOOL, &l->calculate_per_token_loss, NULL, NULL,
         "mean over tokens instead of over samples"},
        {"max-tokens-per-gpu", CLIME_OPT_INT, &o->max_tokens, "4096", "N", "rows of a packed micro-batch", 16, 1 << 24},
        {"max-len", CLIME_OPT_INT, &o->max_len, "0", "N",
         "longer samples are left out and counted; 0 = the model's limit", 0, 1 << 24},
        {"recompute-granularity", CLIME_OPT_CHOICE, &o->recompute, "none", "none|selective|full",
         "to save memory, compute again in the backward pass: norms, rotation and SwiGLU, or whole layers"},
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
    if (!l->hf_checkpoint || !o->data.prompt_data || !o->save_hf)
        return clime_fail(e, CLIME_ERR_INPUT, "sft needs --hf-checkpoint, --prompt-data and --save-hf");
    l->sft = true;
    l->schedule = (enum clime_schedule)o->schedule;
    l->lr_warmup_iters = o->warmup;
    l->max_tokens_per_gpu = (int)o->max_tokens;
    l->recompute = (enum clime_recompute)o->recompute;
    l->model = (struct clime_model_options){
        .device = o->device, .dtype = o->dtype, .dev = {.n_threads = (int)o->threads, .deterministic = true}};
    o->data.shuffle = !o->no_shuffle;
    o->data.seed = (uint64_t)o->seed;
    return CLIME_OK;
}

/* One sample from one line; NULL with *e set when the response is no text. */
static struct clime_sample *make_sample(const struct clime_prompt *p, const struct clime_tokenizer *tok,
                                        struct clime_tok_scratch *scratch, struct clime_error *e) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_str text;
    struct clime_ids ids = {0};
    struct clime_sample *s = NULL;
    clime_arena_init(&arena, MAX_RESPONSE_BYTES);
    clime_json_init(&j, p->label ? p->label : "null", p->label ? strlen(p->label) : 4, &arena, e);
    if (!clime_json_string(&j, &text)) {
        clime_error_prefix(e, "line %lld: the response must be a string", (long long)p->line);
        goto done;
    }
    clime_ids_append(&ids, p->ids, (size_t)p->n_ids);
    if (clime_tokenizer_encode(tok, scratch, text, CLIME_ENCODE_PLAIN, MAX_RESPONSE_BYTES, &ids, e)) goto done;
    size_t n_eos;
    const int32_t *eos = clime_tokenizer_eos(tok, &n_eos);
    if (n_eos) clime_ids_push(&ids, eos[0]);

    s = clime_sample_new();
    s->n_prompt = p->n_ids;
    s->n_response = (int32_t)ids.len - p->n_ids;
    s->temperature = 1;
    s->ids = ids.data;
    ids = (struct clime_ids){0};
    s->mask = xmalloc((size_t)s->n_response + 1);
    memset(s->mask, 1, (size_t)s->n_response);
done:
    clime_ids_free(&ids);
    clime_arena_free(&arena);
    return s;
}

struct sft_set {
    struct clime_sample **samples; /* [n], by the dataset's own numbering */
    int n, n_too_long;
    int longest; /* tokens */
};

static void set_free(struct sft_set *set) {
    for (int i = 0; i < set->n; i++) clime_sample_free(set->samples[i]);
    free(set->samples);
}

static enum clime_err set_load(const struct sft_options *o, int max_len, struct sft_set *set, struct clime_error *e) {
    struct clime_tokenizer *tok = NULL;
    struct clime_tok_scratch *scratch = NULL;
    struct clime_dataset data = {0};
    struct clime_data_options in_order = o->data;
    in_order.shuffle = false;
    enum clime_err err = clime_tokenizer_load(o->learner.hf_checkpoint, &tok, e);
    if (!err) err = clime_dataset_load(&in_order, tok, &data, e);
    if (err) goto done;
    scratch = clime_tok_scratch_new(tok);
    set->samples = xcalloc((size_t)data.n + 1, sizeof(struct clime_sample *));
    for (int i = 0; i < data.n; i++) {
        struct clime_sample *s = make_sample(&data.prompts[i], tok, scratch, e);
        if (!s) {
            err = e->code;
            goto done;
        }
        int len = s->n_prompt + s->n_response;
        if (len > max_len) {
            clime_sample_free(s);
            set->n_too_long++;
            continue;
        }
        if (len > set->longest) set->longest = len;
        s->group = i;
        set->samples[set->n++] = s;
    }
    if (set->n == 0) err = clime_fail(e, CLIME_ERR_INPUT, "%s leaves no sample to train on", o->data.prompt_data);
done:
    clime_dataset_free(&data);
    clime_tok_scratch_free(scratch);
    clime_tokenizer_free(tok);
    return err;
}

/* Fisher-Yates by (seed, epoch). */
static void epoch_order(const struct sft_options *o, int64_t epoch, int32_t *order, int n) {
    const uint64_t key[] = {(uint64_t)o->seed, (uint64_t)epoch};
    struct clime_rng rng;
    clime_rng_init(&rng, clime_hash64(key, 2));
    for (int i = 0; i < n; i++) order[i] = i;
    for (int i = n - 1; o->data.shuffle && i > 0; i--) {
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

static enum clime_err train(struct clime_learner *l, const struct sft_options *o, const struct sft_set *set,
                            struct clime_error *e) {
    int batch_size = o->global_batch_size < set->n ? (int)o->global_batch_size : set->n;
    int64_t steps_per_epoch = set->n / batch_size; /* a tail that fills no batch comes in another epoch's order */
    int32_t *order = xcalloc((size_t)set->n, sizeof *order);
    const struct clime_sample **batch = xcalloc((size_t)batch_size, sizeof(struct clime_sample *));
    int64_t t0 = clime_now_us(), told = t0, tokens = 0, total = steps_per_epoch * o->num_epoch;
    struct clime_step_stats stats = {0};
    struct recent_loss recent = {0};
    bool done = false;
    enum clime_err err = CLIME_OK;
    for (int64_t step = 0; step < total && !done; step++) {
        int64_t at = step % steps_per_epoch;
        if (at == 0) epoch_order(o, step / steps_per_epoch, order, set->n);
        for (int i = 0; i < batch_size; i++) batch[i] = set->samples[order[at * batch_size + i]];
        err = run_step(l, o, batch, batch_size, &stats, e);
        if (err) break;
        tokens += stats.tokens;
        done = step + 1 == total || (o->target_loss > 0 && reached(&recent, stats.loss, o->target_loss));
        int64_t now = clime_now_us();
        if (now - told < LOG_EVERY_US && !done) continue;
        told = now;
        printf("step %lld/%lld  loss %.4f  grad_norm %.3f  lr %.2e  %.0f tok/s\n", (long long)step + 1,
               (long long)total, stats.loss, stats.grad_norm, stats.lr, (double)tokens * 1e6 / (double)(now - t0));
        fflush(stdout);
    }
    free(batch);
    free(order);
    return err;
}

int clime_sft_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct sft_options o = {0};
    struct clime_config cfg;
    struct sft_set set = {0};
    struct clime_learner *l = NULL;
    enum clime_err err = parse(argc, argv, &o, &e);
    if (!err) err = clime_config_load(o.learner.hf_checkpoint, &cfg, &e);
    if (err) goto done;
    err = set_load(&o, o.max_len && o.max_len < cfg.max_pos ? (int)o.max_len : cfg.max_pos, &set, &e);
    if (err) goto done;
    if (set.n_too_long) LOG_WARN("%d samples are longer than the limit and left out", set.n_too_long);
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
    set_free(&set);
    return err ? 1 : 0;
}
