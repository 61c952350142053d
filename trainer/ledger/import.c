/* Import of rollouts. Called before the ledger is opened, main thread. Versions are dropped, because they count the
 * other run's steps and would be taken for ours. The rows therefore have no checksum, which covers the versions. */
#include "trainer/ledger/import.h"

#include <stdlib.h>

#include "trainer/ledger/streams.h"

static const char groups_sql[] =
    "INSERT INTO groups(id, rollout, epoch, line, source, prompt, label, metadata, state, opened_us)"
    " SELECT id, ended_in, epoch, line, source, prompt, label, metadata, 'open', opened_us FROM source.groups"
    " WHERE state = 'done' AND NOT EXISTS (SELECT 1 FROM main.groups) ORDER BY id";

static const char samples_sql[] =
    "INSERT INTO sample_rows(rollout, group_id, member, part, seed, status, n_prompt, n_response, versions, mixed_kv,"
    " temperature, finish, reward, reward_json, device, submit_us, done_us, cached_tokens, metadata)"
    " SELECT g.ended_in, s.group_id, s.member, s.part, s.seed, s.status, s.n_prompt, s.n_response,"
    " json_array(json_array(-1, s.n_response)), s.mixed_kv, s.temperature, s.finish, s.reward, s.reward_json, s.device,"
    " s.submit_us, s.done_us, s.cached_tokens, s.metadata"
    " FROM source.sample_rows s JOIN source.groups g ON g.id = s.group_id"
    " WHERE g.state = 'done' AND NOT EXISTS (SELECT 1 FROM main.sample_rows) ORDER BY s.group_id, s.member, s.part";

/* Excludes results of the other run's steps and the experts of its servers' weights. */
static const char streams_sql[] =
    "INSERT INTO sample_streams(sample_id, name, type, data) SELECT m.id, t.name, t.type, t.data"
    " FROM main.sample_rows m JOIN source.sample_rows s USING(group_id, member, part)"
    " JOIN source.sample_streams t ON t.sample_id = s.id"
    " WHERE t.name NOT IN (" CLIME_STEP_STREAMS ", 'experts') AND NOT EXISTS (SELECT 1 FROM main.sample_streams)"
    " ORDER BY m.id, t.rowid";

static enum clime_err copy_rows(struct clime_db *db, struct clime_error *e) {
    enum clime_err rc = clime_db_begin(db, true, e);
    if (rc) return rc;
    rc = clime_db_run(clime_db_stmt(db, groups_sql), NULL, e);
    if (!rc) rc = clime_db_run(clime_db_stmt(db, samples_sql), NULL, e);
    if (!rc) rc = clime_db_run(clime_db_stmt(db, streams_sql), NULL, e);
    if (!rc) rc = clime_db_commit(db, e);
    if (rc) clime_db_rollback(db);
    return rc;
}

enum clime_err clime_ledger_import(const char *to, const char *from, struct clime_error *e) {
    struct clime_db *db;
    enum clime_err rc = clime_db_open(from, CLIME_DB_READ, &db, e); /* checks that it is a ledger of this schema */
    if (rc) return rc;
    clime_db_close(db);
    if ((rc = clime_db_open(to, CLIME_DB_WRITE, &db, e))) return rc;
    struct clime_stmt *q = clime_db_stmt(db, "ATTACH ? AS source");
    char *uri = clime_db_uri(from, CLIME_DB_READ, NULL);
    clime_db_text(q, uri);
    rc = clime_db_run(q, NULL, e);
    free(uri);
    if (!rc) rc = copy_rows(db, e);
    clime_db_close(db);
    return rc;
}
