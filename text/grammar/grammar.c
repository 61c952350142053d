/* Compiled grammars and the states in them. Compiled by text threads, used by the engine thread; a grammar owns its
 * program, machine and masks.
 *
 * Invariant: a state's set number is valid in the grammar's current `life`; when the cache exceeds MAX_BYTES it is
 * emptied before a query, and a state of an earlier life replays its tokens.
 */
#include "text/grammar/grammar.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "text/grammar/masks.h"
#include "text/grammar/readers.h"
#include "text/output/output_parser.h"

#define MAX_BYTES ((size_t)48 << 20) /* per grammar: some 2,000 masks of 152k tokens */
#define MAX_DEPTH 256                /* rules within rules */
#define MAX_JSON_DEPTH 60            /* clime's own scanner's limit for JSON */

struct clime_grammar {
    atomic_int refs;
    const struct clime_vocab_trie *v;
    struct clime_grammar_program program;
    struct clime_machine machine;
    struct clime_masks masks;
    uint32_t life;
};

/* ---- compiling ---- */

/* Prefixes the grammar with reasoning: text up to the closing marker, then newlines. */
static int lead(struct clime_exprs *x, const struct clime_vocab_trie *v, const struct clime_grammar_source *s,
                int root) {
    const struct clime_output_parser *r = s->reasoning;
    if (s->lead == CLIME_LEAD_NONE || !r || !r->close) return root;
    const char *const close[] = {r->close};
    int newline = clime_expr_repeat(x, clime_expr_text(x, "\n"), 0, 2);
    const int kids[] = {clime_expr_text_until(x, v, close, NULL, 1, false), newline, root};
    int thinks = clime_expr_seq(x, kids, CLIME_COUNT(kids));
    if (s->lead == CLIME_LEAD_REASONING) return thinks;
    return clime_expr_alt2(x, root, clime_expr_seq2(x, clime_expr_marker(x, v, clime_str_of(r->open)), thinks));
}

static enum clime_err read_source(struct clime_exprs *x, const struct clime_vocab_trie *v,
                                  const struct clime_grammar_source *s, int *root, struct clime_error *e);

static enum clime_err read_calls(struct clime_exprs *x, const struct clime_vocab_trie *v,
                                 const struct clime_grammar_source *s, int *root, struct clime_error *e) {
    const struct clime_grammar_source other = {.kind = s->or_kind, .text = s->or_text};
    int instead = CLIME_EXPR_NEVER_NODE;
    enum clime_err err = clime_calls_read(x, v, s, root, e);
    if (!err && s->or_kind != CLIME_GRAMMAR_NONE) err = read_source(x, v, &other, &instead, e);
    *root = clime_expr_alt2(x, *root, instead);
    return err;
}

static enum clime_err read_source(struct clime_exprs *x, const struct clime_vocab_trie *v,
                                  const struct clime_grammar_source *s, int *root, struct clime_error *e) {
    switch (s->kind) {
    case CLIME_GRAMMAR_REGEX:
        return clime_regex_read(x, s->text, CLIME_SPELL_UTF8, false, root, e);
    case CLIME_GRAMMAR_SCHEMA:
        return clime_schema_read(x, s->text, false, root, e);
    case CLIME_GRAMMAR_JSON_OBJECT:
        return clime_schema_read(x, clime_str_of("{}"), true, root, e);
    case CLIME_GRAMMAR_EBNF:
        return clime_ebnf_read(x, s->text, root, e);
    case CLIME_GRAMMAR_CHOICE:
        return clime_choice_read(x, s->text, root, e);
    case CLIME_GRAMMAR_TAGS:
        return clime_tags_read(x, v, s->text, root, e);
    case CLIME_GRAMMAR_CALLS:
        return read_calls(x, v, s, root, e);
    case CLIME_GRAMMAR_NONE:
        break;
    }
    return clime_fail(e, CLIME_ERR_INPUT, "no grammar");
}

enum clime_err clime_grammar_compile(const struct clime_vocab_trie *v, const struct clime_grammar_source *s,
                                     struct clime_grammar **out, struct clime_error *e) {
    struct clime_exprs x;
    struct clime_grammar_program program;
    int root = CLIME_EXPR_NEVER_NODE;
    bool free_form = s->kind == CLIME_GRAMMAR_EBNF || s->kind == CLIME_GRAMMAR_REGEX;
    if (s->text.len > CLIME_GRAMMAR_MAX_SOURCE || s->or_text.len > CLIME_GRAMMAR_MAX_SOURCE)
        return clime_fail(e, CLIME_ERR_INPUT, "a grammar has at most %d KB", (int)(CLIME_GRAMMAR_MAX_SOURCE >> 10));
    clime_exprs_init(&x);
    enum clime_err err = read_source(&x, v, s, &root, e);
    if (!err) root = lead(&x, v, s, root);
    if (!err) err = clime_grammar_program_compile(&x, root, free_form ? MAX_DEPTH : MAX_JSON_DEPTH, &program, e);
    clime_exprs_free(&x);
    if (err == CLIME_ERR_LIMIT) e->code = err = CLIME_ERR_INPUT; /* the source's fault, not the server's */
    if (err) return err;
    struct clime_grammar *g = xcalloc(1, sizeof *g);
    atomic_init(&g->refs, 1);
    g->v = v;
    g->program = program;
    clime_machine_init(&g->machine, &g->program);
    clime_masks_init(&g->masks, v, &g->machine);
    const struct clime_set *start = &g->machine.sets[clime_machine_start(&g->machine)];
    if (start->n == 0 && !start->ends) {
        clime_grammar_unref(g);
        return clime_fail(e, CLIME_ERR_INPUT, "the grammar is too ambiguous: it may begin in too many ways");
    }
    *out = g;
    return CLIME_OK;
}

struct clime_grammar *clime_grammar_ref(struct clime_grammar *g) {
    if (g) atomic_fetch_add(&g->refs, 1);
    return g;
}

void clime_grammar_unref(struct clime_grammar *g) {
    if (!g || atomic_fetch_sub(&g->refs, 1) > 1) return;
    clime_masks_free(&g->masks);
    clime_machine_free(&g->machine);
    clime_grammar_program_free(&g->program);
    free(g);
}

size_t clime_grammar_bytes(const struct clime_grammar *g) {
    return g->machine.bytes + g->masks.bytes;
}

bool clime_grammar_reads(const struct clime_grammar *g, int32_t id) {
    return clime_vocab_trie_bytes(g->v, id).len > 0;
}

/* ---- states ---- */

struct clime_grammar_state {
    struct clime_grammar *g;
    struct clime_ids ids; /* the output's */
    size_t n_taken;       /* tokens consumed to reach `set` */
    int32_t set;          /* the machine's, in life `life` */
    uint32_t life;
    bool begun;
};

struct clime_grammar_state *clime_grammar_state_new(struct clime_grammar *g) {
    struct clime_grammar_state *s = xcalloc(1, sizeof *s);
    s->g = clime_grammar_ref(g);
    return s;
}

void clime_grammar_state_free(struct clime_grammar_state *s) {
    if (!s) return;
    clime_ids_free(&s->ids);
    clime_grammar_unref(s->g);
    free(s);
}

void clime_grammar_state_add(struct clime_grammar_state *s, int32_t id) {
    clime_ids_push(&s->ids, id);
}

static void forget(struct clime_grammar *g) {
    clime_masks_forget(&g->masks);
    clime_machine_forget(&g->machine);
    g->life++;
}

/* Advances the state to the output's current set, in the grammar's current life. */
static void come_along(struct clime_grammar_state *s) {
    struct clime_grammar *g = s->g;
    if (!s->begun || s->life != g->life) {
        s->set = clime_machine_start(&g->machine);
        s->life = g->life;
        s->n_taken = 0;
        s->begun = true;
    }
    while (s->n_taken < s->ids.len) {
        struct clime_str bytes = clime_vocab_trie_bytes(g->v, s->ids.data[s->n_taken++]);
        if (bytes.len == 0) s->set = 0; /* not in any grammar */
        for (size_t i = 0; i < bytes.len; i++) s->set = clime_machine_step(&g->machine, s->set, (uint8_t)bytes.ptr[i]);
    }
}

struct clime_grammar_next clime_grammar_state_next(struct clime_grammar_state *s) {
    struct clime_grammar_next next = {.allowed = NULL};
    struct clime_machine *m = &s->g->machine;
    if (clime_grammar_bytes(s->g) > MAX_BYTES) forget(s->g);
    come_along(s);
    next.may_end = m->sets[s->set].ends;
    bool goes_on = m->sets[s->set].n > 0;
    next.only_end = next.may_end && !goes_on;
    if (!goes_on && !next.may_end) {
        next.stuck = "the grammar is too ambiguous: there are too many ways to read what was written";
        return next;
    }
    next.allowed = clime_masks_of(&s->g->masks, s->set);
    if (!next.allowed) {
        forget(s->g); /* an abandoned mask is incomplete */
        next.stuck = "the grammar is too ambiguous: finding the next tokens takes too long";
        return next;
    }
    bool any = false;
    for (size_t i = 0, n = clime_mask_words(s->g->v->V); i < n && !any; i++) any = next.allowed[i] != 0;
    next.only_end = next.may_end && !any; /* a closure too large counts as empty */
    if (any || next.may_end) return next;
    next.allowed = NULL;
    next.stuck = "no token can follow in the grammar: the vocabulary cannot spell what must come, or each token leaves "
                 "too many ways to go on";
    return next;
}
