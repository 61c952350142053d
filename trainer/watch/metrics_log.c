/* Writer of metrics.jsonl. Called by the loop, recovery and evaluation on the main thread.
 *
 * Owns the file's descriptor. Invariant: every line in the file is in the ledger: at a start the file is rewritten (to
 * a temporary file, renamed), and a line is appended only after its transaction. */
#include "trainer/watch/metrics_log.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/ledger/metrics.h"
#include "trainer/watch/tensorboard.h"

#define MAX_LINE ((size_t)1 << 20)

void clime_metrics_line_begin(struct clime_metrics_line *m, const char *kind, int64_t rollout, int64_t step) {
    clime_buf_init(&m->text, MAX_LINE);
    clime_jw_init(&m->w, &m->text);
    clime_jw_object(&m->w);
    clime_jw_put_strz(&m->w, "kind", kind);
    clime_metrics_line_int(m, "rollout", rollout);
    clime_metrics_line_int(m, "step", step);
}

void clime_metrics_line_add(struct clime_metrics_line *m, const char *name, double v) {
    if (!isfinite(v)) return;
    clime_jw_put_double(&m->w, name, v);
}

void clime_metrics_line_int(struct clime_metrics_line *m, const char *name, int64_t v) {
    clime_jw_put_int(&m->w, name, v);
}

char *clime_metrics_line_copy(const struct clime_metrics_line *m) {
    return xasprintf(CLIME_STR_FMT "}", CLIME_STR_ARG(clime_buf_str(&m->text)));
}

const char *clime_metrics_line_end(struct clime_metrics_line *m) {
    clime_jw_close(&m->w);
    CHECK(!m->text.full);
    return m->text.data;
}

void clime_metrics_line_free(struct clime_metrics_line *m) {
    clime_buf_free(&m->text);
}

struct clime_metrics_log {
    int fd;
    char *path;
    struct clime_tensorboard *tensorboard; /* NULL = none */
};

struct rewrite {
    FILE *f;
    bool bad;
};

static void write_line(void *arg, const char *line) {
    struct rewrite *r = arg;
    r->bad = r->bad || fprintf(r->f, "%s\n", line) < 0;
}

enum clime_err clime_metrics_log_open(const char *path, const char *tensorboard, struct clime_db *db, int64_t last,
                                      struct clime_metrics_log **out, struct clime_error *e) {
    char *tmp = xasprintf("%s.tmp", path);
    struct rewrite r = {.f = fopen(tmp, "we")};
    enum clime_err rc = CLIME_OK;
    *out = NULL;
    if (!r.f) {
        rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", tmp, strerror(errno));
        goto done;
    }
    rc = clime_metrics_each(db, last, write_line, &r, e);
    if (fclose(r.f)) r.bad = true;
    if (!rc && (r.bad || rename(tmp, path)))
        rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    int fd = rc ? -1 : open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (!rc && fd < 0) rc = clime_fail(e, CLIME_ERR_IO, "cannot open %s: %s", path, strerror(errno));
    if (rc) goto done;
    *out = xcalloc(1, sizeof **out);
    (*out)->fd = fd;
    (*out)->path = xstrdup(path);
    if (tensorboard && (rc = clime_tensorboard_open(tensorboard, db, last, &(*out)->tensorboard, e))) {
        clime_metrics_log_close(*out);
        *out = NULL;
    }
done:
    free(tmp);
    return rc;
}

void clime_metrics_log_close(struct clime_metrics_log *l) {
    if (!l) return;
    clime_tensorboard_close(l->tensorboard);
    close(l->fd);
    free(l->path);
    free(l);
}

void clime_metrics_log_append(struct clime_metrics_log *l, const char *line) {
    char *text = xasprintf("%s\n", line);
    size_t n = strlen(text);
    if (write(l->fd, text, n) != (ssize_t)n) LOG_WARN("%s: a line was not written: %s", l->path, strerror(errno));
    free(text);
    if (l->tensorboard) clime_tensorboard_append(l->tensorboard, line);
}
