/* Handles members that an endpoint does not read (fields.h). Called by the request parsers on HTTP workers; the watch
 * owns copies of the logged names.
 *
 * Invariant: a client cannot fill the log or memory with made-up names: at most MAX_LOGGED are kept, SHOWN bytes each.
 */
#include "server/job/fields.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/log.h"
#include "common/metrics.h"

#define MAX_LOGGED 64
#define SHOWN 60 /* bytes of a name in messages */

const char CLIME_FIELD_INERT[] = "";

struct clime_field_watch {
    bool strict;
    struct clime_metric *unknown;
    pthread_mutex_t lock;
    struct {
        const char *where;
        char *name;
    } logged[MAX_LOGGED];
    int n_logged;
};

struct clime_field_watch *clime_field_watch_new(bool strict) {
    struct clime_field_watch *w = xcalloc(1, sizeof *w);
    w->strict = strict;
    w->unknown = clime_metric_counter("clime:unknown_fields_total", "", "members of requests that no endpoint knows");
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

void clime_field_watch_free(struct clime_field_watch *w) {
    if (!w) return;
    for (int i = 0; i < w->n_logged; i++) free(w->logged[i].name);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

/* True the first time, as long as there is room. */
static bool first_time(struct clime_field_watch *w, const char *where, struct clime_str key) {
    bool seen = false;
    if (key.len > SHOWN) key.len = SHOWN;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; i < w->n_logged && !seen; i++)
        seen = w->logged[i].where == where && clime_str_is(key, w->logged[i].name);
    bool first = !seen && w->n_logged < MAX_LOGGED;
    if (first) {
        w->logged[w->n_logged].where = where;
        w->logged[w->n_logged++].name = xstrndup(key.ptr, key.len);
    }
    pthread_mutex_unlock(&w->lock);
    return first;
}

static bool is_neutral(struct clime_str raw, const char *neutral) {
    if (clime_lenient_nothing(raw) || neutral == CLIME_FIELD_INERT) return true;
    for (const char *at = neutral; at && *at;) {
        size_t n = strcspn(at, "|");
        if (n == raw.len && memcmp(at, raw.ptr, n) == 0) return true;
        at += n + (at[n] == '|');
    }
    return false;
}

/* [null, null]: a neutral value for each prompt of a batch */
static bool is_list_of_nothing(struct clime_str raw) {
    for (size_t i = 0; i < raw.len; i++)
        if (!strchr("[], \tnul\r\n", raw.ptr[i])) return false;
    return raw.len > 0 && raw.ptr[0] == '[';
}

static const struct clime_field *find(const struct clime_fields *f, struct clime_str key) {
    for (size_t t = 0; t < CLIME_COUNT(f->rows) && f->rows[t]; t++)
        for (const struct clime_field *row = f->rows[t]; row->name; row++)
            if (clime_str_is(key, row->name)) return row;
    return NULL;
}

/* A printable, bounded copy of a name. */
static void shown(struct clime_str key, char out[SHOWN + 1]) {
    size_t n = key.len < SHOWN ? key.len : SHOWN;
    for (size_t i = 0; i < n; i++) out[i] = (unsigned char)key.ptr[i] < ' ' || key.ptr[i] == 127 ? '?' : key.ptr[i];
    out[n] = '\0';
}

static void describe(const struct clime_fields *f, struct clime_str key, struct clime_buf *out) {
    char name[SHOWN + 1];
    struct clime_nearest near = {.word = key}, inside = {.word = key};
    for (size_t t = 0; t < CLIME_COUNT(f->read) && f->read[t]; t++) clime_members_nearest(f->read[t], &near);
    if (f->elsewhere) clime_members_nearest(f->elsewhere, &inside);
    shown(key, name);
    if (inside.best && inside.distance == 0)
        clime_buf_printf(out, "\"%s\" belongs in %s", name, f->elsewhere_name);
    else
        clime_buf_printf(out, near.best ? "\"%s\" is unknown (the nearest name is \"%s\")" : "\"%s\" is unknown", name,
                         near.best);
}

void clime_fields_other(const struct clime_fields *f, struct clime_field_watch *w, struct clime_json *j,
                        struct clime_str key) {
    struct clime_str raw;
    struct clime_buf text;
    if (j->failed || !clime_json_skip(j, &raw)) return;
    const struct clime_field *row = find(f, key);
    if (row) {
        if (!is_neutral(raw, row->neutral) && !is_list_of_nothing(raw))
            clime_json_bad(j, "%s is not supported", row->name);
        return;
    }
    clime_metric_add(w->unknown, 1);
    if (!w->strict && !first_time(w, f->where, key)) return;
    clime_buf_init(&text, 1024);
    describe(f, key, &text);
    if (w->strict)
        clime_json_bad(j, "%s", text.data);
    else
        LOG_WARN("%s: %s; it has no effect (told once; --strict-fields refuses such requests)", f->where, text.data);
    clime_buf_free(&text);
}

enum clime_err clime_fields_idle(struct clime_field_watch *w, const char *where, const char *name, const char *why,
                                 struct clime_error *e) {
    if (w->strict) return clime_fail(e, CLIME_ERR_INPUT, "%s: %s has no effect: %s", where, name, why);
    if (first_time(w, where, clime_str_of(name)))
        LOG_WARN("%s: %s has no effect: %s (told once; --strict-fields refuses such requests)", where, name, why);
    return CLIME_OK;
}

enum clime_err clime_fields_read(const struct clime_fields *f, struct clime_field_watch *w, struct clime_str body,
                                 struct clime_arena *a, void *object, struct clime_error *e) {
    struct clime_json j;
    struct clime_str key;
    if (body.len == 0) return CLIME_OK;
    clime_json_init(&j, body.ptr, body.len, a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        if (!clime_members_read(f->read[0], &j, key, object)) clime_fields_other(f, w, &j, key);
    return clime_json_end(&j) ? CLIME_OK : e->code;
}
