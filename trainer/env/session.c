/* Session: the tree of turns. Called by the thread that serves the session (trainer/env/environments.c); owns the
 * turns' tokens. Invariant: turns are only added, so a path that was trained on or extended never changes. */
#include "trainer/env/session.h"

#include <stdlib.h>
#include <string.h>

#include "common/err.h"

#define LOOK_BACK 4 /* recent turns that a branch is compared with */

struct turn {
    int parent;
    int begin;              /* path tokens before this turn */
    int n_given, n_sampled; /* its own: [n_given + n_sampled] */
    int base, n_shared;     /* the path shares its first n_shared tokens with that of turn `base`: not stored again */
    int32_t *ids;           /* the path after the shared tokens */
    float *logp;            /* [n_sampled] */
    uint32_t *kept_n;       /* [n_sampled] or NULL; kept and kept_logp as in a sample */
    int32_t *kept;
    float *kept_logp;
    int64_t n_kept;
    uint32_t *routing; /* [n_sampled] or NULL */
    uint8_t *experts;  /* [positions, expert_bytes] or NULL: after the parent path's */
    int32_t expert_bytes;
    struct clime_version_run *versions; /* cover n_sampled */
    int n_versions;
    enum clime_sample_status status;
    char *finish;
    float temperature;
    int32_t mixed_kv; /* as in a sample, counted from this turn's own tokens */
    enum clime_turn_kind kind;
    bool leaf;
    bool given; /* an earlier fill trains on it */
};

/* Digest of a history that was requested or answered, chained from the digest before it, so one stands for the whole
 * history. */
struct digest {
    uint8_t key[CLIME_SESSION_KEY];
    int turn;   /* newest turn whose history ends with it; -1 = none */
    bool whole; /* belongs to a history */
    bool bare;  /* belongs to a history without its last answer's reasoning */
};

struct clime_session {
    struct turn *turns;
    int n, size;
    int64_t n_abandoned, n_held; /* n_abandoned: turns; n_held: maximum of tokens, positions with experts, and ids of
                                    sets, summed over turns */
    struct digest *digests;      /* [digest_size] hash table by the first bytes; neither whole nor bare: free */
    size_t n_digests, digest_size;
};

struct clime_session *clime_session_new(void) {
    return xcalloc(1, sizeof(struct clime_session));
}

void clime_session_free(struct clime_session *s) {
    if (!s) return;
    for (int i = 0; i < s->n; i++) {
        free(s->turns[i].ids);
        free(s->turns[i].logp);
        free(s->turns[i].kept_n);
        free(s->turns[i].kept);
        free(s->turns[i].kept_logp);
        free(s->turns[i].routing);
        free(s->turns[i].experts);
        free(s->turns[i].versions);
        free(s->turns[i].finish);
    }
    free(s->turns);
    free(s->digests);
    free(s);
}

int clime_session_turns(const struct clime_session *s) {
    return s->n;
}

int64_t clime_session_tokens(const struct clime_session *s) {
    return s->n_held;
}

static int length(const struct turn *t) {
    return t->begin + t->n_given + t->n_sampled;
}

/* The first position whose experts this turn stores: no row follows the last token of its parent's path. */
static int experts_from(const struct turn *t) {
    return t->parent < 0 ? 0 : t->begin - 1;
}

static int n_experts(const struct turn *t) { /* positions */
    return length(t) - 1 - experts_from(t);
}

static size_t experts_bytes(const struct turn *t) {
    return (size_t)n_experts(t) * (size_t)t->expert_bytes;
}

/* A stretch of a turn's path, iterated from the end: the turn that stores it, and where it ends. */
struct stretch {
    int turn, end;
};

static struct stretch before(const struct clime_session *s, struct stretch x) {
    const struct turn *t = &s->turns[x.turn];
    return (struct stretch){t->base, t->n_shared < x.end ? t->n_shared : x.end};
}

/* Length of the common prefix of ids[n] and a turn's path. */
static int in_common(const struct clime_session *s, int turn, const int32_t *ids, int n) {
    int same = length(&s->turns[turn]) < n ? length(&s->turns[turn]) : n;
    for (struct stretch x = {turn, same}; x.end > 0; x = before(s, x)) {
        const struct turn *t = &s->turns[x.turn];
        for (int i = t->n_shared; i < x.end; i++)
            if (t->ids[i - t->n_shared] != ids[i]) same = x.end = i;
    }
    return same;
}

int clime_session_find_ids(const struct clime_session *s, const int32_t *ids, int n) {
    int best = -1, longest = 0;
    for (int i = 0; i < s->n; i++) {
        int end = length(&s->turns[i]);
        if (end < longest || end > n || in_common(s, i, ids, n) < end) continue;
        best = i; /* the newest of equals */
        longest = end;
    }
    return best;
}

/* ---- histories ---- */

/* The digest's slot, or the free one where it belongs. */
static struct digest *place_of(const struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]) {
    size_t at;
    memcpy(&at, key, sizeof at);
    for (;; at++) {
        struct digest *d = &s->digests[at & (s->digest_size - 1)];
        if ((!d->whole && !d->bare) || !memcmp(d->key, key, CLIME_SESSION_KEY)) return d;
    }
}

static const struct digest *find_digest(const struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]) {
    static const struct digest none = {.turn = -1};
    return s->n_digests ? place_of(s, key) : &none;
}

static void grow_digests(struct clime_session *s) {
    struct digest *old = s->digests;
    size_t n = s->digest_size;
    s->digest_size = n ? 2 * n : 16;
    s->digests = xcalloc(s->digest_size, sizeof *s->digests);
    for (size_t i = 0; i < n; i++)
        if (old[i].whole || old[i].bare) *place_of(s, old[i].key) = old[i];
    free(old);
}

/* Adds a digest; the caller sets its flags. */
static struct digest *add_digest(struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]) {
    if (4 * (s->n_digests + 1) > 3 * s->digest_size) grow_digests(s);
    struct digest *d = place_of(s, key);
    if (d->whole || d->bare) return d;
    memcpy(d->key, key, CLIME_SESSION_KEY);
    d->turn = -1;
    s->n_digests++;
    return d;
}

int clime_session_find_key(const struct clime_session *s, const uint8_t key[CLIME_SESSION_KEY]) {
    const struct digest *d = find_digest(s, key);
    return d->whole ? d->turn : -1;
}

int clime_session_common(const struct clime_session *s, const uint8_t (*keys)[CLIME_SESSION_KEY], int n, bool *bare) {
    int k = 0;
    *bare = false;
    if (!s->n_digests) return -1;
    while (k < n && find_digest(s, keys[k])->whole) k++;
    *bare = k < n && find_digest(s, keys[k])->bare;
    return k;
}

void clime_session_set_history(struct clime_session *s, int turn, const uint8_t (*keys)[CLIME_SESSION_KEY], int n,
                               const uint8_t bare[CLIME_SESSION_KEY]) {
    CHECK(turn >= 0 && turn < s->n && n > 0);
    for (int i = 0; i < n; i++) add_digest(s, keys[i])->whole = true;
    add_digest(s, keys[n - 1])->turn = turn;
    add_digest(s, bare)->bare = true;
}

/* ---- turns ---- */

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
    for (struct stretch x = {turn, length(&s->turns[turn])}; ids && x.end > 0; x = before(s, x)) {
        const struct turn *t = &s->turns[x.turn];
        if (x.end > t->n_shared) memcpy(ids + t->n_shared, t->ids, (size_t)(x.end - t->n_shared) * sizeof *ids);
    }
    return length(&s->turns[turn]);
}

int clime_session_prompt(const struct clime_session *s, int turn) {
    CHECK(turn >= 0 && turn < s->n);
    while (s->turns[turn].parent >= 0) turn = s->turns[turn].parent;
    return s->turns[turn].n_given;
}

int clime_session_experts_from(const struct clime_session *s, int turn) {
    return turn < 0 ? 0 : length(&s->turns[turn]) - 1;
}

int64_t clime_session_version(const struct clime_session *s, int turn) {
    CHECK(turn >= 0 && turn < s->n);
    const struct turn *t = &s->turns[turn];
    return t->versions[t->n_versions - 1].version;
}

static void *copy(const void *x, size_t bytes) {
    void *out = xmalloc(bytes + 1);
    memcpy(out, x, bytes);
    return out;
}

int clime_session_add(struct clime_session *s, int parent, enum clime_turn_kind kind, const struct clime_sample *in) {
    int begin = clime_session_path(s, parent, NULL), base = parent, n_shared = begin;
    CHECK(parent < s->n && in->n_prompt >= begin &&
          (parent < 0 || in_common(s, parent, in->ids, in->n_prompt) == begin));
    /* a newly rendered branch mostly begins like the turns before it */
    for (int i = s->n - 1; parent < 0 && i >= 0 && i >= s->n - LOOK_BACK; i--) {
        int same = in_common(s, i, in->ids, in->n_prompt);
        if (same <= n_shared) continue;
        n_shared = same;
        base = i;
    }
    if (s->n == s->size) {
        s->size = s->size ? 2 * s->size : 8;
        s->turns = xrealloc(s->turns, (size_t)s->size * sizeof *s->turns);
    }
    struct turn *t = &s->turns[s->n];
    *t = (struct turn){.parent = parent,
                       .begin = begin,
                       .n_given = in->n_prompt - begin,
                       .n_sampled = in->n_response,
                       .base = base,
                       .n_shared = n_shared,
                       .n_versions = in->n_versions,
                       .status = in->status,
                       .finish = in->finish ? xstrdup(in->finish) : NULL,
                       .temperature = in->temperature,
                       .mixed_kv = in->mixed_kv,
                       .kind = kind,
                       .leaf = true};
    if (parent >= 0) s->turns[parent].leaf = false;
    size_t n = (size_t)(length(t) - n_shared), n_sampled = (size_t)t->n_sampled;
    int64_t held = in->experts && n_experts(t) > (int)n ? n_experts(t) : (int64_t)n;
    s->n_held += in->n_kept > held ? in->n_kept : held;
    t->ids = copy(in->ids + n_shared, n * sizeof *t->ids);
    t->logp = copy(in->logp, n_sampled * sizeof *t->logp);
    if (in->kept_n) {
        t->kept_n = copy(in->kept_n, n_sampled * sizeof *t->kept_n);
        t->kept = copy(in->kept, (size_t)in->n_kept * sizeof *t->kept);
        t->kept_logp = copy(in->kept_logp, n_sampled * sizeof *t->kept_logp);
        t->n_kept = in->n_kept;
    }
    if (in->routing) t->routing = copy(in->routing, n_sampled * sizeof *t->routing);
    if (in->experts) {
        t->expert_bytes = in->expert_bytes;
        t->experts = copy(in->experts, experts_bytes(t));
    }
    t->versions = copy(in->versions, (size_t)t->n_versions * sizeof *t->versions);
    return s->n++;
}

/* Adds n tokens of a version; out->versions has room. */
static void add_run(struct clime_sample *out, int64_t version, int n) {
    struct clime_version_run *last = out->n_versions ? &out->versions[out->n_versions - 1] : NULL;
    if (last && last->version == version)
        last->n += n;
    else
        out->versions[out->n_versions++] = (struct clime_version_run){version, n};
}

/* Joins the experts of the turns path[depth], unless one has none. */
static void join_experts(const struct clime_session *s, const int *path, int depth, struct clime_sample *out) {
    free(out->experts);
    out->experts = NULL;
    for (int k = 0; k < depth; k++)
        if (!s->turns[path[k]].experts) return;
    out->expert_bytes = s->turns[path[0]].expert_bytes;
    out->experts = xmalloc((size_t)(out->n_prompt + out->n_response) * (size_t)out->expert_bytes);
    for (int k = 0; k < depth; k++) {
        const struct turn *t = &s->turns[path[k]];
        memcpy(out->experts + (size_t)experts_from(t) * (size_t)out->expert_bytes, t->experts, experts_bytes(t));
    }
}

/* Joins the sets of tokens that t sampled and `out` trains on, from token `at` on. */
static void join_kept(const struct turn *t, int at, struct clime_sample *out) {
    const size_t n = (size_t)t->n_sampled, had = (size_t)out->n_kept;
    memcpy(out->kept_n + at, t->kept_n, n * sizeof *t->kept_n);
    memcpy(out->kept_logp + at, t->kept_logp, n * sizeof *t->kept_logp);
    out->kept = xrealloc(out->kept, (had + (size_t)t->n_kept) * sizeof *t->kept);
    memcpy(out->kept + had, t->kept, (size_t)t->n_kept * sizeof *t->kept);
    out->n_kept += t->n_kept;
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
    free(out->kept_n);
    free(out->kept);
    free(out->kept_logp);
    free(out->routing);
    free(out->mask);
    free(out->versions);
    free(out->finish);
    out->ids = xmalloc((size_t)n * sizeof *out->ids);
    out->logp = xcalloc((size_t)n_response + 1, sizeof *out->logp);
    out->kept_n = last->kept_n ? xcalloc((size_t)n_response + 1, sizeof *out->kept_n) : NULL;
    out->kept_logp = last->kept_n ? xcalloc((size_t)n_response + 1, sizeof *out->kept_logp) : NULL;
    out->kept = NULL;
    out->n_kept = 0;
    out->routing = last->routing ? xcalloc((size_t)n_response + 1, sizeof *out->routing) : NULL;
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
            if (out->kept_n && t->kept_n) join_kept(t, at, out);
            if (out->routing && t->routing)
                memcpy(out->routing + at, t->routing, (size_t)t->n_sampled * sizeof *t->routing);
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
    if (out->mixed_kv) join_experts(s, path, depth, out);
    free(path);
}
