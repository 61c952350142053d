/* The part of a configuration that is about latent attention, read and written.
 *
 * Called by config.c and config_write.c; pure. The invariant is config.c's. A width that a class has a default for must
 * be said all the same: the defaults are those of one model.
 */
#include "model/config_int.h"
#include "model/config_keys.h"

enum { MAX_RANK = 1024, MAX_PART = 256 }; /* of the kept row; of a head's parts */

enum clime_err clime_config_latent(const struct cJSON *root, struct clime_config *c, struct clime_error *e) {
    struct clime_latent *l = &c->latent;
    bool bias;
    enum clime_err rc = clime_key_int(root, "kv_lora_rank", 2, MAX_RANK, 0, &l->R, e);
    if (!rc) rc = clime_key_int(root, "qk_nope_head_dim", 1, MAX_PART, 0, &l->Dn, e);
    if (!rc) rc = clime_key_int(root, "qk_rope_head_dim", 2, MAX_PART, 0, &l->Dr, e);
    if (!rc) rc = clime_key_int(root, "v_head_dim", 1, MAX_PART, 0, &l->Dv, e);
    if (!rc) rc = clime_key_int(root, "num_key_value_heads", 1, 1024, c->H, &c->HK, e);
    if (!rc) rc = clime_key_bool(root, "rope_interleave", true, &c->rope_interleaved, e);
    if (!rc) rc = clime_key_bool(root, "attention_bias", false, &bias, e);
    if (!rc && clime_tree_kind(clime_tree_get(root, "q_lora_rank")) != CLIME_JSON_NULL)
        rc = clime_key_int(root, "q_lora_rank", 1, 1 << 14, 0, &c->q_rank, e);
    if (rc) return rc;
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
