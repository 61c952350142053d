/* What the files of the configuration share (config.c, config_experts.c, config_write.c). Internal to model/. */
#ifndef CLIME_MODEL_CONFIG_INT_H
#define CLIME_MODEL_CONFIG_INT_H

#include "common/json/tree.h"
#include "common/json/write.h"
#include "model/config.h"

/* Reads a family's experts into router, F_expert, F_shared, shared_gate and dense. The sizes of the layers are there.
 */
typedef enum clime_err clime_read_experts(const struct cJSON *root, struct clime_config *c, struct clime_error *e);
clime_read_experts clime_config_qwen_experts, clime_config_glm_experts;

/* CLIME_ERR_INPUT when a key is there that nobody reads and that is not known to change nothing. */
enum clime_err clime_config_known_keys(const struct cJSON *root, struct clime_error *e);

/* The keys of all this, into an open object. */
void clime_config_write_experts(struct clime_jw *w, const struct clime_config *c);

#endif
