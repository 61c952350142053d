/* Rows of metrics. Written by the loop on the main thread, read at recovery and by the report. They make metrics.jsonl
 * exact after a crash: it is rewritten from rows that were committed together with the data they describe. */
#include "trainer/ledger/metrics.h"

#include <string.h>

#include "common/json/scan.h"

#define MAX_NAMES ((size_t)4 << 20) /* bytes of names with escapes: a set may have any name */

enum clime_err clime_metrics_insert(struct clime_db *db, const char *kind, int64_t step, const char *line,
                                    struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "INSERT OR REPLACE INTO metrics(kind, step, line) VALUES(?, ?, ?)");
    clime_db_text(q, kind);
    clime_db_int(q, step);
    clime_db_text(q, line);
    return clime_db_run(q, NULL, e);
}

struct put {
    const char *kind, *line;
    int64_t step;
};

static enum clime_err put(struct clime_db *db, void *arg, struct clime_error *e) {
    struct put *p = arg;
    return clime_metrics_insert(db, p->kind, p->step, p->line, e);
}

enum clime_err clime_metrics_put(struct clime_ledger *l, const char *kind, int64_t step, const char *line,
                                 struct clime_error *e) {
    struct put p = {kind, line, step};
    return clime_ledger_write(l, put, &p, false, e);
}

enum clime_err clime_metrics_get(struct clime_db *db, const char *kind, int64_t step, char **line,
                                 struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT line FROM metrics WHERE kind = ? AND step = ?");
    clime_db_text(q, kind);
    clime_db_int(q, step);
    *line = clime_db_row(q) ? clime_db_dup_text(q) : NULL;
    return clime_db_done(q, e);
}

enum clime_err clime_metrics_each(struct clime_db *db, int64_t last, void (*fn)(void *arg, const char *line), void *arg,
                                  struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT line FROM metrics WHERE step <= ? ORDER BY step,"
                          " CASE kind WHEN 'rollout' THEN 0 WHEN 'train' THEN 1 WHEN 'perf' THEN 2 ELSE 3 END");
    clime_db_int(q, last);
    while (clime_db_row(q)) fn(arg, clime_db_get_text(q));
    return clime_db_done(q, e);
}

enum clime_err clime_metrics_newest(struct clime_db *db, const char *kind, void (*fn)(void *arg, const char *line),
                                    void *arg, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(db, "SELECT line FROM (SELECT step, line FROM metrics WHERE kind = ? ORDER BY step DESC LIMIT 2)"
                          " ORDER BY step");
    clime_db_text(q, kind);
    while (clime_db_row(q)) fn(arg, clime_db_get_text(q));
    return clime_db_done(q, e);
}

enum clime_err clime_metrics_after(struct clime_db *db, const char *kind, int64_t step, int64_t most,
                                   void (*fn)(void *arg, int64_t step, int64_t at_us, const char *line), void *arg,
                                   struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(
        db, "SELECT m.step, coalesce(CASE m.kind WHEN 'rollout' THEN s.chosen_us ELSE s.done_us END, s.chosen_us,"
            " (SELECT created_us FROM runs)), m.line FROM metrics m LEFT JOIN steps s ON s.step = m.step"
            " WHERE m.kind = ? AND m.step > ? AND (m.kind <> 'perf' OR m.line LIKE '%\"perf/step_time\"%'"
            " OR m.step < (SELECT max(step) FROM metrics WHERE kind = 'perf')) ORDER BY m.step LIMIT ?");
    clime_db_text(q, kind);
    clime_db_int(q, step);
    clime_db_int(q, most);
    while (clime_db_row(q)) {
        int64_t at = clime_db_get_int(q), at_us = clime_db_get_int(q);
        fn(arg, at, at_us, clime_db_get_text(q));
    }
    return clime_db_done(q, e);
}

void clime_metrics_figures(const char *line, clime_metrics_figure_fn *fn, void *arg) {
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error e = {0};
    struct clime_str name, kind = {"", 0}; /* the kind is the first member */
    clime_arena_init(&arena, MAX_NAMES);
    clime_json_init(&j, line, strlen(line), &arena, &e);
    for (clime_json_object(&j); clime_json_key(&j, &name);) {
        double v;
        if (clime_str_is(name, "kind"))
            clime_json_string(&j, &kind);
        else if (clime_json_peek(&j) != CLIME_JSON_NUMBER)
            clime_json_skip(&j, NULL);
        else if (clime_json_double(&j, &v))
            fn(arg, kind, name, v);
    }
    CHECK(clime_json_end(&j)); /* we wrote it */
    clime_arena_free(&arena);
}
