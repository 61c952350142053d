/* TensorBoard event file: writer (tensorboard.h). Called by metrics_log.c on the main thread.
 *
 * Owns the file's descriptor. Invariant: event i is line i of the ledger's metrics (event 0 is the version), so events
 * without a line are left over from a crash or a cut. Except for its time an event is a function of the line: an old
 * event is recognised by that and keeps its time. */
#include "trainer/watch/tensorboard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/os/dirs.h"
#include "trainer/ledger/metrics.h"
#include "trainer/watch/tfevents.h"

#define MAX_EVENT ((size_t)4 << 20)
#define MAX_FILE ((size_t)2 << 30)

struct clime_tensorboard {
    int fd;
    char *path;
};

/* Summary.Value {tag = 1, simple_value = 2} into a Summary {value = 1}. */
static void add_scalar(struct clime_buf *summary, struct clime_str tag, double v) {
    struct clime_buf value;
    float f = (float)v;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    clime_buf_init(&value, MAX_EVENT);
    clime_tfevents_bytes(&value, 1, tag.ptr, tag.len);
    clime_buf_addc(&value, 2 << 3 | 5);
    clime_tfevents_fixed(&value, bits, 4);
    clime_tfevents_bytes(summary, 1, value.data, value.len);
    clime_buf_free(&value);
}

struct summary {
    struct clime_buf scalars;
    int64_t rollout, step;
    bool by_step;
};

static void add_figure(void *arg, struct clime_str kind, struct clime_str name, double v) {
    struct summary *s = arg;
    s->by_step = clime_str_is(kind, "train") || clime_str_is(kind, "eval");
    if (clime_str_is(name, "rollout"))
        s->rollout = (int64_t)v;
    else if (clime_str_is(name, "step"))
        s->step = (int64_t)v;
    else
        add_scalar(&s->scalars, name, v);
}

/* The event of a line: wall_time = 1, step = 2, summary = 5. The members "kind", "rollout" and "step" place it. */
static void make_event(struct clime_buf *event, const char *line, double seconds) {
    struct summary s = {0};
    clime_buf_init(&s.scalars, MAX_EVENT);
    clime_metrics_figures(line, add_figure, &s);
    clime_tfevents_event(event, seconds, s.by_step ? s.step : s.rollout, &s.scalars);
    clime_buf_free(&s.scalars);
}

/* ---- the file ---- */

struct rewrite {
    struct clime_buf old, new, event;
    size_t at;    /* next record of old */
    bool matches; /* all records of old so far matched */
    double now;
};

/* Reuses the old record's time when its event is the same otherwise. */
static void keep_time(struct rewrite *r) {
    size_t n = r->event.len, end = r->at + CLIME_TFEVENTS_HEAD + n + 4;
    const char *old = r->old.data + r->at + CLIME_TFEVENTS_HEAD;
    r->matches = r->matches && end <= r->old.len &&
                 memcmp(old + CLIME_TFEVENTS_TIME, r->event.data + CLIME_TFEVENTS_TIME, n - CLIME_TFEVENTS_TIME) == 0;
    if (!r->matches) return;
    memcpy(r->event.data, old, CLIME_TFEVENTS_TIME);
    r->at = end;
}

static void write_line(void *arg, const char *line) {
    struct rewrite *r = arg;
    make_event(&r->event, line, r->now);
    keep_time(r);
    clime_tfevents_record(&r->new, &r->event);
}

static enum clime_err replace(const char *path, const struct clime_buf *b, struct clime_error *e) {
    char *tmp = xasprintf("%s.tmp", path);
    FILE *f = fopen(tmp, "we");
    enum clime_err rc = CLIME_OK;
    bool bad = !f || fwrite(b->data, 1, b->len, f) != b->len;
    if (f && fclose(f)) bad = true;
    if (bad || rename(tmp, path)) rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    free(tmp);
    return rc;
}

enum clime_err clime_tensorboard_open(const char *dir, struct clime_db *db, int64_t last,
                                      struct clime_tensorboard **out, struct clime_error *e) {
    struct rewrite r = {.matches = true, .now = (double)clime_wall_us() / 1e6};
    struct clime_error none = {0};
    char *path = xasprintf("%s/events.out.tfevents.clime", dir);
    int fd = -1;
    *out = NULL;
    clime_buf_init(&r.old, MAX_FILE);
    clime_buf_init(&r.new, MAX_FILE);
    clime_buf_init(&r.event, MAX_EVENT);
    enum clime_err rc = clime_make_dirs(dir, e);
    if (!rc && clime_buf_read_file(&r.old, path, &none)) clime_buf_clear(&r.old);
    if (!rc) {
        clime_tfevents_version(&r.event, r.now);
        keep_time(&r);
        clime_tfevents_record(&r.new, &r.event);
        rc = clime_metrics_each(db, last, write_line, &r, e);
    }
    if (!rc && r.new.full) rc = clime_fail(e, CLIME_ERR_LIMIT, "%s would pass %zu bytes", path, MAX_FILE);
    if (!rc) rc = replace(path, &r.new, e);
    if (!rc && (fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC)) < 0)
        rc = clime_fail(e, CLIME_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    if (!rc) {
        *out = xcalloc(1, sizeof **out);
        (*out)->fd = fd;
        (*out)->path = path;
        path = NULL;
    }
    clime_buf_free(&r.old);
    clime_buf_free(&r.new);
    clime_buf_free(&r.event);
    free(path);
    return rc;
}

void clime_tensorboard_close(struct clime_tensorboard *t) {
    if (!t) return;
    close(t->fd);
    free(t->path);
    free(t);
}

void clime_tensorboard_append(struct clime_tensorboard *t, const char *line) {
    struct clime_buf event, record;
    clime_buf_init(&event, MAX_EVENT);
    clime_buf_init(&record, MAX_EVENT);
    make_event(&event, line, (double)clime_wall_us() / 1e6);
    clime_tfevents_record(&record, &event);
    if (write(t->fd, record.data, record.len) != (ssize_t)record.len)
        LOG_WARN("%s: an event was not written: %s", t->path, strerror(errno));
    clime_buf_free(&event);
    clime_buf_free(&record);
}
