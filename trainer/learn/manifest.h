/* The checksums of a checkpoint's files, kept in its state.json: damage is found and named before anything is loaded.
 * Any thread; one owner a folder. */
#ifndef CLIME_TRAINER_LEARN_MANIFEST_H
#define CLIME_TRAINER_LEARN_MANIFEST_H

#include "common/json/tree.h"
#include "common/json/write.h"

/* clime_checksum_* of a file's bytes. CLIME_ERR_IO when it cannot be read. */
enum clime_err clime_file_checksum(const char *path, uint64_t *sum, struct clime_error *e);

/* Writes {"file": "checksum in hex", ...} for every file of the folder, by name. */
enum clime_err clime_manifest_write(const char *dir, struct clime_jw *w, struct clime_error *e);

#define CLIME_MANIFEST_FILE "state.json" /* in which the object stands as "files" */

/* Removes a checkpoint: the files that its state.json lists, state.json, and the folder. What else a user has put there
 * stays, and the folder with it: CLIME_ERR_IO names what could not be removed. A folder that is not there is fine. */
enum clime_err clime_manifest_remove(const char *dir, struct clime_error *e);

/* CLIME_ERR_INPUT: path lies in a checkpoint, or in the folder of a run's checkpoints, which the run empties. */
enum clime_err clime_manifest_check_outside(const char *path, struct clime_error *e);

/* Reads every file that the object names; CLIME_ERR_INPUT with the name of one whose bytes are not those that were
 * written. NULL: a folder without a manifest, made before there was one. */
enum clime_err clime_manifest_check(const char *dir, const struct cJSON *files, struct clime_error *e);

#endif
