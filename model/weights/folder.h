/* Hugging Face folders: checks of a user's path, and writing a folder. Main thread. */
#ifndef CLIME_MODEL_WEIGHTS_FOLDER_H
#define CLIME_MODEL_WEIGHTS_FOLDER_H

#include "model/weights/weights.h"

/* Writes dir (made if missing): safetensors, config.json, and from source_dir the tokenizer's files, generation_config,
 * chat template and the layers that predict further tokens, byte for byte. Atomic: written to dir.tmp, synced, renamed
 * over the old folder. CLIME_ERR_INPUT where the old one is more than a model. */
enum clime_err clime_folder_write(const char *dir, const char *source_dir, const struct clime_config *c,
                                  const struct clime_layout *l, const struct clime_weights_source *from,
                                  struct clime_error *e);

/* dir without trailing slashes, or the target if it is a link: the temporary folder's name begins with it and replaces
 * it. The caller frees it. */
char *clime_folder_place(const char *dir);

/* Checks at program start that clime_folder_write can write dir: new, empty or a model's, in a writable folder, and no
 * mount point. Makes the folders above it. */
enum clime_err clime_folder_check_place(const char *dir, struct clime_error *e);

bool clime_folder_has_weights(const char *dir); /* it already is a model's */

enum clime_folder_part { /* what must be there besides config.json; or-ed */
                         CLIME_FOLDER_TOKENIZER = 1,
                         CLIME_FOLDER_WEIGHTS = 2
};

/* Checks a model folder at program start. CLIME_ERR_NOT_FOUND: no such folder (for a hub name, the message says how to
 * fetch it), or parts are missing. option: the one the path was set with, "hf-checkpoint". */
enum clime_err clime_folder_check(const char *option, const char *dir, int parts, struct clime_error *e);

#endif
