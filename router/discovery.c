/* Worker discovery (discovery.h). main starts and stops it; the rest runs on its thread.
 *
 * Each source is compared with its previous content: new workers are added (and probed soon), missing ones are drained.
 * A source that cannot be read, or a name without an address, changes nothing: a failing resolver or shared disk must
 * not take down a fleet. */
#include "router/discovery.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/os/lookup.h"
#include "common/os/thread.h"
#include "router/worker_body.h"

#define LARGEST_FILE ((size_t)16 << 20)
#define STOP_US ((int64_t)1000000) /* how long stop waits for a file */
#define LOOKUP_US ((int64_t)10000000)

struct found {
    char *url;
    int64_t id; /* of the worker */
    bool ours;  /* not named by an option or another source */
    bool still;
};

struct source {
    const char *name; /* the file, or host:port */
    char *host;       /* NULL: a file */
    int port;
    struct timespec changed; /* mtime of the file when last read */
    off_t size;
    ino_t inode;
    struct found *found; /* [n] */
    int n, n_room;
    bool failing; /* and it was logged */
};

struct clime_discovery {
    struct clime_workers *workers;
    int64_t interval_us;
    struct source *sources;
    int n_sources;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool stopping; /* guarded by lock */
};

/* ---- the current content of a source ---- */

static struct found *find(struct source *s, struct clime_str url) {
    for (int i = 0; i < s->n; i++)
        if (clime_str_is(url, s->found[i].url)) return &s->found[i];
    return NULL;
}

static enum clime_err take_worker(struct clime_discovery *d, struct source *s, const struct clime_worker_body *b,
                                  struct clime_error *e) {
    struct clime_str url = clime_workers_trim_url(b->url);
    struct found *f = find(s, url);
    if (!f) {
        int64_t id;
        int port = b->settings.health_port;
        if (clime_workers_add(d->workers, url, port < 0 ? 0 : port, &id, e)) return e->code;
        bool ours = !clime_workers_name(d->workers, id);
        if (s->n == s->n_room) {
            s->n_room = s->n_room ? 2 * s->n_room : 16;
            s->found = xrealloc(s->found, (size_t)s->n_room * sizeof *s->found);
        }
        f = &s->found[s->n++];
        *f = (struct found){.url = xstrndup(url.ptr, url.len), .id = id, .ours = ours};
        LOG_INFO("worker %s found in %s", f->url, s->name);
    }
    f->still = true;
    clime_workers_set(d->workers, f->id, &b->settings, NULL); /* fails if an operator removed it, which is fine */
    return CLIME_OK;
}

/* Passes ownership of the worker to another source that names it. */
static bool hand_over(struct clime_discovery *d, const struct source *from, const struct found *f) {
    for (int i = 0; i < d->n_sources; i++) {
        struct source *s = &d->sources[i];
        struct found *same = s == from ? NULL : find(s, clime_str_of(f->url));
        if (!same) continue;
        same->ours = same->ours || f->ours;
        return true;
    }
    return false;
}

static void drop_gone(struct clime_discovery *d, struct source *s) {
    struct clime_str none = {0};
    int n = 0;
    for (int i = 0; i < s->n; i++) {
        if (s->found[i].still) {
            s->found[n] = s->found[i];
            s->found[n++].still = false;
            continue;
        }
        LOG_INFO("worker %s is no longer in %s", s->found[i].url, s->name);
        if (!hand_over(d, s, &s->found[i]) && s->found[i].ours)
            clime_workers_remove(d->workers, s->found[i].id, none, NULL);
        free(s->found[i].url);
    }
    s->n = n;
}

/* Reads a line: a URL or an object; empty lines and lines that begin with # are skipped. */
static enum clime_err read_line(struct clime_discovery *d, struct source *s, struct clime_str line, bool apply,
                                struct clime_error *e) {
    struct clime_arena arena;
    struct clime_worker_body b = {.url = line, .settings = {.key = "", .labels = "", .health_port = 0}};
    while (b.url.len && strchr(" \t\r", b.url.ptr[b.url.len - 1])) b.url.len--;
    if (!b.url.len || b.url.ptr[0] == '#') return CLIME_OK;
    clime_arena_init(&arena, line.len + 4096);
    enum clime_err err = CLIME_OK;
    if (line.ptr[0] == '{') {
        err = clime_worker_body_read(b.url, &arena, &b, e);
        if (!err && !b.url.len) err = clime_fail(e, CLIME_ERR_INPUT, "a worker without a url");
    }
    if (!err && !clime_str_starts(b.url, "http"))
        err = clime_fail(e, CLIME_ERR_INPUT, "a line is no URL and no object");
    if (!err && apply) err = take_worker(d, s, &b, e);
    clime_arena_free(&arena);
    return err;
}

static enum clime_err read_lines(struct clime_discovery *d, struct source *s, struct clime_str text, bool apply,
                                 struct clime_error *e) {
    struct clime_str line;
    for (int number = 1; clime_str_line(&text, &line); number++)
        if (read_line(d, s, line, apply, e)) return clime_error_prefix(e, "line %d", number);
    return CLIME_OK;
}

/* Reads the whole file before it applies any of it: a file being written must not halve the fleet. A worker that the
 * table refuses ends it, and nothing is drained. */
static enum clime_err look_at_file(struct clime_discovery *d, struct source *s, struct clime_error *e) {
    struct stat st;
    struct clime_buf text;
    if (stat(s->name, &st)) return clime_fail(e, CLIME_ERR_IO, "%s", strerror(errno));
    if (S_ISFIFO(st.st_mode)) /* a second read would find no workers; without a writer it would block */
        return clime_fail(e, CLIME_ERR_INPUT, "it is a pipe, which cannot be read again and again");
    bool same = st.st_size == s->size && st.st_ino == s->inode && st.st_mtim.tv_sec == s->changed.tv_sec &&
                st.st_mtim.tv_nsec == s->changed.tv_nsec;
    if (same && !s->failing) return CLIME_OK;
    clime_buf_init(&text, LARGEST_FILE);
    enum clime_err err = clime_buf_read_file(&text, s->name, e);
    if (!err) err = read_lines(d, s, clime_buf_str(&text), false, e);
    if (!err) err = read_lines(d, s, clime_buf_str(&text), true, e);
    clime_buf_free(&text);
    if (err) return err;
    s->size = st.st_size;
    s->inode = st.st_ino;
    s->changed = st.st_mtim;
    drop_gone(d, s);
    return CLIME_OK;
}

static bool ends(void *discovery) {
    struct clime_discovery *d = discovery;
    pthread_mutex_lock(&d->lock);
    bool stopping = d->stopping;
    pthread_mutex_unlock(&d->lock);
    return stopping;
}

static enum clime_err look_up(struct clime_discovery *d, struct source *s, struct clime_error *e) {
    struct addrinfo *all;
    enum clime_err err = clime_lookup(s->host, s->port, clime_now_us() + LOOKUP_US, ends, d, &all, e);
    for (const struct addrinfo *a = all; a && !err; a = a->ai_next) {
        char address[64], url[CLIME_WORKER_URL];
        if (getnameinfo(a->ai_addr, a->ai_addrlen, address, sizeof address, NULL, 0, NI_NUMERICHOST)) continue;
        bool v6 = a->ai_family == AF_INET6;
        snprintf(url, sizeof url, "http://%s%s%s:%d", v6 ? "[" : "", address, v6 ? "]" : "", s->port);
        struct clime_worker_body b = {.url = clime_str_of(url), .settings = {.health_port = -1}};
        err = take_worker(d, s, &b, e);
    }
    if (all) freeaddrinfo(all);
    if (!err) drop_gone(d, s);
    return err;
}

static enum clime_err look(struct clime_discovery *d, struct source *s, struct clime_error *e) {
    enum clime_err err = s->host ? look_up(d, s, e) : look_at_file(d, s, e);
    for (int i = 0; i < s->n && err; i++) s->found[i].still = false;
    return err;
}

/* Logs once that a source fails, and once that it recovered. */
static void note(struct source *s, enum clime_err err, const struct clime_error *e) {
    if (err == CLIME_ERR_ABORTED) return; /* we are stopping */
    if (err && !s->failing) LOG_WARN("workers in %s: %s; they stay as they were", s->name, e->msg);
    if (!err && s->failing) LOG_INFO("workers in %s: found again", s->name);
    s->failing = err != CLIME_OK;
}

/* ---- the thread ---- */

static void *run(void *arg) {
    struct clime_discovery *d = arg;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        int64_t until = clime_now_us() + d->interval_us;
        while (!d->stopping && clime_now_us() < until) clime_cond_wait_until(&d->wake, &d->lock, until);
        if (d->stopping) break;
        pthread_mutex_unlock(&d->lock);
        for (int i = 0; i < d->n_sources; i++) {
            struct clime_error e = {0};
            note(&d->sources[i], look(d, &d->sources[i], &e), &e);
        }
        pthread_mutex_lock(&d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static void free_all(struct clime_discovery *d) {
    for (int i = 0; i < d->n_sources; i++) {
        struct source *s = &d->sources[i];
        for (int k = 0; k < s->n; k++) free(s->found[k].url);
        free(s->found);
        free(s->host);
    }
    free(d->sources);
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static enum clime_err make_sources(struct clime_discovery *d, const struct clime_discovery_options *o,
                                   struct clime_error *e) {
    d->sources = xcalloc((size_t)o->n_names + 1, sizeof *d->sources);
    for (int i = 0; i < o->n_names; i++) {
        const char *name = o->names[i], *colon = strrchr(name, ':');
        char *end = NULL;
        long port = colon && colon[1] >= '0' && colon[1] <= '9' ? strtol(colon + 1, &end, 10) : 0;
        if (colon == name || port < 1 || port > 65535 || *end)
            return clime_fail(e, CLIME_ERR_INPUT, "--worker-dns takes NAME:PORT, not '%.80s'", name);
        d->sources[d->n_sources++] =
            (struct source){.name = name, .host = xstrndup(name, (size_t)(colon - name)), .port = (int)port};
    }
    if (o->file) d->sources[d->n_sources++] = (struct source){.name = o->file, .size = -1};
    return CLIME_OK;
}

enum clime_err clime_discovery_start(const struct clime_discovery_options *o, struct clime_workers *w,
                                     struct clime_discovery **out, struct clime_error *e) {
    *out = NULL;
    if (!o->file && !o->n_names) return CLIME_OK;
    struct clime_discovery *d = xcalloc(1, sizeof *d);
    d->workers = w;
    d->interval_us = o->interval_us;
    pthread_mutex_init(&d->lock, NULL);
    clime_cond_init(&d->wake);
    enum clime_err err = make_sources(d, o, e);
    for (int i = 0; i < d->n_sources && !err; i++) {
        bool is_file = !d->sources[i].host; /* a name may get its addresses later */
        struct clime_error why = {0};
        enum clime_err first = look(d, &d->sources[i], &why);
        if (first && is_file)
            err = clime_fail(e, CLIME_ERR_INPUT, "--worker-file %s: %s", d->sources[i].name, why.msg);
        else
            note(&d->sources[i], first, &why);
    }
    if (err) {
        free_all(d);
        return err;
    }
    xthread(&d->thread, NULL, run, d);
    *out = d;
    return CLIME_OK;
}

bool clime_discovery_stop(struct clime_discovery *d) {
    struct timespec until;
    if (!d) return true;
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += STOP_US / 1000000;
    if (pthread_timedjoin_np(d->thread, NULL, &until)) return false;
    free_all(d);
    return true;
}
