/* Checksums of checkpoint files. Called at a checkpoint and at a resume, main thread; owns nothing. A checkpoint's
 * files are read back after writing, mostly from the page cache (some 5 GB/s, a disk one or two), so the check covers
 * what the system holds. */
#include "trainer/learn/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/hash.h"

#define MOST_STATE (1 << 16) /* bytes of a state.json */
#define PIECE ((size_t)4 << 20)

enum clime_err clime_file_checksum(const char *path, uint64_t *sum, struct clime_error *e) {
    struct clime_checksum c;
    FILE *f = fopen(path, "rb");
    if (!f) return clime_fail(e, CLIME_ERR_IO, "cannot read %s: %s", path, strerror(errno));
    char *piece = xmalloc(PIECE);
    clime_checksum_init(&c);
    for (size_t n; (n = fread(piece, 1, PIECE, f)) > 0;) clime_checksum_add(&c, piece, n);
    enum clime_err err =
        ferror(f) ? clime_fail(e, CLIME_ERR_IO, "cannot read %s: %s", path, strerror(errno)) : CLIME_OK;
    fclose(f);
    free(piece);
    *sum = clime_checksum_done(&c);
    return err;
}

static enum clime_err sum_in_hex(const char *dir, const char *name, char hex[17], struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, name);
    uint64_t sum = 0;
    enum clime_err err = clime_file_checksum(path, &sum, e);
    snprintf(hex, 17, "%016" PRIx64, sum);
    free(path);
    return err;
}

static int is_shown(const struct dirent *d) {
    return d->d_name[0] != '.';
}

enum clime_err clime_manifest_write(const char *dir, struct clime_jw *w, struct clime_error *e) {
    struct dirent **names = NULL;
    int n = scandir(dir, &names, is_shown, alphasort);
    enum clime_err err = n < 0 ? clime_fail(e, CLIME_ERR_IO, "cannot read %s: %s", dir, strerror(errno)) : CLIME_OK;
    clime_jw_object(w); /* always writes a value, so the caller's object stays well formed after an error */
    for (int i = 0; i < n; i++) {
        char hex[17];
        if (!err) err = sum_in_hex(dir, names[i]->d_name, hex, e);
        if (!err) clime_jw_put_strz(w, names[i]->d_name, hex);
        free(names[i]);
    }
    free(names);
    clime_jw_close(w);
    return err;
}

static bool remove_in(const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    bool gone = !unlink(path) || errno == ENOENT;
    int why = errno;
    free(path);
    errno = why;
    return gone;
}

enum clime_err clime_manifest_remove(const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, CLIME_MANIFEST_FILE);
    struct cJSON *root = NULL;
    struct clime_error damaged;
    enum clime_err err = CLIME_OK;
    if (access(dir, F_OK) && errno == ENOENT) goto done;
    clime_tree_read_file(path, MOST_STATE, &root, &damaged);
    for (const struct cJSON *x = clime_tree_first(clime_tree_get(root, "files")); x && !err; x = clime_tree_next(x))
        if (strchr(clime_tree_key(x), '/') || !remove_in(dir, clime_tree_key(x)))
            err = clime_fail(e, CLIME_ERR_IO, "cannot remove %s/%s: %s", dir, clime_tree_key(x), strerror(errno));
    if (!err && root && !remove_in(dir, CLIME_MANIFEST_FILE))
        err = clime_fail(e, CLIME_ERR_IO, "cannot remove %s: %s", path, strerror(errno));
    if (!err && rmdir(dir) && errno != ENOENT)
        err = clime_fail(e, CLIME_ERR_IO, "cannot remove %s: %s", dir,
                         errno == ENOTEMPTY || errno == EEXIST ? "it holds what is no part of the checkpoint"
                                                               : strerror(errno));
done:
    clime_tree_free(root);
    free(path);
    return err;
}

enum clime_err clime_manifest_check_outside(const char *path, struct clime_error *e) {
    char *at = path[0] == '/' ? xstrdup(path) : NULL;
    enum clime_err err = CLIME_OK;
    if (!at) {
        char *here = getcwd(NULL, 0);
        at = xasprintf("%s/%s", here ? here : "", path);
        free(here);
    }
    for (char *slash; !err && (slash = strrchr(at, '/')) && slash != at;) {
        *slash = 0;
        char *state = xasprintf("%s/" CLIME_MANIFEST_FILE, at), *ledger = xasprintf("%s/../ledger.db", at);
        const char *name = strrchr(at, '/');
        struct stat st;
        bool all = name && !strcmp(name + 1, "checkpoints") && !access(ledger, F_OK);
        if (all || (!stat(state, &st) && S_ISREG(st.st_mode)))
            err = clime_fail(e, CLIME_ERR_INPUT, "%s lies in %s, %s: name a place outside", path, at,
                             all ? "whose folders the run removes by itself" : "a checkpoint, which is removed whole");
        free(state);
        free(ledger);
    }
    free(at);
    return err;
}

enum clime_err clime_manifest_check(const char *dir, const struct cJSON *files, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (const struct cJSON *x = files ? clime_tree_first(files) : NULL; x && !err; x = clime_tree_next(x)) {
        char hex[17];
        err = sum_in_hex(dir, clime_tree_key(x), hex, e);
        if (!err && strcmp(hex, clime_tree_str(x, "")) != 0)
            err = clime_fail(e, CLIME_ERR_INPUT, "%s/%s is damaged: its bytes are not those that were written", dir,
                             clime_tree_key(x));
    }
    return err;
}
