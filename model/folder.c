/* Writes a Hugging Face folder, whole or not at all. Called by checkpoint, export and init; main thread. */
#include "model/folder.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"

#define MAX_SIDE_FILE ((size_t)256 << 20)

/* What travels with a model besides weights and config.json (which is written anew). */
static const char *const side_files[] = {
    "tokenizer.json",    "tokenizer_config.json", "vocab.json",
    "merges.txt",        "tokenizer.model",       "special_tokens_map.json",
    "added_tokens.json", "chat_template.jinja",   "generation_config.json",
};

static enum clime_err copy_file(const char *from_dir, const char *to_dir, const char *name, struct clime_error *e) {
    char *from = xasprintf("%s/%s", from_dir, name), *to = xasprintf("%s/%s", to_dir, name);
    struct clime_buf b;
    clime_buf_init(&b, MAX_SIDE_FILE);
    enum clime_err err = CLIME_OK;
    if (access(from, F_OK)) goto done;
    err = clime_buf_read_file(&b, from, e);
    if (err) goto done;
    err = clime_atomic_save(to, b.data ? b.data : "", b.len, e);
done:
    clime_buf_free(&b);
    free(from);
    free(to);
    return err;
}

enum clime_err clime_folder_write(const char *dir, const char *source_dir, const struct clime_config *c,
                                  const struct clime_layout *l, const struct clime_weights_source *from,
                                  struct clime_error *e) {
    char *tmp = xasprintf("%s.tmp", dir);
    enum clime_err err = clime_dir_remove(tmp, e);
    if (!err) err = clime_make_dirs(tmp, e);
    if (!err) err = clime_weights_export(tmp, c, l, from, 0, e);
    for (size_t i = 0; !err && i < CLIME_COUNT(side_files); i++) err = copy_file(source_dir, tmp, side_files[i], e);
    if (!err) err = clime_dir_publish(tmp, dir, e);
    free(tmp);
    return err;
}
