/* Logit edits of one sequence. Created by HTTP workers at submission, which walks the prompt; then called by the engine
 * and the step runner, engine thread. Owns the sequence's sets and list.
 *
 * Invariant: edits[i] is always current for entries[i], so a draw's list is ready. Entries ascend by id, each id once,
 * for the binary search; they hold the request's ids and the sampled ones.
 */
#include "server/schedule/logit_edits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    int32_t id;
    int32_t n_out; /* times sampled */
    float bias;
    bool stops;
};

struct clime_logit_edits {
    const struct clime_sampling_params *p;
    uint32_t *seen, *allowed; /* [clime_id_words(V)] or NULL */
    struct entry *entries;
    struct clime_logit_edit *edits; /* [size], of the entries */
    int n, size;
    bool counts; /* frequency or presence penalty */
    bool bans;   /* min_new_tokens not reached */
    const struct clime_grammar *of;
    struct clime_grammar_state *grammar; /* NULL = none, and the next two too */
    uint32_t *mask;                      /* [clime_id_words(V)] of the next draw */
    int V, n_stop;
    int32_t *stop;         /* [n_stop] */
    uint32_t *good;        /* [clime_id_words(V)] ids that complete no bad word now; NULL = no bad words */
    struct clime_ids tail; /* the last sampled ids: longest bad word - 1 */
    size_t n_tail;
    const char *stuck;
};

static struct clime_logit_edit edit_of(const struct clime_logit_edits *x, const struct entry *t) {
    struct clime_logit_edit d = {.id = t->id, .add = t->bias};
    if (t->n_out > 0) d.add -= (float)(x->p->frequency_penalty * t->n_out + x->p->presence_penalty);
    if (t->stops && x->bans) d.add = -INFINITY;
    return d;
}

/* Index of id's entry, inserted if missing; entries may move. */
static int place_of(struct clime_logit_edits *x, int32_t id) {
    int lo = 0, hi = x->n;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (x->entries[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo < x->n && x->entries[lo].id == id) return lo;
    if (x->n == x->size) {
        x->size = x->size ? x->size * 2 : 64;
        x->entries = xrealloc(x->entries, (size_t)x->size * sizeof *x->entries);
        x->edits = xrealloc(x->edits, (size_t)x->size * sizeof *x->edits);
    }
    memmove(x->entries + lo + 1, x->entries + lo, (size_t)(x->n - lo) * sizeof *x->entries);
    memmove(x->edits + lo + 1, x->edits + lo, (size_t)(x->n - lo) * sizeof *x->edits);
    x->n++;
    x->entries[lo] = (struct entry){.id = id};
    return lo;
}

static uint32_t *set_of(int V, const int32_t *ids, int n) {
    uint32_t *set = xcalloc(clime_id_words(V), sizeof *set);
    for (int i = 0; i < n; i++) clime_id_add(set, ids[i]);
    return set;
}

/* Bans the last id of each word whose other ids were just sampled; one-id words always. */
static void bar_words(struct clime_logit_edits *x) {
    const struct clime_sampling_params *p = x->p;
    for (int i = 0; i < p->n_bad; i++) clime_id_add(x->good, p->bad[i].data[p->bad[i].len - 1]);
    for (int i = 0; i < p->n_bad; i++) {
        const struct clime_ids *word = &p->bad[i];
        size_t n = word->len - 1;
        bool begun = n == 0 || (n <= x->tail.len &&
                                memcmp(x->tail.data + x->tail.len - n, word->data, n * sizeof *word->data) == 0);
        if (begun) x->good[word->data[n] / 32] &= ~(UINT32_C(1) << word->data[n] % 32);
    }
}

static void avoid_words(struct clime_logit_edits *x) {
    x->good = xcalloc(clime_id_words(x->V), sizeof *x->good);
    for (int i = 0; i < x->V; i++) clime_id_add(x->good, i);
    for (int i = 0; i < x->p->n_bad; i++)
        if (x->p->bad[i].len - 1 > x->n_tail) x->n_tail = x->p->bad[i].len - 1;
    bar_words(x);
}

static void add_to_words(struct clime_logit_edits *x, int32_t id) {
    clime_ids_push(&x->tail, id);
    if (x->tail.len > x->n_tail) memmove(x->tail.data, x->tail.data + 1, --x->tail.len * sizeof *x->tail.data);
    bar_words(x);
}

static void follow_grammar(struct clime_logit_edits *x, struct clime_grammar *g, const int32_t *stop, int n_stop) {
    x->of = g;
    x->grammar = clime_grammar_state_new(g);
    x->stop = xmalloc(((size_t)n_stop + 1) * sizeof *stop);
    x->n_stop = n_stop;
    if (n_stop > 0) memcpy(x->stop, stop, (size_t)n_stop * sizeof *stop);
}

struct clime_logit_edits *clime_logit_edits_new(const struct clime_sampling_params *p, struct clime_grammar *grammar,
                                                int V, const int32_t *prompt, int n_prompt, const int32_t *stop,
                                                int n_stop) {
    bool counts = p->frequency_penalty != 0 || p->presence_penalty != 0, repeats = p->repetition_penalty != 1;
    if (!counts && !repeats && p->n_bias == 0 && p->min_new_tokens == 0 && p->n_allowed == 0 && !grammar &&
        p->n_bad == 0)
        return NULL;
    struct clime_logit_edits *x = xcalloc(1, sizeof *x);
    x->p = p;
    x->counts = counts;
    x->bans = p->min_new_tokens > 0;
    x->V = V;
    if (p->n_bad > 0) avoid_words(x);
    if (grammar) follow_grammar(x, grammar, stop, n_stop);
    if (grammar || x->good) x->mask = xcalloc(clime_id_words(V), sizeof *x->mask);
    if (repeats) x->seen = set_of(V, prompt, n_prompt);
    if (p->n_allowed > 0) x->allowed = set_of(V, p->allowed, p->n_allowed);
    for (int i = 0; i < p->n_bias; i++) {
        if (p->bias[i].add == 0) continue;
        int at = place_of(x, p->bias[i].id);
        x->entries[at].bias = p->bias[i].add;
    }
    for (int i = 0; i < n_stop && x->bans; i++) {
        int at = place_of(x, stop[i]);
        x->entries[at].stops = true;
    }
    for (int i = 0; i < x->n; i++) x->edits[i] = edit_of(x, &x->entries[i]);
    return x;
}

void clime_logit_edits_free(struct clime_logit_edits *x) {
    if (!x) return;
    clime_grammar_state_free(x->grammar);
    clime_ids_free(&x->tail);
    free(x->good);
    free(x->mask);
    free(x->stop);
    free(x->seen);
    free(x->allowed);
    free(x->entries);
    free(x->edits);
    free(x);
}

void clime_logit_edits_add(struct clime_logit_edits *x, int32_t id) {
    if (x->grammar) clime_grammar_state_add(x->grammar, id);
    if (x->seen) clime_id_add(x->seen, id);
    if (x->n_tail > 0) add_to_words(x, id);
    if (!x->counts) return;
    int i = place_of(x, id);
    x->entries[i].n_out++;
    x->edits[i] = edit_of(x, &x->entries[i]);
}

bool clime_logit_edits_follow(const struct clime_logit_edits *x) {
    return x->seen || x->counts || x->grammar || x->n_tail > 0;
}

bool clime_logit_edits_fixed(const struct clime_logit_edits *x) {
    return !clime_logit_edits_follow(x) && !x->bans;
}

/* Drops entries that only banned; a list without effect would still count as an edit. */
static void lift_bans(struct clime_logit_edits *x) {
    int n = 0;
    x->bans = false;
    for (int i = 0; i < x->n; i++) {
        struct clime_logit_edit d = edit_of(x, &x->entries[i]);
        if (d.add == 0 && x->entries[i].n_out == 0) continue;
        x->entries[n] = x->entries[i];
        x->edits[n++] = d;
    }
    x->n = n;
}

/* mask = `of` (NULL: all ids) restricted to what the request allows. True when not empty. */
static bool fill_mask(struct clime_logit_edits *x, const uint32_t *of) {
    bool any = false;
    for (size_t i = 0, n = clime_id_words(x->V); i < n; i++) {
        x->mask[i] = of ? of[i] : UINT32_MAX;
        if (x->allowed) x->mask[i] &= x->allowed[i];
        if (x->good) x->mask[i] &= x->good[i];
        any |= x->mask[i] != 0;
    }
    return any;
}

/* mask = the grammar's next tokens, plus the ids that end the sequence where the grammar may end; with ignore_eos those
 * only if no other token is left. True when only the end is left. */
static bool apply_grammar(struct clime_logit_edits *x) {
    struct clime_grammar_next next = clime_grammar_state_next(x->grammar);
    x->stuck = next.stuck;
    if (x->stuck) return false;
    bool any = fill_mask(x, next.allowed);
    bool only_end = next.may_end && !any;
    for (int i = 0; i < x->n_stop && next.may_end; i++) {
        if (x->p->ignore_eos && (!only_end || clime_grammar_reads(x->of, x->stop[i]))) continue;
        if (x->good && !clime_id_in(x->good, x->stop[i])) continue;
        clime_id_add(x->mask, x->stop[i]);
        any = true;
    }
    if (!any)
        x->stuck = next.may_end ? "the grammar's text is complete, and the model has no token that ends it"
                                : "allowed_token_ids or bad_words leave the grammar no token";
    return only_end;
}

/* True when min_new_tokens bans every allowed token. */
static bool bans_all(const struct clime_logit_edits *x, const uint32_t *may) {
    int n_may = 0, n_banned = 0;
    for (int i = 0; i < x->n; i++) n_banned += x->entries[i].stops && clime_id_in(may, x->entries[i].id);
    for (size_t i = 0; i < clime_id_words(x->V) && n_may <= n_banned; i++) n_may += __builtin_popcount(may[i]);
    return n_may == n_banned;
}

const char *clime_logit_edits_stuck(const struct clime_logit_edits *x) {
    return x->stuck;
}

void clime_logit_edits_apply(struct clime_logit_edits *x, int n_out, struct clime_sampling *s) {
    bool only_end = x->grammar && apply_grammar(x);
    if (x->good && !x->grammar) x->stuck = fill_mask(x, NULL) ? NULL : "bad_words leave no token";
    if (x->bans && (n_out >= x->p->min_new_tokens || only_end)) lift_bans(x); /* only_end: no other token is left */
    const uint32_t *may = x->mask ? x->mask : x->allowed;
    if (x->bans && !x->stuck && may && bans_all(x, may)) x->stuck = "min_new_tokens bans every token that is allowed";
    s->seen = x->seen;
    s->repetition = (float)x->p->repetition_penalty;
    s->edits = x->edits;
    s->n_edits = x->n;
    s->allowed = x->stuck ? NULL : may;
}
