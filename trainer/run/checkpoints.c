/* Checkpoints of a run: write, find at a start, delete old ones. Called by the loop and by recovery, main thread.
 *
 * Invariant: a ledger row means the folder is complete, so it is written after the folder and removed after it. At any
 * moment --keep-checkpoints sound checkpoints exist (or all made so far), because an old one is deleted only once the
 * newer row is on disk. Checksum chain: ledger, state.json, files.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "model/weights/folder.h"
#include "trainer/learn/manifest.h"
#include "trainer/ledger/evals.h"
#include "trainer/ledger/events.h"
#include "trainer/ledger/streams.h"
#include "trainer/ledger/versions.h"
#include "trainer/run/run.h"

/* ---- paths ---- */

static const char mark[] = "{rollout_id}";

/* Returns path with every rollout mark replaced. */
static char *with_rollout(const char *path, int64_t rollout) {
    struct clime_buf b;
    clime_buf_init(&b, 8192);
    for (const char *at = path, *hit; at; at = hit ? hit + sizeof mark - 1 : NULL) {
        hit = strstr(at, mark);
        clime_buf_add(&b, at, hit ? (size_t)(hit - at) : strlen(at));
        if (hit) clime_buf_printf(&b, "%" PRId64, rollout);
    }
    return clime_buf_take(&b);
}

static enum clime_err check_place(const char *hf, bool asked, struct clime_error *e) {
    enum clime_err rc = clime_manifest_check_outside(hf, e);
    if (!rc) rc = clime_folder_check_place(hf, e);
    return rc && asked ? clime_error_prefix(e, "--save-hf") : rc;
}

enum clime_err clime_rl_check_save_hf(const struct clime_rl *rl, struct clime_error *e) {
    const char *asked = rl->o.save_hf;
    return asked && strstr(asked, mark) ? CLIME_OK : check_place(asked ? asked : rl->hf_dir, asked != NULL, e);
}

enum clime_err clime_rl_check_next_hf(const struct clime_rl *rl, struct clime_error *e) {
    if (!rl->o.save_hf || !strstr(rl->o.save_hf, mark)) return CLIME_OK;
    int64_t last, every = rl->o.save_interval;
    enum clime_err rc = clime_steps_last(clime_ledger_reader(rl->ledger), &last, e);
    if (rc) return rc;
    /* recovery repeats the recorded steps without exporting; the next export is that of the next saved rollout */
    int64_t done = last / rl->o.num_steps_per_rollout, due = (done / every + 1) * every;
    if (due > rl->num_rollout) due = done > rl->num_rollout ? done : rl->num_rollout;
    char *hf = with_rollout(rl->o.save_hf, due > 0 ? due - 1 : 0);
    rc = check_place(hf, true, e);
    free(hf);
    return rc;
}

/* The path to store: relative if inside the run folder, so that the run may be moved. */
static char *stored_path(const struct clime_rl *rl, const char *dir) {
    char *run = realpath(rl->o.run, NULL), *whole = realpath(dir, NULL);
    size_t n = run ? strlen(run) : 0;
    bool inside = run && whole && !strncmp(run, whole, n) && whole[n] == '/';
    char *path = xstrdup(inside ? whole + n + 1 : whole ? whole : dir);
    free(run);
    free(whole);
    return path;
}

/* Current path of a checkpoint. Schema 8 and before stored it as typed: try that, then this run's checkpoint folder. */
static char *found_path(const char *run, const char *checkpoint_dir, const char *stored) {
    const char *name = strrchr(stored, '/');
    char *const tries[] = {stored[0] == '/' ? xstrdup(stored) : xasprintf("%s/%s", run, stored), xstrdup(stored),
                           xasprintf("%s/%s", checkpoint_dir, name ? name + 1 : stored)};
    size_t at = 0;
    while (at + 1 < CLIME_COUNT(tries) && access(tries[at], F_OK)) at++;
    if (access(tries[at], F_OK)) at = 0; /* not found: report the first */
    for (size_t i = 0; i < CLIME_COUNT(tries); i++)
        if (i != at) free(tries[i]);
    return tries[at];
}

/* ---- deleting ---- */

static enum clime_err give_up_streams(struct clime_db *db, void *arg, struct clime_error *e) {
    int64_t n;
    return clime_streams_drop_before(db, *(int64_t *)arg, &n, e);
}

/* Deletes the tokens of rollouts that neither --keep-rollouts nor a resume from `oldest` needs. */
static enum clime_err give_up_tokens(struct clime_rl *rl, int64_t oldest, struct clime_error *e) {
    int64_t before = rl->rollouts_done - rl->o.keep_rollouts, needed = oldest / rl->o.num_steps_per_rollout;
    if (!rl->o.keep_rollouts) return CLIME_OK;
    if (before > needed) before = needed;
    return clime_ledger_write(rl->ledger, give_up_streams, &before, false, e);
}

static bool is_retained(const struct clime_rl *rl, int64_t step) {
    int64_t every = rl->o.save_retain_interval * rl->o.num_steps_per_rollout;
    return every > 0 && step % every == 0;
}

/* Keeps the newest --keep-checkpoints checkpoints that a restart could begin with. With --async the servers must get
 * the weights that sampled the rollout in flight, so later steps do not count. */
static enum clime_err give_up_checkpoints(struct clime_rl *rl, struct clime_error *e) {
    int64_t serve = clime_rl_version_of(rl, rl->rollouts_done), kept = 0, oldest = 0, keep = rl->o.keep_checkpoints;
    struct clime_checkpoint c = {.step = INT64_MAX};
    enum clime_err rc = CLIME_OK;
    while (!rc && keep && !(rc = clime_checkpoint_newest(clime_ledger_reader(rl->ledger), c.step, &c, e)) &&
           c.step >= 0) {
        char *dir = found_path(rl->o.run, rl->checkpoint_dir, c.path);
        bool surplus = kept == keep && !is_retained(rl, c.step);
        struct clime_error why;
        if (surplus && clime_manifest_remove(dir, &why)) { /* the run continues; the folder is no longer a checkpoint */
            LOG_WARN("%s stays: %s", dir, why.msg);
            clime_event(rl->ledger, rl->run.incarnation, "checkpoint", "%s stays: %s", dir, why.msg);
        }
        if (surplus) rc = clime_checkpoint_remove(rl->ledger, c.step, e);
        if (kept < keep && c.step <= serve && ++kept == keep) oldest = c.step;
        free(dir);
        clime_checkpoint_free(&c);
    }
    return rc ? rc : give_up_tokens(rl, oldest, e);
}

/* ---- writing ---- */

enum clime_err clime_rl_make_checkpoint_dir(const struct clime_rl *rl, struct clime_error *e) {
    char *probe = xasprintf("%s/probe.tmp", rl->checkpoint_dir);
    enum clime_err rc = clime_make_dirs(probe, e); /* tries it: permissions are not enough */
    if (!rc) rmdir(probe);
    if (rc) clime_error_prefix(e, rl->o.save ? "--save" : "checkpoints");
    free(probe);
    return rc;
}

static enum clime_err write_row(struct clime_rl *rl, const char *dir, struct clime_error *e) {
    char *state = xasprintf("%s/state.json", dir), *stored = stored_path(rl, dir);
    uint64_t checksum = 0;
    enum clime_err rc = clime_file_checksum(state, &checksum, e);
    if (!rc) rc = clime_checkpoint_put(rl->ledger, rl->step, stored, checksum, e);
    free(state);
    free(stored);
    return rc;
}

static enum clime_err write_folder(struct clime_rl *rl, struct clime_error *e) {
    char *dir = xasprintf("%s/step_%08" PRId64, rl->checkpoint_dir, rl->step);
    enum clime_err rc = clime_learner_save(rl->learner, dir, e);
    if (!rc) rc = write_row(rl, dir, e);
    free(dir);
    return rc ? rc : give_up_checkpoints(rl, e);
}

enum clime_err clime_rl_checkpoint(struct clime_rl *rl, struct clime_error *e) {
    int64_t t0 = clime_now_us();
    enum clime_err rc = CLIME_OK;
    clime_progress_live(&rl->progress, "checkpoint of step %" PRId64, rl->step);
    if (rl->o.save_hf && rl->exported != rl->step) {
        char *hf = with_rollout(rl->o.save_hf, rl->rollouts_done - 1);
        rc = clime_learner_export(rl->learner, hf, e);
        free(hf);
        rl->exported = rl->step;
    }
    /* the model first, so that every checkpoint has one; if that fails, the steps are still saved */
    struct clime_error later;
    enum clime_err rc_folder = rl->o.no_save_optim ? CLIME_OK : write_folder(rl, rc ? &later : e);
    if (!rc) rc = rc_folder;
    rl->time.save_us = clime_now_us() - t0;
    return rc;
}

/* ---- loading ---- */

static enum clime_err check_state(const struct clime_checkpoint *c, const char *dir, struct clime_error *e) {
    char *path = xasprintf("%s/state.json", dir);
    uint64_t sum = 0;
    enum clime_err rc = clime_file_checksum(path, &sum, e);
    if (!rc && c->has_checksum && sum != c->checksum)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s is damaged: its bytes are not those that were written", path);
    free(path);
    return rc;
}

enum clime_err clime_rl_load_checkpoint(struct clime_rl *rl, int64_t before, struct clime_error *e) {
    struct clime_checkpoint c = {.step = before};
    rl->step = 0;
    for (;;) {
        struct clime_error why;
        enum clime_err rc = clime_checkpoint_newest(clime_ledger_reader(rl->ledger), c.step, &c, e);
        if (rc || c.step < 0) return rc;
        char *dir = found_path(rl->o.run, rl->checkpoint_dir, c.path);
        rc = check_state(&c, dir, &why);
        if (!rc) rc = clime_learner_load(rl->learner, dir, &why);
        if (rc == CLIME_ERR_INTERNAL)
            *e = why;
        else if (rc)
            clime_event(rl->ledger, rl->run.incarnation, "recover", "checkpoint %s cannot be used: %s", dir, why.msg);
        else
            rl->step = c.step;
        free(dir);
        clime_checkpoint_free(&c);
        if (!rc || rc == CLIME_ERR_INTERNAL) return rc;
    }
}

enum clime_err clime_rl_load_version(struct clime_rl *rl, const char *run, const struct clime_checkpoint *c,
                                     struct clime_error *e) {
    char *checkpoints = xasprintf("%s/checkpoints", run), *dir = found_path(run, checkpoints, c->path);
    enum clime_err rc = check_state(c, dir, e);
    if (!rc) rc = clime_learner_load(rl->learner, dir, e);
    if (!rc) rl->step = rl->rollouts_done = c->step;
    free(dir);
    free(checkpoints);
    return rc;
}

/* ---- best weights ---- */

enum clime_err clime_rl_keep_best(struct clime_rl *rl, const struct clime_eval_record *r, struct clime_error *e) {
    bool best;
    enum clime_err rc = clime_evals_is_best(clime_ledger_reader(rl->ledger), r, &best, e);
    if (rc || !best) return rc;
    char *dir = xasprintf("%s/best", rl->o.run);
    rc = clime_learner_export(rl->learner, dir, e);
    if (!rc)
        clime_event(rl->ledger, rl->run.incarnation, "best", "step %" PRId64 ": %s %.6g, in %s", r->step, r->name,
                    r->score, dir);
    free(dir);
    return rc;
}
