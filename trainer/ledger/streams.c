/* Rows of sample_streams. Called by the files of samples, groups and steps in their transactions; owns nothing.
 * Invariant: a stream's length follows from the sample's row; any other length is rejected on reading. */
#include "trainer/ledger/streams.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum extent {
    EXTENT_ALL,      /* tokens of prompt and response */
    EXTENT_RESPONSE, /* tokens of the response */
    EXTENT_EXPERTS,  /* bytes, equally many for every position but the last */
    EXTENT_KEPT,     /* the sum of kept_n */
    EXTENT_TEXT      /* bytes of a text */
};

struct stream {
    const char *name, *type;
    enum extent extent;
    size_t element; /* bytes */
    size_t at;      /* offset of the pointer in its structure */
};

#define OF_SAMPLE(m) offsetof(struct clime_sample, m)
#define OF_ESTIMATE(m) offsetof(struct clime_estimate, m)

static const struct stream of_sample[] = {
    {"ids", "u32", EXTENT_ALL, 4, OF_SAMPLE(ids)},
    {"logp", "f32", EXTENT_RESPONSE, 4, OF_SAMPLE(logp)},
    {"teacher_logp", "f32", EXTENT_RESPONSE, 4, OF_SAMPLE(teacher_logp)},
    {"kept_n", "u32", EXTENT_RESPONSE, 4, OF_SAMPLE(kept_n)},
    {"kept", "u32", EXTENT_KEPT, 4, OF_SAMPLE(kept)},
    {"kept_logp", "f32", EXTENT_RESPONSE, 4, OF_SAMPLE(kept_logp)},
    {"routing", "u32", EXTENT_RESPONSE, 4, OF_SAMPLE(routing)},
    {"experts", "u8", EXTENT_EXPERTS, 1, OF_SAMPLE(experts)},
    {"mask", "u8", EXTENT_RESPONSE, 1, OF_SAMPLE(mask)},
    {"response", "text", EXTENT_TEXT, 1, OF_SAMPLE(response)},
};

static const struct stream of_estimate[] = {
    /* listed in CLIME_STEP_STREAMS, with entropy */
    {"advantages", "f32", EXTENT_RESPONSE, 4, OF_ESTIMATE(adv)},
    {"old_logp", "f32", EXTENT_RESPONSE, 4, OF_ESTIMATE(old)},
    {"old_values", "f32", EXTENT_RESPONSE, 4, OF_ESTIMATE(value)},
    {"returns", "f32", EXTENT_RESPONSE, 4, OF_ESTIMATE(ret)},
};

static const struct stream of_run = {"entropy", "f32", EXTENT_RESPONSE, 4, 0};

static const void *pointer_in(const void *structure, const struct stream *r) {
    const void *p; /* the pointers differ in type, not in size */
    memcpy(&p, (const char *)structure + r->at, sizeof p);
    return p;
}

static size_t bytes_of(const struct stream *r, const struct clime_sample *s) {
    if (r->extent == EXTENT_EXPERTS) return clime_sample_experts_bytes(s);
    if (r->extent == EXTENT_KEPT) return (size_t)s->n_kept * r->element;
    size_t n = (size_t)s->n_response + (r->extent == EXTENT_ALL ? (size_t)s->n_prompt : 0);
    return n * r->element;
}

static enum clime_err put(struct clime_db *db, const struct clime_sample *s, const struct stream *r,
                          const void *structure, struct clime_error *e) {
    const void *data = pointer_in(structure, r);
    size_t bytes = r->extent == EXTENT_TEXT ? 0 : bytes_of(r, s);
    if (!data || (r->extent != EXTENT_TEXT && bytes == 0)) return CLIME_OK;
    struct clime_stmt *q =
        clime_db_stmt(db, "INSERT OR REPLACE INTO sample_streams(sample_id, name, type, data) VALUES(?, ?, ?, ?)");
    clime_db_int(q, s->row_id);
    clime_db_text(q, r->name);
    clime_db_text(q, r->type);
    if (r->extent == EXTENT_TEXT)
        clime_db_text(q, data);
    else
        clime_db_blob(q, data, bytes);
    return clime_db_run(q, NULL, e);
}

static enum clime_err forget(struct clime_db *db, const struct clime_sample *s, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "DELETE FROM sample_streams WHERE sample_id = ?");
    clime_db_int(q, s->row_id);
    return clime_db_run(q, NULL, e);
}

enum clime_err clime_streams_put(struct clime_db *db, const struct clime_sample *s, bool first, struct clime_error *e) {
    enum clime_err rc = first ? CLIME_OK : forget(db, s, e);
    for (size_t i = 0; i < CLIME_COUNT(of_sample) && !rc; i++) rc = put(db, s, &of_sample[i], s, e);
    return rc;
}

enum clime_err clime_streams_put_estimate(struct clime_db *db, const struct clime_sample *s,
                                          const struct clime_estimate *estimate, struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    for (size_t i = 0; i < CLIME_COUNT(of_estimate) && !rc; i++) rc = put(db, s, &of_estimate[i], estimate, e);
    return rc;
}

enum clime_err clime_streams_put_entropy(struct clime_db *db, const struct clime_sample *s, const float *entropy,
                                         struct clime_error *e) {
    return put(db, s, &of_run, &entropy, e);
}

static const struct stream *find(const struct stream *rows, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(rows[i].name, name)) return &rows[i];
    return NULL;
}

/* Reads a stream from the next column of q. */
static enum clime_err take(struct clime_stmt *q, struct clime_sample *s, const struct stream *r, void *structure,
                           struct clime_error *e) {
    size_t bytes = 0;
    void *data = NULL;
    memcpy(&data, (char *)structure + r->at, sizeof data);
    if (data) /* damaged file: each stream occurs once */
        return clime_fail(e, CLIME_ERR_INPUT, "ledger: %s of sample %lld is there twice", r->name,
                          (long long)s->row_id);
    data = r->extent == EXTENT_TEXT ? clime_db_dup_text(q) : clime_db_dup_blob(q, &bytes);
    memcpy((char *)structure + r->at, &data, sizeof data);
    if (r->extent == EXTENT_EXPERTS && s->n_prompt + s->n_response > 1)
        s->expert_bytes = (int32_t)(bytes / ((size_t)s->n_prompt + (size_t)s->n_response - 1));
    if (r->extent == EXTENT_KEPT) s->n_kept = (int64_t)(bytes / r->element);
    if (r->extent == EXTENT_TEXT || bytes == bytes_of(r, s)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "ledger: %s of sample %lld has %zu bytes instead of %zu", r->name,
                      (long long)s->row_id, bytes, bytes_of(r, s));
}

enum clime_err clime_streams_get(struct clime_db *db, struct clime_sample *s, struct clime_estimate *estimate,
                                 struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    struct clime_stmt *q = clime_db_stmt(db, "SELECT name, data FROM sample_streams WHERE sample_id = ?");
    clime_db_int(q, s->row_id);
    while (!rc && clime_db_row(q)) {
        const char *name = clime_db_get_text(q);
        const struct stream *r = find(of_sample, CLIME_COUNT(of_sample), name);
        const struct stream *of_step = estimate && !r ? find(of_estimate, CLIME_COUNT(of_estimate), name) : NULL;
        if (r)
            rc = take(q, s, r, s, e);
        else if (of_step)
            rc = take(q, s, of_step, estimate, e);
    }
    enum clime_err rc_done = clime_db_done(q, rc ? NULL : e);
    if (rc || rc_done) return rc ? rc : rc_done;
    if (s->n_kept != clime_sample_count_kept(s) || !s->kept_n != !s->kept_logp)
        return clime_fail(e, CLIME_ERR_INPUT, "ledger: kept of sample %lld holds %lld ids instead of %lld",
                          (long long)s->row_id, (long long)s->n_kept, (long long)clime_sample_count_kept(s));
    bool whole = (s->ids || s->n_prompt + s->n_response == 0) && ((s->logp && s->mask) || s->n_response == 0);
    if (whole) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "ledger: the tokens of sample %lld/%lld/%d are not kept any more",
                      (long long)s->rollout, (long long)s->group, s->member);
}

enum clime_err clime_streams_drop_before(struct clime_db *db, int64_t rollout, int64_t *n, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "DELETE FROM sample_streams WHERE sample_id IN (SELECT s.id FROM groups g"
                                             " JOIN sample_rows s ON s.group_id = g.id WHERE g.ended_in < ?)");
    clime_db_int(q, rollout);
    return clime_db_run(q, n, e);
}
