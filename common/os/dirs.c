/* Folders (see dirs.h), published by writing to a temporary name, sync and rename. Called by checkpoints, exports and
 * init; main thread. A crash leaves at most NAME.tmp or NAME.old, which the next write removes. */
#include "common/os/dirs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/log.h"

#define MOST_OLD 100

enum clime_err clime_make_dirs(const char *path, struct clime_error *e) {
    char *p = xstrdup(path);
    enum clime_err err = CLIME_OK;
    for (char *at = p + 1;; at++) {
        if (*at != '/' && *at != 0) continue;
        char keep = *at;
        *at = 0;
        if (mkdir(p, 0777) && errno != EEXIST) {
            err = clime_fail(e, CLIME_ERR_IO, "cannot make the folder %s: %s", p, strerror(errno));
            break;
        }
        *at = keep;
        if (!keep) break;
    }
    free(p);
    return err;
}

static enum clime_err sync_path(const char *path, struct clime_error *e) {
    int fd = open(path, O_RDONLY);
    if (fd < 0 || fsync(fd)) {
        int why = errno;
        if (fd >= 0) close(fd);
        return clime_fail(e, CLIME_ERR_IO, "cannot sync %s: %s", path, strerror(why));
    }
    close(fd);
    return CLIME_OK;
}

/* Removes a folder of plain files and of such folders, `levels` deep. */
static enum clime_err remove_levels(const char *path, int levels, struct clime_error *e) {
    DIR *d = opendir(path);
    if (!d) {
        if (errno == ENOENT) return CLIME_OK;
        return clime_fail(e, CLIME_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    }
    enum clime_err err = CLIME_OK;
    for (struct dirent *f; !err && (f = readdir(d));) {
        if (!strcmp(f->d_name, ".") || !strcmp(f->d_name, "..")) continue;
        if (!unlinkat(dirfd(d), f->d_name, 0)) continue;
        int why = errno;
        char *inside = xasprintf("%s/%s", path, f->d_name);
        if (why == EISDIR && levels > 0)
            err = remove_levels(inside, levels - 1, e);
        else
            err = clime_fail(e, CLIME_ERR_IO, "cannot remove %s: %s", inside, strerror(why));
        free(inside);
    }
    closedir(d);
    if (!err && rmdir(path)) err = clime_fail(e, CLIME_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    return err;
}

enum clime_err clime_dir_remove(const char *path, struct clime_error *e) {
    return remove_levels(path, 1, e);
}

static enum clime_err sync_parent(const char *path, struct clime_error *e) {
    char *p = xstrdup(path), *slash = strrchr(p, '/');
    if (slash && slash != p) *slash = 0;
    enum clime_err err = sync_path(slash ? (slash == p ? "/" : p) : ".", e);
    free(p);
    return err;
}

/* The name that path is moved to: PATH.old, or the first free PATH.old.N when an earlier one could not be removed. */
static char *place_aside(const char *path, struct clime_error *e) {
    for (int i = 0; i < MOST_OLD; i++) {
        char *old = i ? xasprintf("%s.old.%d", path, i) : xasprintf("%s.old", path);
        if (!clime_dir_remove(old, e)) return old;
        free(old);
    }
    return NULL;
}

enum clime_err clime_dir_publish(const char *tmp, const char *path, struct clime_error *e) {
    struct clime_error why;
    enum clime_err err = sync_path(tmp, e);
    char *old = err ? NULL : place_aside(path, e);
    if (!err && !old) err = e ? e->code : CLIME_ERR_IO;
    if (!err && rename(path, old) && errno != ENOENT)
        err = clime_fail(e, CLIME_ERR_IO, "cannot move %s aside: %s", path, strerror(errno));
    if (!err && rename(tmp, path))
        err = clime_fail(e, CLIME_ERR_IO, "cannot rename %s to %s: %s", tmp, path, strerror(errno));
    if (!err) err = sync_parent(path, e);
    if (!err && clime_dir_remove(old, &why)) LOG_WARN("%s stays: %s", old, why.msg);
    free(old);
    return err;
}

double clime_disk_free_ratio(const char *path) {
    struct statvfs s;
    return statvfs(path, &s) || !s.f_blocks ? (double)NAN : (double)s.f_bavail / (double)s.f_blocks;
}
