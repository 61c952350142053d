/* Rows of events. Any thread; also one line in the log, so that a log and a ledger tell the same story. */
#include "trainer/ledger/events.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

struct event {
    int64_t incarnation;
    const char *kind;
    char detail[1024];
};

static enum clime_err insert(struct clime_db *db, void *arg, struct clime_error *e) {
    struct event *v = arg;
    struct clime_stmt *q = clime_db_stmt(db, "INSERT INTO events(at_us, incarnation, kind, detail) VALUES(?, ?, ?, ?)");
    clime_db_int(q, clime_wall_us());
    clime_db_int(q, v->incarnation);
    clime_db_text(q, v->kind);
    clime_db_text(q, v->detail);
    return clime_db_run(q, NULL, e);
}

static bool is_warning(const char *kind) {
    return !strcmp(kind, "gap") || !strcmp(kind, "skip");
}

void clime_event(struct clime_ledger *l, int64_t incarnation, const char *kind, const char *fmt, ...) {
    struct event v = {.incarnation = incarnation, .kind = kind};
    struct clime_error e = {0};
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(v.detail, sizeof v.detail, fmt, ap);
    va_end(ap);
    if (is_warning(kind))
        LOG_WARN("%s: %s", kind, v.detail);
    else
        LOG_INFO("%s: %s", kind, v.detail);
    if (clime_ledger_write(l, insert, &v, false, &e)) LOG_WARN("event not stored: %s", e.msg);
}
