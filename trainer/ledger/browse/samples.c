/* JSON of samples. Threads: browse.h.
 *
 * A list reads only figures (a hundred thousand rows are 20 MB) and needs no extra index. In id order it scans the
 * table in windows and checks the clock after each, since a filter without matches would read the whole table, and a
 * text search all text of the run. When time runs out it returns the matches so far and where to continue. */
#include "trainer/ledger/browse/samples.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "trainer/ledger/browse/rows.h"

#define WINDOW 20000    /* ids: a few milliseconds of figures */
#define TEXT_WINDOW 200 /* the same with text */
#define WORDS "160"     /* characters of a response shown in a list */

const char *const clime_browse_order_names[] = {"newest", "oldest", "best", "worst", "longest", "shortest", NULL};

#define FIGURES                                                                                                        \
    "s.id, s.rollout, s.group_id AS 'group', s.member, s.part, s.status, s.reward, s.n_prompt, s.n_response,"          \
    " s.versions AS 'versions:json', s.attempt, s.mixed_kv, s.temperature, s.submit_us, s.done_us, s.error"
#define MATCHES                                                                                                        \
    " FROM sample_rows s WHERE s.id BETWEEN ?1 AND ?2 AND (?3 < 0 OR s.rollout = ?3)"                                  \
    " AND (?4 < 0 OR s.group_id = ?4) AND (?5 IS NULL OR s.status = ?5) AND (?6 IS NULL OR s.reward >= ?6)"            \
    " AND (?7 IS NULL OR s.reward <= ?7) AND s.n_response BETWEEN ?8 AND ?9"                                           \
    " AND (?10 < 0 OR EXISTS(SELECT 1 FROM step_samples t WHERE t.sample_id = s.id AND t.step = ?10))"
#define HAS_TEXT                                                                                                       \
    " AND (?11 IS NULL OR EXISTS(SELECT 1 FROM sample_streams t WHERE t.sample_id = s.id AND t.name = 'response'"      \
    " AND t.data LIKE ?11 ESCAPE '\\') OR EXISTS(SELECT 1 FROM groups g WHERE g.id = s.group_id"                       \
    " AND g.prompt LIKE ?11 ESCAPE '\\'))"
#define AFTER(column, less)                                                                                            \
    " AND " column " IS NOT NULL AND (?13 IS NULL OR " column less "?13 OR (" column " = ?13 AND s.id < ?14))"

/* Order by value: sorts (id, value) first, then reads the figures of the selected rows. */
#define BY_VALUE(column, less, order)                                                                                  \
    "SELECT " FIGURES " FROM sample_rows s WHERE s.id IN (SELECT s.id" MATCHES HAS_TEXT AFTER(                         \
        column, less) " ORDER BY " column order ", s.id DESC LIMIT ?12) ORDER BY " column order ", s.id DESC"

static const char *const selects[] = {
    [CLIME_BROWSE_NEWEST] = "SELECT " FIGURES MATCHES HAS_TEXT " ORDER BY s.id DESC LIMIT ?12",
    [CLIME_BROWSE_OLDEST] = "SELECT " FIGURES MATCHES HAS_TEXT " ORDER BY s.id LIMIT ?12",
    [CLIME_BROWSE_BEST] = BY_VALUE("s.reward", " < ", " DESC"),
    [CLIME_BROWSE_WORST] = BY_VALUE("s.reward", " > ", ""),
    [CLIME_BROWSE_LONGEST] = BY_VALUE("s.n_response", " < ", " DESC"),
    [CLIME_BROWSE_SHORTEST] = BY_VALUE("s.n_response", " > ", ""),
};

/* LIKE pattern with its special characters escaped. */
static char *pattern_of(const char *text) {
    if (!text) return NULL;
    char *out = xmalloc(2 * strlen(text) + 3), *at = out;
    *at++ = '%';
    for (; *text; text++) {
        if (strchr("%_\\", *text)) *at++ = '\\';
        *at++ = *text;
    }
    *at++ = '%';
    *at = 0;
    return out;
}

/* Range of ids that can match; low > high: none. */
static enum clime_err bounds(struct clime_db *db, const struct clime_browse_filter *f, int64_t *low, int64_t *high,
                             struct clime_error *e) {
    struct clime_stmt *q;
    if (f->group >= 0)
        q = clime_db_stmt(db, "SELECT ifnull(min(id), 1), ifnull(max(id), 0) FROM sample_rows WHERE group_id = ?");
    else if (f->rollout >= 0)
        q = clime_db_stmt(db, "SELECT ifnull(min(id), 1), ifnull(max(id), 0) FROM sample_rows WHERE rollout = ?");
    else if (f->step >= 0)
        q = clime_db_stmt(db, "SELECT ifnull(min(sample_id), 1), ifnull(max(sample_id), 0) FROM step_samples"
                              " WHERE step = ?");
    else
        q = clime_db_stmt(db, "SELECT 0, ifnull((SELECT max(id) FROM sample_rows), -1)");
    if (f->group >= 0 || f->rollout >= 0 || f->step >= 0)
        clime_db_int(q, f->group >= 0 ? f->group : f->rollout >= 0 ? f->rollout : f->step);
    if (clime_db_row(q)) {
        *low = clime_db_get_int(q);
        *high = clime_db_get_int(q);
    }
    return clime_db_done(q, e);
}

struct list {
    struct clime_db *db;
    const struct clime_browse_filter *f;
    const char *pattern;
    struct clime_jw *w;
    int64_t n, last_id;
    double last_value;
};

/* Writes the first words, or those around the searched text. */
static enum clime_err write_words(struct list *l, struct clime_error *e) {
    struct clime_stmt *q =
        clime_db_stmt(l->db, "SELECT substr(data, max(1, ifnull(instr(lower(data), lower(?2)), 0) - 50), " WORDS
                             ") AS words FROM sample_streams WHERE sample_id = ?1 AND name = 'response'");
    clime_db_int(q, l->last_id);
    clime_db_text(q, l->f->text);
    if (clime_db_row(q)) clime_row_members(q, l->w);
    return clime_db_done(q, e);
}

/* Lists matches among the ids low..high until the page is full. */
static enum clime_err window(struct list *l, int64_t low, int64_t high, struct clime_error *e) {
    const struct clime_browse_filter *f = l->f;
    bool by_length = f->order == CLIME_BROWSE_LONGEST || f->order == CLIME_BROWSE_SHORTEST;
    bool by_value = f->order > CLIME_BROWSE_OLDEST;
    enum clime_err rc = CLIME_OK;
    struct clime_stmt *q = clime_db_stmt(l->db, selects[f->order]);
    clime_db_int(q, low);
    clime_db_int(q, high);
    clime_db_int(q, f->rollout);
    clime_db_int(q, f->group);
    clime_db_text(q, f->status);
    clime_db_real(q, f->reward_min);
    clime_db_real(q, f->reward_max);
    clime_db_int(q, f->length_min);
    clime_db_int(q, f->length_max);
    clime_db_int(q, f->step);
    clime_db_text(q, l->pattern);
    clime_db_int(q, f->limit - l->n);
    if (by_value) {
        clime_db_real(q, f->goes_on ? f->last_value : NAN);
        clime_db_int(q, f->last_id);
    }
    for (; !rc && clime_db_row(q); l->n++) {
        clime_jw_object(l->w);
        clime_jw_put_int(l->w, "id", l->last_id = clime_db_get_int(q));
        clime_row_members(q, l->w);
        rc = write_words(l, e);
        clime_jw_close(l->w);
    }
    enum clime_err rc_done = clime_db_done(q, rc ? NULL : e);
    if (rc || rc_done || !by_value || !l->n) return rc ? rc : rc_done;
    q = clime_db_stmt(l->db, "SELECT reward, n_response FROM sample_rows WHERE id = ?");
    clime_db_int(q, l->last_id);
    if (clime_db_row(q)) {
        double reward = clime_db_get_real(q);
        l->last_value = by_length ? (double)clime_db_get_int(q) : reward;
    }
    return clime_db_done(q, e);
}

/* Newest and oldest. *complete: the table is exhausted or the page is full. */
static enum clime_err by_id(struct list *l, int64_t low, int64_t high, bool *complete, struct clime_error *e) {
    const struct clime_browse_filter *f = l->f;
    int64_t size = l->pattern ? TEXT_WINDOW : WINDOW;
    bool down = f->order == CLIME_BROWSE_NEWEST;
    if (f->goes_on && down && f->last_id - 1 < high) high = f->last_id - 1;
    if (f->goes_on && !down && f->last_id + 1 > low) low = f->last_id + 1;
    while (low <= high && l->n < f->limit) {
        int64_t first = down && high - low >= size ? high - size + 1 : low;
        int64_t last = !down && high - low >= size ? low + size - 1 : high;
        enum clime_err rc = window(l, first, last, e);
        if (rc) return rc;
        if (l->n == f->limit) return CLIME_OK;
        l->last_id = down ? first : last; /* scanned up to here */
        if (down)
            high = first - 1;
        else
            low = last + 1;
        if (low <= high && clime_now_us() >= (l->n ? f->soon_us : f->until_us)) {
            *complete = false;
            return CLIME_OK;
        }
    }
    return CLIME_OK;
}

enum clime_err clime_browse_samples(struct clime_db *db, const struct clime_browse_filter *f, struct clime_jw *w,
                                    struct clime_error *e) {
    struct list l = {.db = db, .f = f, .w = w};
    bool by_value = f->order > CLIME_BROWSE_OLDEST, complete = true;
    int64_t low = 1, high = 0;
    if (by_value && f->text)
        return clime_fail(e, CLIME_ERR_INPUT, "with a text to look for the order is newest or oldest");
    char *pattern = pattern_of(f->text);
    l.pattern = pattern;
    clime_jw_object(w);
    clime_jw_key(w, "samples");
    clime_jw_array(w);
    enum clime_err rc = bounds(db, f, &low, &high, e);
    if (!rc) rc = by_value ? window(&l, low, high, e) : by_id(&l, low, high, &complete, e);
    clime_jw_close(w);
    clime_jw_key(w, "next");
    if (l.n == f->limit || !complete) {
        clime_jw_object(w);
        clime_jw_put_int(w, "id", l.last_id);
        if (by_value) clime_jw_put_double(w, "value", l.last_value);
        clime_jw_close(w);
    } else {
        clime_jw_null(w);
    }
    clime_jw_put_bool(w, "complete", complete);
    clime_jw_close(w);
    free(pattern);
    return rc;
}

/* ---- a group, a sample ---- */

#define MORE                                                                                                           \
    FIGURES ", s.device, s.cached_tokens, s.finish AS 'finish:json', s.reward_json AS 'parts:json',"                   \
            " s.metadata AS 'metadata:json', cast(s.seed AS TEXT) AS seed,"                                            \
            " t.step, t.position, t.advantage, t.removed,"                                                             \
            " (SELECT data FROM sample_streams WHERE sample_id = s.id AND name = 'response') AS response"              \
            " FROM sample_rows s LEFT JOIN step_samples t ON t.sample_id = s.id"
#define GROUP                                                                                                          \
    "SELECT id, rollout, epoch, line, prompt, label AS 'label:json', metadata AS 'metadata:json', state, reason,"      \
    " cause, ended_in, opened_us FROM groups WHERE id = ?"

enum clime_err clime_browse_group(struct clime_db *db, int64_t group, struct clime_jw *w, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, GROUP);
    clime_db_int(q, group);
    clime_jw_object(w);
    clime_jw_key(w, "group");
    enum clime_err rc = clime_rows_first(q, w, e);
    if (rc) return rc;
    q = clime_db_stmt(db, "SELECT " MORE " WHERE s.group_id = ? ORDER BY s.member, s.part");
    clime_db_int(q, group);
    clime_jw_key(w, "members");
    rc = clime_rows_array(q, w, e);
    clime_jw_close(w);
    return rc;
}

enum clime_err clime_browse_sample(struct clime_db *db, int64_t id, struct clime_jw *w, struct clime_error *e) {
    int64_t group = -1;
    struct clime_stmt *q = clime_db_stmt(db, "SELECT group_id FROM sample_rows WHERE id = ?");
    clime_db_int(q, id);
    if (clime_db_row(q)) group = clime_db_get_int(q);
    enum clime_err rc = clime_db_done(q, e);
    if (rc) return rc;
    if (group < 0) return clime_fail(e, CLIME_ERR_NOT_FOUND, "the run has no sample %lld", (long long)id);
    q = clime_db_stmt(db, "SELECT " MORE " WHERE s.id = ?");
    clime_db_int(q, id);
    clime_jw_key(w, "sample");
    if ((rc = clime_rows_first(q, w, e))) return rc;
    q = clime_db_stmt(db, GROUP);
    clime_db_int(q, group);
    clime_jw_key(w, "group");
    if ((rc = clime_rows_first(q, w, e))) return rc;
    q = clime_db_stmt(db, "SELECT id, member, part, reward, status, n_prompt, n_response FROM sample_rows"
                          " WHERE group_id = ? ORDER BY member, part");
    clime_db_int(q, group);
    clime_jw_key(w, "members");
    return clime_rows_array(q, w, e);
}

/* ---- tokens ---- */

static void write_numbers(struct clime_jw *w, const char *type, const unsigned char *data, size_t bytes) {
    clime_jw_array(w);
    if (!strcmp(type, "u8"))
        for (size_t i = 0; i < bytes; i++) clime_jw_int(w, data[i]);
    for (size_t i = 0; i + 4 <= bytes && strcmp(type, "u8"); i += 4) {
        uint32_t bits;
        float value;
        memcpy(&bits, data + i, sizeof bits);
        memcpy(&value, &bits, sizeof value);
        if (!strcmp(type, "f32"))
            clime_jw_float(w, value);
        else
            clime_jw_int(w, bits);
    }
    clime_jw_close(w);
}

enum clime_err clime_browse_streams(struct clime_db *db, int64_t id, struct clime_jw *w, int32_t **ids, size_t *n_ids,
                                    struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT name, type, data FROM sample_streams WHERE sample_id = ?"
                                             " AND type <> 'text' ORDER BY name");
    clime_db_int(q, id);
    clime_jw_key(w, "streams");
    clime_jw_object(w);
    while (clime_db_row(q)) {
        const char *name = clime_db_get_text(q), *type = clime_db_get_text(q);
        size_t bytes;
        const void *data = clime_db_get_blob(q, &bytes);
        clime_jw_key(w, name);
        write_numbers(w, type, data, bytes);
        if (ids && !strcmp(name, "ids")) {
            *n_ids = bytes / sizeof **ids;
            *ids = xmalloc(bytes + 1);
            if (bytes) memcpy(*ids, data, *n_ids * sizeof **ids);
        }
    }
    clime_jw_close(w);
    return clime_db_done(q, e);
}
