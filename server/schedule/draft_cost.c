/* Chooses the number of guessed rows. Called by server/schedule/drafting.c, engine thread.
 *
 * Invariant: the chosen number maximizes tokens/s, with a gain of at least GAIN over none. The cost of trying is
 * bounded: an unknown size is tried only if it would pay with time extrapolated linearly, and tries lose at most one
 * step in TRY_EVERY.
 */
#include "server/schedule/draft_cost.h"

enum {
    KNOWN_FOR = 256, /* steps */
    TRY_EVERY = 40,  /* steps */
    MOST_TRIES = 2 * CLIME_DRAFT_KNOWN,
    MOST_LOST = 4 /* by one try: a device's one-time choice takes long */
};
#define GAIN 1.02f

/* The smallest i with 1 << i >= n; CLIME_DRAFT_SIZES: none. */
static int size_of(int n) {
    int i = 0;
    while (i < CLIME_DRAFT_SIZES && 1 << i < n) i++;
    return i;
}

void clime_draft_cost_init(struct clime_draft_cost *c) {
    *c = (struct clime_draft_cost){.n_tries = MOST_TRIES};
}

static bool is_old(const struct clime_draft_cost *c, const struct clime_draft_time *t) {
    return c->n_steps - t->at > KNOWN_FOR;
}

void clime_draft_cost_step(struct clime_draft_cost *c, int n_rows, bool guessed, float us) {
    int i = size_of(n_rows);
    if (i == CLIME_DRAFT_SIZES) return;
    struct clime_draft_time *t = guessed ? &c->guessed[i] : &c->plain[i];
    if (is_old(c, t)) t->n = 0;
    t->us[t->n++ % CLIME_DRAFT_LAST] = us;
    if (t->n == 2 * CLIME_DRAFT_LAST) t->n = CLIME_DRAFT_LAST; /* keep it small: a server runs long */
    t->at = ++c->n_steps;
    if (c->n_tries < MOST_TRIES) c->n_tries += 1.0f / TRY_EVERY;
    if (guessed && c->try_us > 0 && us > c->worth_us) {
        float lost = (us - c->worth_us) / c->try_us;
        c->n_tries -= lost < MOST_LOST ? lost : MOST_LOST;
    }
    c->try_us = 0;
}

/* 0: unknown. */
static float time_of(const struct clime_draft_cost *c, const struct clime_draft_time *t) {
    if (t->n < CLIME_DRAFT_KNOWN || is_old(c, t)) return 0;
    float us = t->us[0];
    for (int i = 1; i < CLIME_DRAFT_LAST && i < t->n; i++)
        if (t->us[i] < us) us = t->us[i];
    return us;
}

bool clime_draft_cost_known(const struct clime_draft_cost *c, int n_seqs) {
    int at = size_of(n_seqs);
    return at < CLIME_DRAFT_SIZES && time_of(c, &c->plain[at]) > 0;
}

int clime_draft_cost_choose(struct clime_draft_cost *c, int n_seqs, const float *chance, int n) {
    int at = size_of(n_seqs), chosen = 0;
    c->try_us = 0;
    if (!clime_draft_cost_known(c, n_seqs)) return 0;
    float plain_us = time_of(c, &c->plain[at]), us = plain_us, row_us = 0, tokens = (float)n_seqs;
    float best = tokens / us * GAIN;
    bool trying = false;
    for (int k = 0, rows = n_seqs; at < CLIME_DRAFT_SIZES && k < n && !trying; at++) {
        int more = (1 << at) - rows;
        if (more == 0) continue;
        rows += more;
        for (; k < n && n_seqs + k < rows; k++) tokens += chance[k];
        float known = time_of(c, &c->guessed[at]);
        trying = known == 0;
        if (trying && c->n_tries < 1) break;
        if (trying)
            us += row_us * (float)more;
        else if (known > us)
            us = known; /* more rows are never faster */
        row_us = (us - plain_us) / (float)(rows - n_seqs);
        if (tokens / us <= best) continue;
        best = tokens / us;
        chosen = k;
        c->try_us = trying ? plain_us : 0;
        c->worth_us = plain_us * tokens / (float)n_seqs;
    }
    return chosen;
}
