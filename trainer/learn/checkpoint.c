/* Checkpoints that resume exactly. Called by the loop through clime_learner_save and _load; main thread.
 *
 * Layout of a folder: master.f32, moment1.f32, moment2.f32 (little-endian floats, one for each trained weight, in
 * the order of the parameter table; fp32 master weights: of the whole buffer), reference.bin where the reference model
 * was refreshed (its weights in the model's type), critic_* where there is a critic, and
 * state.json. The model's own weights are not stored: they are the master weights rounded once, to nearest even, as the
 * optimizer rounds them. Exactness: a run that stops and resumes gives the bits of one that did not; state.json holds
 * the checksums of the other files (manifest.h), and the ledger that of state.json. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json/tree.h"
#include "common/json/write.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"
#include "model/convert.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/manifest.h"

#define FORMAT 1
#define PIECE ((int64_t)4 << 20) /* elements moved at a time */

static const char *const array_names[3] = {"master.f32", "moment1.f32", "moment2.f32"};

static const char reference_name[] = "reference.bin"; /* only where the reference was refreshed; the model's type */

/* of the critic, where there is one: its arrays, and weights and moments of its head (3 * D floats) */
static const char critic_prefix[] = "critic_", critic_head_name[] = "critic_head.f32";

static size_t critic_head_bytes(const struct clime_learner *l) {
    return 3 * (size_t)l->model->cfg.D * sizeof(float);
}

static size_t reference_size(const struct clime_learner *l) {
    return clime_dtype_bytes(clime_dev_info(l->model->dev)->dt);
}

/* n_all elements of `size` bytes at x, on the device dev. */
static enum clime_err write_array(const struct clime_ops *ops, struct clime_dev *dev, const char *path, const void *x,
                                  int64_t n_all, size_t size, struct clime_error *e) {
    struct clime_atomic_file f;
    enum clime_err err = clime_atomic_open(&f, path, e);
    if (err) return err;
    void *piece = xmalloc((size_t)PIECE * size);
    for (int64_t at = 0; !err && at < n_all; at += PIECE) {
        size_t n = (size_t)(n_all - at < PIECE ? n_all - at : PIECE);
        ops->copy_out(dev, piece, (const char *)x + (size_t)at * size, n * size);
        err = clime_atomic_write(&f, piece, n * size, e);
    }
    free(piece);
    return clime_atomic_close(&f, err, e);
}

/* The last file of the folder: it holds the checksums of the others. */
static enum clime_err write_state(struct clime_learner *l, const char *dir, struct clime_error *e) {
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
    clime_jw_int(&w, l->step);
    clime_jw_key(&w, "updates");
    clime_jw_int(&w, l->optimizer.step);
    if (l->critic) {
        clime_jw_key(&w, "critic_updates");
        clime_jw_int(&w, l->critic->optimizer.step);
    }
    clime_jw_key(&w, "reference_step");
    clime_jw_int(&w, l->ref_step);
    clime_jw_key(&w, "elements");
    clime_jw_int(&w, l->model->layout.n);
    clime_jw_key(&w, "layout");
    clime_jw_strz(&w, hash);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->model->layout.state_hash);
    clime_jw_key(&w, "states");
    clime_jw_strz(&w, hash);
    clime_jw_key(&w, "device");
    clime_jw_strz(&w, clime_dev_info(l->model->dev)->name);
    clime_jw_key(&w, "dtype");
    clime_jw_strz(&w, clime_dev_info(l->model->dev)->dt == CLIME_F32 ? "f32" : "bf16");
    clime_jw_key(&w, "files");
    enum clime_err err = clime_manifest_write(dir, &w, e);
    clime_jw_close(&w);
    clime_buf_addc(&b, '\n');
    char *path = xasprintf("%s/state.json", dir);
    if (!err) err = clime_atomic_save(path, b.data, b.len, e);
    free(path);
    clime_buf_free(&b);
    return err;
}

/* master, moment1, moment2 of an optimizer. */
static enum clime_err write_optimizer(const struct clime_optimizer *o, const struct clime_model *m, const char *dir,
                                      const char *prefix, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < 3; i++) {
        char *path = xasprintf("%s/%s%s", dir, prefix, array_names[i]);
        int64_t n;
        const float *x = clime_optimizer_array(o, m, i, &n);
        err = write_array(o->ops, o->dev, path, x, n, sizeof(float), e);
        free(path);
    }
    return err;
}

static enum clime_err write_reference(struct clime_learner *l, const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, reference_name);
    enum clime_err err = write_array(l->ref_model->ops, l->ref_model->dev, path, l->ref_model->flat, l->model->layout.n,
                                     reference_size(l), e);
    free(path);
    return err;
}

static enum clime_err write_critic(struct clime_learner *l, const char *dir, struct clime_error *e) {
    enum clime_err err = write_optimizer(&l->critic->optimizer, l->critic->model, dir, critic_prefix, e);
    char *path = xasprintf("%s/%s", dir, critic_head_name);
    if (!err) err = clime_atomic_save(path, (const char *)l->critic->head, critic_head_bytes(l), e);
    free(path);
    return err;
}

enum clime_err clime_learner_save(struct clime_learner *l, const char *dir, struct clime_error *e) {
    char *tmp = xasprintf("%s.tmp", dir);
    enum clime_err err = clime_dir_remove(tmp, e);
    if (!err) err = clime_make_dirs(tmp, e);
    if (!err) err = write_optimizer(&l->optimizer, l->model, tmp, "", e);
    if (!err && l->ref_step > 0) err = write_reference(l, tmp, e);
    if (!err && l->critic) err = write_critic(l, tmp, e);
    if (!err) err = write_state(l, tmp, e);
    if (!err) err = clime_dir_publish(tmp, dir, e);
    free(tmp);
    return err;
}

static enum clime_err read_array(const struct clime_optimizer *o, const char *path, float *x, int64_t n_all,
                                 struct clime_error *e) {
    float *piece = xmalloc((size_t)PIECE * sizeof *piece);
    enum clime_err err = CLIME_OK;
    FILE *f = fopen(path, "rb");
    if (!f) err = clime_fail(e, CLIME_ERR_INTERNAL, "cannot read %s: %s", path, strerror(errno));
    for (int64_t at = 0; !err && at < n_all; at += PIECE) {
        size_t n = (size_t)(n_all - at < PIECE ? n_all - at : PIECE);
        if (fread(piece, sizeof *piece, n, f) != n) {
            err = clime_fail(e, CLIME_ERR_INTERNAL, "reading %s breaks off after %lld elements", path, (long long)at);
            break;
        }
        o->ops->copy_in(o->dev, x + at, piece, n * sizeof *piece);
    }
    if (f) fclose(f);
    free(piece);
    return err;
}

static enum clime_err read_optimizer(struct clime_model *m, struct clime_optimizer *o, const char *dir,
                                     const char *prefix, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < 3; i++) {
        char *path = xasprintf("%s/%s%s", dir, prefix, array_names[i]);
        int64_t n;
        float *x = clime_optimizer_array(o, m, i, &n);
        err = read_array(o, path, x, n, e);
        free(path);
    }
    if (!err) clime_optimizer_write_weights(o, m);
    return err;
}

static enum clime_err read_whole(const char *dir, const char *name, void *out, size_t bytes, struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, name);
    enum clime_err err = CLIME_OK;
    FILE *f = fopen(path, "rb");
    if (!f || fread(out, 1, bytes, f) != bytes)
        err = clime_fail(e, CLIME_ERR_INTERNAL, "cannot read %s: %s", path, strerror(errno));
    if (f) fclose(f);
    free(path);
    return err;
}

static enum clime_err read_reference(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct clime_model *m = l->ref_model;
    char *path = xasprintf("%s/%s", dir, reference_name);
    size_t bytes = (size_t)PIECE * reference_size(l), left = clime_model_bytes(m), n;
    char *piece = xmalloc(bytes), *to = m->flat;
    enum clime_err err = CLIME_OK;
    FILE *f = fopen(path, "rb");
    for (; !err && left > 0; left -= n, to += n) {
        n = left < bytes ? left : bytes;
        if (!f || fread(piece, 1, n, f) != n)
            err = clime_fail(e, CLIME_ERR_INTERNAL, "cannot read %s: %s", path, strerror(errno));
        else
            m->ops->copy_in(m->dev, to, piece, n);
    }
    if (f) fclose(f);
    free(piece);
    free(path);
    if (err) return err;
    clime_model_repack(m);
    return m->ops->sync(m->dev, e);
}

static enum clime_err read_critic(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct clime_critic *c = l->critic;
    enum clime_err err = read_optimizer(c->model, &c->optimizer, dir, critic_prefix, e);
    if (!err) err = read_whole(dir, critic_head_name, c->head, critic_head_bytes(l), e);
    if (err) return err;
    clime_model_repack(c->model);
    return c->model->ops->sync(c->model->dev, e);
}

struct state {
    int64_t step, updates, critic_updates, ref_step;
};

static enum clime_err check_size(const char *dir, const char *prefix, const char *name, size_t want,
                                 struct clime_error *e) {
    struct stat st;
    char *path = xasprintf("%s/%s%s", dir, prefix, name);
    enum clime_err err = CLIME_OK;
    if (stat(path, &st))
        err = clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot read %s: %s", path, strerror(errno));
    else if (st.st_size != (off_t)want)
        err = clime_fail(e, CLIME_ERR_INPUT, "%s has %lld bytes instead of %zu", path, (long long)st.st_size, want);
    free(path);
    return err;
}

/* Every array is there in full. */
static enum clime_err check_sizes(const struct clime_learner *l, const char *dir, const struct state *s,
                                  struct clime_error *e) {
    size_t n = (size_t)l->model->layout.n;
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < 3; i++) {
        int64_t array; /* the critic's has as many */
        clime_optimizer_array(&l->optimizer, l->model, i, &array);
        err = check_size(dir, "", array_names[i], (size_t)array * sizeof(float), e);
        if (!err && l->critic) err = check_size(dir, critic_prefix, array_names[i], (size_t)array * sizeof(float), e);
    }
    if (!err && l->critic) err = check_size(dir, "", critic_head_name, critic_head_bytes(l), e);
    if (!err && s->ref_step > 0) err = check_size(dir, "", reference_name, n * reference_size(l), e);
    return err;
}

/* What can be wrong with a folder is found here, before the learner is touched. */
static enum clime_err read_state(struct clime_learner *l, const char *dir, struct state *s, struct clime_error *e) {
    struct cJSON *root = NULL;
    char *path = xasprintf("%s/state.json", dir);
    enum clime_err err = clime_tree_read_file(path, 1 << 16, &root, e);
    if (err) goto done;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->model->layout.hash);
    const char *device = clime_tree_str(clime_tree_get(root, "device"), "");
    char states[24];
    snprintf(states, sizeof states, "%016llx", (unsigned long long)l->model->layout.state_hash);
    s->step = (int64_t)clime_tree_num(clime_tree_get(root, "step"), -1);
    s->updates = (int64_t)clime_tree_num(clime_tree_get(root, "updates"), (double)s->step);
    s->critic_updates = (int64_t)clime_tree_num(clime_tree_get(root, "critic_updates"), 0);
    s->ref_step = l->ref_model ? (int64_t)clime_tree_num(clime_tree_get(root, "reference_step"), 0) : 0;
    if (clime_tree_num(clime_tree_get(root, "format"), 0) != FORMAT || s->step < 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "%s is no checkpoint of format %d", path, FORMAT);
    else if (strcmp(clime_tree_str(clime_tree_get(root, "layout"), ""), hash) != 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "%s belongs to a model of another shape", path);
    else if (strcmp(clime_tree_str(clime_tree_get(root, "states"), hash), states) != 0)
        err = clime_fail(e, CLIME_ERR_INPUT, "%s belongs to a run that froze other tensors", path);
    else if (strcmp(device, clime_dev_info(l->model->dev)->name) != 0)
        err =
            clime_fail(e, CLIME_ERR_INPUT,
                       "%s was made on %s and this is %s: the same bits cannot be continued (export it and start a new "
                       "run from the folder)",
                       path, device, clime_dev_info(l->model->dev)->name);
    if (!err) err = check_sizes(l, dir, s, e);
    if (!err) err = clime_manifest_check(dir, clime_tree_get(root, "files"), e);
    clime_tree_free(root);
done:
    free(path);
    return err;
}

enum clime_err clime_learner_load(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct state state = {0};
    enum clime_err err = read_state(l, dir, &state, e);
    if (!err) err = read_optimizer(l->model, &l->optimizer, dir, "", e);
    if (!err && state.ref_step > 0) err = read_reference(l, dir, e);
    if (!err && l->critic) err = read_critic(l, dir, e);
    if (err) return err;
    l->step = state.step;
    l->optimizer.step = state.updates;
    l->ref_step = state.ref_step;
    if (l->critic) l->critic->optimizer.step = state.critic_updates;
    clime_model_repack(l->model);
    return l->model->ops->sync(l->model->dev, e);
}
