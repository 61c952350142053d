/* Ledger: what a person looks at, as JSON, on a reading connection of the caller (any thread that has one). Lists come
 * a page at a time, by key; the streams of samples are read for the one sample that is asked for.
 *
 * Every function writes one value into w. On an error what it wrote is incomplete. */
#ifndef CLIME_TRAINER_LEDGER_BROWSE_BROWSE_H
#define CLIME_TRAINER_LEDGER_BROWSE_BROWSE_H

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

/* {"rollouts": [...], "steps": [...], "versions": [...], "evals": [...]}: what each rollout from `from` on came to, and
 * when what happened (microseconds). */
enum clime_err clime_browse_times(struct clime_db *db, int64_t from, struct clime_jw *w, struct clime_error *e);

/* Members of the open object: what is under way now. The open groups with their members by state, the requests in
 * flight with the oldest of them, the step that runs. */
enum clime_err clime_browse_now(struct clime_db *db, struct clime_jw *w, struct clime_error *e);

/* {"sets": [...], "lines": [...]}: prompts that were answered more than once, with other weights: those of evaluated
 * sets (how many prompts, when), and lines of the prompt data after `line`, at most `limit`. */
enum clime_err clime_browse_repeated(struct clime_db *db, int64_t line, int64_t limit, struct clime_jw *w,
                                     struct clime_error *e);
/* Members of the open object: "answers", every answer to a prompt, oldest weights first: of the line, with its group's
 * "prompt", or of the prompt of a set (set not NULL), whose ids are given instead: the caller frees them. */
enum clime_err clime_browse_answers(struct clime_db *db, const char *set, int64_t line, struct clime_jw *w,
                                    int32_t **ids, size_t *n_ids, struct clime_error *e);

/* The pid of the newest start and whether its end is recorded. */
enum clime_err clime_browse_process(struct clime_db *db, int64_t *pid, bool *ended, struct clime_error *e);

#endif
