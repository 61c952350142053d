/* Checksums of a checkpoint's files, kept in its state.json to detect and name damage before loading. Any thread; one
 * owner per folder. */
#ifndef CLIME_TRAINER_LEARN_MANIFEST_H
#define CLIME_TRAINER_LEARN_MANIFEST_H

#include "common/json/tree.h"
#include "common/json/write.h"

/* clime_checksum_* of a file's bytes. CLIME_ERR_IO when it cannot be read. */
enum clime_err clime_file_checksum(const char *path, uint64_t *sum, struct clime_error *e);

/* Writes {"file": "checksum in hex", ...} for every file of the folder, sorted by name. */
enum clime_err clime_manifest_write(const char *dir, struct clime_jw *w, struct clime_error *e);

#define CLIME_MANIFEST_FILE "state.json" /* holds the object as "files" */

/* Removes a checkpoint: the files that its state.json lists, state.json, and the folder. Any other files and their
 * folder stay: CLIME_ERR_IO names what could not be removed. A missing folder is no error. */
enum clime_err clime_manifest_remove(const char *dir, struct clime_error *e);

/* CLIME_ERR_INPUT: path lies in a checkpoint or in a run's checkpoint folder, where the run deletes files. */
enum clime_err clime_manifest_check_outside(const char *path, struct clime_error *e);

/* Verifies every file that the object names; CLIME_ERR_INPUT names a damaged one. files NULL: an old folder without a
 * manifest. */
enum clime_err clime_manifest_check(const char *dir, const struct cJSON *files, struct clime_error *e);

#endif
