/* Checkpoints that resume exactly. Called by the loop through clime_learner_save and _load; main thread.
 *
 * Layout of a folder: master.f32, moment1.f32, moment2.f32 (layout.n little-endian floats each) and state.json. The
 * model's own weights are not stored: they are the master weights rounded once, to nearest even, as the optimizer
 * rounds them. Exactness: a run that stops and resumes gives the bits of one that did not. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/atomic_file.h"
#include "common/json/tree.h"
#include "common/json/write.h"
#include "model/convert.h"
#include "trainer/folder.h"
#include "trainer/learner_int.h"

#define FORMAT 1
#define PIECE ((int64_t)4 << 20) /* elements moved at a time */

static const char *const array_names[3] = {"master.f32", "moment1.f32", "moment2.f32"};

static float *array_of(struct clime_learner *l, int i) {
    return i == 0 ? l->optimizer.master : i == 1 ? l->optimizer.m : l->optimizer.v;
}

static enum clime_err write_array(struct clime_learner *l, const char *path, const float *x, struct clime_error *e) {
    const struct clime_optimizer *o = &l->optimizer;
    int64_t len = l->model->layout.n;
    struct clime_atomic_file f;
    enum clime_err err = clime_atomic_open(&f, path, e);
    if (err) return err;
    float *piece = xmalloc((size_t)PIECE * sizeof *piece);
    for (int64_t at = 0; !err && at < len; at += PIECE) {
        size_t n = (size_t)(len - at < PIECE ? len - at : PIECE);
        o->ops->copy_out(o->dev, piece, x + at, n * sizeof *piece);
        err = clime_atomic_write(&f, piece, n * sizeof *piece, e);
    }
    free(piece);
    return clime_atomic_close(&f, err, e);
}

static enum clime_err write_state(struct clime_learner *l, const char *path, struct clime_error *e) {
    struct clime_buf b;
    struct clime_jw w;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->model->layout.hash);
    clime_buf_init(&b, 1 << 16);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_key(&w, "format");
    clime_jw_int(&w, FORMAT);
    clime_jw_key(&w, "step");
    clime_jw_int(&w, l->optimizer.step);
    clime_jw_key(&w, "elements");
    clime_jw_int(&w, l->model->layout.n);
    clime_jw_key(&w, "layout");
    clime_jw_strz(&w, hash);
    clime_jw_key(&w, "device");
    clime_jw_strz(&w, clime_dev_info(l->model->dev)->name);
    clime_jw_key(&w, "dtype");
    clime_jw_strz(&w, clime_dev_info(l->model->dev)->dt == CLIME_F32 ? "f32" : "bf16");
    clime_jw_close(&w);
    clime_buf_addc(&b, '\n');
    enum clime_err err = clime_atomic_save(path, b.data, b.len, e);
    clime_buf_free(&b);
    return err;
}

enum clime_err clime_learner_save(struct clime_learner *l, const char *dir, struct clime_error *e) {
    char *tmp = xasprintf("%s.tmp", dir);
    enum clime_err err = clime_folder_remove(tmp, e);
    if (!err) err = clime_make_dirs(tmp, e);
    for (int i = 0; !err && i < 3; i++) {
        char *path = xasprintf("%s/%s", tmp, array_names[i]);
        err = write_array(l, path, array_of(l, i), e);
        free(path);
    }
    if (!err) {
        char *path = xasprintf("%s/state.json", tmp);
        err = write_state(l, path, e);
        free(path);
    }
    if (!err) err = clime_folder_publish(tmp, dir, e);
    free(tmp);
    return err;
}

/* Reads one array; the master weights also become the model's weights. */
static enum clime_err read_array(struct clime_learner *l, const char *path, int which, struct clime_error *e) {
    struct clime_model *m = l->model;
    const struct clime_optimizer *o = &l->optimizer;
    bool to_bf16 = which == 0 && clime_dev_info(m->dev)->dt == CLIME_BF16;
    float *piece = xmalloc((size_t)PIECE * sizeof *piece), *x = array_of(l, which);
    uint16_t *half = xmalloc((size_t)PIECE * sizeof *half);
    enum clime_err err = CLIME_OK;
    FILE *f = fopen(path, "rb");
    if (!f) err = clime_fail(e, CLIME_ERR_INTERNAL, "cannot read %s: %s", path, strerror(errno));
    for (int64_t at = 0; !err && at < m->layout.n; at += PIECE) {
        size_t n = (size_t)(m->layout.n - at < PIECE ? m->layout.n - at : PIECE);
        if (fread(piece, sizeof *piece, n, f) != n) {
            err = clime_fail(e, CLIME_ERR_INTERNAL, "reading %s breaks off after %lld elements", path, (long long)at);
            break;
        }
        o->ops->copy_in(o->dev, x + at, piece, n * sizeof *piece);
        for (size_t i = 0; to_bf16 && i < n; i++) half[i] = clime_bf16_of(piece[i]);
        if (to_bf16) m->ops->copy_in(m->dev, clime_model_at(m, at), half, n * sizeof *half);
    }
    if (f) fclose(f);
    free(piece);
    free(half);
    return err;
}

static enum clime_err read_state(struct clime_learner *l, const char *path, int64_t *step, struct clime_error *e) {
    struct cJSON *root = NULL;
    enum clime_err err = clime_tree_read_file(path, 1 << 16, &root, e);
    if (err) return err;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->model->layout.hash);
    const char *device = clime_tree_str(clime_tree_get(root, "device"), "");
    *step = (int64_t)clime_tree_num(clime_tree_get(root, "step"), -1);
    if (clime_tree_num(clime_tree_get(root, "format"), 0) != FORMAT || *step < 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "%s is no checkpoint of format %d", path, FORMAT);
    else if (strcmp(clime_tree_str(clime_tree_get(root, "layout"), ""), hash) != 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "%s belongs to a model of another shape", path);
    else if (strcmp(device, clime_dev_info(l->model->dev)->name) != 0)
        err =
            clime_fail(e, CLIME_ERR_INPUT,
                       "%s was made on %s and this is %s: the same bits cannot be continued (export it and start a new "
                       "run from the folder)",
                       path, device, clime_dev_info(l->model->dev)->name);
    clime_tree_free(root);
    return err;
}

/* Every array is there in full: what can be wrong with a folder is found before the learner is touched. */
static enum clime_err check_sizes(const struct clime_learner *l, const char *dir, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < 3; i++) {
        struct stat st;
        char *path = xasprintf("%s/%s", dir, array_names[i]);
        if (stat(path, &st))
            err = clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot read %s: %s", path, strerror(errno));
        else if (st.st_size != (off_t)(l->model->layout.n * (int64_t)sizeof(float)))
            err = clime_fail(e, CLIME_ERR_INPUT, "%s has %lld bytes instead of %lld", path, (long long)st.st_size,
                             (long long)l->model->layout.n * (long long)sizeof(float));
        free(path);
    }
    return err;
}

enum clime_err clime_learner_load(struct clime_learner *l, const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/state.json", dir);
    int64_t step = 0;
    enum clime_err err = read_state(l, path, &step, e);
    free(path);
    if (!err) err = check_sizes(l, dir, e);
    for (int i = 0; !err && i < 3; i++) {
        path = xasprintf("%s/%s", dir, array_names[i]);
        err = read_array(l, path, i, e);
        free(path);
    }
    if (err) return err;
    l->optimizer.step = step;
    l->h_weights_valid = false;
    clime_model_repack(l->model);
    return l->model->ops->sync(l->model->dev, e);
}
