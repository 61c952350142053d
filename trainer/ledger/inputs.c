/* Rows of inputs. Main thread, at the start. */
#include "trainer/ledger/inputs.h"

#include <stdio.h>
#include <string.h>

struct put {
    const char *name, *checksum, *what;
};

static enum clime_err put(struct clime_db *db, void *arg, struct clime_error *e) {
    const struct put *p = arg;
    bool same = true;
    char was[160] = "";
    struct clime_stmt *q = /* a run that has done nothing yet (its first start failed) may begin with another */
        clime_db_stmt(db, "INSERT INTO inputs(name, checksum) VALUES(?, ?) ON CONFLICT DO UPDATE SET checksum ="
                          " excluded.checksum WHERE NOT EXISTS (SELECT 1 FROM versions)"
                          " AND NOT EXISTS (SELECT 1 FROM evals)");
    clime_db_text(q, p->name);
    clime_db_text(q, p->checksum);
    enum clime_err rc = clime_db_run(q, NULL, e);
    if (rc) return rc;
    q = clime_db_stmt(db, "SELECT checksum FROM inputs WHERE name = ?");
    clime_db_text(q, p->name);
    if (clime_db_row(q)) {
        const char *text = clime_db_get_text(q);
        same = !strcmp(text, p->checksum);
        snprintf(was, sizeof was, "%.150s", text);
    }
    rc = clime_db_done(q, e);
    if (rc || same) return rc;
    return clime_fail(e, CLIME_ERR_INPUT,
                      "%.200s is another one than this run was begun with (%.100s, it was %.100s); it decides what "
                      "comes out, so another one needs another run folder",
                      p->what, p->checksum, was);
}

enum clime_err clime_input_get(struct clime_db *db, const char *name, char **out, struct clime_error *e) {
    struct clime_stmt *q = clime_db_stmt(db, "SELECT checksum FROM inputs WHERE name = ?");
    *out = NULL;
    clime_db_text(q, name);
    if (clime_db_row(q)) *out = xstrdup(clime_db_get_text(q));
    return clime_db_done(q, e);
}

enum clime_err clime_input_put(struct clime_ledger *l, const char *name, const char *checksum, const char *what,
                               struct clime_error *e) {
    struct put p = {name, checksum, what};
    return clime_ledger_write(l, put, &p, false, e);
}
