/* Answers of a run as rows for sft: exactly the sampled tokens, with their masks (best-of-n distillation; rejection
 * sampling with --min-reward). Reads live runs' ledgers too. Main thread. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/write.h"
#include "trainer/cmd/data_int.h"
#include "trainer/ledger/best.h"

#define MAX_ROW ((size_t)1 << 30)

struct writer {
    FILE *to;
    struct clime_buf row;
    int64_t n;
};

static enum clime_err write_row(void *arg, const struct clime_best_sample *b, struct clime_error *e) {
    struct writer *t = arg;
    const struct clime_sample *s = b->sample;
    struct clime_jw w;
    clime_buf_clear(&t->row);
    clime_jw_init(&w, &t->row);
    clime_jw_object(&w);
    clime_jw_put_strz(&w, "prompt", b->prompt);
    clime_jw_put_strz(&w, "response", s->response);
    clime_jw_put_double(&w, "reward", s->reward);
    clime_jw_put_int(&w, "group", s->group);
    clime_jw_put_int(&w, "member", s->member);
    clime_jw_key(&w, "ids");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_prompt + s->n_response; i++) clime_jw_int(&w, s->ids[i]);
    clime_jw_close(&w);
    clime_jw_key(&w, "mask");
    clime_jw_array(&w);
    for (int i = 0; i < s->n_prompt; i++) clime_jw_int(&w, 0);
    for (int i = 0; i < s->n_response; i++) clime_jw_int(&w, s->mask[i] != 0);
    clime_jw_close(&w);
    clime_jw_close(&w);
    clime_buf_addc(&t->row, '\n');
    if (t->row.full) return clime_fail(e, CLIME_ERR_LIMIT, "a sample of more than %zu bytes", MAX_ROW);
    fwrite(t->row.data, 1, t->row.len, t->to);
    t->n++;
    return CLIME_OK;
}

enum clime_err clime_data_from_run(const struct clime_data_command *c, struct clime_error *e) {
    struct clime_db *db = NULL;
    struct writer w = {0};
    char *path = xasprintf("%s/ledger.db", c->from_run);
    clime_buf_init(&w.row, MAX_ROW);
    enum clime_err rc = clime_db_open(path, CLIME_DB_READ, &db, e);
    if (!rc && !(w.to = fopen(c->output, "w")))
        rc = clime_fail(e, CLIME_ERR_IO, "cannot write %s: %s", c->output, strerror(errno));
    if (!rc) rc = clime_best_samples(db, c->best, c->has_min_reward ? c->min_reward : -DBL_MAX, write_row, &w, e);
    if (w.to && fclose(w.to) && !rc) rc = clime_fail(e, CLIME_ERR_IO, "writing %s: %s", c->output, strerror(errno));
    if (!rc && !w.n)
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s has no answer with its tokens%s", c->from_run,
                        c->has_min_reward ? " and a reward of --min-reward" : "");
    if (!rc)
        printf("%s: %" PRId64 " samples; train on them with clime-train sft --prompt-data %s --ids-key ids\n",
               c->output, w.n, c->output);
    clime_buf_free(&w.row);
    clime_db_close(db);
    free(path);
    return rc;
}
