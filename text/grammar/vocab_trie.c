/* Builds the trie: sorts tokens by bytes, then one pass. Called once by the server, on a text thread.
 *
 * Invariant: nodes are in depth-first order; skip[i] > i; tokens over UINT16_MAX bytes are omitted.
 */
#include "text/grammar/vocab_trie.h"

#include <stdlib.h>

#define MAX_TOKEN 4096 /* bytes; longer tokens are omitted, they only deepen walks */

struct named {
    struct clime_str s;
    int32_t id;
};

static int by_bytes(const void *a, const void *b) {
    const struct named *x = a, *y = b;
    size_t n = x->s.len < y->s.len ? x->s.len : y->s.len;
    int c = memcmp(x->s.ptr, y->s.ptr, n);
    if (c) return c;
    if (x->s.len != y->s.len) return x->s.len > y->s.len ? 1 : -1;
    return (x->id > y->id) - (x->id < y->id);
}

static bool is_eos(int32_t id, const int32_t *eos, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (eos[i] == id) return true;
    return false;
}

/* Copies the bytes of all tokens as a grammar sees them. */
static void copy_bytes(struct clime_vocab_trie *v, const int32_t *eos, size_t n_eos) {
    for (int32_t id = 0; id < v->V; id++) {
        struct clime_str s = clime_tokenizer_bytes(v->tokenizer, id);
        v->at[id] = (uint32_t)v->bytes.len;
        if (s.len == 0 || s.len > MAX_TOKEN || is_eos(id, eos, n_eos) || memchr(s.ptr, CLIME_SPECIAL_BYTE, s.len))
            continue;
        if (clime_tokenizer_is_special(v->tokenizer, id)) clime_buf_addc(&v->bytes, (char)CLIME_SPECIAL_BYTE);
        clime_buf_add(&v->bytes, s.ptr, s.len);
    }
    v->at[v->V] = (uint32_t)v->bytes.len;
    CHECK(!v->bytes.full);
    if (!v->bytes.data) clime_buf_addc(&v->bytes, '\0'); /* non-NULL also for a vocabulary without text */
}

/* Adds nodes for s below the first `common` bytes, which exist. */
static void add_path(struct clime_vocab_trie *v, struct clime_str s, size_t common, int32_t *path) {
    for (size_t d = common; d < s.len; d++) {
        int32_t i = v->n_nodes++;
        path[d] = i;
        v->byte[i] = (uint8_t)s.ptr[d];
        v->depth[i] = (uint16_t)(d + 1);
        v->token[i] = -1;
    }
}

static void close_path(struct clime_vocab_trie *v, size_t from, size_t to, const int32_t *path) {
    for (size_t d = from; d < to; d++) v->skip[path[d]] = v->n_nodes;
}

struct clime_vocab_trie *clime_vocab_trie_new(const struct clime_tokenizer *t, int V, const int32_t *eos,
                                              size_t n_eos) {
    struct clime_vocab_trie *v = xcalloc(1, sizeof *v);
    int32_t path[MAX_TOKEN + 1];
    size_t n_bytes = 0, len = 0;
    int n = 0;
    v->tokenizer = t;
    v->V = V;
    v->at = xmalloc((size_t)(V + 1) * sizeof *v->at);
    v->same = xmalloc((size_t)(V + 1) * sizeof *v->same);
    clime_buf_init(&v->bytes, (size_t)V * (MAX_TOKEN + 1) + 1);
    copy_bytes(v, eos, n_eos);
    struct named *all = xmalloc((size_t)(V + 1) * sizeof *all);
    for (int32_t id = 0; id < V; id++) {
        struct clime_str s = clime_vocab_trie_bytes(v, id);
        v->same[id] = -1;
        if (s.len == 0) continue;
        all[n++] = (struct named){s, id};
        n_bytes += s.len;
        if ((int)s.len > v->longest) v->longest = (int)s.len;
        bool special = (uint8_t)s.ptr[0] == CLIME_SPECIAL_BYTE;
        if (special && s.len - 1 > v->longest_special) v->longest_special = s.len - 1;
    }
    qsort(all, (size_t)n, sizeof *all, by_bytes);
    v->byte = xmalloc(n_bytes + 1);
    v->depth = xmalloc((n_bytes + 1) * sizeof *v->depth);
    v->skip = xmalloc((n_bytes + 1) * sizeof *v->skip);
    v->token = xmalloc((n_bytes + 1) * sizeof *v->token);
    for (int i = 0; i < n; i++) {
        struct clime_str s = all[i].s, last = i > 0 ? all[i - 1].s : (struct clime_str){"", 0};
        size_t common = 0;
        while (common < s.len && common < last.len && s.ptr[common] == last.ptr[common]) common++;
        close_path(v, common, len, path);
        add_path(v, s, common, path);
        len = s.len;
        v->same[all[i].id] = v->token[path[len - 1]];
        v->token[path[len - 1]] = all[i].id;
    }
    close_path(v, 0, len, path);
    v->byte = xrealloc(v->byte, (size_t)v->n_nodes + 1);
    v->depth = xrealloc(v->depth, ((size_t)v->n_nodes + 1) * sizeof *v->depth);
    v->skip = xrealloc(v->skip, ((size_t)v->n_nodes + 1) * sizeof *v->skip);
    v->token = xrealloc(v->token, ((size_t)v->n_nodes + 1) * sizeof *v->token);
    free(all);
    return v;
}

void clime_vocab_trie_free(struct clime_vocab_trie *v) {
    if (!v) return;
    free(v->byte);
    free(v->depth);
    free(v->skip);
    free(v->token);
    free(v->same);
    free(v->at);
    clime_buf_free(&v->bytes);
    free(v);
}
