/* Hugging Face folders as a whole: whether a path that a user gave can be one, and writing one. Main thread. */
#ifndef CLIME_MODEL_WEIGHTS_FOLDER_H
#define CLIME_MODEL_WEIGHTS_FOLDER_H

#include "model/weights/weights.h"

/* Writes dir (made if missing): safetensors, config.json, and from source_dir the tokenizer's files, generation_config,
 * chat template and the layers that predict further tokens, byte for byte. Complete or absent: written to dir.tmp,
 * synced, renamed over. What was there is gone then; CLIME_ERR_INPUT where that is more than a model. */
enum clime_err clime_folder_write(const char *dir, const char *source_dir, const struct clime_config *c,
                                  const struct clime_layout *l, const struct clime_weights_source *from,
                                  struct clime_error *e);

/* dir without slashes at its end, or where it is a link the folder that it names: what is written first has that name
 * and more, and takes its place. The caller frees it. */
char *clime_folder_place(const char *dir);

/* Whether clime_folder_write will find dir new, empty or a model's, where folders can be made, and no mount point: for
 * a program's start, when nothing is lost by a no. Makes the folders above it. */
enum clime_err clime_folder_check_place(const char *dir, struct clime_error *e);

bool clime_folder_has_weights(const char *dir); /* it is a model's already */

enum clime_folder_part { /* what must be there beside config.json; or-ed */
                         CLIME_FOLDER_TOKENIZER = 1,
                         CLIME_FOLDER_WEIGHTS = 2
};

/* At a program's start, before anything is read. CLIME_ERR_NOT_FOUND: no such folder (a name on a hub is told how to
 * fetch it), or one without these parts. option: the one that the path was given with, "hf-checkpoint". */
enum clime_err clime_folder_check(const char *option, const char *dir, int parts, struct clime_error *e);

#endif
