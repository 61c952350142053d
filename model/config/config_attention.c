/* The attention part of a configuration: latent attention's widths and the rotary settings, read and written.
 *
 * Called by config.c and config_write.c; pure. The invariant is config.c's: a scaling that the table (model/rope.c)
 * does not support is refused by name. A width is required even where a class has a default, since the defaults are one
 * model's.
 */
#include <math.h>
#include <string.h>

#include "model/config/config_int.h"
#include "model/config/config_keys.h"

/* ---- latent attention ------------------------------------------------------------------------------------------- */

enum { MAX_RANK = 1024, MAX_PART = 256 }; /* of the cached row; of a head's parts */

enum clime_err clime_config_latent(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    struct clime_latent *l = &c->latent;
    bool bias;
    enum clime_err rc = clime_key_int(root, "kv_lora_rank", 2, MAX_RANK, 0, &l->R, e);
    if (!rc) rc = clime_key_int(root, "qk_nope_head_dim", 1, MAX_PART, 0, &l->Dn, e);
    if (!rc) rc = clime_key_int(root, "qk_rope_head_dim", 2, MAX_PART, 0, &l->Dr, e);
    if (!rc) rc = clime_key_int(root, "v_head_dim", 1, MAX_PART, 0, &l->Dv, e);
    if (!rc) rc = clime_key_int(root, "num_key_value_heads", 1, 1024, c->H, &c->HK, e);
    if (!rc) rc = clime_key_bool(root, "rope_interleave", c->rope_interleaved, &c->rope_interleaved, e);
    if (!rc) rc = clime_key_bool(root, "attention_bias", false, &bias, e);
    if (!rc && clime_tree_kind(clime_tree_get(root, "q_lora_rank")) != CLIME_JSON_NULL)
        rc = clime_key_int(root, "q_lora_rank", 1, 1 << 14, 0, &c->q_rank, e);
    if (rc) return rc;
    if (clime_tree_kind(clime_tree_get(root, "rope_interleave")) == CLIME_JSON_NULL) /* programs differ */
        return clime_fail(e, CLIME_ERR_INPUT, "rope_interleave is null: say true or false");
    if (l->R % 2 || l->Dr % 2)
        return clime_fail(e, CLIME_ERR_INPUT, "%s is odd", l->R % 2 ? "kv_lora_rank" : "qk_rope_head_dim");
    if (c->HK != c->H)
        return clime_fail(e, CLIME_ERR_INPUT, "num_key_value_heads %d: latent attention has as many as heads, %d",
                          c->HK, c->H);
    if (bias) return clime_fail(e, CLIME_ERR_INPUT, "attention_bias = true is not supported for %s", c->architecture);
    c->Dh = l->Dn + l->Dr;
    return CLIME_OK;
}

void clime_config_write_latent(struct clime_jw *w, const struct clime_config *c) {
    clime_jw_key(w, "q_lora_rank");
    if (c->q_rank)
        clime_jw_int(w, c->q_rank);
    else
        clime_jw_null(w);
    clime_write_int(w, "kv_lora_rank", c->latent.R);
    clime_write_int(w, "qk_nope_head_dim", c->latent.Dn);
    clime_write_int(w, "qk_rope_head_dim", c->latent.Dr);
    clime_write_int(w, "v_head_dim", c->latent.Dv);
    clime_write_bool(w, "rope_interleave", c->rope_interleaved);
}

/* ---- rotation ---------------------------------------------------------------------------------------------------- */

static enum clime_err read_llama3(const struct cJSON *scaling, struct clime_config *c, struct clime_error *e) {
    enum clime_err rc;
    if ((rc = clime_key_positive(scaling, "factor", 0, &c->rope_scaling.factor, e))) return rc;
    if ((rc = clime_key_positive(scaling, "low_freq_factor", 0, &c->rope_scaling.low_freq, e))) return rc;
    if ((rc = clime_key_positive(scaling, "high_freq_factor", 0, &c->rope_scaling.high_freq, e))) return rc;
    if (c->rope_scaling.high_freq <= c->rope_scaling.low_freq)
        return clime_fail(e, CLIME_ERR_INPUT, "rope_scaling: high_freq_factor must be above low_freq_factor");
    return CLIME_OK;
}

/* 0 when absent. */
static enum clime_err read_mscale(const struct cJSON *scaling, const char *key, double *out, struct clime_error *e) {
    *out = 0;
    return clime_key_absent(clime_tree_get(scaling, key)) ? CLIME_OK : clime_key_positive(scaling, key, 1, out, e);
}

static enum clime_err read_yarn(const struct cJSON *scaling, struct clime_config *c, struct clime_error *e) {
    enum clime_err rc;
    bool whole;
    c->rope_scaling.yarn = true;
    if (!clime_key_absent(clime_tree_get(scaling, "attention_factor")))
        return clime_fail(e, CLIME_ERR_INPUT, "rope_scaling: attention_factor is not supported");
    if ((rc = clime_key_bool(scaling, "truncate", true, &whole, e))) return rc;
    if (!whole) return clime_fail(e, CLIME_ERR_INPUT, "rope_scaling: truncate = false is not supported");
    if ((rc = clime_key_positive(scaling, "factor", 0, &c->rope_scaling.factor, e))) return rc;
    if ((rc = clime_key_positive(scaling, "beta_fast", 32, &c->rope_scaling.beta_fast, e))) return rc;
    if ((rc = clime_key_positive(scaling, "beta_slow", 1, &c->rope_scaling.beta_slow, e))) return rc;
    if ((rc = read_mscale(scaling, "mscale", &c->rope_scaling.mscale, e))) return rc;
    return read_mscale(scaling, "mscale_all_dim", &c->rope_scaling.mscale_all_dim, e);
}

/* The original context length: among the other fields it takes precedence over the rotary settings. */
static enum clime_err read_original(const struct cJSON *root, const struct cJSON *scaling, struct clime_config *c,
                                    struct clime_error *e) {
    static const char key[] = "original_max_position_embeddings";
    const struct cJSON *in = clime_key_absent(clime_tree_get(root, key)) ? scaling : root;
    if (c->rope_scaling.yarn && clime_key_absent(clime_tree_get(in, key)))
        return clime_fail(e, CLIME_ERR_INPUT, "rope_scaling: %s is missing", key);
    return clime_key_int(in, key, 1, CLIME_MAX_POSITIONS, c->max_pos, &c->rope_scaling.original_max_pos, e);
}

/* Every rotary setting is there to change results: refuses unknown ones, "rope_scaling: KEY ...". */
static enum clime_err refuse_unknown(const struct cJSON *settings, const char *type, struct clime_error *e) {
    static const char *const known[] = {
        "type",
        "rope_type",
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
        "finetuned",
    };
    for (const struct cJSON *n = clime_tree_first(settings); n; n = clime_tree_next(n)) {
        bool found = clime_key_absent(n) || (clime_tree_kind(n) == CLIME_JSON_BOOL && !clime_tree_bool(n, true));
        for (size_t i = 0; i < CLIME_COUNT(known) && !found; i++) found = strcmp(clime_tree_key(n), known[i]) == 0;
        if (!found)
            return clime_fail(e, CLIME_ERR_INPUT,
                              "rope_scaling: %.80s is not known: it may change what the model computes",
                              clime_tree_key(n));
    }
    if (strcmp(type, "default") == 0 && clime_tree_num(clime_tree_get(settings, "factor"), 1) != 1)
        return clime_fail(e, CLIME_ERR_INPUT, "rope_scaling: a factor, and no rope_type that has one");
    return CLIME_OK;
}

static enum clime_err read_scaling(const struct cJSON *root, const struct cJSON *scaling, struct clime_config *c,
                                   struct clime_error *e) {
    const char *type;
    enum clime_err rc;
    if ((rc = clime_key_str(scaling, "type", "default", &type, e))) return rc;
    if ((rc = clime_key_str(scaling, "rope_type", type, &type, e))) return rc;
    if (strcmp(type, "default") == 0) return refuse_unknown(scaling, type, e);
    if (strcmp(type, "llama3") == 0)
        rc = read_llama3(scaling, c, e);
    else if (strcmp(type, "yarn") == 0)
        rc = read_yarn(scaling, c, e);
    else
        rc =
            clime_fail(e, CLIME_ERR_INPUT, "rope_scaling of type '%.40s' is not supported (llama3 and yarn are)", type);
    if (!rc) rc = refuse_unknown(scaling, type, e);
    return rc ? rc : read_original(root, scaling, c, e);
}

/* *out: rope_scaling or, where that is absent or empty, rope_parameters (transformers 5); NULL: neither. The other one
 * is ignored. */
static enum clime_err find_settings(const struct cJSON *root, const struct cJSON **out, struct clime_error *e) {
    static const char *const keys[] = {"rope_scaling", "rope_parameters"};
    *out = NULL;
    for (size_t i = 0; i < CLIME_COUNT(keys); i++) {
        const struct cJSON *s = clime_tree_get(root, keys[i]);
        if (!clime_key_absent(s) && clime_tree_kind(s) != CLIME_JSON_OBJECT)
            return clime_fail(e, CLIME_ERR_INPUT, "%s must be an object or null", keys[i]);
        for (const struct cJSON *n = clime_tree_first(s); n; n = clime_tree_next(n))
            if (clime_tree_kind(n) == CLIME_JSON_OBJECT)
                return clime_fail(e, CLIME_ERR_INPUT, "%s: '%.40s' has settings of its own; all layers must have one",
                                  keys[i], clime_tree_key(n));
        if (!*out && clime_tree_first(s)) *out = s;
    }
    return CLIME_OK;
}

enum clime_err clime_config_rope(const struct cJSON *root, double rotary_factor, bool may_be_partial,
                                 struct clime_config *c, struct clime_error *e) {
    static const char theta[] = "rope_theta", part[] = "partial_rotary_factor";
    const struct cJSON *settings;
    int width = c->latent.R ? c->latent.Dr : c->Dh;
    double factor;
    enum clime_err rc = find_settings(root, &settings, e);
    if (rc) return rc;
    const struct cJSON *in = clime_key_absent(clime_tree_get(settings, theta)) ? root : settings;
    if ((rc = clime_key_positive(in, theta, 10000, &c->rope_theta, e))) return rc;
    in = clime_key_absent(clime_tree_get(settings, part)) ? root : settings;
    if (rotary_factor < 1 && clime_tree_kind(clime_tree_get(in, part)) == CLIME_JSON_NULL) /* programs differ */
        return clime_fail(e, CLIME_ERR_INPUT, "%s is null: say a number, such as %g", part, rotary_factor);
    if ((rc = clime_key_positive(in, part, rotary_factor, &factor, e))) return rc;
    c->rope_rot = (int)(width * factor);
    if (factor > 1 || c->rope_rot < 2 || c->rope_rot % 2)
        return clime_fail(e, CLIME_ERR_INPUT, "partial_rotary_factor %g gives %d rotating dimensions of %d", factor,
                          c->rope_rot, width);
    if (!may_be_partial && c->rope_rot != width)
        return clime_fail(e, CLIME_ERR_INPUT, "partial_rotary_factor %g is not supported for %s", factor,
                          c->architecture);
    return read_scaling(root, settings, c, e);
}

/* The factor that a reader multiplies by the head's width and truncates to get rope_rot: the plain quotient may round
 * below. */
static double rotary_factor_of(const struct clime_config *c) {
    double factor = (double)c->rope_rot / c->Dh;
    while ((int)(c->Dh * factor) < c->rope_rot) factor = nextafter(factor, 1);
    return factor;
}

void clime_config_write_rope(struct clime_jw *w, const struct clime_config *c) {
    clime_write_double(w, "rope_theta", c->rope_theta);
    if (c->family == CLIME_GLM4 || c->family == CLIME_GLM4_MOE)
        clime_write_double(w, "partial_rotary_factor", rotary_factor_of(c));
    clime_jw_key(w, "rope_scaling");
    if (c->rope_scaling.factor == 0) {
        clime_jw_null(w);
        return;
    }
    clime_jw_object(w);
    clime_jw_put_strz(w, "rope_type", c->rope_scaling.yarn ? "yarn" : "llama3");
    clime_write_double(w, "factor", c->rope_scaling.factor);
    if (c->rope_scaling.yarn) {
        clime_write_double(w, "beta_fast", c->rope_scaling.beta_fast);
        clime_write_double(w, "beta_slow", c->rope_scaling.beta_slow);
        if (c->rope_scaling.mscale > 0) clime_write_double(w, "mscale", c->rope_scaling.mscale);
        if (c->rope_scaling.mscale_all_dim > 0) clime_write_double(w, "mscale_all_dim", c->rope_scaling.mscale_all_dim);
    } else {
        clime_write_double(w, "low_freq_factor", c->rope_scaling.low_freq);
        clime_write_double(w, "high_freq_factor", c->rope_scaling.high_freq);
    }
    clime_write_int(w, "original_max_position_embeddings", c->rope_scaling.original_max_pos);
    clime_jw_close(w);
}
