/* Checkpoints that resume exactly. Called by the loop through clime_learner_save and _load; main thread.
 *
 * Layout of a folder: master.f32, moment1.f32, moment2.f32 (little-endian floats, one per trained weight, in the order
 * of the parameter table; for fp32 master weights the whole buffer), reference.bin if the reference model was refreshed
 * (its weights in the model's type), critic_* if there is a critic, and state.json. The model's weights are not stored:
 * they are the master weights rounded to nearest even, as in the optimizer. A resumed run gives the bits of an
 * uninterrupted one; state.json holds the checksums of the other files (manifest.h), and the ledger that of state.json.
 *
 * Each rank writes and reads its own ranges of the same files, so a folder does not depend on the number of ranks.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json/tree.h"
#include "common/json/write.h"
#include "common/os/atomic_file.h"
#include "common/os/dirs.h"
#include "model/weights/convert.h"
#include "trainer/learn/arrays.h"
#include "trainer/learn/learner_int.h"
#include "trainer/learn/manifest.h"
#include "trainer/learn/wire.h"

#define FORMAT 1

static const char *const array_names[3] = {"master.f32", "moment1.f32", "moment2.f32"};

static const char reference_name[] = "reference.bin"; /* only if the reference was refreshed; in the model's type */

/* critic's arrays, and weights and moments of its head (3 * D floats) */
static const char critic_prefix[] = "critic_", critic_head_name[] = "critic_head.f32";

static size_t critic_head_bytes(const struct clime_learner *l) {
    return 3 * (size_t)l->model->cfg.D * sizeof(float);
}

/* Written last: it holds the checksums of the other files. */
static enum clime_err write_state(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct clime_buf b;
    struct clime_jw w;
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->model->layout.hash);
    clime_buf_init(&b, 1 << 16);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    clime_jw_put_int(&w, "format", FORMAT);
    clime_jw_put_int(&w, "step", l->step);
    clime_jw_put_int(&w, "updates", l->optimizer.step);
    if (l->critic) clime_jw_put_int(&w, "critic_updates", l->critic->optimizer.step);
    clime_jw_put_int(&w, "reference_step", l->ref_step);
    clime_jw_put_int(&w, "bytes", l->model->layout.bytes);
    clime_jw_put_strz(&w, "layout", hash);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)l->model->layout.state_hash);
    clime_jw_put_strz(&w, "states", hash);
    clime_jw_put_strz(&w, "device", clime_dev_info(l->model->dev)->name);
    clime_jw_put_strz(&w, "dtype", clime_dev_info(l->model->dev)->dt == CLIME_F32 ? "f32" : "bf16");
    clime_jw_key(&w, "files");
    enum clime_err err = clime_manifest_write(dir, &w, e);
    clime_jw_close(&w);
    clime_buf_addc(&b, '\n');
    char *path = xasprintf("%s/" CLIME_MANIFEST_FILE, dir);
    if (!err) err = clime_atomic_save(path, b.data, b.len, e);
    free(path);
    clime_buf_free(&b);
    return err;
}

typedef enum clime_err array_file(const struct clime_array *a, int rank, const char *path, struct clime_error *e);

static enum clime_err create(const struct clime_array *a, int rank, const char *path, struct clime_error *e) {
    (void)rank;
    return clime_array_create(a, path, e);
}

static enum clime_err read_array(const struct clime_array *a, int rank, const char *path, struct clime_error *e) {
    (void)rank;
    return clime_array_read(a, path, e);
}

/* This rank's part of an optimizer's master, moment1 and moment2. */
static enum clime_err each_array(const struct clime_optimizer *o, const struct clime_model *m, const char *dir,
                                 const char *prefix, array_file *file, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < 3; i++) {
        char *path = xasprintf("%s/%s%s", dir, prefix, array_names[i]);
        const struct clime_array a = clime_optimizer_array(o, m, i);
        err = file(&a, o->parts.who.rank, path, e);
        free(path);
    }
    return err;
}

/* This rank's part of a refreshed reference's weights. */
static enum clime_err reference_array(const struct clime_learner *l, const char *dir, array_file *file,
                                      struct clime_error *e) {
    const struct clime_model *m = l->ref_model;
    char *path = xasprintf("%s/%s", dir, reference_name);
    struct clime_array a = {.ops = m->ops, .dev = m->dev, .at = m->flat, .size = 1, .n_all = m->layout.bytes};
    struct clime_range *held = clime_model_holds(m, &a.n, &a.n_everywhere);
    a.ranges = held;
    enum clime_err err = file(&a, l->optimizer.parts.who.rank, path, e);
    free(held);
    free(path);
    return err;
}

static enum clime_err each_part(const struct clime_learner *l, const char *dir, array_file *file,
                                struct clime_error *e) {
    enum clime_err err = each_array(&l->optimizer, l->model, dir, "", file, e);
    if (!err && l->critic) err = each_array(&l->critic->optimizer, l->critic->model, dir, critic_prefix, file, e);
    return err || l->ref_step == 0 ? err : reference_array(l, dir, file, e);
}

/* Collective: rank 0 creates the files, all ranks write. */
static enum clime_err write_parts(struct clime_learner *l, const char *dir, struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    if (!clime_team_follows(l->team)) err = each_part(l, dir, create, e);
    if (!err && clime_team_leads(l->team)) {
        clime_wire_put_text(clime_team_begin(l->team, CLIME_TEAM_SAVE), dir);
        err = clime_team_say(l->team, e);
    }
    if (!err) err = each_part(l, dir, clime_array_write, e);
    return clime_team_done(l->team, err, e);
}

static enum clime_err write_critic_head(const struct clime_learner *l, const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/%s", dir, critic_head_name);
    enum clime_err err = clime_atomic_save(path, (const char *)l->critic->head, critic_head_bytes(l), e);
    free(path);
    return err;
}

enum clime_err clime_learner_save(struct clime_learner *l, const char *dir, struct clime_error *e) {
    if (clime_team_follows(l->team)) return write_parts(l, dir, e);
    char *tmp = xasprintf("%s.tmp", dir);
    enum clime_err err = clime_dir_remove(tmp, e);
    if (!err) err = clime_make_dirs(tmp, e);
    if (!err) err = write_parts(l, tmp, e);
    if (!err && l->critic) err = write_critic_head(l, tmp, e);
    if (!err) err = write_state(l, tmp, e);
    if (!err) err = clime_dir_publish(tmp, dir, e);
    free(tmp);
    return err;
}

static enum clime_err read_optimizer(struct clime_model *m, struct clime_optimizer *o, const char *dir,
                                     const char *prefix, struct clime_error *e) {
    enum clime_err err = each_array(o, m, dir, prefix, read_array, e);
    return err ? err : clime_optimizer_write_weights(o, m, e);
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
    enum clime_err err = reference_array(l, dir, read_array, e);
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
    uint64_t checksum; /* of state.json, which holds those of all files */
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

/* Checks the size of every array. */
static enum clime_err check_sizes(const struct clime_learner *l, const char *dir, const struct state *s,
                                  struct clime_error *e) {
    enum clime_err err = CLIME_OK;
    for (int i = 0; !err && i < 3; i++) {
        const struct clime_array a = clime_optimizer_array(&l->optimizer, l->model, i);
        size_t bytes = (size_t)a.n_all * a.size;
        err = check_size(dir, "", array_names[i], bytes, e); /* the critic's has the same size */
        if (!err && l->critic) err = check_size(dir, critic_prefix, array_names[i], bytes, e);
    }
    if (!err && l->critic) err = check_size(dir, "", critic_head_name, critic_head_bytes(l), e);
    if (!err && s->ref_step > 0) err = check_size(dir, "", reference_name, (size_t)l->model->layout.bytes, e);
    return err;
}

/* Validates the folder before the learner is changed. */
static enum clime_err read_state(struct clime_learner *l, const char *dir, struct state *s, struct clime_error *e) {
    struct cJSON *root = NULL;
    char *path = xasprintf("%s/state.json", dir);
    enum clime_err err = clime_tree_read_file(path, 1 << 16, &root, e);
    if (!err) err = clime_file_checksum(path, &s->checksum, e);
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
        err = clime_fail(e, CLIME_ERR_INPUT,
                         "%s belongs to a run that froze other tensors: give its --only-train-params-name-list or "
                         "--freeze-params-name-list",
                         path);
    else if (strcmp(device, clime_dev_info(l->model->dev)->name) != 0)
        err =
            clime_fail(e, CLIME_ERR_INPUT,
                       "%s was made on %s and this is %s: the same bits cannot be continued (export it and start a new "
                       "run from the folder)",
                       path, device, clime_dev_info(l->model->dev)->name);
    if (!err) err = check_sizes(l, dir, s, e);
    if (!err && !clime_team_follows(l->team)) err = clime_manifest_check(dir, clime_tree_get(root, "files"), e);
    clime_tree_free(root);
done:
    free(path);
    return err;
}

/* Each rank opens the path on its own host: checks that they are the same checkpoint. */
static enum clime_err same_checkpoint(const struct clime_learner *l, const struct state *s, struct clime_error *e) {
    struct clime_facts mine = {0};
    clime_facts_put_checksum(&mine, "checkpoint", s->checksum);
    enum clime_err err = clime_group_compare(l->team->group, &mine, e);
    clime_facts_free(&mine);
    return err;
}

enum clime_err clime_learner_load(struct clime_learner *l, const char *dir, struct clime_error *e) {
    struct state state = {0};
    enum clime_err err = read_state(l, dir, &state, e);
    if (err && !clime_team_follows(l->team)) return err; /* nothing was changed */
    if (!err && clime_team_leads(l->team)) {
        clime_wire_put_text(clime_team_begin(l->team, CLIME_TEAM_LOAD), dir);
        err = clime_team_say(l->team, e);
    }
    if (!err && l->team) err = same_checkpoint(l, &state, e);
    if (!err) err = read_optimizer(l->model, &l->optimizer, dir, "", e);
    if (!err && state.ref_step > 0) err = read_reference(l, dir, e);
    if (!err && l->critic) err = read_critic(l, dir, e);
    if ((err = clime_team_done(l->team, err, e))) return err;
    l->step = state.step;
    l->optimizer.step = state.updates;
    l->ref_step = state.ref_step;
    if (l->critic) l->critic->optimizer.step = state.critic_updates;
    clime_model_repack(l->model);
    return l->model->ops->sync(l->model->dev, e);
}
