/* Shared by the configuration's files (config.c, config_attention.c, config_experts.c, config_write.c). Internal to
 * model/. */
#ifndef CLIME_MODEL_CONFIG_CONFIG_INT_H
#define CLIME_MODEL_CONFIG_CONFIG_INT_H

#include "common/json/tree.h"
#include "common/json/write.h"
#include "model/config/config.h"

/* Parses a whole config.json. The error does not name the file. */
enum clime_err clime_config_parse(const struct cJSON *root, struct clime_config *c, struct clime_error *e);

/* Reads a family's experts into router, F_expert, F_shared and dense. The layer sizes must be set. */
enum clime_err clime_config_qwen_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e);
enum clime_err clime_config_glm_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e);
enum clime_err clime_config_deepseek_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e);

/* Reads latent attention: latent, q_rank, HK, Dh and rope_interleaved. */
enum clime_err clime_config_latent(const struct cJSON *root, struct clime_config *c, struct clime_error *e);

/* Reads the rotary settings. rotary_factor: default of partial_rotary_factor; may_be_partial: it may be below 1. */
enum clime_err clime_config_rope(const struct cJSON *root, double rotary_factor, bool may_be_partial,
                                 struct clime_config *c, struct clime_error *e);

/* CLIME_ERR_INPUT for a key that is neither read nor known to have no effect. */
enum clime_err clime_config_known_keys(const struct cJSON *root, const struct clime_config *c, struct clime_error *e);

/* Writes the keys of these, into an open object. */
void clime_config_write_experts(struct clime_jw *w, const struct clime_config *c);
void clime_config_write_latent(struct clime_jw *w, const struct clime_config *c);
void clime_config_write_rope(struct clime_jw *w, const struct clime_config *c);

static inline void clime_write_int(struct clime_jw *w, const char *key, int v) {
    clime_jw_key(w, key);
    clime_jw_int(w, v);
}
static inline void clime_write_bool(struct clime_jw *w, const char *key, bool v) {
    clime_jw_key(w, key);
    clime_jw_bool(w, v);
}
static inline void clime_write_double(struct clime_jw *w, const char *key, double v) {
    clime_jw_key(w, key);
    clime_jw_double(w, v);
}

#endif
