/* Searches for added tokens.
 *
 * Called by text/tokenizer.c: tries are filled at load, searched on text threads without state.
 * Invariant: the same cuts as the tokenizers library (AddedVocabulary::find_matches over a leftmost-longest
 * Aho-Corasick automaton), including what a rejected match consumes.
 * Choice: a plain trie from every possible first byte instead of an automaton. Tokens begin with a few rare bytes ('<',
 * '['), so a scan is one table look-up per byte; the worst case is longest token x text length.
 */
#include "text/added_tokens.h"

#include <stdlib.h>

#include "text/unicode.h"

void clime_trie_free(struct clime_trie *t) {
    free(t->nodes);
    memset(t, 0, sizeof *t);
}

static int32_t new_node(struct clime_trie *t, uint8_t byte) {
    if (t->n_nodes == t->size) {
        t->size = t->size ? t->size * 2 : 64;
        t->nodes = xrealloc(t->nodes, (size_t)t->size * sizeof *t->nodes);
    }
    t->nodes[t->n_nodes] = (struct clime_trie_node){.child = -1, .sibling = -1, .token = -1, .byte = byte};
    return t->n_nodes++;
}

static int32_t find_child(const struct clime_trie *t, int32_t node, uint8_t byte) {
    int32_t child = t->nodes[node].child;
    while (child >= 0 && t->nodes[child].byte != byte) child = t->nodes[child].sibling;
    return child;
}

void clime_trie_add(struct clime_trie *t, struct clime_str pattern, int32_t token) {
    if (!pattern.len) return;
    if (!t->n_nodes) new_node(t, 0);
    t->first[(uint8_t)pattern.ptr[0]] = true;
    int32_t node = 0;
    for (size_t i = 0; i < pattern.len; i++) {
        int32_t child = find_child(t, node, (uint8_t)pattern.ptr[i]);
        if (child < 0) {
            child = new_node(t, (uint8_t)pattern.ptr[i]);
            t->nodes[child].sibling = t->nodes[node].child;
            t->nodes[node].child = child;
        }
        node = child;
    }
    if (t->nodes[node].token < 0) t->nodes[node].token = token;
}

/* The longest token that begins at byte `at`, or -1. */
static int32_t longest(const struct clime_trie *t, struct clime_str text, size_t at, size_t *end) {
    int32_t token = -1;
    for (int32_t node = 0; at < text.len;) {
        node = find_child(t, node, (uint8_t)text.ptr[at++]);
        if (node < 0) break;
        if (t->nodes[node].token < 0) continue;
        token = t->nodes[node].token;
        *end = at;
    }
    return token;
}

static int32_t char_before(struct clime_str text, size_t at, size_t *start) {
    size_t i = at - 1;
    while (i && ((uint8_t)text.ptr[i] & 0xC0) == 0x80) i--;
    const char *p = text.ptr + i;
    *start = i;
    return clime_unicode_next(&p, text.ptr + at);
}

static int32_t char_after(struct clime_str text, size_t at, size_t *end) {
    const char *p = text.ptr + at;
    int32_t c = clime_unicode_next(&p, text.ptr + text.len);
    *end = (size_t)(p - text.ptr);
    return c;
}

static bool stands_alone(struct clime_str text, size_t start, size_t end) {
    size_t unused;
    return (start == 0 || !clime_unicode_is_word(char_before(text, start, &unused))) &&
           (end == text.len || !clime_unicode_is_word(char_after(text, end, &unused)));
}

enum clime_err clime_added_split(const struct clime_trie *t, const struct clime_added_token *tokens,
                                 struct clime_str text, bool plain, clime_added_fn fn, void *arg,
                                 struct clime_error *e) {
    size_t done = 0; /* everything before is processed */
    enum clime_err rc = CLIME_OK;
    for (size_t at = 0; t->n_nodes && at < text.len;) {
        size_t end = 0;
        int32_t found = t->first[(uint8_t)text.ptr[at]] ? longest(t, text, at, &end) : -1;
        if (found < 0) {
            at++;
            continue;
        }
        const struct clime_added_token *token = &tokens[found];
        size_t start = at, next;
        at = end;
        if ((plain && token->special) || (token->single_word && !stands_alone(text, start, end))) continue;
        while (token->lstrip && start > done && clime_unicode_is_white_space(char_before(text, start, &next)))
            start = next;
        while (token->rstrip && end < text.len && clime_unicode_is_white_space(char_after(text, end, &next)))
            end = next;
        if (start > done) {
            struct clime_str before = {text.ptr + done, start - done};
            rc = fn(arg, -1, before, done, e);
            if (rc) return rc;
        }
        struct clime_str nothing = {text.ptr + start, 0};
        rc = fn(arg, token->id, nothing, start, e);
        if (rc) return rc;
        done = end;
    }
    if (done < text.len) {
        struct clime_str rest = {text.ptr + done, text.len - done};
        rc = fn(arg, -1, rest, done, e);
    }
    return rc;
}
