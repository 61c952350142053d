/* Facts of a policy. See policy.h. Called by the server, which reports them in /server_info, and by the trainer, which
 * compares them. */
#include "model/policy.h"

#include <stdlib.h>

#include "model/rope.h"

int32_t *clime_policy_stop_ids(const struct clime_config *c, const struct clime_tokenizer *t, int *n) {
    size_t n_tok;
    const int32_t *tok = clime_tokenizer_eos(t, &n_tok);
    int32_t *ids = xcalloc(n_tok + CLIME_MAX_EOS, sizeof *ids);
    *n = 0;
    for (size_t i = 0; i < n_tok + (size_t)c->n_eos; i++) {
        const int32_t id = i < n_tok ? tok[i] : c->eos_ids[i - n_tok];
        bool seen = false;
        for (int k = 0; k < *n; k++) seen |= ids[k] == id;
        if (!seen) ids[(*n)++] = id;
    }
    return ids;
}

static int by_id(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static void put_stop_ids(const struct clime_config *c, const struct clime_tokenizer *t, struct clime_facts *out) {
    struct clime_buf text;
    int n;
    int32_t *ids = clime_policy_stop_ids(c, t, &n);
    clime_buf_init(&text, 1 << 16);
    qsort(ids, (size_t)n, sizeof *ids, by_id);
    for (int i = 0; i < n; i++) clime_buf_printf(&text, "%s%d", i ? "," : "", (int)ids[i]);
    clime_facts_put(out, "stop-token-ids", n ? clime_buf_str(&text).ptr : "none");
    clime_buf_free(&text);
    free(ids);
}

enum clime_err clime_policy_facts(const struct clime_config *c, const struct clime_tokenizer *t, const char *dir,
                                  struct clime_facts *out, struct clime_error *e) {
    put_stop_ids(c, t, out);
    enum clime_err rc = clime_tokenizer_facts(t, dir, out, e);
    if (rc) return rc;
    clime_config_facts(c, out);
    clime_facts_put_checksum(out, "rotary-table", clime_rope_checksum(c));
    return CLIME_OK;
}
