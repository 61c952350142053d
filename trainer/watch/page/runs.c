/* Runs of a page: a pool of connections to their ledgers, and their tokenizers. Any thread.
 *
 * Invariant: a connection belongs to the thread that acquired it until released. An idle one survives a restart of the
 * trainer, which opens the same file; one that had an error is closed, so a replaced folder is opened anew. */
#include <stdlib.h>
#include <unistd.h>

#include "common/log.h"
#include "trainer/watch/page/page_int.h"

enum clime_err clime_page_acquire(struct clime_page_run *r, struct clime_db **out, struct clime_error *e) {
    *out = NULL;
    pthread_mutex_lock(&r->lock);
    if (r->n_kept) *out = r->kept[--r->n_kept];
    pthread_mutex_unlock(&r->lock);
    if (*out && access(r->ledger, F_OK) == 0) return CLIME_OK;
    clime_db_close(*out); /* its file is gone */
    return clime_db_open(r->ledger, CLIME_DB_READ, out, e);
}

void clime_page_release(struct clime_page_run *r, struct clime_db *db, bool good) {
    pthread_mutex_lock(&r->lock);
    bool keep = good && !clime_db_is_still(db) && r->n_kept < CLIME_PAGE_KEPT;
    if (keep) r->kept[r->n_kept++] = db;
    pthread_mutex_unlock(&r->lock);
    if (!keep) clime_db_close(db);
}

/* Loads the tokenizer from a finished run's folder, else from tokenizer_dir. */
static struct clime_tokenizer *load(const struct clime_page *p, const struct clime_page_run *r) {
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    char *hf = xasprintf("%s/hf", r->dir);
    const char *dir = access(hf, F_OK) == 0 ? hf : p->tokenizer_dir;
    if (dir && clime_tokenizer_load(dir, &t, &e)) LOG_WARN("page: tokens are shown by number: %s", e.msg);
    free(hf);
    return t;
}

const struct clime_tokenizer *clime_page_tokenizer(struct clime_page *p, int run) {
    struct clime_page_run *r = &p->runs[run];
    if (run == 0 && p->tokenizer) return p->tokenizer;
    pthread_mutex_lock(&r->lock);
    if (!r->looked) r->own = load(p, r);
    r->looked = true;
    const struct clime_tokenizer *t = r->own;
    pthread_mutex_unlock(&r->lock);
    return t;
}
