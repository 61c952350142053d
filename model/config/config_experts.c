/* The experts' part of a configuration: a reader per family, one writer, and the allowed keys.
 *
 * Called by config.c and config_write.c; pure. The invariant is config.c's. These families still grow, so it is also
 * enforced the other way round: a key that is neither read nor known to have no effect is refused by name.
 */
#include <math.h>
#include <string.h>

#include "model/config/config_int.h"
#include "model/config/config_keys.h"

enum { MAX_EXPERT_WIDTH = 1 << 17 };

/* Layers with a dense MLP: those of mlp_only_layers, and all but each decoder_sparse_step-th. */
static enum clime_err read_dense_layers(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    int step;
    enum clime_err rc = clime_key_int(root, "decoder_sparse_step", 1, 1 << 20, 1, &step, e);
    if (rc) return rc;
    for (int l = 0; l < c->L; l++) c->dense[l] = (l + 1) % step != 0;
    const struct cJSON *list = clime_tree_get(root, "mlp_only_layers");
    if (!clime_key_absent(list) && clime_tree_kind(list) != CLIME_JSON_ARRAY)
        return clime_fail(e, CLIME_ERR_INPUT, "mlp_only_layers must be a list of layers");
    for (const struct cJSON *n = clime_tree_first(list); n; n = clime_tree_next(n)) {
        double l = clime_tree_kind(n) == CLIME_JSON_NUMBER ? clime_tree_num(n, -1) : -1;
        if (!(l >= 0 && l < c->L) || l != floor(l))
            return clime_fail(e, CLIME_ERR_INPUT, "mlp_only_layers must hold layers from 0 to %d", c->L - 1);
        c->dense[(int)l] = 1;
    }
    return CLIME_OK;
}

/* The number of experts by the family's name for it, or the one that transformers 5 may write. If both are present they
 * must be equal, since programs differ in which one they use. */
static enum clime_err read_counts(const struct cJSON *root, const char *name, struct clime_config *c,
                                  struct clime_error *e) {
    static const char other[] = "num_local_experts";
    const struct cJSON *own = clime_tree_get(root, name), *theirs = clime_tree_get(root, other);
    if (clime_key_absent(own)) own = theirs;
    if (!clime_key_absent(theirs) && clime_tree_num(own, -1) != clime_tree_num(theirs, -1))
        return clime_fail(e, CLIME_ERR_INPUT, "%s and %s differ", name, other);
    if (!clime_key_absent(theirs)) name = other;
    enum clime_err rc = clime_key_int(root, name, 1, CLIME_MAX_EXPERTS, 0, &c->router.E, e);
    if (!rc) rc = clime_key_int(root, "num_experts_per_tok", 1, c->router.E, 0, &c->router.k, e);
    if (!rc) rc = clime_key_int(root, "moe_intermediate_size", 1, MAX_EXPERT_WIDTH, 0, &c->F_expert, e);
    return rc;
}

enum clime_err clime_config_qwen_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    c->router = (struct clime_router){.scale = 1, .n_groups = 1, .k_groups = 1};
    enum clime_err rc = read_counts(root, "num_experts", c, e);
    if (!rc) rc = clime_key_bool(root, "norm_topk_prob", false, &c->router.renormalize, e);
    if (!rc) rc = read_dense_layers(root, c, e);
    if (rc || !c->shared_gate) return rc;
    return clime_key_int(root, "shared_expert_intermediate_size", 1, MAX_EXPERT_WIDTH, 0, &c->F_shared, e);
}

/* DeepSeek's router: a sigmoid with a bias for the choice only, groups, a shared expert, the first layers dense. */
static enum clime_err read_deepseek(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    struct clime_router *r = &c->router;
    int n_shared, n_dense;
    double scale;
    *r = (struct clime_router){.sigmoid = true};
    c->router_bias = true;
    enum clime_err rc = read_counts(root, "n_routed_experts", c, e);
    if (!rc) rc = clime_key_bool(root, "norm_topk_prob", true, &r->renormalize, e);
    if (!rc) rc = clime_key_positive(root, "routed_scaling_factor", 1, &scale, e);
    if (!rc) rc = clime_key_int(root, "n_group", 1, r->E, 1, &r->n_groups, e);
    if (!rc) rc = clime_key_int(root, "topk_group", 1, r->n_groups, 1, &r->k_groups, e);
    if (!rc) rc = clime_key_int(root, "n_shared_experts", 0, 64, 1, &n_shared, e);
    if (!rc) rc = clime_key_int(root, "first_k_dense_replace", 0, c->L, c->L < 1 ? 0 : 1, &n_dense, e);
    if (!rc) rc = clime_key_int(root, "num_nextn_predict_layers", 0, 64, 0, &c->n_next, e);
    if (rc) return rc;
    int in_group = r->E / r->n_groups;
    if (r->E % r->n_groups)
        return clime_fail(e, CLIME_ERR_INPUT, "n_group %d does not divide the %d experts", r->n_groups, r->E);
    if (r->k_groups < r->n_groups && (in_group < 2 || r->k > r->k_groups * in_group))
        return clime_fail(e, CLIME_ERR_INPUT, "topk_group %d leaves %d experts of each of %d groups for %d of a token",
                          r->k_groups, in_group, r->n_groups, r->k);
    r->scale = (float)scale;
    c->F_shared = n_shared * c->F_expert;
    memset(c->dense, 1, (size_t)n_dense);
    return CLIME_OK;
}

/* Without its latent attention. */
enum clime_err clime_config_glm_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    enum clime_err rc = read_deepseek(root, c, e);
    return rc ? rc : clime_key_bool(root, "use_qk_norm", false, &c->qk_norm, e);
}

/* mlp_layer_types has the kind of each layer; it takes precedence over first_k_dense_replace, as in transformers. */
static enum clime_err read_layer_types(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    const struct cJSON *list = clime_tree_get(root, "mlp_layer_types");
    int l = 0;
    if (clime_key_absent(list)) return CLIME_OK;
    if (clime_tree_kind(list) != CLIME_JSON_ARRAY || clime_tree_size(list) != c->L)
        return clime_fail(e, CLIME_ERR_INPUT, "mlp_layer_types must be a list of %d words", c->L);
    for (const struct cJSON *n = clime_tree_first(list); n; n = clime_tree_next(n), l++) {
        const char *type = clime_tree_str(n, "");
        c->dense[l] = strcmp(type, "dense") == 0;
        if (!c->dense[l] && strcmp(type, "sparse") != 0)
            return clime_fail(e, CLIME_ERR_INPUT, "mlp_layer_types: '%.40s' is neither dense nor sparse", type);
    }
    return CLIME_OK;
}

/* The classes' defaults differ, each being one model's: the keys of the expert choice are required. */
enum clime_err clime_config_deepseek_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    static const char *const must[] = {"norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group",
                                       "n_shared_experts"};
    static const char *const fixed[][2] = {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}};
    const char *word;
    int every;
    for (size_t i = 0; i < CLIME_COUNT(must); i++)
        if (clime_key_absent(clime_tree_get(root, must[i])))
            return clime_fail(e, CLIME_ERR_INPUT, "%s is missing", must[i]);
    if (c->family == CLIME_DEEPSEEK_V3 && clime_key_absent(clime_tree_get(root, "first_k_dense_replace")))
        return clime_fail(e, CLIME_ERR_INPUT, "first_k_dense_replace is missing");
    enum clime_err rc = read_deepseek(root, c, e);
    for (size_t i = 0; i < CLIME_COUNT(fixed) && !rc; i++) {
        rc = clime_key_str(root, fixed[i][0], fixed[i][1], &word, e);
        if (!rc && strcmp(word, fixed[i][1]) != 0)
            rc = clime_fail(e, CLIME_ERR_INPUT, "%s '%.40s' is not supported", fixed[i][0], word);
    }
    if (!rc) rc = clime_key_int(root, "moe_layer_freq", 1, 1, 1, &every, e);
    return rc || c->family != CLIME_GLM4_MOE_LITE ? rc : read_layer_types(root, c, e);
}

/* ---- keys ------------------------------------------------------------------------------------------------------ */

static const char *const read_keys[] = {
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_bias",
    "qkv_bias",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
    "is_causal",
    "hidden_act",
    "quantization_config",
    "mlp_bias",
    "use_sliding_window",
    "layer_types",
    "torch_dtype",
    "dtype",
    "bos_token_id",
    "pad_token_id",
    "eos_token_id", /* experts: */
    "num_experts",
    "num_local_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
    "norm_topk_prob",
    "decoder_sparse_step",
    "mlp_only_layers",
    "shared_expert_intermediate_size",
    "n_routed_experts",
    "routed_scaling_factor",
    "n_group",
    "topk_group",
    "n_shared_experts",
    "first_k_dense_replace",
    "num_nextn_predict_layers",
    "use_qk_norm",
};

/* Keys of training with dropout or a load-balancing loss, of other programs' caches and layouts, or of windows that
 * use_sliding_window enables. */
static const char *const inert_keys[] = {
    "_attn_implementation_autoset",
    "_name_or_path",
    "attention_dropout",
    "auto_map",
    "aux_loss_alpha",
    "chunk_size_feed_forward",
    "ep_size",
    "id2label",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "max_window_layers",
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "router_aux_loss_coef",
    "seq_aux",
    "sliding_window",
    "tokenizer_class",
    "transformers_version",
    "unsloth_fixed",
    "use_cache",
};

/* Keys of latent attention, also read; head_dim and qk_head_dim follow from them. */
static const char *const latent_keys[] = {
    "q_lora_rank",     "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
    "rope_interleave", "qk_head_dim",  "scoring_func",     "topk_method",      "moe_layer_freq",
};

static bool listed(const char *key, const char *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0) return true;
    return false;
}

static bool known(const char *key, const struct clime_config *c) {
    return listed(key, read_keys, CLIME_COUNT(read_keys)) || listed(key, inert_keys, CLIME_COUNT(inert_keys)) ||
           (c->latent.R && listed(key, latent_keys, CLIME_COUNT(latent_keys))) ||
           (c->family == CLIME_GLM4_MOE_LITE && strcmp(key, "mlp_layer_types") == 0);
}

/* A key's value as a number; a list's length. */
static double said(const struct cJSON *n) {
    switch (clime_tree_kind(n)) {
    case CLIME_JSON_NUMBER:
        return clime_tree_num(n, NAN);
    case CLIME_JSON_BOOL:
        return clime_tree_bool(n, false);
    case CLIME_JSON_ARRAY:
        return clime_tree_size(n);
    default:
        return NAN;
    }
}

/* Another family's key may be present if it changes nothing here, such as Qwen3-Coder's shared_expert_intermediate_size
 * of 0. */
static enum clime_err refuse_of_others(const struct cJSON *root, const struct clime_config *c, struct clime_error *e) {
    bool deepseek = c->router.sigmoid, qwen2 = c->family == CLIME_QWEN2_MOE;
    const struct {
        const char *key;
        bool read;
        double as_if;
    } keys[] = {
        {"num_experts", !deepseek, c->router.E},
        {"decoder_sparse_step", !deepseek, 1},
        {"mlp_only_layers", !deepseek, 0},
        {"shared_expert_intermediate_size", qwen2, 0},
        {"qkv_bias", qwen2, c->qkv_bias},
        {"attention_bias", !qwen2, c->qkv_bias},
        {"n_routed_experts", deepseek, c->router.E},
        {"routed_scaling_factor", deepseek, 1},
        {"n_group", deepseek, 1},
        {"topk_group", deepseek, 1},
        {"n_shared_experts", deepseek, 0},
        {"first_k_dense_replace", deepseek, 0},
        {"num_nextn_predict_layers", deepseek, 0},
        {"use_qk_norm", c->family == CLIME_GLM4_MOE, c->qk_norm},
    };
    for (size_t i = 0; i < CLIME_COUNT(keys); i++) {
        const struct cJSON *n = clime_tree_get(root, keys[i].key);
        if (!keys[i].read && !clime_key_absent(n) && said(n) != keys[i].as_if)
            return clime_fail(e, CLIME_ERR_INPUT, "%s: %s has no such setting, and computes as with %g", keys[i].key,
                              c->architecture, keys[i].as_if);
    }
    return CLIME_OK;
}

enum clime_err clime_config_known_keys(const struct cJSON *root, const struct clime_config *c, struct clime_error *e) {
    for (const struct cJSON *n = clime_tree_first(root); n; n = clime_tree_next(n)) {
        const char *key = clime_tree_key(n);
        enum clime_json_kind kind = clime_tree_kind(n);
        bool off = kind == CLIME_JSON_NULL || (kind == CLIME_JSON_BOOL && !clime_tree_bool(n, true));
        if (!off && !known(key, c))
            return clime_fail(e, CLIME_ERR_INPUT, "%.80s is not known: it may change what the model computes", key);
    }
    return refuse_of_others(root, c, e);
}

/* ---- writing --------------------------------------------------------------------------------------------------- */

static void write_deepseek(struct clime_jw *w, const struct clime_config *c) {
    int n_dense = 0;
    while (n_dense < c->L && c->dense[n_dense]) n_dense++;
    clime_write_int(w, "n_routed_experts", c->router.E);
    clime_write_int(w, "n_shared_experts", c->F_shared / c->F_expert);
    clime_jw_put_float(w, "routed_scaling_factor", c->router.scale);
    clime_write_int(w, "n_group", c->router.n_groups);
    clime_write_int(w, "topk_group", c->router.k_groups);
    clime_write_int(w, "first_k_dense_replace", n_dense);
    clime_write_int(w, "num_nextn_predict_layers", c->fp8 ? 0 : c->n_next); /* carried.c */
    if (c->family == CLIME_GLM4_MOE) clime_write_bool(w, "use_qk_norm", c->qk_norm);
    if (c->family != CLIME_GLM4_MOE_LITE) return;
    clime_jw_key(w, "mlp_layer_types");
    clime_jw_array(w);
    for (int l = 0; l < c->L; l++) clime_jw_strz(w, c->dense[l] ? "dense" : "sparse");
    clime_jw_close(w);
}

static void write_qwen(struct clime_jw *w, const struct clime_config *c) {
    clime_write_int(w, "num_experts", c->router.E);
    clime_write_int(w, "decoder_sparse_step", 1);
    clime_jw_key(w, "mlp_only_layers");
    clime_jw_array(w);
    for (int l = 0; l < c->L; l++)
        if (c->dense[l]) clime_jw_int(w, l);
    clime_jw_close(w);
    if (c->F_shared) clime_write_int(w, "shared_expert_intermediate_size", c->F_shared);
}

void clime_config_write_experts(struct clime_jw *w, const struct clime_config *c) {
    clime_write_int(w, "num_experts_per_tok", c->router.k);
    clime_write_int(w, "moe_intermediate_size", c->F_expert);
    clime_write_bool(w, "norm_topk_prob", c->router.renormalize);
    if (c->router.sigmoid)
        write_deepseek(w, c);
    else
        write_qwen(w, c);
}
