/* The cache of compiled grammars. Called by text threads; owns a reference to each grammar that it keeps, and the
 * vocabulary's trie.
 *
 * Invariant: at most MAX_KEPT grammars are kept, with LRU eviction. An evicted grammar lives while it is referenced.
 */
#include "server/job/grammar_cache.h"

#include <pthread.h>
#include <stdlib.h>

#include "text/output/output_parser.h"

#define MAX_KEPT 64 /* up to 48 MB each in use (text/grammar/grammar.c); most are under 1 MB */

struct clime_grammar_cache {
    const struct clime_tokenizer *tokenizer;
    int V, n_eos;
    const int32_t *eos;
    pthread_mutex_t lock;
    struct clime_vocab_trie *trie; /* built at first use, then constant */
    struct kept {
        struct clime_buf key;
        struct clime_grammar *grammar;
        uint64_t used;
    } kept[MAX_KEPT];
    int n_kept;
    uint64_t clock;
};

struct clime_grammar_cache *clime_grammar_cache_new(const struct clime_tokenizer *t, int V, const int32_t *eos,
                                                    int n_eos) {
    struct clime_grammar_cache *c = xcalloc(1, sizeof *c);
    c->tokenizer = t;
    c->V = V;
    c->eos = eos;
    c->n_eos = n_eos;
    pthread_mutex_init(&c->lock, NULL);
    return c;
}

void clime_grammar_cache_free(struct clime_grammar_cache *c) {
    if (!c) return;
    for (int i = 0; i < c->n_kept; i++) {
        clime_grammar_unref(c->kept[i].grammar);
        clime_buf_free(&c->kept[i].key);
    }
    clime_vocab_trie_free(c->trie);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void write_key(const struct clime_grammar_source *s, struct clime_buf *out) {
    clime_buf_init(out, 2 * CLIME_GRAMMAR_MAX_SOURCE + 4096);
    clime_buf_printf(out, "%d %d %d %d %d %zu %zu %s %s ", s->kind, s->or_kind, s->lead, s->one_call, s->in_text,
                     s->tool.len, s->or_text.len, s->lead ? s->reasoning->name : "-", s->calls ? s->calls->name : "-");
    clime_buf_add(out, s->tool.ptr, s->tool.len);
    clime_buf_add(out, s->or_text.ptr, s->or_text.len);
    clime_buf_add(out, s->text.ptr, s->text.len);
}

static struct kept *find(struct clime_grammar_cache *c, const struct clime_buf *key) {
    for (int i = 0; i < c->n_kept; i++)
        if (clime_str_eq(clime_buf_str(&c->kept[i].key), clime_buf_str(key))) return &c->kept[i];
    return NULL;
}

/* The cache takes ownership of the key. */
static void keep(struct clime_grammar_cache *c, struct clime_buf *key, struct clime_grammar *g) {
    struct kept *to = &c->kept[0];
    if (c->n_kept < MAX_KEPT) {
        to = &c->kept[c->n_kept++];
    } else {
        for (int i = 1; i < MAX_KEPT; i++)
            if (c->kept[i].used < to->used) to = &c->kept[i];
        clime_grammar_unref(to->grammar);
        clime_buf_free(&to->key);
    }
    *to = (struct kept){*key, clime_grammar_ref(g), ++c->clock};
}

enum clime_err clime_grammar_cache_get(struct clime_grammar_cache *c, const struct clime_grammar_source *s,
                                       struct clime_grammar **out, struct clime_error *e) {
    struct clime_buf key;
    enum clime_err err = CLIME_OK;
    write_key(s, &key);
    pthread_mutex_lock(&c->lock);
    if (!c->trie) c->trie = clime_vocab_trie_new(c->tokenizer, c->V, c->eos, (size_t)c->n_eos);
    struct kept *there = key.full ? NULL : find(c, &key);
    if (there) {
        there->used = ++c->clock;
        *out = clime_grammar_ref(there->grammar);
    }
    pthread_mutex_unlock(&c->lock);
    if (!there) err = clime_grammar_compile(c->trie, s, out, e);
    if (!there && !err && !key.full) {
        pthread_mutex_lock(&c->lock);
        if (!find(c, &key)) {
            keep(c, &key, *out);
            clime_buf_init(&key, 1);
        }
        pthread_mutex_unlock(&c->lock);
    }
    clime_buf_free(&key);
    return err;
}
