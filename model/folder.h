/* Hugging Face folders out: weights, config, and the files beside them that a user of the model needs. */
#ifndef CLIME_MODEL_FOLDER_H
#define CLIME_MODEL_FOLDER_H

#include "model/weights.h"

/* Writes dir (made if missing): safetensors, config.json, and from source_dir the tokenizer's files, generation_config
 * and chat template, byte for byte. Complete or absent: written to dir.tmp, synced, renamed over. */
enum clime_err clime_folder_write(const char *dir, const char *source_dir, const struct clime_config *c,
                                  const struct clime_layout *l, const struct clime_weights_source *from,
                                  struct clime_error *e);

#endif
