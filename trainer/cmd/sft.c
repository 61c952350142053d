/* clime-train sft and dpo: options, samples, and results left behind. Runs alone on the main thread; the loop is in
 * trainer/run/sft.c. The two differ in a few rows of the table, the loader and the loss. */
#include "trainer/cmd/sft.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/options/options.h"
#include "common/terminal.h"
#include "model/weights/folder.h"
#include "trainer/algorithm/preference.h"
#include "trainer/data/pair_data.h"
#include "trainer/data/source.h"
#include "trainer/learn/follower.h"
#include "trainer/learn/manifest.h"
#include "trainer/learn/optimizer.h"
#include "trainer/learn/team.h"
#include "trainer/ledger/events.h"
#include "trainer/options/alarms.h"
#include "trainer/options/record.h"
#include "trainer/run/again.h"
#include "trainer/run/sft.h"

#define MAX_ROWS 72

struct sft_options {
    struct clime_sft run;
    struct clime_sft_data_options set; /* pairs use only its `data` */
    bool pairs;                        /* dpo */
    const char *chosen_key, *rejected_key;
    int loss_type;
    const char *save_hf, *device, *dtype;
    int64_t global_batch_size, threads, max_len, warmup, decay, print_samples;
    int schedule, recompute;
    bool no_shuffle;
    struct clime_rank_options ranks;
    char *defaults; /* the record of a command without options; owned */
};

/* Paths and the run's length do not affect the weights, except the length if the learning rate decays to its end. */
static bool decides(const void *arg, const char *name) {
    static const char *const not [] = {
        "run",           "hf-checkpoint",         "ref-load",         "prompt-data",          "save-hf",
        "metrics",       "save-interval",         "keep-checkpoints", "save-retain-interval", "threads",
        "print-samples", "optimizer-cpu-offload", "target-loss"};
    const struct sft_options *o = arg;
    if (!clime_rank_decides(name) || clime_alarm_is_option(name)) return false;
    if (!strcmp(name, "num-epoch")) return o->schedule != CLIME_LR_CONSTANT && !o->decay;
    for (size_t i = 0; i < CLIME_COUNT(not ); i++)
        if (!strcmp(name, not [i])) return false;
    return true;
}

/* ---- evaluation ---- */

/* True for an option of clime-train eval that configures evaluation, not training. */
static bool is_for_evaluation(const char *word) {
    static const char *const begins[] = {
        "--eval-",   "--rm-",     "--custom-rm-path", "--reward-key", "--n-samples-per-eval-prompt", "--num-servers",
        "--server-", "--sglang-", "--vllm-",          "--router-",    "--skip-eval-before-train",    "--keep-best"};
    for (size_t i = 0; i < CLIME_COUNT(begins); i++)
        if (!strncmp(word, begins[i], strlen(begins[i]))) return true;
    return false;
}

/* Moves those options and their values from argv to words[n]; returns the new argc. */
static int split_words(int argc, char **argv, char **words, int *n) {
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        bool moves = is_for_evaluation(argv[i]);
        *(moves ? &words[(*n)++] : &argv[kept++]) = argv[i];
        while (i + 1 < argc && strncmp(argv[i + 1], "--", 2))
            *(moves ? &words[(*n)++] : &argv[kept++]) = argv[i + 1], i++;
    }
    argv[kept] = NULL;
    return kept;
}

static void add_word(char **words, int *n, const char *name, const char *value) {
    if (!value) return;
    words[(*n)++] = (char *)(uintptr_t)name;
    words[(*n)++] = (char *)(uintptr_t)value;
}

/* Parses them with clime-train eval's parser, plus the options both commands share; the run's own options are
 * unchanged. */
static enum clime_err parse_evaluation(struct sft_options *o, char **words, int n, struct clime_error *e) {
    struct clime_rl_options *r = &o->run.rl.o, own = *r;
    if (!r->run) return clime_fail(e, CLIME_ERR_INPUT, "%s: an evaluation needs --run, where its scores go", words[1]);
    add_word(words, &n, "--run", r->run);
    add_word(words, &n, "--hf-checkpoint", r->hf_checkpoint);
    add_word(words, &n, "--device", o->device);
    add_word(words, &n, "--dtype", o->dtype);
    add_word(words, &n, "--input-key", o->set.data.input_key);
    add_word(words, &n, "--tool-key", o->set.data.tool_key);
    add_word(words, &n, "--apply-chat-template-kwargs", o->set.data.apply_chat_template_kwargs);
    if (o->set.data.apply_chat_template || o->set.messages_key)
        words[n++] = (char *)(uintptr_t) "--apply-chat-template";
    words[n] = NULL;
    *r = (struct clime_rl_options){.evaluate = true};
    enum clime_err err = clime_rl_options_parse(n, words, r, e);
    free(r->options_json);
    r->options_json = own.options_json;
    r->evaluate = false;
    r->learner = own.learner;
    r->alarm = own.alarm;
    r->prompt_data = own.prompt_data;
    r->rollout_seed = own.rollout_seed;
    r->save_interval = own.save_interval;
    r->keep_checkpoints = own.keep_checkpoints;
    r->save_retain_interval = own.save_retain_interval;
    r->save_hf = NULL;
    if (!err && r->eval_versions) err = clime_fail(e, CLIME_ERR_INPUT, "--eval-versions is for clime-train eval");
    if (!err && !r->eval_interval) err = clime_fail(e, CLIME_ERR_INPUT, "%s: give --eval-interval, in steps", words[1]);
    o->run.evaluates = true;
    return err;
}

/* ---- options ---- */

static int add_rows(struct clime_opt *t, int n, const struct clime_opt *rows, size_t n_rows) {
    CHECK(n + (int)n_rows <= MAX_ROWS);
    memcpy(t + n, rows, n_rows * sizeof *rows);
    return n + (int)n_rows;
}

/* Rows for the samples' fields. */
static int data_rows(struct sft_options *o, struct clime_opt *t, int n) {
    struct clime_data_options *d = &o->set.data;
    const struct clime_opt first[] = {
        {"Model and data", CLIME_OPT_SECTION},
        {"hf-checkpoint", CLIME_OPT_STRING, &o->run.rl.o.learner.hf_checkpoint, NULL, "DIR", "model to start from"},
        {"prompt-data", CLIME_OPT_LIST, &o->run.rl.o.prompt_data, NULL, "FILE",
         "JSON lines, a JSON array, CSV or TSV; FILE@[a:b] takes a slice. Several files are one, or with FILE@0.3 each "
         "has its share of every epoch"},
    };
    const struct clime_opt answers[] = {
        {"input-key", CLIME_OPT_STRING, &d->input_key, "prompt", "KEY", "member with the prompt (text or messages)"},
        {"label-key", CLIME_OPT_STRING, &d->label_key, "response", "KEY", "member with the response"},
        {"apply-chat-template", CLIME_OPT_BOOL, &d->apply_chat_template, NULL, NULL, "render prompts as messages"},
        {"messages-key", CLIME_OPT_STRING, &o->set.messages_key, NULL, "KEY",
         "member with a whole conversation: every assistant message is trained; instead of prompt and response"},
        {"ids-key", CLIME_OPT_STRING, &o->set.ids_key, NULL, "KEY",
         "member with a sample's token ids, with 1 for each that is trained under \"mask\" (clime-train data "
         "--from-run); instead of prompt and response"},
    };
    const struct clime_opt pairs[] = {
        {"input-key", CLIME_OPT_STRING, &d->input_key, "prompt", "KEY",
         "member with the prompt (text or messages); where there is none, the answers are whole conversations"},
        {"chosen-key", CLIME_OPT_STRING, &o->chosen_key, "chosen", "KEY",
         "member with the preferred answer (text or messages)"},
        {"rejected-key", CLIME_OPT_STRING, &o->rejected_key, "rejected", "KEY", "member with the other"},
        {"apply-chat-template", CLIME_OPT_BOOL, &d->apply_chat_template, NULL, NULL,
         "render prompts and answers as messages"},
    };
    const struct clime_opt template[] = {
        {"tool-key", CLIME_OPT_STRING, &d->tool_key, "tools", "KEY", "tools for the chat template"},
        {"apply-chat-template-kwargs", CLIME_OPT_STRING, &d->apply_chat_template_kwargs, NULL, "JSON",
         "more variables for the chat template"},
    };
    n = add_rows(t, n, first, CLIME_COUNT(first));
    n = o->pairs ? add_rows(t, n, pairs, CLIME_COUNT(pairs)) : add_rows(t, n, answers, CLIME_COUNT(answers));
    return add_rows(t, n, template, CLIME_COUNT(template));
}

static int loss_rows(struct sft_options *o, struct clime_opt *t, int n) {
    struct clime_learner_options *l = &o->run.rl.o.learner;
    const struct clime_opt answers[] = {
        {"Loss", CLIME_OPT_SECTION},
        {"calculate-per-token-loss", CLIME_OPT_BOOL, &l->objective.calculate_per_token_loss, NULL, NULL,
         "mean over tokens instead of over samples"},
    };
    const struct clime_opt pairs[] = {
        {"Loss of a pair (docs/algorithms.md)", CLIME_OPT_SECTION},
        {"loss-type", CLIME_OPT_CHOICE, &o->loss_type, "sigmoid", CLIME_PREFERENCE_NAMES,
         "DPO, DPO of means per token, IPO, SimPO"},
        {"beta", CLIME_OPT_DOUBLE, &l->objective.beta, "0.1", "X", "strength; dpo_norm wants about 5, simpo 2", 1e-6,
         1e6},
        {"label-smoothing", CLIME_OPT_DOUBLE, &l->objective.label_smoothing, "0", "X",
         "share of pairs that are the wrong way round", 0, 0.5},
        {"simpo-gamma", CLIME_OPT_DOUBLE, &l->objective.simpo_gamma, "0.5", "X",
         "by how much simpo wants the chosen answer ahead", 0, 1e6},
        {"ref-load", CLIME_OPT_STRING, &l->ref_load, NULL, "DIR", "reference model; default --hf-checkpoint"},
    };
    return o->pairs ? add_rows(t, n, pairs, CLIME_COUNT(pairs)) : add_rows(t, n, answers, CLIME_COUNT(answers));
}

static int run_rows(struct sft_options *o, struct clime_opt *t, int n) {
    struct clime_rl_options *r = &o->run.rl.o;
    struct clime_learner_options *l = &r->learner;
    const struct clime_opt rows[] = {
        {"no-shuffle", CLIME_OPT_BOOL, &o->no_shuffle, NULL, NULL, "keep the file's order in every epoch"},
        {"seed", CLIME_OPT_INT, &o->run.seed, "1234", "N", "seed of the order", 0, 9e15},
        {"What is kept", CLIME_OPT_SECTION},
        {"save-hf", CLIME_OPT_STRING, &o->save_hf, NULL, "DIR", "where the trained model goes"},
        {"metrics", CLIME_OPT_STRING, &o->run.metrics, NULL, "FILE", "write a JSON object a step: loss, grad_norm, lr"},
        {"run", CLIME_OPT_STRING, &r->run, NULL, "DIR",
         "run folder: ledger.db, metrics.jsonl, checkpoints/. The same command on it goes on where it ended, to the "
         "same bits; without it nothing but the trained model is kept"},
        {"save-interval", CLIME_OPT_INT, &r->save_interval, "200", "N", "a checkpoint every N steps and at the end", 1,
         0},
        {"keep-checkpoints", CLIME_OPT_INT, &r->keep_checkpoints, "2", "N", "the newest N stay; 0: all", 0, 0},
        {"save-retain-interval", CLIME_OPT_INT, &r->save_retain_interval, "0", "N",
         "checkpoints of every Nth step stay too; 0: none of them", 0, 0},
        {"print-samples", CLIME_OPT_INT, &o->print_samples, "0", "N",
         "print the first N samples as JSON lines (ids, and mask: 1 = trained) and stop", 0, 1e9},
        {"Training", CLIME_OPT_SECTION},
        {"num-epoch", CLIME_OPT_INT, &o->run.num_epoch, "1", "N", "passes over the data", 1, 1e6},
        {"target-loss", CLIME_OPT_DOUBLE, &o->run.target_loss, "0", "X",
         "stop once the mean loss of the last 16 steps is this low; 0 = run all passes", 0, 1e9},
        {"global-batch-size", CLIME_OPT_INT, &o->global_batch_size, "32", "N",
         o->pairs ? "pairs a step" : "samples a step", 1, 1e6},
        {"lr", CLIME_OPT_DOUBLE, &l->lr, o->pairs ? "1e-6" : "1e-5", "X", "learning rate", 0, 10},
        {"min-lr", CLIME_OPT_DOUBLE, &l->min_lr, "0", "X", "where decay ends", 0, 10},
        {"lr-decay-style", CLIME_OPT_CHOICE, &o->schedule, "constant", "constant|linear|cosine", "schedule"},
        {"lr-warmup-iters", CLIME_OPT_INT, &o->warmup, "0", "N", "steps of linear warm-up; the first has rate 0", 0,
         1e9},
        {"lr-decay-iters", CLIME_OPT_INT, &o->decay, "0", "N", "steps until min-lr; 0 = the whole run", 0, 1e9},
        {"weight-decay", CLIME_OPT_DOUBLE, &l->weight_decay, "0.01", "X", "decoupled decay of matrices", 0, 10},
        {"adam-beta1", CLIME_OPT_DOUBLE, &l->adam_beta1, "0.9", "X", "first moment; below 1", 0, 1},
        {"adam-beta2", CLIME_OPT_DOUBLE, &l->adam_beta2, "0.999", "X", "second moment; below 1", 0, 1},
        {"adam-eps", CLIME_OPT_DOUBLE, &l->adam_eps, "1e-8", "X", "epsilon; above 0", 0, 1},
        {"clip-grad", CLIME_OPT_DOUBLE, &l->clip_grad, "1", "X", "global norm; 0 = off", 0, 1e9},
        {"only-train-params-name-list", CLIME_OPT_LIST, &l->only_train, NULL, "REGEX",
         "train only tensors in whose Hugging Face name one of these is found; the others keep their bits, without "
         "gradients and moments"},
        {"freeze-params-name-list", CLIME_OPT_LIST, &l->freeze, NULL, "REGEX", "train all but those"},
        {"max-tokens-per-gpu", CLIME_OPT_INT, &o->run.max_tokens, "4096", "N", "rows of a packed micro-batch", 16,
         1 << 24},
        {"max-len", CLIME_OPT_INT, &o->max_len, "0", "N",
         "longer samples are left out and counted; 0 = the model's limit", 0, 1 << 24},
        {"recompute-granularity", CLIME_OPT_CHOICE, &o->recompute, "none", "none|selective|full",
         "to save memory, compute again in the backward pass: norms, rotation and SwiGLU, or whole layers"},
        {"optimizer-cpu-offload", CLIME_OPT_BOOL, &l->optimizer_cpu_offload, NULL, NULL,
         "on a GPU: master weights and moments in host memory, updated by the CPU to the same bits"},
        {"Device", CLIME_OPT_SECTION},
        {"device", CLIME_OPT_STRING, &o->device, "auto", "NAME", "auto, cpu or cuda"},
        {"dtype", CLIME_OPT_STRING, &o->dtype, "auto", "TYPE",
         "auto (the checkpoint's), bf16 or f32 (or bfloat16, float32)"},
        {"threads", CLIME_OPT_INT, &o->threads, "0", "N", "compute threads; 0 = all cores", 0, 1024},
    };
    return add_rows(t, n, rows, CLIME_COUNT(rows));
}

static enum clime_err set_objective(struct sft_options *o, struct clime_error *e) {
    struct clime_learner_options *l = &o->run.rl.o.learner;
    l->objective.sft = !o->pairs;
    o->run.n_members = o->pairs ? 2 : 1;
    if (!o->pairs) return CLIME_OK;
    l->objective.preference = (enum clime_preference)(CLIME_PREFERENCE_SIGMOID + o->loss_type);
    if (l->ref_load && !clime_preference_needs_ref(&l->objective))
        return clime_fail(e, CLIME_ERR_INPUT, "--ref-load: --loss-type simpo has no reference");
    return l->ref_load ? clime_folder_check("ref-load", l->ref_load, CLIME_FOLDER_WEIGHTS, e) : CLIME_OK;
}

static enum clime_err parse(int argc, char **argv, struct sft_options *o, struct clime_error *e) {
    struct clime_rl_options *r = &o->run.rl.o;
    struct clime_learner_options *l = &r->learner;
    static struct clime_opt table[MAX_ROWS];
    static const char evaluates[] = " With --run it evaluates too, every\n"
                                    "--eval-interval steps: --eval-..., --rm-..., --custom-rm-path, --reward-key,\n"
                                    "--num-servers, --server-... and --router-... are those of clime-train eval.";
    int n = loss_rows(o, table, run_rows(o, table, data_rows(o, table, 0)));
    CHECK(n + CLIME_RANK_ROWS + CLIME_ALARM_ROWS + 2 <= MAX_ROWS);
    table[n++] = (struct clime_opt){"Alarms", CLIME_OPT_SECTION};
    n += clime_alarm_rows(&r->alarm, table + n);
    table[n++] = (struct clime_opt){"Ranks", CLIME_OPT_SECTION};
    n += clime_rank_rows(&o->ranks, table + n);
    char *usage = xasprintf("clime-train %s --hf-checkpoint DIR --prompt-data FILE --save-hf DIR [options]\n%s%s",
                            o->pairs ? "dpo" : "sft",
                            o->pairs ? "Learning from pairs of which one answer is preferred: DPO and its kin."
                                     : "Supervised fine-tuning, loss on the response.",
                            evaluates);
    enum clime_err err = clime_options_parse(table, n, 1, argv, NULL, 0, usage, e);
    o->defaults = clime_options_record(table, n, decides, o);
    if (!err) err = clime_options_parse(table, n, argc, argv, NULL, 0, usage, e);
    free(usage);
    if (!err) err = clime_rank_derive(&o->ranks, l, e);
    if (err) return err;
    l->rank_logs = r->run;
    r->options_json = clime_options_record(table, n, decides, o);
    if (!l->hf_checkpoint || !r->prompt_data.n || !(o->save_hf || o->print_samples))
        return clime_fail(e, CLIME_ERR_INPUT, "%s needs --hf-checkpoint, --prompt-data and --save-hf",
                          o->pairs ? "dpo" : "sft");
    if (l->elastic && !r->run) return clime_fail(e, CLIME_ERR_INPUT, "--elastic needs --run, from where it goes on");
    double limits[CLIME_ALARMS];
    if ((err = clime_alarm_limits(&r->alarm.limits, false, limits, e))) return err;
    if (!r->run && (r->alarm.limits.n || r->alarm.command || r->alarm.url))
        return clime_fail(e, CLIME_ERR_INPUT, "alarms need --run, whose figures they look at");
    l->schedule = (enum clime_schedule)o->schedule;
    if ((err = set_objective(o, e)) || (err = clime_optimizer_check(l, e))) return err;
    l->lr_warmup_iters = o->warmup;
    if (o->run.max_tokens * l->context_parallel > 1 << 24)
        return clime_fail(e, CLIME_ERR_LIMIT, "--max-tokens-per-gpu %lld of %d ranks is over 2^24 tokens",
                          (long long)o->run.max_tokens, l->context_parallel);
    l->max_tokens_per_gpu = (int)o->run.max_tokens * l->context_parallel;
    l->recompute = (enum clime_recompute)o->recompute;
    l->model = (struct clime_model_options){
        .device = o->device, .dtype = o->dtype, .dev = {.n_threads = (int)o->threads, .deterministic = true}};
    r->hf_checkpoint = l->hf_checkpoint;
    o->set.data.sources = r->prompt_data.items;
    o->set.data.n_sources = r->prompt_data.n;
    r->rollout_seed = o->run.seed;
    o->run.shuffle = o->set.data.shuffle = !o->no_shuffle;
    o->set.data.seed = (uint64_t)o->run.seed;
    return CLIME_OK;
}

static enum clime_err print_samples(const struct clime_sft_set *set, int64_t n, struct clime_error *e) {
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
    return clime_stdout_whole(e);
}

static const char *unit_name(const struct sft_options *o) {
    return o->pairs ? "pairs" : "samples";
}

/* Reports dropped samples; an epoch's last samples that do not fill a batch form no step. */
static void tell_left_out(const struct sft_options *o, int n_units) {
    const struct clime_sft_set *set = &o->run.set;
    const char *what = unit_name(o);
    int batch = o->run.global_batch_size, rest = n_units % batch;
    if (set->n_untrained) LOG_WARN("%d %s have no token to train on and are left out", set->n_untrained, what);
    clime_lost_rows_warn(&set->lost, "");
    if (set->n_too_long) LOG_WARN("%d %s are longer than the limit and left out", set->n_too_long, what);
    if (o->print_samples) return;
    if (o->global_batch_size > batch)
        LOG_WARN("--global-batch-size %lld: there are %d %s, and a step has them all", (long long)o->global_batch_size,
                 n_units, what);
    if (rest && (o->no_shuffle || o->run.num_epoch == 1))
        LOG_WARN("%d of %d %s fill no batch of %d and are not trained on", rest, n_units, what, batch);
    else if (rest)
        LOG_INFO("%d of %d %s fill no batch of %d and are left out of an epoch, others in each", rest, n_units, what,
                 batch);
}

static enum clime_err load_samples(struct sft_options *o, struct clime_error *e) {
    struct clime_learner_options *l = &o->run.rl.o.learner;
    struct clime_sft_set *set = &o->run.set;
    struct clime_config cfg;
    const int parts = CLIME_FOLDER_TOKENIZER | (o->print_samples ? 0 : CLIME_FOLDER_WEIGHTS);
    enum clime_err err = clime_model_check_dtype(o->dtype, e);
    if (!err) err = clime_folder_check("hf-checkpoint", l->hf_checkpoint, parts, e);
    if (!err && !o->print_samples &&
        (clime_manifest_check_outside(o->save_hf, e) || clime_folder_check_place(o->save_hf, e)))
        return clime_error_prefix(e, "--save-hf");
    for (int i = 0; i < o->set.data.n_sources && o->run.metrics && !err; i++)
        err = clime_source_is_kept(o->set.data.sources[i], "metrics", o->run.metrics, e);
    if (!err) err = clime_config_load(l->hf_checkpoint, &cfg, e);
    if (err) return err;
    int max_len = o->max_len && o->max_len < cfg.max_pos ? (int)o->max_len : cfg.max_pos;
    const struct clime_pair_data_options pairs = {
        .data = o->set.data, .chosen_key = o->chosen_key, .rejected_key = o->rejected_key};
    err = o->pairs ? clime_pair_set_load(&pairs, l->hf_checkpoint, max_len, set, e)
                   : clime_sft_set_load(&o->set, l->hf_checkpoint, max_len, set, e);
    if (err) return err;
    int n_units = set->n / o->run.n_members;
    o->run.global_batch_size = o->global_batch_size < n_units ? (int)o->global_batch_size : n_units;
    tell_left_out(o, n_units);
    l->max_seq_len = set->longest;
    l->lr_decay_iters = o->decay ? o->decay : n_units / o->run.global_batch_size * o->run.num_epoch;
    return CLIME_OK;
}

static enum clime_err train(struct sft_options *o, struct clime_error *e) {
    struct clime_rl *rl = &o->run.rl;
    enum clime_err err = clime_sft_open(&o->run, o->defaults, e);
    if (!err) err = clime_sft_train(&o->run, e);
    if (!err) err = clime_learner_export(rl->learner, o->save_hf, e);
    if (!err)
        printf("%s: %lld steps of %d %s\n", o->save_hf, (long long)rl->step, o->run.global_batch_size, unit_name(o));
    return err;
}

static int tune(int argc, char **argv, bool pairs) {
    static struct sft_options o; /* zero: everything closed */
    struct clime_error e = {0};
    o.pairs = pairs;
    o.run.rl.lock_fd = o.run.rl.dir_fd = -1;
    struct clime_place *place = &o.run.rl.o.learner.place;
    if (clime_place_take(place, &e)) {
        LOG_ERROR("%s: %s", pairs ? "dpo" : "sft", e.msg);
        return 1;
    }
    if (place->rank > 0) return clime_follower_run(place);
    clime_again_keep(argc, argv);
    int n = 1;
    char **words = xcalloc((size_t)argc + 32, sizeof *words);
    words[0] = argv[0];
    argc = split_words(argc, argv, words, &n);
    enum clime_err err = parse(argc, argv, &o, &e);
    if (!err && n > 1) err = parse_evaluation(&o, words, n, &e);
    if (!err) clime_again_fewer_ranks(&o.run.rl.o);
    if (!err) err = load_samples(&o, &e);
    if (!err && o.print_samples)
        err = print_samples(&o.run.set, o.print_samples, &e);
    else if (!err)
        err = train(&o, &e);
    struct clime_rl *rl = &o.run.rl;
    if (err) clime_again_if_rank_lost(rl, &e);
    if (err && rl->ledger) clime_event(rl->ledger, rl->run.incarnation, "error", "%s", e.msg);
    if (err) clime_alarms_see(rl->alarms, CLIME_ALARM_ENDED, 1, e.msg, NULL);
    if (err) LOG_ERROR("%s: %s", pairs ? "dpo" : "sft", e.msg);
    clime_rl_close(rl);
    clime_team_dismiss(place, &e);
    clime_sft_set_free(&o.run.set);
    free(o.defaults);
    free(words);
    return err ? 1 : 0;
}

int clime_sft_main(int argc, char **argv) {
    return tune(argc, argv, false);
}

int clime_dpo_main(int argc, char **argv) {
    return tune(argc, argv, true);
}
