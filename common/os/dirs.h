/* Folders: made with their parents, replaced whole, removed. Any thread; one owner a path. */
#ifndef CLIME_COMMON_OS_DIRS_H
#define CLIME_COMMON_OS_DIRS_H

#include "common/err.h"

/* mkdir -p. */
enum clime_err clime_make_dirs(const char *path, struct clime_error *e);

/* For whole folders that must appear at once: removes what path holds (a folder of plain files and of
 * folders of such), and renames a finished tmp folder over it with both synced. What of the old one cannot be removed
 * (deeper folders) stays as PATH.old, with a warning. */
enum clime_err clime_dir_publish(const char *tmp, const char *path, struct clime_error *e);
enum clime_err clime_dir_remove(const char *path, struct clime_error *e); /* absent is fine */

/* The free share of the file system that path lies on; NaN when it cannot be asked. */
double clime_disk_free_ratio(const char *path);

#endif
