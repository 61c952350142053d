/* Folders: made with their parents, replaced whole, removed. Any thread; one owner per path. */
#ifndef CLIME_COMMON_OS_DIRS_H
#define CLIME_COMMON_OS_DIRS_H

#include "common/err.h"

/* mkdir -p. */
enum clime_err clime_make_dirs(const char *path, struct clime_error *e);

/* Replaces a folder in one step: removes path (a folder of plain files and of folders of such), then renames the
 * finished folder tmp to it, with both synced. An old folder that cannot be removed (too deep) stays as PATH.old, with
 * a warning. */
enum clime_err clime_dir_publish(const char *tmp, const char *path, struct clime_error *e);
enum clime_err clime_dir_remove(const char *path, struct clime_error *e); /* absent is fine */

/* The free share of path's file system, 0..1; NaN when unknown. */
double clime_disk_free_ratio(const char *path);

#endif
