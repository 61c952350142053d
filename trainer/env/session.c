/* The tree of turns. Called by the thread that serves the session (trainer/env/environments.c); owns the turns' tokens.
 * Invariant: turns are only added, so a path that was trained on or continued never changes. */
#include "trainer/env/session.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"

struct turn {
    int parent;
    int begin;                          /* tokens of the path before this turn */
    int n_given, n_sampled;             /* its own: [n_given + n_sampled] */
    int32_t *ids;                       /* [n_given + n_sampled] */
    float *logp;                        /* [n_sampled] */
    struct clime_version_run *versions; /* cover n_sampled */
    int n_versions;
    enum clime_sample_status status;
    char *finish;
    float temperature;
    int32_t mixed_kv; /* as of a sample, counted in this turn's own */
    enum clime_turn_kind kind;
    bool leaf;
    bool given;                         /* a fill has it as trained */
    uint8_t (*keys)[CLIME_SESSION_KEY]; /* [n_keys] its history; none in a session by tokens */
    int n_keys;
    uint8_t bare[CLIME_SESSION_KEY];
};

struct clime_session {
    struct turn *turns;
    int n, size;
    int64_t n_abandoned;
};

struct clime_session *clime_session_new(void) {
    return xcalloc(1, sizeof(struct clime_session));
}

void clime_session_free(struct clime_session *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) {
        free(s->turns[i].ids);
        free(s->turns[i].logp);
        free(s->turns[i].versions);
        free(s->turns[i].finish);
        free(s->turns[i].keys);
    }
    free(s->turns);
    free(s);
}

int clime_session_turns(const struct clime_session *s) {
    return s->n;
}

static int own(const struct turn *t) {
    return t->n_given + t->n_sampled;
}

/* Whether ids[n] begin with the path of a turn. */
static bool begins_with(const struct clime_session *s, int turn, const int32_t *ids, int n) {
    for (int i = turn; i >= 0; i = s->turns[i].parent) {
        const struct turn *t = &s->turns[i];
        if (t->begin + own(t) > n || memcmp(t->ids, ids + t->begin, (size_t)own(t) * sizeof *ids)) return false;
    }
    return true;
}

int clime_session_find_ids(const struct clime_session *s, const int32_t *ids, int n) {
    int best = -1, longest = 0;
    for (int i = 0; i < s->n; i++) {
        int end = s->turns[i].begin + own(&s->turns[i]);
        if (end < longest || end > n || !begins_with(s, i, ids, n)) continue;
        best = i; /* of equals the newest */
        longest = end;
    }
    return best;
}

int clime_session_find_key(const struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]) {
    for (int i = s->n - 1; i >= 0; i--)
        if (s->turns[i].n_keys && !memcmp(s->turns[i].keys[s->turns[i].n_keys - 1], key, CLIME_SESSION_KEY)) return i;
    return -1;
}

int clime_session_common(const struct clime_session *s, const uint8_t (*keys)[CLIME_SESSION_KEY], int n, bool *bare) {
    int most = -1;
    *bare = false;
    for (int i = 0; i < s->n; i++) {
        const struct turn *t = &s->turns[i];
        int k = 0;
        if (!t->n_keys) continue;
        while (k < n && k < t->n_keys && !memcmp(keys[k], t->keys[k], CLIME_SESSION_KEY)) k++;
        if (k > most) *bare = false;
        if (k > most) most = k;
        if (k == most && k == t->n_keys - 1 && k < n && !memcmp(keys[k], t->bare, CLIME_SESSION_KEY)) *bare = true;
    }
    return most;
}

void clime_session_abandon(struct clime_session *s) {
    s->n_abandoned++;
}

bool clime_session_is_leaf(const struct clime_session *s, int turn) {
    CHECK(turn >= 0 && turn < s->n);
    return s->turns[turn].leaf;
}

struct clime_turn_counts clime_session_counts(const struct clime_session *s) {
    struct clime_turn_counts c = {{[CLIME_TURN_ABANDONED] = s->n_abandoned}};
    for (int i = 0; i < s->n; i++) c.n[s->turns[i].kind]++;
    return c;
}

int clime_session_path(const struct clime_session *s, int turn, int32_t *ids) {
    if (turn < 0) return 0;
    CHECK(turn < s->n);
    for (int i = turn; ids && i >= 0; i = s->turns[i].parent) {
        const struct turn *t = &s->turns[i];
        memcpy(ids + t->begin, t->ids, (size_t)own(t) * sizeof *ids);
    }
    return s->turns[turn].begin + own(&s->turns[turn]);
}

int clime_session_prompt(const struct clime_session *s, int turn) {
    CHECK(turn >= 0 && turn < s->n);
    while (s->turns[turn].parent >= 0) turn = s->turns[turn].parent;
    return s->turns[turn].n_given;
}

int64_t clime_session_version(const struct clime_session *s, int turn) {
    CHECK(turn >= 0 && turn < s->n);
    const struct turn *t = &s->turns[turn];
    return t->versions[t->n_versions - 1].version;
}

int clime_session_add(struct clime_session *s, int parent, enum clime_turn_kind kind, const struct clime_sample *in) {
    int begin = clime_session_path(s, parent, NULL);
    CHECK(parent < s->n && in->n_prompt >= begin && begins_with(s, parent, in->ids, in->n_prompt));
    if (s->n == s->size) {
        s->size = s->size ? 2 * s->size : 8;
        s->turns = xrealloc(s->turns, (size_t)s->size * sizeof *s->turns);
    }
    struct turn *t = &s->turns[s->n];
    *t = (struct turn){.parent = parent,
                       .begin = begin,
                       .n_given = in->n_prompt - begin,
                       .n_sampled = in->n_response,
                       .n_versions = in->n_versions,
                       .status = in->status,
                       .finish = in->finish ? xstrdup(in->finish) : NULL,
                       .temperature = in->temperature,
                       .mixed_kv = in->mixed_kv,
                       .kind = kind,
                       .leaf = true};
    if (parent >= 0) s->turns[parent].leaf = false;
    size_t n = (size_t)own(t), n_sampled = (size_t)t->n_sampled;
    t->ids = xmalloc(n * sizeof *t->ids + 1);
    memcpy(t->ids, in->ids + begin, n * sizeof *t->ids);
    t->logp = xmalloc(n_sampled * sizeof *t->logp + 1);
    memcpy(t->logp, in->logp, n_sampled * sizeof *t->logp);
    t->versions = xmalloc((size_t)t->n_versions * sizeof *t->versions + 1);
    memcpy(t->versions, in->versions, (size_t)t->n_versions * sizeof *t->versions);
    return s->n++;
}

void clime_session_set_history(struct clime_session *s, int turn, const uint8_t (*keys)[CLIME_SESSION_KEY], int n,
                               const uint8_t bare[CLIME_SESSION_KEY]) {
    CHECK(turn >= 0 && turn < s->n && n > 0);
    struct turn *t = &s->turns[turn];
    free(t->keys);
    t->keys = xmalloc((size_t)n * sizeof *t->keys);
    memcpy(t->keys, keys, (size_t)n * sizeof *t->keys);
    t->n_keys = n;
    memcpy(t->bare, bare, CLIME_SESSION_KEY);
}

/* n more tokens of a version; out->versions has room. */
static void add_run(struct clime_sample *out, int64_t version, int n) {
    struct clime_version_run *last = out->n_versions ? &out->versions[out->n_versions - 1] : NULL;
    if (last && last->version == version)
        last->n += n;
    else
        out->versions[out->n_versions++] = (struct clime_version_run){version, n};
}

void clime_session_fill(struct clime_session *s, int turn, struct clime_sample *out) {
    CHECK(turn >= 0 && turn < s->n);
    int n = clime_session_path(s, turn, NULL), depth = 0, n_runs = 0;
    for (int i = turn; i >= 0; i = s->turns[i].parent) {
        depth++;
        n_runs += s->turns[i].n_versions + 1;
    }
    int *path = xcalloc((size_t)depth, sizeof *path);
    for (int i = turn, k = depth; i >= 0; i = s->turns[i].parent) path[--k] = i;

    const struct turn *last = &s->turns[turn];
    int n_prompt = clime_session_prompt(s, turn), n_response = n - n_prompt, at = 0;
    free(out->ids);
    free(out->logp);
    free(out->mask);
    free(out->versions);
    free(out->finish);
    out->ids = xmalloc((size_t)n * sizeof *out->ids);
    out->logp = xcalloc((size_t)n_response + 1, sizeof *out->logp);
    out->mask = xcalloc((size_t)n_response + 1, sizeof *out->mask);
    out->versions = xcalloc((size_t)n_runs, sizeof *out->versions);
    out->n_versions = 0;
    clime_session_path(s, turn, out->ids);
    for (int k = 0; k < depth; k++) {
        struct turn *t = &s->turns[path[k]];
        int given = k ? t->n_given : 0;
        if (given) add_run(out, t->versions[0].version, given);
        at += given;
        if (!t->given) {
            memcpy(out->logp + at, t->logp, (size_t)t->n_sampled * sizeof *t->logp);
            memset(out->mask + at, 1, (size_t)t->n_sampled);
        }
        t->given = true;
        for (int v = 0; v < t->n_versions; v++) add_run(out, t->versions[v].version, t->versions[v].n);
        if (t->mixed_kv && !out->mixed_kv) out->mixed_kv = at + t->mixed_kv;
        at += t->n_sampled;
    }
    CHECK(at == n_response);
    out->n_prompt = n_prompt;
    out->n_response = n_response;
    out->temperature = last->temperature;
    out->status = last->status;
    out->finish = last->finish ? xstrdup(last->finish) : NULL;
    free(path);
}
