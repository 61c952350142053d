/* Plugin loader: loads shared libraries, and the calls that select samples (hooks.h).
 *
 * Invariant: nothing beyond the sizes that a library states is read from it; and it reads nothing beyond what it knows,
 * since it gets pointers to structs, never arrays of structs. */
#include "trainer/plugin/hooks.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"
#include "common/log.h"

/* ---- a library that calls exit() ---- */

static atomic_int n_open;
static pid_t opened_by; /* children forked by a library may exit */

/* exit() called from a library would end a run midway without a message and, with status 0, look like success. */
static void end_of_program(void) {
    if (!atomic_load(&n_open) || getpid() != opened_by) return;
    LOG_ERROR("exit() was called while a shared library was in use, which may report an error but not end the program");
    _exit(1);
}

static void count_open(void) {
    static bool known;
    opened_by = getpid();
    if (!known) known = !atexit(end_of_program);
    atomic_fetch_add(&n_open, 1);
}

/* ---- loading ---- */

static enum clime_err hash_file(const char *path, char hex[65], struct clime_error *e) {
    struct clime_sha256 h;
    uint8_t piece[65536], digest[32];
    FILE *f = fopen(path, "rb");
    if (!f) return clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot read %s: %s", path, strerror(errno));
    clime_sha256_init(&h);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) clime_sha256_add(&h, piece, n);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed) return clime_fail(e, CLIME_ERR_IO, "cannot read %s", path);
    clime_sha256_done(&h, digest);
    clime_sha256_hex(digest, hex);
    return CLIME_OK;
}

/* A member added later; 0 if the library does not have it. */
#define LATER(p, m) ((p)->bytes >= offsetof(struct clime_plugin, m) + sizeof(p)->m ? (p)->m : 0)

static enum clime_err check_sizes(const struct clime_plugin *p, const char *path, struct clime_error *e) {
    const struct {
        const char *name;
        size_t theirs, ours;
    } rows[] = {
        {"clime_plugin", p->bytes, sizeof(struct clime_plugin)},
        {"clime_plugin_sample", p->sample_bytes, sizeof(struct clime_plugin_sample)},
        {"clime_plugin_rollout", p->rollout_bytes, sizeof(struct clime_plugin_rollout)},
        {"clime_plugin_loss", p->loss_bytes, sizeof(struct clime_plugin_loss)},
        {"clime_plugin_question", LATER(p, question_bytes), sizeof(struct clime_plugin_question)},
        {"clime_plugin_task", LATER(p, task_bytes), sizeof(struct clime_plugin_task)},
        {"clime_plugin_calls", LATER(p, calls_bytes), sizeof(struct clime_plugin_calls)},
        {"clime_plugin_group", LATER(p, group_bytes), sizeof(struct clime_plugin_group)},
        {"clime_plugin_turn", LATER(p, turn_bytes), sizeof(struct clime_plugin_turn)},
    };
    if (p->abi != CLIME_PLUGIN_ABI)
        return clime_fail(e, CLIME_ERR_INPUT, "%s was made for plugin ABI %u, this program has %d", path, p->abi,
                          CLIME_PLUGIN_ABI);
    for (size_t i = 0; i < CLIME_COUNT(rows); i++)
        if (rows[i].theirs > rows[i].ours)
            return clime_fail(
                e, CLIME_ERR_INPUT,
                "%s was compiled with a newer trainer/plugin/plugin.h: its struct %s has %zu bytes, here it has "
                "%zu",
                path, rows[i].name, rows[i].theirs, rows[i].ours);
    return CLIME_OK;
}

static bool has(const struct clime_plugin *p, enum clime_hook_kind kind) {
    return kind == CLIME_HOOK_REWARDS      ? p->rewards != NULL
           : kind == CLIME_HOOK_ADVANTAGES ? p->advantages != NULL
           : kind == CLIME_HOOK_LOSS       ? p->loss != NULL
           : kind == CLIME_HOOK_FILTER     ? p->filter != NULL
           : kind == CLIME_HOOK_REWARD     ? p->reward != NULL
           : kind == CLIME_HOOK_GENERATE   ? p->generate != NULL
           : kind == CLIME_HOOK_BUFFER     ? p->buffer != NULL
                                           : p->sample_filter != NULL;
}

static enum clime_err load(struct clime_hook *h, enum clime_hook_kind kind, struct clime_error *e) {
    static const char *const member[CLIME_HOOKS] = {"rewards", "advantages", "loss",   "filter",
                                                    "reward",  "generate",   "buffer", "sample_filter"};
    char *real = realpath(h->path, NULL); /* dlopen searches system folders for a name without a slash */
    if (!real) return clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot read %s: %s", h->path, strerror(errno));
    enum clime_err rc = hash_file(real, h->sha256, e);
    if (!rc && !(h->handle = dlopen(real, RTLD_NOW | RTLD_LOCAL)))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s is no shared library: %s", h->path, dlerror());
    free(real);
    if (rc) return rc;
    const struct clime_plugin *p = dlsym(h->handle, "clime_plugin");
    if (!p)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%s exports no `const struct clime_plugin clime_plugin`; see "
                          "trainer/plugin/plugin.h",
                          h->path);
    if ((rc = check_sizes(p, h->path, e))) return rc;
    memcpy(&h->plugin, p, p->bytes);
    if (!has(&h->plugin, kind))
        return clime_fail(e, CLIME_ERR_INPUT, "the clime_plugin of %s has no `%s`", h->path, member[kind]);
    return CLIME_OK;
}

enum clime_err clime_hook_open(const char *path, enum clime_hook_kind kind, struct clime_hook **out,
                               struct clime_error *e) {
    struct clime_hook *h = xcalloc(1, sizeof *h);
    h->path = xstrdup(path);
    count_open();
    enum clime_err rc = load(h, kind, e);
    if (rc)
        clime_hook_close(h);
    else
        *out = h;
    return rc;
}

void clime_hook_close(struct clime_hook *h) {
    if (!h) return;
    atomic_fetch_sub(&n_open, 1);
    if (h->busy) return; /* a thread is still in its code */
    if (h->handle) dlclose(h->handle);
    free(h->path);
    free(h);
}

/* ---- views for the functions ---- */

struct clime_plugin_sample clime_hook_view(const struct clime_sample *s) {
    return (struct clime_plugin_sample){.rollout = s->rollout,
                                        .group = s->group,
                                        .member = s->member,
                                        .n_prompt = s->n_prompt,
                                        .n_response = s->n_response,
                                        .ids = s->ids,
                                        .mask = s->mask,
                                        .logp = s->logp,
                                        .response = s->response,
                                        .label = s->label,
                                        .metadata = s->own_metadata ? s->own_metadata : s->metadata,
                                        .reward_json = s->reward_json,
                                        .reward = s->reward,
                                        .truncated = s->status == CLIME_SAMPLE_TRUNCATED,
                                        .part = s->part,
                                        .finished = clime_sample_finished(s),
                                        .oldest = s->n_versions ? s->versions[0].version : -1,
                                        .newest = s->n_versions ? s->versions[s->n_versions - 1].version : -1};
}

enum clime_err clime_hook_failed(const struct clime_hook *h, const char *what, const char *reason,
                                 struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INTERNAL, "`%s` of %s: %s", what, h->path,
                      reason[0] ? reason : "failed without a word");
}

/* ---- calls ---- */

enum clime_err clime_hook_filter(const struct clime_hook *h, struct clime_sample *const *members, int n,
                                 struct clime_verdict *out, struct clime_error *e) {
    char reason[CLIME_HOOK_REASON] = "";
    struct clime_plugin_verdict v = {0};
    int total = 0, at = 0;
    for (int i = 0; i < n; i++) total += clime_sample_parts(members[i]);
    struct clime_plugin_sample *samples = xcalloc((size_t)total, sizeof *samples);
    const struct clime_plugin_sample **pointers = xcalloc((size_t)total, sizeof *pointers);
    for (int i = 0; i < n; i++)
        for (const struct clime_sample *s = members[i]; s; s = s->next, at++) {
            samples[at] = clime_hook_view(s);
            pointers[at] = &samples[at];
        }
    int rc = h->plugin.filter(pointers, total, &v, reason, sizeof reason - 1);
    free(samples);
    free(pointers);
    *out = (struct clime_verdict){.keep = v.keep != 0, .keep_when_insufficient = v.keep_when_insufficient != 0};
    snprintf(out->reason, sizeof out->reason, "%.*s", (int)sizeof v.reason - 1, v.reason[0] ? v.reason : "unnamed");
    return rc ? clime_hook_failed(h, "filter", reason, e) : CLIME_OK;
}

enum clime_err clime_hook_sample_filter(const struct clime_hook *h, int64_t rollout,
                                        struct clime_sample *const *samples, int n, int *n_removed,
                                        struct clime_error *e) {
    char reason[CLIME_HOOK_REASON] = "";
    struct clime_plugin_sample *views = xcalloc((size_t)n, sizeof *views);
    const struct clime_plugin_sample **pointers = xcalloc((size_t)n, sizeof *pointers);
    uint8_t *remove = xcalloc((size_t)n, 1);
    for (int i = 0; i < n; i++) {
        views[i] = clime_hook_view(samples[i]);
        pointers[i] = &views[i];
    }
    int rc = h->plugin.sample_filter(rollout, pointers, n, remove, reason, sizeof reason - 1);
    *n_removed = 0;
    for (int i = 0; i < n; i++) {
        samples[i]->removed = remove[i] ? CLIME_REMOVED_FILTER : CLIME_REMOVED_NOT;
        *n_removed += samples[i]->removed != CLIME_REMOVED_NOT;
    }
    free(views);
    free(pointers);
    free(remove);
    return rc ? clime_hook_failed(h, "sample_filter", reason, e) : CLIME_OK;
}

static bool distinct(const int32_t *order, int n_order, int n) {
    bool *seen = xcalloc((size_t)n + 1, sizeof *seen), good = n_order >= 0 && n_order <= n;
    for (int i = 0; i < n_order && good; i++) {
        good = order[i] >= 0 && order[i] < n && !seen[order[i]];
        if (good) seen[order[i]] = true;
    }
    free(seen);
    return good;
}

enum clime_err clime_hook_buffer(const struct clime_hook *h, int64_t id, int64_t version,
                                 struct clime_sample *const *samples, int n, int members, int32_t *order, int *n_order,
                                 struct clime_error *e) {
    char reason[CLIME_HOOK_REASON] = "";
    int total = 0, at = 0;
    int32_t chosen = n;
    for (int i = 0; i < n * members; i++) total += clime_sample_parts(samples[i]);
    struct clime_plugin_sample *views = xcalloc((size_t)total + 1, sizeof *views);
    const struct clime_plugin_sample **pointers = xcalloc((size_t)total + 1, sizeof *pointers);
    struct clime_plugin_group *groups = xcalloc((size_t)n + 1, sizeof *groups);
    const struct clime_plugin_group **list = xcalloc((size_t)n + 1, sizeof *list);
    for (int g = 0; g < n; g++) {
        int first = at;
        for (int m = 0; m < members; m++)
            for (const struct clime_sample *s = samples[g * members + m]; s; s = s->next, at++) {
                views[at] = clime_hook_view(s);
                pointers[at] = &views[at];
            }
        groups[g] = (struct clime_plugin_group){views[first].rollout, views[first].group, at - first, pointers + first};
        list[g] = &groups[g];
        order[g] = g;
    }
    int rc = h->plugin.buffer(id, version, list, n, order, &chosen, reason, sizeof reason - 1);
    free(views);
    free(pointers);
    free(groups);
    free(list);
    if (rc) return clime_hook_failed(h, "buffer", reason, e);
    if (!distinct(order, chosen, n))
        return clime_hook_failed(h, "buffer", "its order names a group twice, or one there is not", e);
    *n_order = chosen;
    return CLIME_OK;
}
