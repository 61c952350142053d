/* Reading files for their checksums. Called at a checkpoint and at a resume, main thread; owns nothing.
 * A checkpoint's files are read back after they were written, mostly from the page cache: some 5 GB/s beside a disk's
 * one or two, and what is checked is what the system holds. */
#include "trainer/learn/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

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
    struct dirent **names;
    enum clime_err err = CLIME_OK;
    int n = scandir(dir, &names, is_shown, alphasort);
    if (n < 0) return clime_fail(e, CLIME_ERR_IO, "cannot read %s: %s", dir, strerror(errno));
    clime_jw_object(w);
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
