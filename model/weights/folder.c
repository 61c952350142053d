/* Hugging Face folders: checked by server and trainer at start, written atomically by checkpoint, export and init. Main
 * thread; no state. */
#include "model/weights/folder.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/json/tree.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"

#define MAX_SIDE_FILE ((size_t)256 << 20)

/* Files copied with a model besides weights and config.json (which is written anew). */
static const char *const side_files[] = {
    "tokenizer.json",         "tokenizer_config.json",   "vocab.json",        "merges.txt",
    "tokenizer.model",        "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "generation_config.json", "chat_template.json",      "tiktoken.model",    "tokenization_moonshot.py",
    "tokenization_kimi.py", /* the last two load the first in Python */
};

static const char template_dir[] = "additional_chat_templates"; /* of files NAME.jinja */

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

static bool is_template(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && !strcmp(dot, ".jinja");
}

static enum clime_err copy_templates(const char *from_dir, const char *to_dir, struct clime_error *e) {
    char *from = xasprintf("%s/%s", from_dir, template_dir), *to = xasprintf("%s/%s", to_dir, template_dir);
    DIR *d = opendir(from);
    enum clime_err err = d ? clime_make_dirs(to, e) : CLIME_OK;
    for (struct dirent *f; d && !err && (f = readdir(d));)
        if (is_template(f->d_name)) err = copy_file(from, to, f->d_name, e);
    if (d) closedir(d);
    free(from);
    free(to);
    return err;
}

/* ---- where one goes ---- */

static bool is_weights(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && !strcmp(dot, ".safetensors");
}

static bool is_part(const char *name) {
    if (!strcmp(name, "config.json") || !strcmp(name, "model.safetensors.index.json")) return true;
    if (!strcmp(name, template_dir)) return true;
    for (size_t i = 0; i < CLIME_COUNT(side_files); i++)
        if (!strcmp(name, side_files[i])) return true;
    return is_weights(name);
}

/* Whether a folder contains only a model's files; a missing folder is empty. */
static enum clime_err check_names(const char *dir, bool (*is_ours)(const char *name), struct clime_error *e) {
    DIR *d = opendir(dir);
    enum clime_err err = CLIME_OK;
    if (!d && errno == ENOENT) return CLIME_OK;
    if (!d) return clime_fail(e, CLIME_ERR_IO, "%s: %s", dir, strerror(errno));
    for (struct dirent *f; !err && (f = readdir(d));)
        if (strcmp(f->d_name, ".") && strcmp(f->d_name, "..") && !is_ours(f->d_name))
            err = clime_fail(e, CLIME_ERR_INPUT,
                             "%s holds %.100s, which is no part of a model: what is there would be removed, so name a "
                             "new folder, an empty or a model's own",
                             dir, f->d_name);
    closedir(d);
    return err;
}

/* Replacing the folder removes its contents, so nothing else may be in it. */
static enum clime_err check_contents(const char *dir, struct clime_error *e) {
    char *templates = xasprintf("%s/%s", dir, template_dir);
    enum clime_err err = check_names(dir, is_part, e);
    if (!err) err = check_names(templates, is_template, e);
    free(templates);
    return err;
}

char *clime_folder_place(const char *dir) {
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    char *place = xstrndup(dir, n);
    struct stat st;
    char *behind = !lstat(place, &st) && S_ISLNK(st.st_mode) ? realpath(place, NULL) : NULL;
    if (!behind) return place;
    free(place);
    return behind;
}

/* Also detects a bind mount, whose folder is on its parent's file system. */
static bool is_mount_point(const char *path) {
    struct statx s;
    return !statx(AT_FDCWD, path, AT_SYMLINK_NOFOLLOW, 0, &s) && (s.stx_attributes & STATX_ATTR_MOUNT_ROOT);
}

enum clime_err clime_folder_check_place(const char *dir, struct clime_error *e) {
    char *place = clime_folder_place(dir), *tmp = xasprintf("%s.tmp", place), *slash = strrchr(place, '/');
    const char *name = slash ? slash + 1 : place;
    struct stat st;
    enum clime_err err = CLIME_OK;
    if (!*name || !strcmp(name, ".") || !strcmp(name, ".."))
        err = clime_fail(e, CLIME_ERR_INPUT, "%s: the folder is made anew, so give it by its name", dir);
    else if (!lstat(place, &st) && S_ISLNK(st.st_mode))
        err = clime_fail(e, CLIME_ERR_INPUT, "%s is a link to nothing: make the folder that it names", dir);
    else if (is_mount_point(place))
        err = clime_fail(e, CLIME_ERR_INPUT,
                         "%s is a mount point: the folder is made anew, which a mount point cannot be, so name a "
                         "folder in it",
                         dir);
    if (!err) err = check_contents(place, e);
    if (!err) err = clime_make_dirs(tmp, e); /* tries it: checking permissions is not enough */
    if (!err) rmdir(tmp);                    /* leftovers of a crash are removed by the write */
    free(tmp);
    free(place);
    return err;
}

enum clime_err clime_folder_write(const char *dir, const char *source_dir, const struct clime_config *c,
                                  const struct clime_layout *l, const struct clime_weights_source *from,
                                  struct clime_error *e) {
    char *place = clime_folder_place(dir), *tmp = xasprintf("%s.tmp", place);
    struct clime_carried carried = {0};
    enum clime_err err = clime_folder_check_place(place, e);
    if (!err) err = clime_dir_remove(tmp, e);
    if (!err) err = clime_make_dirs(tmp, e);
    if (!err) err = clime_carried_open(source_dir, c, &carried, e);
    if (!err) err = clime_weights_export(tmp, c, l, from, &carried, 0, e);
    for (size_t i = 0; !err && i < CLIME_COUNT(side_files); i++) err = copy_file(source_dir, tmp, side_files[i], e);
    if (!err) err = copy_templates(source_dir, tmp, e);
    clime_carried_close(&carried);
    if (!err) err = clime_dir_publish(tmp, place, e);
    free(tmp);
    free(place);
    return err;
}

/* ---- user paths ---- */

static bool has(const char *dir, const char *name) {
    char *path = xasprintf("%s/%s", dir, name);
    bool there = access(path, R_OK) == 0;
    free(path);
    return there;
}

bool clime_folder_has_weights(const char *dir) {
    return has(dir, "model.safetensors") || has(dir, "model.safetensors.index.json");
}

/* "org/name", a model's name on a hub, if it is no path. */
static const char *name_on_hub(const char *dir) {
    const char *slash = strchr(dir, '/');
    if (!slash || !isalnum((unsigned char)dir[0]) || !slash[1] || strchr(slash + 1, '/')) return NULL;
    return slash + 1;
}

static enum clime_err missing(const char *option, const char *dir, const char *what, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_NOT_FOUND, "--%s %s: %s", option, dir, what);
}

/* Whether a large file is the pointer left by a clone without git-lfs. */
static bool is_pointer(const char *dir, const char *name) {
    static const char begins[] = "version https://git-lfs";
    char *path = xasprintf("%s/%s", dir, name), text[sizeof begins] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO would block until it has a writer */
    bool is = fd >= 0 && read(fd, text, sizeof begins - 1) > 0 && !strcmp(text, begins);
    if (fd >= 0) close(fd);
    free(path);
    return is;
}

static enum clime_err check_fetched(const char *option, const char *dir, int parts, struct clime_error *e) {
    DIR *d = opendir(dir);
    enum clime_err err = CLIME_OK;
    for (struct dirent *f; d && !err && (f = readdir(d));) {
        int part = is_weights(f->d_name) ? CLIME_FOLDER_WEIGHTS : CLIME_FOLDER_TOKENIZER;
        if ((parts & part) && is_part(f->d_name) && is_pointer(dir, f->d_name))
            err = clime_fail(e, CLIME_ERR_INPUT,
                             "--%s %s: %.100s is a pointer of Git LFS, not the file itself, which git lfs pull fetches",
                             option, dir, f->d_name);
    }
    if (d) closedir(d);
    return err;
}

/* A PEFT folder has changes to another model, not a model. */
static enum clime_err adapter(const char *option, const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/adapter_config.json", dir);
    struct cJSON *root = NULL;
    struct clime_error unread;
    if (clime_tree_read_file(path, MAX_SIDE_FILE, &root, &unread)) root = NULL;
    const char *base = clime_tree_str(clime_tree_get(root, "base_model_name_or_path"), "");
    clime_fail(e, CLIME_ERR_INPUT,
               "--%s %s: it is an adapter of PEFT (adapter_config.json)%s%.200s, no whole model, and adapters are not "
               "read: merge it into its base (merge_and_unload, then save_pretrained) and give that folder",
               option, dir, *base ? " for " : "", base);
    clime_tree_free(root);
    free(path);
    return CLIME_ERR_INPUT;
}

enum clime_err clime_folder_check(const char *option, const char *dir, int parts, struct clime_error *e) {
    struct stat st;
    if (stat(dir, &st)) {
        const char *name = name_on_hub(dir);
        if (!name) return missing(option, dir, "no such folder", e);
        return clime_fail(e, CLIME_ERR_NOT_FOUND,
                          "--%s %s: no such folder; a model of that name on huggingface.co is fetched by: "
                          "hf download %s --local-dir %s",
                          option, dir, dir, name);
    }
    if (!S_ISDIR(st.st_mode)) return missing(option, dir, "is no folder; a Hugging Face folder is needed", e);
    bool whole = has(dir, "config.json") && clime_folder_has_weights(dir);
    if (!whole && has(dir, "adapter_config.json")) return adapter(option, dir, e);
    if (!has(dir, "config.json")) return missing(option, dir, "no config.json there: it is no Hugging Face folder", e);
    if ((parts & CLIME_FOLDER_TOKENIZER) && !has(dir, "tokenizer.json") && !has(dir, "tiktoken.model") &&
        !(has(dir, "vocab.json") && has(dir, "merges.txt")))
        return missing(option, dir, "no tokenizer.json there, no tiktoken.model, and no vocab.json with merges.txt", e);
    if ((parts & CLIME_FOLDER_WEIGHTS) && !clime_folder_has_weights(dir))
        return missing(option, dir,
                       has(dir, "pytorch_model.bin") || has(dir, "pytorch_model.bin.index.json")
                           ? "no model.safetensors there; weights in pytorch_model.bin are not read"
                           : "no model.safetensors there, and no model.safetensors.index.json",
                       e);
    return check_fetched(option, dir, parts, e);
}
