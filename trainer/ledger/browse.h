/* Ledger: what a person looks at, as JSON, on a reading connection of the caller (any thread that has one). Lists come
 * a page at a time, by key; the streams of samples are read for the one sample that is asked for.
 *
 * Every function writes one value into w. On an error what it wrote is incomplete. */
#ifndef CLIME_TRAINER_LEDGER_BROWSE_H
#define CLIME_TRAINER_LEDGER_BROWSE_H

#include "common/json/write.h"
#include "trainer/ledger/db.h"

/* The run as members of the open object: name, seed, begin, starts, what it has done, its last event and version. */
enum clime_err clime_browse_run(struct clime_db *db, struct clime_jw *w, struct clime_error *e);

/* {"options": {...}, "inputs": [...], "versions": newest first}: what it was given. */
enum clime_err clime_browse_options(struct clime_db *db, struct clime_jw *w, struct clime_error *e);

/* {"lines": [...], "next": step or null}: the lines of metrics.jsonl of the steps from `from` on, at most `limit` and
 * what shares the last one's step. */
enum clime_err clime_browse_metrics(struct clime_db *db, int64_t from, int64_t limit, struct clime_jw *w,
                                    struct clime_error *e);

/* {"events": [...], "next": id or null}: those before the id `before`, newest first; kind NULL = all. */
enum clime_err clime_browse_events(struct clime_db *db, const char *kind, int64_t before, int64_t limit,
                                   struct clime_jw *w, struct clime_error *e);

/* The pid of the newest start and whether its end is recorded. */
enum clime_err clime_browse_process(struct clime_db *db, int64_t *pid, bool *ended, struct clime_error *e);

#endif
