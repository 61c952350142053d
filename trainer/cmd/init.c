/* clime-train init: creates a model with random weights. Runs alone on the main thread.
 *
 * Without --tokenizer it gets a byte vocabulary with turn markers and a chat template of three tokens per turn, so a
 * laptop model spends its few positions on text. The vocabulary is padded to a multiple of 16. */
#include "trainer/cmd/init.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/log.h"
#include "common/options/options.h"
#include "common/os/dirs.h"
#include "model/weights/folder.h"
#include "text/tokenizer.h"

static const char *const byte_specials[] = {"<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"};
static const char byte_template[] = "{%- for message in messages -%}\n"
                                    "{{ '<|' + message.role + '|>' + message.content + '<|end|>' }}\n"
                                    "{%- endfor -%}\n"
                                    "{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}\n";

struct init_options {
    int family, dtype; /* CHOICE */
    int64_t D, F, L, H, HK, Dh, V, max_pos, seed;
    int64_t E, k, F_expert, F_shared, n_dense; /* 0: a default size in families with experts */
    int64_t q_rank, kv_rank, nope, rope, value;
    double rope_theta, std, eps;
    bool untied;
    const char *tokenizer;
};

static enum clime_err check_latent(const struct init_options *o, struct clime_error *e) {
    if (!clime_family_facts(o->family)->latent && (o->q_rank || o->kv_rank || o->nope || o->rope || o->value))
        return clime_fail(e, CLIME_ERR_INPUT, "--family %s has no latent attention",
                          clime_families[o->family].model_type);
    if (o->kv_rank % 2 || o->rope % 2)
        return clime_fail(e, CLIME_ERR_INPUT, "--kv-lora-rank and --qk-rope-head-dim must be even");
    return CLIME_OK;
}

/* Checks expert sizes: set in families with experts, and only there. */
static enum clime_err check_experts(struct init_options *o, struct clime_error *e) {
    const struct clime_family_facts *f = clime_family_facts(o->family);
    if (!f->experts && (o->E || o->k || o->F_expert || o->F_shared || o->n_dense))
        return clime_fail(e, CLIME_ERR_INPUT, "--family %s has no experts", clime_families[o->family].model_type);
    if (!f->shared_gate && o->F_shared)
        return clime_fail(e, CLIME_ERR_INPUT, "--family %s has no shared expert of a width of its own",
                          clime_families[o->family].model_type);
    if (!f->experts) return CLIME_OK;
    if (!o->E) o->E = 8;
    if (!o->k) o->k = o->E < 2 ? o->E : 2;
    if (!o->F_expert) o->F_expert = o->F / o->k ? o->F / o->k : 1;
    if (!o->F_shared) o->F_shared = o->F_expert;
    if (o->k > o->E) return clime_fail(e, CLIME_ERR_INPUT, "--num-experts-per-tok is above --num-experts");
    if (o->n_dense > o->L) return clime_fail(e, CLIME_ERR_INPUT, "--num-dense-layers is above --num-hidden-layers");
    return CLIME_OK;
}

static enum clime_err parse(int argc, char **argv, struct init_options *o, const char **dir, struct clime_error *e) {
    const struct clime_opt table[] = {
        {"Shape", CLIME_OPT_SECTION},
        {"family", CLIME_OPT_CHOICE, &o->family, "qwen3", CLIME_FAMILY_WORDS, "architecture"},
        {"hidden-size", CLIME_OPT_INT, &o->D, "256", "N", "width D", 8, 65536},
        {"intermediate-size", CLIME_OPT_INT, &o->F, "768", "N", "MLP width F", 8, 1 << 20},
        {"num-hidden-layers", CLIME_OPT_INT, &o->L, "4", "N", "layers L", 1, 1024},
        {"num-attention-heads", CLIME_OPT_INT, &o->H, "4", "N", "query heads H", 1, 1024},
        {"num-key-value-heads", CLIME_OPT_INT, &o->HK, "2", "N", "key/value heads HK, a divisor of H", 1, 1024},
        {"head-dim", CLIME_OPT_INT, &o->Dh, "64", "N", "head size Dh", 2, 256},
        {"vocab-size", CLIME_OPT_INT, &o->V, "0", "N",
         "rows of the embedding; 0 = the tokenizer's, to a multiple of 16", 0, 1 << 22},
        {"max-position-embeddings", CLIME_OPT_INT, &o->max_pos, "1024", "N", "longest sequence", 16, 1 << 22},
        {"rope-theta", CLIME_OPT_DOUBLE, &o->rope_theta, "10000", "X", "base of the rotary frequencies", 1, 1e12},
        {"rms-norm-eps", CLIME_OPT_DOUBLE, &o->eps, "1e-6", "X", "epsilon of the norms", 0, 1},
        {"untie-embeddings", CLIME_OPT_BOOL, &o->untied, NULL, NULL, "a head of its own instead of the embedding"},
        {"Latent attention, of deepseek_v3 and glm4_moe_lite", CLIME_OPT_SECTION},
        {"q-lora-rank", CLIME_OPT_INT, &o->q_rank, "0", "N", "width that queries come through; 0 = they do not", 0,
         1 << 14},
        {"kv-lora-rank", CLIME_OPT_INT, &o->kv_rank, "0", "N",
         "width of what is kept of a position beside what rotates; 0 = 64", 0, 1024},
        {"qk-nope-head-dim", CLIME_OPT_INT, &o->nope, "0", "N",
         "of a head's query, elements that do not rotate; 0 = --head-dim", 0, 256},
        {"qk-rope-head-dim", CLIME_OPT_INT, &o->rope, "0", "N", "and that do; 0 = 16", 0, 256},
        {"v-head-dim", CLIME_OPT_INT, &o->value, "0", "N", "elements of a head's output; 0 = --head-dim", 0, 256},
        {"Experts, of the families with _moe in their name and of deepseek_v3", CLIME_OPT_SECTION},
        {"num-experts", CLIME_OPT_INT, &o->E, "0", "N", "experts of a layer; 0 = 8", 0, CLIME_MAX_EXPERTS},
        {"num-experts-per-tok", CLIME_OPT_INT, &o->k, "0", "N", "experts that a token is given to; 0 = 2", 0,
         CLIME_MAX_EXPERTS},
        {"moe-intermediate-size", CLIME_OPT_INT, &o->F_expert, "0", "N",
         "width of an expert; 0 = --intermediate-size divided by --num-experts-per-tok", 0, 1 << 17},
        {"shared-expert-intermediate-size", CLIME_OPT_INT, &o->F_shared, "0", "N",
         "qwen2_moe: width of the expert that all tokens go to; 0 = --moe-intermediate-size", 0, 1 << 17},
        {"num-dense-layers", CLIME_OPT_INT, &o->n_dense, "0", "N", "first layers that have one MLP instead", 0, 1024},
        {"Weights and tokenizer", CLIME_OPT_SECTION},
        {"dtype", CLIME_OPT_CHOICE, &o->dtype, "bf16", "f32|bf16", "type the weights are stored in"},
        {"init-std", CLIME_OPT_DOUBLE, &o->std, "0.02", "X", "deviation of the random matrices", 0, 10},
        {"seed", CLIME_OPT_INT, &o->seed, "1234", "N", "seed of the random weights", 0, 9e15},
        {"tokenizer", CLIME_OPT_STRING, &o->tokenizer, NULL, "DIR",
         "copy the tokenizer and template of this folder instead of the byte vocabulary"},
    };
    enum clime_err err =
        clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, dir, 1,
                            "clime-train init DIR [options]\nMakes a model folder with random weights.", e);
    if (err) return err;
    if (!*dir) return clime_fail(e, CLIME_ERR_INPUT, "init needs the folder to make: clime-train init DIR");
    if (clime_family_facts(o->family)->latent) o->HK = o->H; /* always the heads, whatever the default */
    if (o->H % o->HK) return clime_fail(e, CLIME_ERR_INPUT, "--num-key-value-heads must divide --num-attention-heads");
    if (o->Dh % 2) return clime_fail(e, CLIME_ERR_INPUT, "--head-dim must be even");
    if (o->family == CLIME_LLAMA && o->D % o->H) /* for any head_dim */
        return clime_fail(e, CLIME_ERR_INPUT,
                          "--num-attention-heads must divide --hidden-size: transformers loads no other Llama");
    err = check_latent(o, e);
    return err ? err : check_experts(o, e);
}

/* Reads ids and vocabulary size from the tokenizer in dir. */
static enum clime_err read_vocabulary(const char *dir, struct init_options *o, struct clime_config *c,
                                      struct clime_error *e) {
    struct clime_tokenizer *tok = NULL;
    enum clime_err err = clime_tokenizer_load(dir, &tok, e);
    if (err) return err;
    int64_t n = clime_tokenizer_n_vocab(tok);
    if (o->V == 0) o->V = (n + 15) / 16 * 16;
    if (o->V < n)
        err = clime_fail(e, CLIME_ERR_INPUT, "--vocab-size %lld is less than the tokenizer's %lld ids", (long long)o->V,
                         (long long)n);
    size_t n_eos = 0;
    const int32_t *eos = clime_tokenizer_eos(tok, &n_eos);
    for (size_t i = 0; i < n_eos && c->n_eos < CLIME_MAX_EOS; i++) c->eos_ids[c->n_eos++] = eos[i];
    c->bos_id = clime_tokenizer_bos(tok);
    c->pad_id = clime_tokenizer_pad(tok);
    c->V = (int)o->V;
    clime_tokenizer_free(tok);
    return err;
}

/* The configuration without the vocabulary. */
static struct clime_config describe(const struct init_options *o) {
    const struct clime_family_facts *f = clime_family_facts(o->family);
    struct clime_config c = {
        .family = o->family,
        .D = (int)o->D,
        .L = (int)o->L,
        .H = (int)o->H,
        .HK = (int)o->HK,
        .Dh = (int)o->Dh,
        .F = (int)o->F,
        .max_pos = (int)o->max_pos,
        .eps = (float)o->eps,
        .tied = !o->untied,
        .qkv_bias = f->qkv_bias,
        .qk_norm = f->qk_norm,
        .post_norms = f->post_norms,
        .fused_gate_up = f->fused_gate_up,
        .rope_theta = o->rope_theta,
        .rope_rot = (int)((double)o->Dh * f->rotary_factor),
        .rope_interleaved = f->interleaved,
        .dtype = o->dtype == 0 ? CLIME_F32 : CLIME_BF16,
        .bos_id = -1,
        .pad_id = -1,
    };
    snprintf(c.architecture, sizeof c.architecture, "%s", clime_families[o->family].architecture);
    snprintf(c.model_type, sizeof c.model_type, "%s", clime_families[o->family].model_type);
    if (f->experts) {
        c.router = (struct clime_router){.E = (int)o->E,
                                         .k = (int)o->k,
                                         .sigmoid = f->sigmoid,
                                         .renormalize = true,
                                         .scale = 1,
                                         .n_groups = 1,
                                         .k_groups = 1};
        c.router_bias = f->sigmoid;
        c.F_expert = (int)o->F_expert;
        c.F_shared = f->sigmoid || f->shared_gate ? (int)o->F_shared : 0;
        c.shared_gate = f->shared_gate;
        memset(c.dense, 1, (size_t)o->n_dense);
    }
    if (f->latent) {
        c.latent.R = o->kv_rank ? (int)o->kv_rank : 64;
        c.latent.Dn = o->nope ? (int)o->nope : c.Dh;
        c.latent.Dr = c.rope_rot = o->rope ? (int)o->rope : 16;
        c.latent.Dv = o->value ? (int)o->value : c.Dh;
        c.q_rank = (int)o->q_rank;
        c.HK = c.H;
        c.Dh = c.latent.Dn + c.latent.Dr;
    }
    return c;
}

static enum clime_err make(const char *dir, struct init_options *o, struct clime_error *e) {
    struct clime_config c = describe(o);
    char *seed_dir = NULL, *place = clime_folder_place(dir);
    const char *tokenizer = o->tokenizer;
    void *flat = NULL;
    struct clime_layout lay = {0};
    enum clime_err err = CLIME_OK;
    if ((err = clime_folder_check_place(dir, e))) goto done;
    if (clime_folder_has_weights(dir)) {
        err = clime_fail(e, CLIME_ERR_INPUT, "%s holds a model already: remove it, or name another folder", dir);
        goto done;
    }
    if (!tokenizer) { /* written beside the target first: the folder must appear whole */
        tokenizer = seed_dir = xasprintf("%s.tokenizer", place);
        err = clime_make_dirs(seed_dir, e);
        if (!err)
            err = clime_tokenizer_write_bytes(seed_dir, byte_specials, CLIME_COUNT(byte_specials), "<|end|>",
                                              "<|endoftext|>", byte_template, e);
    }
    if (!err) err = read_vocabulary(tokenizer, o, &c, e);
    if (!err) err = clime_config_check(&c, e);
    if (err) goto done;
    clime_layout_make(&c, c.dtype, &lay);
    flat = xaligned(64, (size_t)lay.bytes);
    clime_weights_init(&lay, flat, (float)o->std, (uint64_t)o->seed);
    struct clime_weights_source from = clime_weights_in_host(flat);
    err = clime_folder_write(dir, tokenizer, &c, &lay, &from, e);
    if (!err)
        printf("%s: %s, %.2f M parameters, vocabulary %d, %s\n", dir, c.architecture,
               (double)clime_layout_params(&lay, false) / 1e6, c.V, c.dtype == CLIME_F32 ? "fp32" : "bf16");
done:
    if (seed_dir && clime_dir_remove(seed_dir, NULL)) LOG_WARN("could not remove %s", seed_dir);
    free(seed_dir);
    free(place);
    free(flat);
    clime_layout_free(&lay);
    return err;
}

int clime_init_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct init_options o = {0};
    const char *dir = NULL;
    if (parse(argc, argv, &o, &dir, &e) || make(dir, &o, &e)) {
        LOG_ERROR("init: %s", e.msg);
        return 1;
    }
    return 0;
}
