/* Hugging Face folders out: weights, config, and the files beside them that a user of the model needs. */
#ifndef CLIME_TRAINER_FOLDER_H
#define CLIME_TRAINER_FOLDER_H

#include "model/weights.h"

/* mkdir -p. */
enum clime_err clime_make_dirs(const char *path, struct clime_error *e);

/* Writes dir (made if missing): safetensors, config.json, and from source_dir the tokenizer's files, generation_config
 * and chat template, byte for byte. Complete or absent: written to dir.tmp, synced, renamed over. */
enum clime_err clime_folder_write(const char *dir, const char *source_dir, const struct clime_config *c,
                                  const struct clime_layout *l, const struct clime_weights_source *from,
                                  struct clime_error *e);

/* For whole folders that must appear at once: removes what path holds (a folder of plain files), and renames a
 * finished tmp folder over it with both synced. */
enum clime_err clime_folder_publish(const char *tmp, const char *path, struct clime_error *e);
enum clime_err clime_folder_remove(const char *path, struct clime_error *e); /* absent is fine */

#endif
