/* SQL of the ledger: the first schema and the migrations. Called by db.c when a writing connection opens a new file or
 * an older schema.
 *
 * A row has figures and short text; data that grows with a sample's length is in sample_streams, so an aggregate reads
 * a few hundred bytes per sample. With tokens in the row, avg(reward) over 2,000 samples of 8,000 tokens took 54 ms,
 * now 3.
 *
 * Invariant: a released migration is never edited, only followed by another; each runs in one durable transaction with
 * its user_version. The first schema is 13; earlier ones were never released and are refused. Times are wall-clock
 * microseconds since 1970 (UTC). Blobs are little-endian: ids u32, log-probabilities f32, packing i32. Checksums are
 * clime_sample_checksum's and steps.c's; NULL in rows that an older schema wrote.
 *
 * Invariants are constraints, so that the sqlite3 shell cannot break them: a sample is in at most one step (UNIQUE), a
 * finished sample has no lease, a failed one no reward, a further part is finished.
 */
#include "trainer/ledger/schema.h"

#include "common/err.h"

/* The view `samples`: each stream is a column, read on demand. kept: further streams. */
#define STREAM(name) ", (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = '" name "') AS " name
#define SAMPLES(kept)                                                                                                  \
    "CREATE VIEW samples AS SELECT r.*" STREAM("ids") STREAM("logp") STREAM("teacher_logp") kept STREAM("routing")     \
        STREAM("experts") STREAM("mask") STREAM("response") STREAM("advantages") STREAM("old_logp")                    \
            STREAM("old_values") STREAM("returns") STREAM("entropy") " FROM sample_rows r;"

enum { FIRST = 13 };

static const char *const steps[] = {
    "CREATE TABLE runs("
    " id INTEGER PRIMARY KEY CHECK(id = 1)," /* one run per ledger */
    " name TEXT NOT NULL,"                   /* first part of every rid */
    " seed INTEGER NOT NULL,"
    " options TEXT NOT NULL," /* JSON object of the weight-deciding options */
    " created_us INTEGER NOT NULL);"

    "CREATE TABLE incarnations("
    " id INTEGER PRIMARY KEY," /* one per start of the trainer */
    " pid INTEGER NOT NULL,"
    " started_us INTEGER NOT NULL);"

    "CREATE TABLE inputs("
    " name TEXT PRIMARY KEY," /* prompts, model-folder, reference, critic */
    " checksum TEXT NOT NULL) WITHOUT ROWID;"

    "CREATE TABLE groups("
    " id INTEGER PRIMARY KEY," /* the prompt's number in the run; only grows */
    " rollout INTEGER NOT NULL,"
    " epoch INTEGER NOT NULL,"
    " line INTEGER NOT NULL," /* of the prompt file, from 1 */
    " prompt TEXT NOT NULL,"  /* after the chat template */
    " label TEXT,"            /* JSON value */
    " metadata TEXT,"         /* JSON object */
    " state TEXT NOT NULL CHECK(state IN ('open', 'done', 'dropped')),"
    " reason TEXT," /* why it was dropped */
    " opened_us INTEGER NOT NULL,"
    " ended_in INTEGER," /* the rollout that used or dropped it; NULL: open */
    " cause TEXT,"       /* dropped: failed, filter, surplus */
    " source TEXT);"     /* the prompt's source; NULL: there is only one */
    "CREATE INDEX groups_by_rollout ON groups(rollout);"
    "CREATE INDEX groups_open ON groups(id) WHERE state = 'open';"
    "CREATE INDEX groups_by_end ON groups(ended_in);"

    "CREATE TABLE sample_rows("
    " id INTEGER PRIMARY KEY,"
    " rollout INTEGER NOT NULL,"
    " group_id INTEGER NOT NULL REFERENCES groups(id),"
    " member INTEGER NOT NULL,"
    " part INTEGER NOT NULL DEFAULT 0," /* of a member with several parts; 0 represents the member while pending */
    " seed INTEGER NOT NULL,"           /* as signed 64 bits */
    " status TEXT NOT NULL CHECK(status IN ('pending', 'completed', 'truncated', 'aborted', 'failed')),"
    " attempt INTEGER NOT NULL DEFAULT 0," /* leases taken so far; last part of the rid */
    " lease_incarnation INTEGER,"
    " lease_until_us INTEGER,"
    " n_prompt INTEGER NOT NULL,"
    " n_response INTEGER NOT NULL DEFAULT 0,"
    " versions TEXT," /* JSON [[version, tokens], ...] */
    " mixed_kv INTEGER NOT NULL DEFAULT 0,"
    " temperature REAL NOT NULL DEFAULT 1,"
    " reward REAL,"
    " submit_us INTEGER, done_us INTEGER,"
    " cached_tokens INTEGER,"
    " device TEXT,"
    " finish TEXT," /* JSON finish_reason */
    " reward_json TEXT,"
    " metadata TEXT," /* JSON object in place of the group's; NULL: the group's */
    " error TEXT,"
    " checksum INTEGER," /* of all deciding data including streams, as signed 64 bits */
    " UNIQUE(group_id, member, part),"
    " CHECK(status = 'pending' OR lease_incarnation IS NULL),"
    " CHECK(status <> 'failed' OR reward IS NULL),"
    " CHECK(part = 0 OR status IN ('completed', 'truncated')));"
    "CREATE INDEX samples_by_rollout ON sample_rows(rollout, group_id, member, part);"

    "CREATE TABLE sample_streams("
    " sample_id INTEGER NOT NULL REFERENCES sample_rows(id) ON DELETE CASCADE,"
    " name TEXT NOT NULL,"
    " type TEXT NOT NULL CHECK(type IN ('u8', 'u32', 'f32', 'text')),"
    " data BLOB NOT NULL,"       /* elements of the type, unpadded; text as text */
    " UNIQUE(sample_id, name));" /* WITHOUT ROWID would read whole arrays to compare names */
    SAMPLES("")

        "CREATE TABLE steps("
        " step INTEGER PRIMARY KEY," /* from 1: optimizer steps done after this one */
        " rollout INTEGER NOT NULL,"
        " global_batch INTEGER NOT NULL," /* divisor of the per-sample mean */
        " packing_first BLOB NOT NULL,"   /* i32[n_micro + 1] */
        " packing_sample BLOB NOT NULL,"  /* i32[samples], positions in step_samples */
        " chosen_us INTEGER NOT NULL,"
        " done_us INTEGER,"           /* NULL: chosen, not trained yet */
        " loss REAL, grad_norm REAL," /* NULL if not finite */
        " stats TEXT,"                /* JSON object of all figures */
        " checksum INTEGER);"         /* of its samples' checksums, estimates and packing */
        "CREATE INDEX steps_by_rollout ON steps(rollout);"

        "CREATE TABLE step_samples("
        " step INTEGER NOT NULL REFERENCES steps(step),"
        " position INTEGER NOT NULL," /* order of training */
        " sample_id INTEGER NOT NULL UNIQUE REFERENCES sample_rows(id),"
        " advantage REAL NOT NULL,"
        " removed INTEGER NOT NULL DEFAULT 0," /* nonzero: none of its tokens is trained on */
        " PRIMARY KEY(step, position)) WITHOUT ROWID;"

        "CREATE TABLE versions("
        " version INTEGER PRIMARY KEY," /* = the step that made it; 0 = initial weights */
        " sha256 TEXT NOT NULL,"        /* names, types, shapes and bytes in name order */
        " made_us INTEGER NOT NULL);"

        "CREATE TABLE checkpoints("
        " step INTEGER PRIMARY KEY,"
        " path TEXT NOT NULL,"
        " made_us INTEGER NOT NULL,"
        " checksum INTEGER);" /* of its state.json, which has those of the other files */

        "CREATE TABLE evals("
        " id INTEGER PRIMARY KEY,"
        " step INTEGER NOT NULL,"
        " rollout INTEGER NOT NULL,"
        " name TEXT NOT NULL,"
        " score REAL," /* mean reward; NULL if every sample failed */
        " n_prompts INTEGER NOT NULL,"
        " n_samples INTEGER NOT NULL,"
        " n_failed INTEGER NOT NULL,"
        " done_us INTEGER NOT NULL,"
        " UNIQUE(step, name));"

        "CREATE TABLE eval_samples("
        " eval_id INTEGER NOT NULL REFERENCES evals(id),"
        " prompt_index INTEGER NOT NULL,"
        " member INTEGER NOT NULL,"
        " status TEXT NOT NULL,"
        " n_prompt INTEGER NOT NULL,"
        " reward REAL," /* before long columns */
        " error TEXT,"
        " label TEXT,"
        " response TEXT,"
        " ids BLOB NOT NULL,"
        " logp BLOB,"
        " PRIMARY KEY(eval_id, prompt_index, member)) WITHOUT ROWID;"

        "CREATE TABLE metrics("
        " kind TEXT NOT NULL," /* rollout, train, eval, perf */
        " step INTEGER NOT NULL,"
        " line TEXT NOT NULL," /* the line of metrics.jsonl */
        " PRIMARY KEY(step, kind)) WITHOUT ROWID;"

        "CREATE TABLE events("
        " id INTEGER PRIMARY KEY,"
        " at_us INTEGER NOT NULL,"
        " incarnation INTEGER NOT NULL,"
        " kind TEXT NOT NULL," /* start, recover, child, lease, stale, drop, checkpoint, end */
        " detail TEXT NOT NULL);"

        "PRAGMA user_version = 13;",

    /* Streams of samples drawn from a truncated vocabulary (--rollout-top-p, --rollout-top-k). */
    "DROP VIEW samples;" SAMPLES(STREAM("kept_n") STREAM("kept") STREAM("kept_logp")) "PRAGMA user_version = 14;",
};

int clime_schema_version(void) {
    return FIRST - 1 + (int)CLIME_COUNT(steps);
}

int clime_schema_first(void) {
    return FIRST;
}

const char *clime_schema_after(int v, int *next) {
    CHECK(v == 0 || (v >= FIRST && v < clime_schema_version()));
    *next = v ? v + 1 : FIRST;
    return steps[*next - FIRST];
}
