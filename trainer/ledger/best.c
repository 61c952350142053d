/* Best answers (see best.h). Chooses rows first, then reads their tokens one by one, so the sort moves no tokens.
 * Called by clime-train data. */
#include "trainer/ledger/best.h"

#include <stdlib.h>

#include "trainer/ledger/samples.h"

struct row {
    int64_t id;
    char *prompt;
};

static enum clime_err choose(struct clime_db *db, bool best, double min_reward, struct row **rows, int *n,
                             struct clime_error *e) {
    int size = 0;
    struct clime_stmt *q = clime_db_stmt(
        db, "WITH good AS (SELECT s.id AS id, g.prompt AS prompt, ifnull(g.source, '') AS source, g.line AS line,"
            " row_number() OVER (PARTITION BY ifnull(g.source, ''), g.line ORDER BY s.reward DESC, s.id) AS place"
            " FROM sample_rows s JOIN groups g ON g.id = s.group_id"
            " WHERE s.status = 'completed' AND s.reward >= ?"
            " AND EXISTS (SELECT 1 FROM sample_streams t WHERE t.sample_id = s.id AND t.name = 'ids'))"
            " SELECT id, prompt FROM good WHERE place = 1 OR NOT ? ORDER BY source, line, id");
    clime_db_real(q, min_reward);
    clime_db_int(q, best);
    while (clime_db_row(q)) {
        if (*n == size) {
            size = size ? 2 * size : 256;
            *rows = xrealloc(*rows, (size_t)size * sizeof **rows);
        }
        (*rows)[*n].id = clime_db_get_int(q);
        (*rows)[(*n)++].prompt = clime_db_dup_text(q);
    }
    return clime_db_done(q, e);
}

enum clime_err clime_best_samples(struct clime_db *db, bool best, double min_reward, clime_best_fn *fn, void *arg,
                                  struct clime_error *e) {
    struct row *rows = NULL;
    int n = 0;
    enum clime_err rc = choose(db, best, min_reward, &rows, &n, e);
    for (int i = 0; i < n && !rc; i++) {
        struct clime_sample *s = NULL;
        rc = clime_sample_load(db, rows[i].id, &s, e);
        if (!rc) rc = fn(arg, &(struct clime_best_sample){rows[i].prompt, s}, e);
        clime_sample_free(s);
    }
    for (int i = 0; i < n; i++) free(rows[i].prompt);
    free(rows);
    return rc;
}
