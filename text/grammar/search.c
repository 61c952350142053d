/* Streaming search with the grammar machine (search.h). Expressions are compiled on the server's text threads; emitters
 * own hunts, one per output.
 *
 * A text has a match if it is anything, a match, anything: one automaton, made deterministic lazily. Not PCRE2: a
 * client's expression is searched at every token, on a shared thread, so its cost must neither grow with the text nor
 * explode. Hunts share no states, so that one text's cost cannot make another's search fail.
 */
#include "text/grammar/search.h"

#include <stdlib.h>

#include "text/grammar/machine.h"
#include "text/grammar/readers.h"

#define MAX_DEPTH 256
#define MAX_BYTES ((size_t)1 << 18) /* of a hunt's states; above it only the current one is kept */
/* Effort limits for finding states (2^20 is some 8 ms): at the start, and per byte of text. A request may have
 * thousands of hunts, and all replies wait for them. */
#define FIRST_EFFORT ((int64_t)1 << 19)
#define BYTE_EFFORT ((int64_t)1 << 10)

struct clime_search {
    struct clime_grammar_program program;
};

struct clime_hunt {
    struct clime_machine machine;
    int32_t at;
    int64_t n_bytes; /* text so far */
};

enum clime_err clime_search_new(struct clime_str pattern, struct clime_search **out, struct clime_error *e) {
    struct clime_search *s = xcalloc(1, sizeof *s);
    struct clime_exprs x;
    int root;
    clime_exprs_init(&x);
    enum clime_err err = clime_regex_read(&x, pattern, CLIME_SPELL_UTF8, true, &root, e);
    if (!err) err = clime_grammar_program_compile(&x, root, MAX_DEPTH, &s->program, e);
    clime_exprs_free(&x);
    if (err) {
        free(s);
        return e->code = CLIME_ERR_INPUT; /* the expression's fault, not the server's */
    }
    *out = s;
    return CLIME_OK;
}

void clime_search_free(struct clime_search *s) {
    if (!s) return;
    clime_grammar_program_free(&s->program);
    free(s);
}

struct clime_hunt *clime_hunt_new(const struct clime_search *s) {
    struct clime_hunt *h = xcalloc(1, sizeof *h);
    clime_machine_init(&h->machine, &s->program);
    h->at = clime_machine_start(&h->machine);
    return h;
}

void clime_hunt_free(struct clime_hunt *h) {
    if (!h) return;
    clime_machine_free(&h->machine);
    free(h);
}

static bool too_much(const struct clime_hunt *h) {
    return h->machine.overran || h->machine.effort > FIRST_EFFORT + BYTE_EFFORT * h->n_bytes;
}

enum clime_found clime_hunt_feed(struct clime_hunt *h, struct clime_str more) {
    struct clime_machine *m = &h->machine;
    for (size_t i = 0; i < more.len && !too_much(h); i++, h->n_bytes++) {
        if (m->bytes > MAX_BYTES) h->at = clime_machine_forget_others(m, h->at);
        h->at = clime_machine_step(m, h->at, (uint8_t)more.ptr[i]);
    }
    if (too_much(h)) return CLIME_FOUND_TOO_MUCH;
    return m->sets[h->at].ends ? CLIME_FOUND_ONE : CLIME_FOUND_NONE;
}
