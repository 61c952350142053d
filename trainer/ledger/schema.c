/* The SQL of the ledger's tables: the first schema, and what led from each to the next. Called by db.c when a writing
 * connection opens a file that is new or of an older schema.
 *
 * A row holds figures and short text; what grows with a sample's length is in sample_streams, a row each. So a figure
 * over all samples reads a few hundred bytes of each. Where tokens stood before it in the row, avg(reward) went through
 * every one of them: 54 ms for 2,000 samples of 8,000 tokens, now 3.
 *
 * Invariant: a step that was released is never edited, only followed by another; each runs in one durable
 * transaction together with its user_version. The first is 13: what came before it was never released, and is refused.
 * Times are wall-clock microseconds since 1970 (UTC). Blobs are
 * little-endian: ids u32, log-probabilities f32, packing i32. Checksums are clime_sample_checksum's and steps.c's; NULL
 * in rows that an older schema wrote.
 *
 * What must never be false is written as constraints, so that the sqlite3 shell cannot break it either: a sample is in
 * at most one step (UNIQUE), a sample that is finished has no lease, a failed one has no reward, a further part is
 * finished.
 */
#include "trainer/ledger/schema.h"

#include "common/err.h"

/* The view `samples`: each stream a column, read where it is asked for. kept: more of them. */
#define STREAM(name) ", (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = '" name "') AS " name
#define SAMPLES(kept)                                                                                                  \
    "CREATE VIEW samples AS SELECT r.*" STREAM("ids") STREAM("logp") STREAM("teacher_logp") kept STREAM("routing")     \
        STREAM("experts") STREAM("mask") STREAM("response") STREAM("advantages") STREAM("old_logp")                    \
            STREAM("old_values") STREAM("returns") STREAM("entropy") " FROM sample_rows r;"

enum { FIRST = 13 };

static const char *const steps[] = {
    "CREATE TABLE runs("
    " id INTEGER PRIMARY KEY CHECK(id = 1)," /* one run in a ledger */
    " name TEXT NOT NULL,"                   /* what every rid begins with */
    " seed INTEGER NOT NULL,"
    " options TEXT NOT NULL," /* JSON object: the options that decide the weights */
    " created_us INTEGER NOT NULL);"

    "CREATE TABLE incarnations("
    " id INTEGER PRIMARY KEY," /* one for each start of the trainer on this run */
    " pid INTEGER NOT NULL,"
    " started_us INTEGER NOT NULL);"

    "CREATE TABLE inputs("
    " name TEXT PRIMARY KEY," /* prompts, model-folder, reference, critic */
    " checksum TEXT NOT NULL) WITHOUT ROWID;"

    "CREATE TABLE groups("
    " id INTEGER PRIMARY KEY," /* the prompt's number in the run; grows for ever */
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
    " source TEXT);"     /* of several, the prompt's; NULL: there is one */
    "CREATE INDEX groups_by_rollout ON groups(rollout);"
    "CREATE INDEX groups_open ON groups(id) WHERE state = 'open';"
    "CREATE INDEX groups_by_end ON groups(ended_in);"

    "CREATE TABLE sample_rows("
    " id INTEGER PRIMARY KEY,"
    " rollout INTEGER NOT NULL,"
    " group_id INTEGER NOT NULL REFERENCES groups(id),"
    " member INTEGER NOT NULL,"
    " part INTEGER NOT NULL DEFAULT 0," /* of a member that fans out; 0 stands for the member while it is pending */
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
    " checksum INTEGER," /* of all that decides, streams too, as signed 64 bits */
    " UNIQUE(group_id, member, part),"
    " CHECK(status = 'pending' OR lease_incarnation IS NULL),"
    " CHECK(status <> 'failed' OR reward IS NULL),"
    " CHECK(part = 0 OR status IN ('completed', 'truncated')));"
    "CREATE INDEX samples_by_rollout ON sample_rows(rollout, group_id, member, part);"

    "CREATE TABLE sample_streams("
    " sample_id INTEGER NOT NULL REFERENCES sample_rows(id) ON DELETE CASCADE,"
    " name TEXT NOT NULL,"
    " type TEXT NOT NULL CHECK(type IN ('u8', 'u32', 'f32', 'text')),"
    " data BLOB NOT NULL,"       /* elements of the type, without padding; text as text */
    " UNIQUE(sample_id, name));" /* WITHOUT ROWID would read whole arrays to compare names */
    SAMPLES("")

        "CREATE TABLE steps("
        " step INTEGER PRIMARY KEY," /* optimizer steps done when it is done, so the first is 1 */
        " rollout INTEGER NOT NULL,"
        " global_batch INTEGER NOT NULL," /* divisor of the per-sample mean */
        " packing_first BLOB NOT NULL,"   /* i32[n_micro + 1] */
        " packing_sample BLOB NOT NULL,"  /* i32[samples], positions in step_samples */
        " chosen_us INTEGER NOT NULL,"
        " done_us INTEGER,"           /* NULL: chosen, not trained yet */
        " loss REAL, grad_norm REAL," /* NULL where not finite */
        " stats TEXT,"                /* JSON object of every figure */
        " checksum INTEGER);"         /* of its samples' checksums, estimates and packing */
        "CREATE INDEX steps_by_rollout ON steps(rollout);"

        "CREATE TABLE step_samples("
        " step INTEGER NOT NULL REFERENCES steps(step),"
        " position INTEGER NOT NULL," /* order of training */
        " sample_id INTEGER NOT NULL UNIQUE REFERENCES sample_rows(id),"
        " advantage REAL NOT NULL,"
        " removed INTEGER NOT NULL DEFAULT 0," /* not 0: none of its tokens is trained on */
        " PRIMARY KEY(step, position)) WITHOUT ROWID;"

        "CREATE TABLE versions("
        " version INTEGER PRIMARY KEY," /* = the step that made it; 0 = initial weights */
        " sha256 TEXT NOT NULL,"        /* names, types, shapes and bytes in name order */
        " made_us INTEGER NOT NULL);"

        "CREATE TABLE checkpoints("
        " step INTEGER PRIMARY KEY,"
        " path TEXT NOT NULL,"
        " made_us INTEGER NOT NULL,"
        " checksum INTEGER);" /* of its state.json, which holds those of the others */

        "CREATE TABLE evals("
        " id INTEGER PRIMARY KEY,"
        " step INTEGER NOT NULL,"
        " rollout INTEGER NOT NULL,"
        " name TEXT NOT NULL,"
        " score REAL," /* mean reward; NULL when every sample failed */
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
        " reward REAL," /* before what is long */
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

    /* Streams of samples that were drawn from a part of the vocabulary (--rollout-top-p, --rollout-top-k). */
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
