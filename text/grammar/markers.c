/* Markers in grammars, and free text up to a marker. Called by grammar.c and readers, on the compiling thread.
 *
 * Free text is an Aho-Corasick automaton over characters (1975): each state is a rule that tail-calls the next, so it
 * costs no depth.
 */
#include <stdlib.h>

#include "common/utf8.h"
#include "text/grammar/readers.h"

#define MAX_STATES 1024 /* total characters of markers */

/* Length of the longest special token at the start of text; 0 = none. */
static size_t special_at(const struct clime_vocab_trie *v, struct clime_str text) {
    for (size_t n = text.len < v->longest_special ? text.len : v->longest_special; n > 0; n--) {
        int32_t id = clime_tokenizer_id(v->tokenizer, (struct clime_str){text.ptr, n});
        struct clime_str bytes = clime_vocab_trie_bytes(v, id);
        if (bytes.len > 0 && (uint8_t)bytes.ptr[0] == CLIME_SPECIAL_BYTE) return n;
    }
    return 0;
}

int clime_expr_marker(struct clime_exprs *x, const struct clime_vocab_trie *v, struct clime_str marker) {
    struct clime_buf out;
    clime_buf_init(&out, 2 * marker.len + 1);
    for (size_t at = 0; at < marker.len;) {
        size_t n = special_at(v, (struct clime_str){marker.ptr + at, marker.len - at});
        if (n > 0) clime_buf_addc(&out, (char)CLIME_SPECIAL_BYTE);
        if (n == 0) n = 1;
        clime_buf_add(&out, marker.ptr + at, n);
        at += n;
    }
    int node = clime_expr_literal(x, clime_buf_str(&out));
    clime_buf_free(&out);
    return node;
}

struct state {
    uint32_t c; /* the character into this state */
    int parent, fail;
    int marker; /* marker that ends here, -1 = none */
    int rule;
};

struct automaton {
    struct state *at; /* in breadth-first order: parents before children */
    int n;
    struct clime_chars used; /* characters in markers */
    int *next;               /* [n][n_used] transitions, once built */
    int n_used;
};

static int child(const struct automaton *a, int s, uint32_t c) {
    for (int i = 1; i < a->n; i++)
        if (a->at[i].parent == s && a->at[i].c == c) return i;
    return -1;
}

static int go(const struct automaton *a, int s, uint32_t c) {
    for (;; s = a->at[s].fail) {
        int to = child(a, s, c);
        if (to >= 0) return to;
        if (s == 0) return 0;
    }
}

/* Adds characters level by level, so that failure links exist. False: too many. */
static bool build(struct automaton *a, const char *const *markers, int n) {
    struct clime_str rest[CLIME_MAX_MARKERS];
    int where[CLIME_MAX_MARKERS];
    CHECK(n <= CLIME_MAX_MARKERS);
    for (int i = 0; i < n; i++) {
        rest[i] = clime_str_of(markers[i]);
        where[i] = 0;
    }
    for (bool on = true; on;) {
        on = false;
        int level = a->n;
        for (int i = 0; i < n; i++) {
            uint32_t c;
            if (rest[i].len == 0) continue;
            int bytes = clime_utf8_decode(rest[i].ptr, rest[i].len, &c);
            if (bytes < 1 || a->n == MAX_STATES) return false;
            rest[i].ptr += bytes;
            rest[i].len -= (size_t)bytes;
            int to = child(a, where[i], c);
            if (to < 0) {
                to = a->n++;
                a->at[to] = (struct state){.c = c, .parent = where[i], .marker = -1};
                clime_chars_add(&a->used, c, c);
            }
            where[i] = to;
            if (rest[i].len == 0 && a->at[to].marker < 0) a->at[to].marker = i;
            on = true;
        }
        for (int s = level; s < a->n; s++) {
            int p = a->at[s].parent;
            a->at[s].fail = p == 0 ? 0 : go(a, a->at[p].fail, a->at[s].c);
            if (a->at[s].marker < 0) a->at[s].marker = a->at[a->at[s].fail].marker;
        }
    }
    clime_chars_settle(&a->used);
    return true;
}

/* The character's index among the used ones. */
static int number_of(const struct automaton *a, uint32_t c) {
    int n = 0;
    for (int i = 0; i < a->used.n; n += (int)(a->used.at[i].hi - a->used.at[i].lo) + 1, i++)
        if (c <= a->used.at[i].hi) return n + (int)(c - a->used.at[i].lo);
    return n;
}

/* Fills all transitions, each state's from its failure state's: computed one by one, each would cost a marker's
 * length. */
static void fill(struct automaton *a) {
    a->n_used = number_of(a, UINT32_MAX);
    size_t row = (size_t)a->n_used;
    a->next = xcalloc((size_t)a->n * row + 1, sizeof *a->next);
    for (int s = 0; s < a->n; s++) {
        int *next = a->next + (size_t)s * row;
        if (s > 0) memcpy(next, a->next + (size_t)a->at[s].fail * row, row * sizeof *next);
        for (int to = s + 1; to < a->n; to++)
            if (a->at[to].parent == s) next[number_of(a, a->at[to].c)] = to;
    }
}

/* One character into state `to`, followed by that state. */
static int arrive(struct clime_exprs *x, const struct automaton *a, struct clime_chars *c, int to, const int *then) {
    int chars = clime_expr_chars(x, c, CLIME_SPELL_UTF8), marker = a->at[to].marker;
    int next = marker < 0 ? clime_expr_rule(x, a->at[to].rule) : then ? then[marker] : CLIME_EXPR_EMPTY_NODE;
    return clime_expr_seq2(x, chars, next);
}

static int body_of(struct clime_exprs *x, const struct automaton *a, int s, const int *then) {
    struct clime_expr_list all = {0};
    struct clime_chars other = {0};
    const int *next = a->next + (size_t)s * (size_t)a->n_used;
    for (int i = 0; i < a->used.n; i++) {
        clime_chars_add(&other, a->used.at[i].lo, a->used.at[i].hi);
        for (uint32_t c = a->used.at[i].lo; c <= a->used.at[i].hi; c++, next++) {
            struct clime_chars one = {0};
            clime_chars_add(&one, c, c);
            clime_expr_list_add(&all, arrive(x, a, &one, *next, then));
            clime_chars_free(&one);
        }
    }
    clime_chars_invert(&other);
    clime_expr_list_add(&all, arrive(x, a, &other, 0, then));
    clime_chars_free(&other);
    return clime_expr_list_alt(x, &all);
}

int clime_expr_text_until(struct clime_exprs *x, const struct clime_vocab_trie *v, const char *const *markers,
                          const int *then, int n, bool may_end) {
    struct automaton a = {.at = xmalloc(MAX_STATES * sizeof *a.at), .n = 1};
    int whole = CLIME_EXPR_NEVER_NODE;
    a.at[0] = (struct state){.marker = -1};
    if (!build(&a, markers, n)) {
        x->full = true;
        goto done;
    }
    fill(&a);
    struct clime_expr_list tokens = {0}; /* a marker that is a special token may occur anywhere */
    for (int i = 0; i < n; i++) {
        struct clime_str text = clime_str_of(markers[i]);
        if (special_at(v, text) > 0)
            clime_expr_list_add(
                &tokens, clime_expr_seq2(x, clime_expr_marker(x, v, text), then ? then[i] : CLIME_EXPR_EMPTY_NODE));
    }
    if (may_end) clime_expr_list_add(&tokens, CLIME_EXPR_EMPTY_NODE);
    int anywhere = clime_expr_list_alt(x, &tokens);
    for (int s = 0; s < a.n; s++) a.at[s].rule = clime_expr_rule_new(x, clime_str_of("text"));
    for (int s = 0; s < a.n && !x->full; s++)
        clime_expr_rule_is(x, a.at[s].rule,
                           a.at[s].marker >= 0 ? CLIME_EXPR_NEVER_NODE
                                               : clime_expr_alt2(x, body_of(x, &a, s, then), anywhere));
    whole = clime_expr_rule(x, a.at[0].rule);
done:
    clime_chars_free(&a.used);
    free(a.next);
    free(a.at);
    return whole;
}
