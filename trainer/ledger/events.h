/* Ledger: event log in words: starts, recoveries, dead children, lost leases, dropped groups. */
#ifndef CLIME_TRAINER_LEDGER_EVENTS_H
#define CLIME_TRAINER_LEDGER_EVENTS_H

#include "trainer/ledger/ledger.h"

/* kind: one word ("start", "recover", "child", "drop", ...). Also logged. A failed write is only logged, since it must
 * not end a run. Any thread. */
void clime_event(struct clime_ledger *l, int64_t incarnation, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* The same with a detail of any length, without logging. */
void clime_event_put(struct clime_ledger *l, int64_t incarnation, const char *kind, const char *detail);

/* Calls fn for every event of a kind, oldest first. */
enum clime_err clime_events_each(struct clime_db *db, const char *kind, void (*fn)(void *arg, const char *detail),
                                 void *arg, struct clime_error *e);

#endif
