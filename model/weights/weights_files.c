/* Selects what is read of a Hugging Face folder: the files of its weights, and which of their tensors count.
 *
 * Called by the import and by earlier checks of the same files, any thread; owns nothing.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json/tree.h"
#include "model/weights/weights_map.h"

#define MAX_INDEX_BYTES (64 << 20)
#define MAX_SHARDS 1024

bool clime_weights_beyond(const struct clime_config *c, const char *name) {
    static const char stem[] = "model.layers.";
    char *end;
    if (strncmp(name, stem, sizeof stem - 1) != 0) return false;
    long layer = strtol(name + sizeof stem - 1, &end, 10);
    return *end == '.' && layer >= c->L && layer < c->L + c->n_next;
}

bool clime_weights_ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* The distinct file names of an index, in order of first mention. files[i] are borrowed from the tree. */
static enum clime_err list_shards(const struct cJSON *index, const char **files, int *n, struct clime_error *e) {
    const struct cJSON *map = clime_tree_get(index, "weight_map");
    if (clime_tree_kind(map) != CLIME_JSON_OBJECT) return clime_fail(e, CLIME_ERR_INPUT, "weight_map is missing");
    for (const struct cJSON *c = clime_tree_first(map); c; c = clime_tree_next(c)) {
        const char *file = clime_tree_str(c, NULL);
        if (!file || !clime_weights_ends_with(file, ".safetensors") || strchr(file, '/'))
            return clime_fail(e, CLIME_ERR_INPUT, "weight_map: '%.80s' does not name a file of the folder",
                              clime_tree_key(c));
        int k = *n - 1; /* neighbours are mostly in one file */
        while (k >= 0 && strcmp(files[k], file) != 0) k--;
        if (k >= 0) continue;
        if (*n == MAX_SHARDS) return clime_fail(e, CLIME_ERR_LIMIT, "more than %d files", MAX_SHARDS);
        files[(*n)++] = file;
    }
    return CLIME_OK;
}

static enum clime_err index_files(const char *dir, const char *index_path,
                                  enum clime_err (*each)(void *arg, const char *path, struct clime_error *e), void *arg,
                                  struct clime_error *e) {
    struct cJSON *index = NULL;
    const char **files = xcalloc(MAX_SHARDS, sizeof *files);
    int n = 0;
    struct stat st;
    enum clime_err rc = CLIME_OK;
    if (stat(index_path, &st) == 0 && !S_ISREG(st.st_mode)) /* a FIFO would block until it has a writer */
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s is not a regular file", index_path);
    if (!rc) rc = clime_tree_read_file(index_path, MAX_INDEX_BYTES, &index, e);
    if (rc) goto done;
    if ((rc = list_shards(index, files, &n, e))) {
        clime_error_prefix(e, "%s", index_path);
        goto done;
    }
    for (int i = 0; i < n && rc == CLIME_OK; i++) {
        char *path = xasprintf("%s/%s", dir, files[i]);
        rc = each(arg, path, e);
        free(path);
    }
done:
    clime_tree_free(index);
    free(files);
    return rc;
}

enum clime_err clime_weights_files(const char *dir,
                                   enum clime_err (*each)(void *arg, const char *path, struct clime_error *e),
                                   void *arg, struct clime_error *e) {
    char *one = xasprintf("%s/model.safetensors", dir), *index = xasprintf("%s/model.safetensors.index.json", dir);
    enum clime_err rc;
    if (access(one, F_OK) == 0)
        rc = each(arg, one, e);
    else if (access(index, F_OK) == 0)
        rc = index_files(dir, index, each, arg, e);
    else
        rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "%s holds neither model.safetensors nor its index", dir);
    free(one);
    free(index);
    return rc;
}
