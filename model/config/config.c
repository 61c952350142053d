/* config.json of a Hugging Face folder, read into struct clime_config (config_write.c writes it back).
 *
 * Called once at start by clime_model_prepare (and by clime-train init and export); the caller's thread; owns nothing
 * after it returns. Invariant: a config that loads describes a model that clime computes exactly as transformers does.
 * A field that would change the mathematics and is not supported is therefore refused by name, never skipped; fields
 * that cannot change a logit (dropout, initializer_range, cache options) are ignored.
 *
 * Both spellings of the rotary settings are read: rope_theta + rope_scaling + partial_rotary_factor among the other
 * fields (all published checkpoints), and transformers 5's rope_parameters object; if both are present, transformers
 * 5's precedence applies. The first is written, since every version of transformers reads it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config/config_int.h"
#include "model/config/config_keys.h"

/* Limits of every table of operations: a head in registers, a row in a block of norms, the splits of sampling. */
enum { MAX_HEAD_DIM = 256, MAX_D = 1 << 15, MAX_V = 1 << 20 };

#define MAX_CONFIG_BYTES (4 << 20)
#define MAX_FIELDS 4096 /* of an object; the most are a classifier's labels */

#define NAMES(id, model_type, architecture) {model_type, architecture},
const struct clime_family_names clime_families[] = {CLIME_FAMILIES(NAMES)};
#define ARCHITECTURE(id, model_type, architecture) ", " architecture

static const struct clime_family_facts facts[] = {
    [CLIME_QWEN3] = {.head_dim = 128,
                     .max_pos = 32768,
                     .eps = 1e-6f,
                     .rotary_factor = 1,
                     .qk_norm = true,
                     .bias_key = "attention_bias",
                     .o_bias = true},
    [CLIME_QWEN2] = {.max_pos = 32768, .eps = 1e-6f, .rotary_factor = 1, .qkv_bias = true},
    [CLIME_LLAMA] = {.max_pos = 2048, .eps = 1e-6f, .rotary_factor = 1, .bias_key = "attention_bias", .o_bias = true},
    [CLIME_GLM4] = {.head_dim = 128,
                    .max_pos = 131072,
                    .eps = 1.5625e-7f,
                    .rotary_factor = 0.5,
                    .partial = true,
                    .post_norms = true,
                    .fused_gate_up = true,
                    .interleaved = true,
                    .qkv_bias = true,
                    .bias_key = "attention_bias"},
    [CLIME_QWEN3_MOE] = {.max_pos = 32768,
                         .eps = 1e-6f,
                         .rotary_factor = 1,
                         .qk_norm = true,
                         .bias_key = "attention_bias",
                         .o_bias = true,
                         .experts = true},
    [CLIME_GLM4_MOE] = {.max_pos = 131072,
                        .eps = 1e-5f,
                        .rotary_factor = 0.5,
                        .partial = true,
                        .bias_key = "attention_bias",
                        .experts = true,
                        .sigmoid = true},
    [CLIME_DEEPSEEK_V3] = /* also Moonlight and Kimi K2 */
    {.max_pos = 4096,
     .eps = 1e-6f,
     .rotary_factor = 1,
     .interleaved = true,
     .latent = true,
     .experts = true,
     .sigmoid = true},
    [CLIME_GLM4_MOE_LITE] = {.max_pos = 202752,
                             .eps = 1e-5f,
                             .rotary_factor = 1,
                             .interleaved = true,
                             .latent = true,
                             .experts = true,
                             .sigmoid = true},
    [CLIME_QWEN2_MOE] = {.max_pos = 32768,
                         .eps = 1e-6f,
                         .rotary_factor = 1,
                         .qkv_bias = true,
                         .bias_key = "qkv_bias",
                         .experts = true,
                         .shared_gate = true},
};

_Static_assert(CLIME_COUNT(facts) == CLIME_COUNT(clime_families), "a row for each family");

const struct clime_family_facts *clime_family_facts(enum clime_family f) {
    return &facts[f];
}

static enum clime_err find_family(const struct cJSON *root, enum clime_family *out, struct clime_error *e) {
    const struct cJSON *list = clime_tree_get(root, "architectures");
    const char *arch = clime_tree_str(clime_tree_first(list), NULL), *type;
    if (!clime_key_absent(list) && (clime_tree_kind(list) != CLIME_JSON_ARRAY || (clime_tree_first(list) && !arch)))
        return clime_fail(e, CLIME_ERR_INPUT, "architectures must be a list of names");
    enum clime_err rc = clime_key_str(root, "model_type", NULL, &type, e);
    if (rc) return rc;
    for (size_t i = 0; i < CLIME_COUNT(facts); i++) {
        const struct clime_family_names *f = &clime_families[i];
        *out = (enum clime_family)i;
        if (arch ? !strcmp(arch, f->architecture) : type && !strcmp(type, f->model_type)) return CLIME_OK;
    }
    return clime_fail(e, CLIME_ERR_INPUT, "architecture '%.60s' is not supported; supported: %s",
                      arch   ? arch
                      : type ? type
                             : "(none given)",
                      CLIME_FAMILIES(ARCHITECTURE) + 2);
}

/* Refuses duplicate keys: parsers differ in which value they use. */
static enum clime_err refuse_twice(const struct cJSON *object, struct clime_error *e) {
    if (clime_tree_size(object) > MAX_FIELDS)
        return clime_fail(e, CLIME_ERR_LIMIT, "an object of more than %d fields", MAX_FIELDS);
    for (const struct cJSON *n = clime_tree_first(object); n; n = clime_tree_next(n)) {
        const char *key = clime_tree_key(n);
        if (clime_tree_get(object, key) != n) return clime_fail(e, CLIME_ERR_INPUT, "%.80s is given twice", key);
        enum clime_err rc = clime_tree_kind(n) == CLIME_JSON_OBJECT ? refuse_twice(n, e) : CLIME_OK;
        if (rc) return rc;
    }
    return CLIME_OK;
}

/* Refuses what would change the mathematics. */
static enum clime_err refuse_unsupported(const struct cJSON *root, struct clime_error *e) {
    const char *act;
    enum clime_err rc = clime_key_str(root, "hidden_act", "silu", &act, e);
    if (rc) return rc;
    if (strcmp(act, "silu") != 0) return clime_fail(e, CLIME_ERR_INPUT, "hidden_act '%.40s' is not supported", act);
    static const char *const off[] = {"mlp_bias", "use_sliding_window"};
    for (size_t i = 0; i < CLIME_COUNT(off); i++) {
        bool on;
        if ((rc = clime_key_bool(root, off[i], false, &on, e))) return rc;
        if (on) return clime_fail(e, CLIME_ERR_INPUT, "%s = true is not supported", off[i]);
    }
    const struct cJSON *causal = clime_tree_get(root, "is_causal");
    if (causal && !clime_tree_bool(causal, false))
        return clime_fail(e, CLIME_ERR_INPUT, "is_causal must be true: a token that sees later ones is not supported");
    return CLIME_OK;
}

/* Reads the attention type of each layer. */
static enum clime_err read_layer_types(const struct cJSON *root, const struct clime_config *c, struct clime_error *e) {
    const struct cJSON *list = clime_tree_get(root, "layer_types");
    if (clime_key_absent(list)) return CLIME_OK;
    if (clime_tree_kind(list) != CLIME_JSON_ARRAY || clime_tree_size(list) != c->L)
        return clime_fail(e, CLIME_ERR_INPUT, "layer_types must be a list of %d words", c->L);
    for (const struct cJSON *t = clime_tree_first(list); t; t = clime_tree_next(t)) {
        const char *kind = clime_tree_str(t, "?");
        if (strcmp(kind, "full_attention") != 0)
            return clime_fail(e, CLIME_ERR_INPUT, "layer_types: '%.40s' is not supported", kind);
    }
    return CLIME_OK;
}

static enum clime_err read_eos(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    const struct cJSON *n = clime_tree_get(root, "eos_token_id");
    if (clime_key_absent(n)) return CLIME_OK;
    if (clime_tree_kind(n) != CLIME_JSON_ARRAY) {
        enum clime_err rc = clime_key_int(root, "eos_token_id", 0, INT32_MAX, 0, &c->eos_ids[0], e);
        c->n_eos = rc ? 0 : 1;
        return rc;
    }
    if (clime_tree_size(n) > CLIME_MAX_EOS)
        return clime_fail(e, CLIME_ERR_LIMIT, "eos_token_id: more than %d ids", CLIME_MAX_EOS);
    for (const struct cJSON *i = clime_tree_first(n); i; i = clime_tree_next(i)) {
        double v = clime_tree_kind(i) == CLIME_JSON_NUMBER ? clime_tree_num(i, -1) : -1;
        if (!(v >= 0 && v <= INT32_MAX) || v != floor(v))
            return clime_fail(e, CLIME_ERR_INPUT, "eos_token_id must hold token ids");
        c->eos_ids[c->n_eos++] = (int)v;
    }
    return CLIME_OK;
}

static enum clime_err read_dtype(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    const char *name;
    enum clime_err rc = clime_key_str(root, "torch_dtype", "float32", &name, e);
    if (rc || (rc = clime_key_str(root, "dtype", name, &name, e))) return rc;
    if (strcmp(name, "bfloat16") == 0)
        c->dtype = CLIME_BF16;
    else if (strcmp(name, "float32") == 0 || strcmp(name, "float16") == 0)
        c->dtype = CLIME_F32; /* fp16's range and precision both fit only in fp32 */
    else
        return clime_fail(e, CLIME_ERR_INPUT, "dtype '%.40s' is not supported", name);
    return CLIME_OK;
}

/* DeepSeek's FP8; any other quantisation is refused. */
static enum clime_err read_quantization(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    const struct cJSON *q = clime_tree_get(root, "quantization_config"),
                       *block = clime_tree_get(q, "weight_block_size");
    if (clime_key_absent(q)) return CLIME_OK;
    const struct cJSON *first = clime_tree_first(block);
    const char *method = clime_tree_str(clime_tree_get(q, "quant_method"), "");
    c->fp8 = strcmp(method, "fp8") == 0 && strcmp(clime_tree_str(clime_tree_get(q, "fmt"), "e4m3"), "e4m3") == 0 &&
             clime_tree_size(block) == 2 && clime_tree_num(first, 0) == 128 &&
             clime_tree_num(clime_tree_next(first), 0) == 128;
    if (c->fp8) return CLIME_OK;
    return clime_fail(
        e, CLIME_ERR_INPUT,
        "quantization_config of quant_method '%.40s': of quantized checkpoints only FP8 in blocks is read "
        "(quant_method fp8, fmt e4m3, weight_block_size [128, 128])",
        method);
}

static enum clime_err read_heads(const struct cJSON *root, const struct clime_family_facts *f, struct clime_config *c,
                                 struct clime_error *e) {
    enum clime_err rc;
    if ((rc = clime_key_int(root, "num_key_value_heads", 1, 1024, c->H, &c->HK, e))) return rc;
    if (c->H % c->HK)
        return clime_fail(e, CLIME_ERR_INPUT, "num_attention_heads %d is no multiple of num_key_value_heads %d", c->H,
                          c->HK);
    if ((rc = clime_key_int(root, "head_dim", 2, MAX_HEAD_DIM, f->head_dim ? f->head_dim : c->D / c->H, &c->Dh, e)))
        return rc;
    if (c->Dh > MAX_HEAD_DIM) /* of hidden_size and num_attention_heads */
        return clime_fail(e, CLIME_ERR_INPUT, "head_dim %d is above %d", c->Dh, MAX_HEAD_DIM);
    if (c->Dh % 2) return clime_fail(e, CLIME_ERR_INPUT, "head_dim %d is odd", c->Dh);
    return CLIME_OK;
}

static enum clime_err read_experts(const struct cJSON *root, const struct clime_family_facts *f, struct clime_config *c,
                                   struct clime_error *e) {
    enum clime_err rc = f->latent    ? clime_config_deepseek_experts(root, c, e)
                        : f->sigmoid ? clime_config_glm_experts(root, c, e)
                                     : clime_config_qwen_experts(root, c, e);
    return rc ? rc : clime_config_known_keys(root, c, e);
}

enum clime_err clime_config_parse(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    enum clime_family id;
    enum clime_err rc = refuse_twice(root, e);
    if (!rc) rc = find_family(root, &id, e);
    if (rc) return rc;
    const struct clime_family_facts *f = &facts[id];
    *c = (struct clime_config){.family = id, .qk_norm = f->qk_norm, .post_norms = f->post_norms};
    c->fused_gate_up = f->fused_gate_up;
    c->rope_interleaved = f->interleaved;
    c->shared_gate = f->shared_gate;
    snprintf(c->architecture, sizeof c->architecture, "%s", clime_families[id].architecture);
    snprintf(c->model_type, sizeof c->model_type, "%s", clime_families[id].model_type);
    if ((rc = refuse_unsupported(root, e)) || (rc = read_quantization(root, c, e))) return rc;
    const struct {
        const char *key;
        int max, *out;
    } sizes[] = {
        {"hidden_size", MAX_D, &c->D},        {"num_hidden_layers", CLIME_MAX_LAYERS, &c->L},
        {"num_attention_heads", 1024, &c->H}, {"intermediate_size", 1 << 20, &c->F},
        {"vocab_size", MAX_V, &c->V},
    };
    for (size_t i = 0; i < CLIME_COUNT(sizes); i++)
        if ((rc = clime_key_int(root, sizes[i].key, 1, sizes[i].max, 0, sizes[i].out, e))) return rc;
    if ((rc = read_layer_types(root, c, e))) return rc;
    if (c->D > MAX_D / 2 && c->D % 8)
        return clime_fail(e, CLIME_ERR_INPUT, "hidden_size %d is above %d and no multiple of 8", c->D, MAX_D / 2);
    if ((rc = f->latent ? clime_config_latent(root, c, e) : read_heads(root, f, c, e))) return rc;
    if ((rc = clime_key_int(root, "max_position_embeddings", 1, CLIME_MAX_POSITIONS, f->max_pos, &c->max_pos, e)))
        return rc;
    double eps;
    if ((rc = clime_key_positive(root, "rms_norm_eps", f->eps, &eps, e))) return rc;
    c->eps = (float)eps;
    if ((rc = clime_key_bool(root, "tie_word_embeddings", false, &c->tied, e))) return rc;
    c->qkv_bias = f->qkv_bias;
    if (f->bias_key && (rc = clime_key_bool(root, f->bias_key, f->qkv_bias, &c->qkv_bias, e))) return rc;
    c->o_bias = f->o_bias && c->qkv_bias;
    if (f->experts && (rc = read_experts(root, f, c, e))) return rc;
    if ((rc = clime_config_rope(root, f->rotary_factor, f->partial, c, e))) return rc;
    if ((rc = read_dtype(root, c, e))) return rc;
    if ((rc = clime_key_int(root, "bos_token_id", -1, INT32_MAX, -1, &c->bos_id, e))) return rc;
    if ((rc = clime_key_int(root, "pad_token_id", -1, INT32_MAX, -1, &c->pad_id, e))) return rc;
    return read_eos(root, c, e);
}

enum clime_err clime_config_load(const char *dir, struct clime_config *out, struct clime_error *e) {
    struct cJSON *root = NULL;
    struct clime_error own;
    if (!e) e = &own;
    char *path = xasprintf("%s/config.json", dir);
    enum clime_err rc = clime_tree_read_file(path, MAX_CONFIG_BYTES, &root, e);
    if (rc == CLIME_OK && clime_tree_kind(root) != CLIME_JSON_OBJECT)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: not an object", path);
    else if (rc == CLIME_OK && (rc = clime_config_parse(root, out, e)))
        clime_error_prefix(e, "%s", path);
    clime_tree_free(root);
    free(path);
    return rc;
}
