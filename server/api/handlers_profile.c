/* /start_profile and /stop_profile: record a trace of the engine's steps to a file for Perfetto. HTTP workers; each
 * waits until the engine is between two steps. Names and texts are SGLang's.
 *
 * A trace with a step count is written when complete, by a thread started with the first such trace. Invariant: the
 * engine has a trace exactly while path is set; path and trace are taken together, under the lock.
 */
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/atomic_file.h"
#include "common/os/roots.h"
#include "server/engine/trace.h"
#include "server/job/fields.h"
#include "server/server.h"

#define DEFAULT_DIR "/tmp" /* unless SGLang's variable is set */
#define MAX_TRACE ((size_t)512 << 20)
#define MAX_NAME 64

struct ask {
    struct clime_str dir, id, prefix;
    int64_t start_step, n_steps;
};

#define AT(field) offsetof(struct ask, field)

static const struct clime_member rows[] = {
    {"output_dir", CLIME_MEMBER_STRING, AT(dir)},
    {"profile_id", CLIME_MEMBER_STRING, AT(id)},
    {"profile_prefix", CLIME_MEMBER_STRING, AT(prefix)},
    {"start_step", CLIME_MEMBER_INT, AT(start_step), .min = 0, .max = 1e15},
    {"num_steps", CLIME_MEMBER_INT, AT(n_steps), .min = 0, .max = 1e15},
};
static const struct clime_members members = {rows, CLIME_COUNT(rows)};
static const struct clime_field others[] = {
    {"activities", CLIME_FIELD_INERT}, /* torch's; the device's part is each step's wait */
    {"with_stack", CLIME_FIELD_INERT},
    {"record_shapes", CLIME_FIELD_INERT},
    {"merge_profiles", CLIME_FIELD_INERT}, /* there is only one */
    {"profile_by_stage", NULL},
    {"profile_stages", NULL},
    {NULL, NULL},
};
static const struct clime_fields fields = {.where = "/start_profile", .rows = {others}, .read = {&members}};

struct clime_profile {
    struct clime_engine *engine;
    pthread_mutex_t lock;
    char *path;                /* of the running trace, under the lock like trace; NULL = none */
    struct clime_trace *trace; /* the engine's while path is set */
    bool has_writer;
    pthread_t writer;
    sem_t full; /* a trace may be full; posted by the engine thread without a lock */
    atomic_bool closing;
};

/* True for a safe part of a file name. */
static bool plain_name(struct clime_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (!strchr("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_.", s.ptr[i])) return false;
    return s.len <= MAX_NAME && !memchr(s.ptr, '\0', s.len) && (s.len == 0 || s.ptr[0] != '.');
}

static enum clime_err read_ask(struct clime_server *s, struct clime_http_request *rq, struct clime_arena *a,
                               struct ask *out, struct clime_error *e) {
    if (clime_fields_read(&fields, s->field_watch, clime_http_body(rq), a, out, e)) return e->code;
    if (!plain_name(out->id) || !plain_name(out->prefix))
        return clime_fail(
            e, CLIME_ERR_INPUT,
            "profile_id and profile_prefix are parts of a file's name: letters, digits, - _ . and at most "
            "%d of them",
            MAX_NAME);
    return CLIME_OK;
}

/* The trace's path; its folder must exist or be creatable now. */
static enum clime_err make_path(const struct clime_server_options *o, const struct ask *ask, char **out,
                                struct clime_error *e) {
    const char *given = getenv("SGLANG_TORCH_PROFILER_DIR");
    char *dir = ask->dir.len > 0 ? xstrndup(ask->dir.ptr, ask->dir.len) : xstrdup(given ? given : DEFAULT_DIR);
    struct stat st;
    char id[32];
    snprintf(id, sizeof id, "%lld", (long long)(clime_wall_us() / 1000));
    struct clime_str name = ask->id.len > 0 ? ask->id : clime_str_of(id);
    bool free_choice = o->file_roots.n == 0;
    if (free_choice) mkdir(dir, 0777); /* a missing parent fails at the next line */
    enum clime_err err = CLIME_OK;
    if (ask->dir.len > 0) err = clime_roots_check(o->file_roots.items, o->file_roots.n, dir, e);
    if (err) goto done;
    if (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode))
        err = clime_fail(e, CLIME_ERR_INPUT, "output_dir %.200s is no folder, and cannot be made", dir);
    else
        *out = xasprintf("%s/" CLIME_STR_FMT "%s" CLIME_STR_FMT "-TP-0.trace.json", dir, CLIME_STR_ARG(ask->prefix),
                         ask->prefix.len > 0 ? "-" : "", CLIME_STR_ARG(name));
done:
    free(dir);
    return err;
}

static void reply_text(struct clime_http_request *rq, const char *text) {
    clime_http_reply(rq, 200, "text/plain", NULL, clime_str_of(text));
}

static enum clime_err save(const struct clime_trace *t, const char *path, struct clime_error *e) {
    struct clime_buf out;
    clime_buf_init(&out, MAX_TRACE);
    clime_trace_write(t, "clime-server", &out);
    enum clime_err err = out.full ? clime_fail(e, CLIME_ERR_LIMIT, "the trace is over %zu bytes", MAX_TRACE)
                                  : clime_atomic_save(path, out.data, out.len, e);
    if (!err) LOG_INFO("profile: %d steps in %s", clime_trace_count(t), path);
    clime_buf_free(&out);
    return err;
}

/* Ends the recording; the caller owns the returned path and trace; NULL when none. Under the lock. */
static char *take(struct clime_profile *p, struct clime_trace **t) {
    char *path = p->path;
    p->path = NULL;
    *t = NULL;
    if (path) clime_engine_trace(p->engine, NULL, t);
    return path;
}

static void tell_writer(void *profile) {
    sem_post(&((struct clime_profile *)profile)->full);
}

static void *writer_main(void *arg) {
    struct clime_profile *p = arg;
    struct clime_trace *t;
    struct clime_error e;
    while (sem_wait(&p->full) || !atomic_load(&p->closing)) {
        pthread_mutex_lock(&p->lock);
        /* the post may be for a trace removed since */
        char *path = p->path && clime_trace_full(p->trace) ? take(p, &t) : NULL;
        pthread_mutex_unlock(&p->lock);
        if (!path) continue;
        if (save(t, path, &e)) LOG_WARN("profile: %s", e.msg);
        clime_trace_free(t);
        free(path);
    }
    return NULL;
}

struct clime_profile *clime_profile_new(struct clime_engine *g) {
    struct clime_profile *p = xcalloc(1, sizeof *p);
    p->engine = g;
    pthread_mutex_init(&p->lock, NULL);
    CHECK(sem_init(&p->full, 0, 0) == 0);
    return p;
}

void clime_profile_free(struct clime_profile *p) {
    struct clime_trace *t;
    if (!p) return;
    atomic_store(&p->closing, true);
    sem_post(&p->full);
    if (p->has_writer) pthread_join(p->writer, NULL);
    free(take(p, &t));
    clime_trace_free(t);
    sem_destroy(&p->full);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Takes ownership of *path. Under the lock. */
static enum clime_err begin(struct clime_profile *p, const struct ask *ask, char **path, struct clime_error *e) {
    struct clime_trace *none;
    if (p->path) return clime_fail(e, CLIME_ERR_INPUT, "a profile is being recorded already: /stop_profile ends it");
    if (ask->n_steps > 0 && !p->has_writer) p->has_writer = !pthread_create(&p->writer, NULL, writer_main, p);
    if (ask->n_steps > 0 && !p->has_writer)
        return clime_fail(e, CLIME_ERR_UNAVAILABLE, "no thread is to be had that writes the profile");
    p->trace = clime_trace_new(ask->start_step, ask->n_steps, tell_writer, p);
    p->path = *path;
    *path = NULL;
    clime_engine_trace(p->engine, p->trace, &none);
    return CLIME_OK;
}

void clime_handle_start_profile(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_error e = {0};
    struct clime_arena a;
    struct ask ask = {.dir = {"", 0}, .id = {"", 0}, .prefix = {"", 0}};
    char *path = NULL;
    clime_arena_init(&a, clime_http_body(rq).len * 2 + 65536);
    enum clime_err err = read_ask(s, rq, &a, &ask, &e);
    if (!err) err = make_path(&s->opts, &ask, &path, &e);
    pthread_mutex_lock(&s->profile->lock);
    if (!err) err = begin(s->profile, &ask, &path, &e);
    pthread_mutex_unlock(&s->profile->lock);
    if (err)
        clime_http_reply_err(rq, &e);
    else
        reply_text(rq, "Start profiling.\n");
    free(path);
    clime_arena_free(&a);
}

void clime_handle_stop_profile(struct clime_http_request *rq, void *context) {
    struct clime_server *s = context;
    struct clime_trace *t;
    struct clime_error e = {0};
    pthread_mutex_lock(&s->profile->lock);
    char *path = take(s->profile, &t);
    pthread_mutex_unlock(&s->profile->lock);
    enum clime_err err =
        path ? save(t, path, &e)
             : clime_fail(&e, CLIME_ERR_INPUT, "no profile is being recorded: /start_profile begins one");
    if (err) {
        clime_http_reply_err(rq, &e);
    } else {
        char *said = xasprintf("Stop profiling: %d steps in %s\n", clime_trace_count(t), path);
        reply_text(rq, said);
        free(said);
    }
    clime_trace_free(t);
    free(path);
}
