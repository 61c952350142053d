/* Ledger as JSON for the web page, on the caller's reading connection (any thread). Lists are paged by key; streams are
 * read for single samples only.
 *
 * Every function writes one value into w; on error it is incomplete. */
#ifndef CLIME_TRAINER_LEDGER_BROWSE_BROWSE_H
#define CLIME_TRAINER_LEDGER_BROWSE_BROWSE_H

#include "common/json/write.h"
#include "trainer/ledger/db.h"

/* The run as members of the open object: name, seed, begin, starts, progress, last event and version. */
enum clime_err clime_browse_run(struct clime_db *db, struct clime_jw *w, struct clime_error *e);

/* {"options": {...}, "inputs": [...], "versions": newest first}: the run's inputs. */
enum clime_err clime_browse_options(struct clime_db *db, struct clime_jw *w, struct clime_error *e);

/* {"lines": [...], "next": step or null}: lines of metrics.jsonl from step `from` on, at most `limit` plus those of the
 * last one's step. */
enum clime_err clime_browse_metrics(struct clime_db *db, int64_t from, int64_t limit, struct clime_jw *w,
                                    struct clime_error *e);

/* {"events": [...], "next": id or null}: events before the id `before`, newest first; kind NULL = all. */
enum clime_err clime_browse_events(struct clime_db *db, const char *kind, int64_t before, int64_t limit,
                                   struct clime_jw *w, struct clime_error *e);

/* {"rollouts": [...], "steps": [...], "versions": [...], "evals": [...]}: results of each rollout from `from` on, and
 * event times (microseconds). */
enum clime_err clime_browse_times(struct clime_db *db, int64_t from, struct clime_jw *w, struct clime_error *e);

/* Members of the open object: current activity. Open groups with their members by state, requests in flight with the
 * oldest, the running step. */
enum clime_err clime_browse_now(struct clime_db *db, struct clime_jw *w, struct clime_error *e);

/* {"sets": [...], "lines": [...]}: prompts answered more than once with different weights: evaluated sets (how many
 * prompts, when), and at most `limit` lines of the prompt data after `line`. */
enum clime_err clime_browse_repeated(struct clime_db *db, int64_t line, int64_t limit, struct clime_jw *w,
                                     struct clime_error *e);
/* Members of the open object: "answers", every answer to a prompt, oldest weights first: of the line, with its group's
 * "prompt", or of a set's prompt (set not NULL), with its ids, which the caller frees. */
enum clime_err clime_browse_answers(struct clime_db *db, const char *set, int64_t line, struct clime_jw *w,
                                    int32_t **ids, size_t *n_ids, struct clime_error *e);

/* The pid of the newest start and whether its end is recorded. */
enum clime_err clime_browse_process(struct clime_db *db, int64_t *pid, bool *ended, struct clime_error *e);

#endif
