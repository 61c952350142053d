/* The SQL of the ledger's tables. Called by db.c when a writing connection opens a file of an older version.
 *
 * A row holds figures and short text; what grows with a sample's length is in sample_streams, a row each. So a figure
 * over all samples reads a few hundred bytes of each. Where tokens stood before it in the row, avg(reward) went through
 * every one of them: 54 ms for 2,000 samples of 8,000 tokens, now 3.
 *
 * Invariant: a migration that was released is never edited, only followed by another; each runs in one durable
 * transaction together with its user_version. Times are wall-clock microseconds since 1970 (UTC). Blobs are
 * little-endian: ids u32, log-probabilities f32, packing i32. Checksums are clime_sample_checksum's and steps.c's; NULL
 * in rows that an older schema wrote.
 *
 * What must never be false is written as constraints, so that the sqlite3 shell cannot break it either: a sample is in
 * at most one step (UNIQUE), a sample that is finished has no lease, a failed one has no reward, a further part is
 * finished.
 */
#include "trainer/ledger/schema.h"

#include "common/err.h"

static const char *const migrations[] = {
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
    " opened_us INTEGER NOT NULL);"
    "CREATE INDEX groups_by_rollout ON groups(rollout);"

    "CREATE TABLE samples("
    " id INTEGER PRIMARY KEY,"
    " rollout INTEGER NOT NULL,"
    " group_id INTEGER NOT NULL REFERENCES groups(id),"
    " member INTEGER NOT NULL,"
    " seed INTEGER NOT NULL," /* as signed 64 bits */
    " status TEXT NOT NULL CHECK(status IN ('pending', 'completed', 'truncated', 'aborted', 'failed')),"
    " attempt INTEGER NOT NULL DEFAULT 0," /* leases taken so far; last part of the rid */
    " lease_incarnation INTEGER,"
    " lease_until_us INTEGER,"
    " n_prompt INTEGER NOT NULL,"
    " n_response INTEGER NOT NULL DEFAULT 0,"
    " ids BLOB NOT NULL," /* u32[n_prompt + n_response] */
    " logp BLOB,"         /* f32[n_response] */
    " mask BLOB,"         /* u8[n_response] */
    " versions TEXT,"     /* JSON [[version, tokens], ...] */
    " mixed_kv INTEGER NOT NULL DEFAULT 0,"
    " temperature REAL NOT NULL DEFAULT 1,"
    " response TEXT,"
    " finish TEXT," /* JSON finish_reason */
    " reward REAL,"
    " reward_json TEXT,"
    " error TEXT,"
    " device TEXT,"
    " submit_us INTEGER, done_us INTEGER,"
    " cached_tokens INTEGER,"
    " UNIQUE(group_id, member),"
    " CHECK(status = 'pending' OR lease_incarnation IS NULL),"
    " CHECK(status <> 'failed' OR reward IS NULL));"
    "CREATE INDEX samples_by_rollout ON samples(rollout, group_id, member);"

    "CREATE TABLE steps("
    " step INTEGER PRIMARY KEY," /* optimizer steps done when it is done, so the first is 1 */
    " rollout INTEGER NOT NULL,"
    " global_batch INTEGER NOT NULL," /* divisor of the per-sample mean */
    " packing_first BLOB NOT NULL,"   /* i32[n_micro + 1] */
    " packing_sample BLOB NOT NULL,"  /* i32[samples], positions in step_samples */
    " chosen_us INTEGER NOT NULL,"
    " done_us INTEGER,"           /* NULL: chosen, not trained yet */
    " loss REAL, grad_norm REAL," /* NULL where not finite */
    " stats TEXT);"               /* JSON object of every figure */
    "CREATE INDEX steps_by_rollout ON steps(rollout);"

    "CREATE TABLE step_samples("
    " step INTEGER NOT NULL REFERENCES steps(step),"
    " position INTEGER NOT NULL," /* order of training */
    " sample_id INTEGER NOT NULL UNIQUE REFERENCES samples(id),"
    " advantage REAL NOT NULL,"
    " PRIMARY KEY(step, position)) WITHOUT ROWID;"

    "CREATE TABLE versions("
    " version INTEGER PRIMARY KEY," /* = the step that made it; 0 = initial weights */
    " sha256 TEXT NOT NULL,"        /* names, types, shapes and bytes in name order */
    " made_us INTEGER NOT NULL);"

    "CREATE TABLE checkpoints("
    " step INTEGER PRIMARY KEY,"
    " path TEXT NOT NULL,"
    " made_us INTEGER NOT NULL);"

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
    " ids BLOB NOT NULL,"
    " logp BLOB,"
    " response TEXT,"
    " label TEXT,"
    " reward REAL,"
    " error TEXT,"
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

    "PRAGMA user_version = 1;",

    "ALTER TABLE step_samples ADD COLUMN advantages BLOB;" /* f32[n_response]; NULL: advantage for every token */
    "ALTER TABLE step_samples ADD COLUMN old_logp BLOB;"   /* f32[n_response]; NULL: the server's numbers were taken */
    "PRAGMA user_version = 2;",

    /* Groups that outlive the rollout that opened them (partial rollouts), and drops by reason. */
    "ALTER TABLE groups ADD COLUMN ended_in INTEGER;" /* the rollout that used or dropped it; NULL: open */
    "ALTER TABLE groups ADD COLUMN cause TEXT;"       /* dropped: failed, filter, surplus */
    "UPDATE groups SET ended_in = rollout WHERE state <> 'open';"
    "UPDATE groups SET cause = 'failed' WHERE state = 'dropped';"
    "CREATE INDEX groups_open ON groups(id) WHERE state = 'open';"
    "CREATE INDEX groups_by_end ON groups(ended_in);"
    "PRAGMA user_version = 3;",

    "ALTER TABLE samples ADD COLUMN teacher_logp BLOB;" /* f32[n_response]; NULL: no teacher was asked */
    "PRAGMA user_version = 4;",

    "ALTER TABLE step_samples ADD COLUMN old_values BLOB;" /* f32[n_response] of the critic; NULL: there is none */
    "ALTER TABLE step_samples ADD COLUMN returns BLOB;"    /* f32[n_response] what it is trained towards */
    "PRAGMA user_version = 5;",

    "ALTER TABLE samples ADD COLUMN metadata TEXT;" /* JSON object in place of the group's; NULL: the group's */
    "PRAGMA user_version = 6;",

    /* Members that fan out: UNIQUE names the part, which only a new table can do. */
    "CREATE TABLE samples_7("
    " id INTEGER PRIMARY KEY,"
    " rollout INTEGER NOT NULL,"
    " group_id INTEGER NOT NULL REFERENCES groups(id),"
    " member INTEGER NOT NULL,"
    " part INTEGER NOT NULL DEFAULT 0," /* 0 stands for the member while it is pending */
    " seed INTEGER NOT NULL,"
    " status TEXT NOT NULL CHECK(status IN ('pending', 'completed', 'truncated', 'aborted', 'failed')),"
    " attempt INTEGER NOT NULL DEFAULT 0,"
    " lease_incarnation INTEGER,"
    " lease_until_us INTEGER,"
    " n_prompt INTEGER NOT NULL,"
    " n_response INTEGER NOT NULL DEFAULT 0,"
    " ids BLOB NOT NULL,"
    " logp BLOB,"
    " teacher_logp BLOB,"
    " mask BLOB,"
    " versions TEXT,"
    " mixed_kv INTEGER NOT NULL DEFAULT 0,"
    " temperature REAL NOT NULL DEFAULT 1,"
    " response TEXT,"
    " finish TEXT,"
    " reward REAL,"
    " reward_json TEXT,"
    " metadata TEXT,"
    " error TEXT,"
    " device TEXT,"
    " submit_us INTEGER, done_us INTEGER,"
    " cached_tokens INTEGER,"
    " UNIQUE(group_id, member, part),"
    " CHECK(status = 'pending' OR lease_incarnation IS NULL),"
    " CHECK(status <> 'failed' OR reward IS NULL),"
    " CHECK(part = 0 OR status IN ('completed', 'truncated')));"
    "INSERT INTO samples_7(id, rollout, group_id, member, seed, status, attempt, lease_incarnation, lease_until_us,"
    " n_prompt, n_response, ids, logp, teacher_logp, mask, versions, mixed_kv, temperature, response, finish, reward,"
    " reward_json, metadata, error, device, submit_us, done_us, cached_tokens)"
    " SELECT id, rollout, group_id, member, seed, status, attempt, lease_incarnation, lease_until_us,"
    " n_prompt, n_response, ids, logp, teacher_logp, mask, versions, mixed_kv, temperature, response, finish, reward,"
    " reward_json, metadata, error, device, submit_us, done_us, cached_tokens FROM samples;"
    "DROP TABLE samples;"
    "ALTER TABLE samples_7 RENAME TO samples;"
    "CREATE INDEX samples_by_rollout ON samples(rollout, group_id, member, part);"
    "PRAGMA user_version = 7;",

    "ALTER TABLE step_samples ADD COLUMN removed INTEGER NOT NULL DEFAULT 0;" /* 1: none of its tokens is trained on */
    "PRAGMA user_version = 8;",

    /* Streams of samples in rows of their own; samples is a view that puts them together. Checksums. */
    "CREATE TABLE sample_rows("
    " id INTEGER PRIMARY KEY,"
    " rollout INTEGER NOT NULL,"
    " group_id INTEGER NOT NULL REFERENCES groups(id),"
    " member INTEGER NOT NULL,"
    " part INTEGER NOT NULL DEFAULT 0,"
    " seed INTEGER NOT NULL,"
    " status TEXT NOT NULL CHECK(status IN ('pending', 'completed', 'truncated', 'aborted', 'failed')),"
    " attempt INTEGER NOT NULL DEFAULT 0,"
    " lease_incarnation INTEGER,"
    " lease_until_us INTEGER,"
    " n_prompt INTEGER NOT NULL,"
    " n_response INTEGER NOT NULL DEFAULT 0,"
    " versions TEXT,"
    " mixed_kv INTEGER NOT NULL DEFAULT 0,"
    " temperature REAL NOT NULL DEFAULT 1,"
    " reward REAL,"
    " submit_us INTEGER, done_us INTEGER,"
    " cached_tokens INTEGER,"
    " device TEXT,"
    " finish TEXT,"
    " reward_json TEXT,"
    " metadata TEXT,"
    " error TEXT,"
    " checksum INTEGER," /* of all that decides, streams too, as signed 64 bits */
    " UNIQUE(group_id, member, part),"
    " CHECK(status = 'pending' OR lease_incarnation IS NULL),"
    " CHECK(status <> 'failed' OR reward IS NULL),"
    " CHECK(part = 0 OR status IN ('completed', 'truncated')));"
    "INSERT INTO sample_rows(id, rollout, group_id, member, part, seed, status, attempt, lease_incarnation,"
    " lease_until_us, n_prompt, n_response, versions, mixed_kv, temperature, reward, submit_us, done_us,"
    " cached_tokens, device, finish, reward_json, metadata, error)"
    " SELECT id, rollout, group_id, member, part, seed, status, attempt, lease_incarnation, lease_until_us, n_prompt,"
    " n_response, versions, mixed_kv, temperature, reward, submit_us, done_us, cached_tokens, device, finish,"
    " reward_json, metadata, error FROM samples;"
    "CREATE TABLE sample_streams("
    " sample_id INTEGER NOT NULL REFERENCES sample_rows(id) ON DELETE CASCADE,"
    " name TEXT NOT NULL,"
    " type TEXT NOT NULL CHECK(type IN ('u8', 'u32', 'f32', 'text')),"
    " data BLOB NOT NULL,"       /* elements of the type, without padding; text as text */
    " UNIQUE(sample_id, name));" /* WITHOUT ROWID would read whole arrays to compare names */
    "INSERT INTO sample_streams SELECT id, 'ids', 'u32', ids FROM samples"
    " WHERE length(ids);"
    "INSERT INTO sample_streams SELECT id, 'logp', 'f32', logp FROM samples"
    " WHERE length(logp);"
    "INSERT INTO sample_streams SELECT id, 'teacher_logp', 'f32', teacher_logp FROM samples"
    " WHERE length(teacher_logp);"
    "INSERT INTO sample_streams SELECT id, 'mask', 'u8', mask FROM samples"
    " WHERE length(mask);"
    "INSERT INTO sample_streams SELECT id, 'response', 'text', response FROM samples"
    " WHERE response IS NOT NULL;"
    "INSERT INTO sample_streams SELECT sample_id, 'advantages', 'f32', advantages FROM step_samples"
    " WHERE length(advantages);"
    "INSERT INTO sample_streams SELECT sample_id, 'old_logp', 'f32', old_logp FROM step_samples"
    " WHERE length(old_logp);"
    "INSERT INTO sample_streams SELECT sample_id, 'old_values', 'f32', old_values FROM step_samples"
    " WHERE length(old_values);"
    "INSERT INTO sample_streams SELECT sample_id, 'returns', 'f32', returns FROM step_samples"
    " WHERE length(returns);"
    "CREATE TABLE step_samples_9("
    " step INTEGER NOT NULL REFERENCES steps(step),"
    " position INTEGER NOT NULL,"
    " sample_id INTEGER NOT NULL UNIQUE REFERENCES sample_rows(id),"
    " advantage REAL NOT NULL,"
    " removed INTEGER NOT NULL DEFAULT 0,"
    " PRIMARY KEY(step, position)) WITHOUT ROWID;"
    "INSERT INTO step_samples_9 SELECT step, position, sample_id, advantage, removed FROM step_samples;"
    "DROP TABLE step_samples;"
    "DROP TABLE samples;"
    "ALTER TABLE step_samples_9 RENAME TO step_samples;"
    "CREATE INDEX samples_by_rollout ON sample_rows(rollout, group_id, member, part);"
    "CREATE VIEW samples AS SELECT r.*,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'ids') AS ids,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'logp') AS logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'teacher_logp') AS teacher_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'mask') AS mask,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'response') AS response,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'advantages') AS advantages,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_logp') AS old_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_values') AS old_values,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'returns') AS returns"
    " FROM sample_rows r;"
    "CREATE TABLE eval_samples_9("
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
    "INSERT INTO eval_samples_9 SELECT eval_id, prompt_index, member, status, n_prompt, reward, error, label, response,"
    " ids, logp FROM eval_samples;"
    "DROP TABLE eval_samples;"
    "ALTER TABLE eval_samples_9 RENAME TO eval_samples;"
    "CREATE TABLE inputs("
    " name TEXT PRIMARY KEY," /* prompts, model-folder, reference, critic */
    " checksum TEXT NOT NULL) WITHOUT ROWID;"
    "ALTER TABLE steps ADD COLUMN checksum INTEGER;"       /* of its samples' checksums, estimates and packing */
    "ALTER TABLE checkpoints ADD COLUMN checksum INTEGER;" /* of its state.json, which holds those of the others */
    "PRAGMA user_version = 9;",

    "ALTER TABLE groups ADD COLUMN source TEXT;" /* of several, the prompt's; NULL: there is one */
    "PRAGMA user_version = 10;",

    /* A stream that a step adds when it ran: the entropy of the policy where it sampled a token. */
    "DROP VIEW samples;"
    "CREATE VIEW samples AS SELECT r.*,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'ids') AS ids,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'logp') AS logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'teacher_logp') AS teacher_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'mask') AS mask,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'response') AS response,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'advantages') AS advantages,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_logp') AS old_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_values') AS old_values,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'returns') AS returns,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'entropy') AS entropy"
    " FROM sample_rows r;"
    "PRAGMA user_version = 11;",

    /* A stream of models with experts: what their routers chose for the row that drew each token. */
    "DROP VIEW samples;"
    "CREATE VIEW samples AS SELECT r.*,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'ids') AS ids,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'logp') AS logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'teacher_logp') AS teacher_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'routing') AS routing,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'mask') AS mask,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'response') AS response,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'advantages') AS advantages,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_logp') AS old_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_values') AS old_values,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'returns') AS returns,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'entropy') AS entropy"
    " FROM sample_rows r;"
    "PRAGMA user_version = 12;",

    /* A stream of samples that are replayed (--use-rollout-routing-replay): the experts of all positions but the last.
     */
    "DROP VIEW samples;"
    "CREATE VIEW samples AS SELECT r.*,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'ids') AS ids,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'logp') AS logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'teacher_logp') AS teacher_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'routing') AS routing,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'experts') AS experts,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'mask') AS mask,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'response') AS response,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'advantages') AS advantages,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_logp') AS old_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_values') AS old_values,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'returns') AS returns,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'entropy') AS entropy"
    " FROM sample_rows r;"
    "PRAGMA user_version = 13;",

    /* Streams of samples that were drawn from a part of the vocabulary (--rollout-top-p, --rollout-top-k). */
    "DROP VIEW samples;"
    "CREATE VIEW samples AS SELECT r.*,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'ids') AS ids,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'logp') AS logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'teacher_logp') AS teacher_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'kept_n') AS kept_n,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'kept') AS kept,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'kept_logp') AS kept_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'routing') AS routing,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'experts') AS experts,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'mask') AS mask,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'response') AS response,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'advantages') AS advantages,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_logp') AS old_logp,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'old_values') AS old_values,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'returns') AS returns,"
    " (SELECT data FROM sample_streams WHERE sample_id = r.id AND name = 'entropy') AS entropy"
    " FROM sample_rows r;"
    "PRAGMA user_version = 14;",
};

int clime_schema_version(void) {
    return (int)CLIME_COUNT(migrations);
}

/* 11 to 14 only gave the view `samples` more columns, for the sqlite3 shell. */
int clime_schema_readable(void) {
    return 10;
}

const char *clime_schema_migration(int v) {
    CHECK(v >= 0 && v < clime_schema_version());
    return migrations[v];
}
