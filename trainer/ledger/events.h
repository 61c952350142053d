/* Ledger: what happened, in words: starts, recoveries, dead children, lost leases, dropped groups. */
#ifndef CLIME_TRAINER_LEDGER_EVENTS_H
#define CLIME_TRAINER_LEDGER_EVENTS_H

#include "trainer/ledger/ledger.h"

/* kind: one word ("start", "recover", "child", "drop", ...). Also logged. An event that cannot be written is only
 * logged: it must not end a run. Any thread. */
void clime_event(struct clime_ledger *l, int64_t incarnation, const char *kind, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
