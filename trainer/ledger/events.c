/* Rows of events. Any thread; each event is also logged, so log and ledger agree. */
#include "trainer/ledger/events.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"

struct event {
    int64_t incarnation;
    const char *kind, *detail;
};

static enum clime_err insert(struct clime_db *db, void *arg, struct clime_error *e) {
    const struct event *v = arg;
    struct clime_stmt *q = clime_db_stmt(db, "INSERT INTO events(at_us, incarnation, kind, detail) VALUES(?, ?, ?, ?)");
    clime_db_int(q, clime_wall_us());
    clime_db_int(q, v->incarnation);
    clime_db_text(q, v->kind);
    clime_db_text(q, v->detail);
    return clime_db_run(q, NULL, e);
}

void clime_event_put(struct clime_ledger *l, int64_t incarnation, const char *kind, const char *detail) {
    struct event v = {incarnation, kind, detail};
    struct clime_error e = {0};
    if (clime_ledger_write(l, insert, &v, false, &e)) LOG_WARN("event not stored: %s", e.msg);
}

void clime_event(struct clime_ledger *l, int64_t incarnation, const char *kind, const char *fmt, ...) {
    char detail[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(detail, sizeof detail, fmt, ap);
    va_end(ap);
    clime_log(strcmp(kind, "skip") ? CLIME_LOG_INFO : CLIME_LOG_WARN, "%s: %s", kind, detail);
    clime_event_put(l, incarnation, kind, detail);
}

enum clime_err clime_events_each(struct clime_db *db, const char *kind, void (*fn)(void *arg, const char *detail),
                                 void *arg, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT detail FROM events WHERE kind = ? ORDER BY id");
    clime_db_text(q, kind);
    while (clime_db_row(q)) fn(arg, clime_db_get_text(q));
    return clime_db_done(q, e);
}
