/* Sets of real numbers in normal form: ascending spans that do not touch (see verify.h). Called by verify_equal.c, any
 * thread; spans are in the comparison's arena.
 *
 * Ends are long doubles, compared to a relative 1e-12: a set comes from an answer of a few numbers.
 */
#include <math.h>
#include <stdlib.h>

#include "common/err.h"
#include "grade/verify/verify.h"

#define MAX_SPANS 256

static bool same(long double a, long double b) {
    return a == b || fabsl(a - b) <= 1e-12L * (fabsl(a) + fabsl(b) + 1e-6L);
}

static bool is_empty(struct clime_verify_span s) {
    return s.lo > s.hi || (s.lo == s.hi && (s.lo_open || s.hi_open));
}

static int by_start(const void *a, const void *b) {
    const struct clime_verify_span *x = a, *y = b;
    if (x->lo != y->lo) return x->lo < y->lo ? -1 : 1;
    return x->lo_open - y->lo_open;
}

static bool make(struct clime_verify *v, struct clime_verify_span *list, int n, struct clime_verify_set *out) {
    struct clime_verify_span *span = clime_arena_alloc(&v->arena, (size_t)(n + 1) * sizeof *span);
    if (n > MAX_SPANS || !span || !clime_verify_step(v, n)) return false;
    out->span = span;
    out->n = 0;
    if (n > 1) qsort(list, (size_t)n, sizeof *list, by_start);
    for (int i = 0; i < n; i++) {
        struct clime_verify_span s = list[i], *last = out->n ? &span[out->n - 1] : NULL;
        if (is_empty(s)) continue;
        bool joins = last && (s.lo < last->hi || (same(s.lo, last->hi) && !(s.lo_open && last->hi_open)));
        if (!joins) {
            span[out->n++] = s;
        } else if (s.hi > last->hi) {
            last->hi = s.hi;
            last->hi_open = s.hi_open;
        } else if (s.hi == last->hi) {
            last->hi_open = last->hi_open && s.hi_open;
        }
    }
    return true;
}

static bool unite(struct clime_verify *v, const struct clime_verify_set *a, const struct clime_verify_set *b,
                  struct clime_verify_set *out) {
    struct clime_verify_span list[2 * MAX_SPANS];
    if (a->n + b->n > MAX_SPANS) return false;
    if (a->n) memcpy(list, a->span, (size_t)a->n * sizeof *list);
    if (b->n) memcpy(list + a->n, b->span, (size_t)b->n * sizeof *list);
    return make(v, list, a->n + b->n, out);
}

static bool intersect(struct clime_verify *v, const struct clime_verify_set *a, const struct clime_verify_set *b,
                      struct clime_verify_set *out) {
    struct clime_verify_span list[2 * MAX_SPANS];
    int n = 0;
    if (!clime_verify_step(v, (int64_t)a->n * b->n)) return false;
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < b->n; k++) {
            struct clime_verify_span x = a->span[i], y = b->span[k];
            if (y.lo > x.lo || (y.lo == x.lo && y.lo_open)) x.lo = y.lo, x.lo_open = y.lo_open;
            if (y.hi < x.hi || (y.hi == x.hi && y.hi_open)) x.hi = y.hi, x.hi_open = y.hi_open;
            if (is_empty(x)) continue;
            if (n == MAX_SPANS) return false;
            list[n++] = x;
        }
    return make(v, list, n, out);
}

static bool complement(struct clime_verify *v, const struct clime_verify_set *a, struct clime_verify_set *out) {
    struct clime_verify_span list[MAX_SPANS + 1], s = {-INFINITY, 0, true, false};
    int n = 0;
    if (a->n > MAX_SPANS - 1) return false;
    for (int i = 0; i < a->n; i++) {
        s.hi = a->span[i].lo;
        s.hi_open = !a->span[i].lo_open || isinf(s.hi);
        list[n++] = s;
        s.lo = a->span[i].hi;
        s.lo_open = !a->span[i].hi_open || isinf(s.lo);
    }
    s.hi = INFINITY;
    s.hi_open = true;
    list[n++] = s;
    return make(v, list, n, out);
}

static bool one_span(struct clime_verify *v, struct clime_verify_span s, struct clime_verify_set *out) {
    s.lo_open |= isinf(s.lo) != 0;
    s.hi_open |= isinf(s.hi) != 0;
    return make(v, &s, 1, out);
}

/* x op a, as a set of x. */
static bool half_line(struct clime_verify *v, char op, long double a, struct clime_verify_set *out) {
    struct clime_verify_span s = {-INFINITY, INFINITY, op == '>', op == '<'};
    struct clime_verify_set point;
    if (op == '<' || op == 'L') s.hi = a;
    if (op == '>' || op == 'G') s.lo = a;
    if (op == '=') s.lo = s.hi = a;
    if (op != '#') return one_span(v, s, out);
    s.lo = s.hi = a;
    return one_span(v, s, &point) && complement(v, &point, out);
}

static char turned(char op) {
    return op == '<' ? '>' : op == '>' ? '<' : op == 'L' ? 'G' : op == 'G' ? 'L' : op;
}

static bool is_unknown(clime_verify_tree t) {
    return t->kind == CLIME_V_SYMBOL || (t->kind == CLIME_V_CALL && t->n == 1);
}

/* x op a, a < x <= b, 1 <= |z| <= 2: one side is the unknown alone. */
static bool of_relation(struct clime_verify *v, clime_verify_tree t, struct clime_verify_set *out) {
    int at = -1;
    for (int i = 0; i < t->n; i++) {
        long double x;
        if (clime_verify_real(v, t->kid[i], &x)) continue;
        if (at >= 0 || !is_unknown(t->kid[i])) return false;
        at = i;
    }
    if (at < 0 || at > 1 || t->n - at > 2) return false;
    struct clime_verify_set all = {NULL, 0}, half;
    if (!complement(v, &all, out)) return false;
    for (int i = 0; i < t->n; i++) {
        long double a;
        if (i == at) continue;
        char op = i < at ? turned(t->name.ptr[i]) : t->name.ptr[i - 1];
        if (!clime_verify_real(v, t->kid[i], &a) || !half_line(v, op, a, &half) || !intersect(v, out, &half, out))
            return false;
    }
    clime_verify_tree x = t->kid[at];
    if (x->kind != CLIME_V_CALL || !clime_str_is(x->name, "abs")) return true;
    if (x->kid[0]->kind != CLIME_V_SYMBOL) return false;
    struct clime_verify_span list[2 * MAX_SPANS]; /* |x| in S: x in S or -x in S, for the non-negative part of S */
    struct clime_verify_set positive;
    int n = 0;
    if (!half_line(v, 'G', 0, &half) || !intersect(v, out, &half, &positive)) return false;
    for (int i = 0; i < positive.n; i++) {
        struct clime_verify_span s = positive.span[i];
        list[n++] = s;
        list[n++] = (struct clime_verify_span){-s.hi, -s.lo, s.hi_open, s.lo_open};
    }
    return make(v, list, n, out);
}

bool clime_verify_set_of(struct clime_verify *v, clime_verify_tree t, struct clime_verify_set *out) {
    struct clime_verify_set a, b;
    struct clime_verify_span s = {0, 0, false, false};
    if (!clime_verify_step(v, 1)) return false;
    switch (t->kind) {
    case CLIME_V_REALS:
        return make(v, NULL, 0, &a) && complement(v, &a, out);
    case CLIME_V_TUPLE: /* (a, b) */
        if (t->n != 2) return false;
        s.lo_open = s.hi_open = true;
        if (!clime_verify_real(v, t->kid[0], &s.lo) || !clime_verify_real(v, t->kid[1], &s.hi)) return false;
        return one_span(v, s, out);
    case CLIME_V_INTERVAL:
        s.lo_open = t->op & CLIME_V_OPEN_LEFT;
        s.hi_open = t->op & CLIME_V_OPEN_RIGHT;
        if (!clime_verify_real(v, t->kid[0], &s.lo) || !clime_verify_real(v, t->kid[1], &s.hi)) return false;
        return one_span(v, s, out);
    case CLIME_V_SET: {
        struct clime_verify_span list[CLIME_VERIFY_MAX_KIDS];
        for (int i = 0; i < t->n; i++) {
            if (!clime_verify_real(v, t->kid[i], &s.lo) || isinf(s.lo)) return false;
            s.hi = s.lo;
            list[i] = s;
        }
        return make(v, list, t->n, out);
    }
    case CLIME_V_UNION:
        return clime_verify_set_of(v, t->kid[0], &a) && clime_verify_set_of(v, t->kid[1], &b) && unite(v, &a, &b, out);
    case CLIME_V_INTERSECT:
        return clime_verify_set_of(v, t->kid[0], &a) && clime_verify_set_of(v, t->kid[1], &b) &&
               intersect(v, &a, &b, out);
    case CLIME_V_WITHOUT:
        return clime_verify_set_of(v, t->kid[0], &a) && clime_verify_set_of(v, t->kid[1], &b) &&
               complement(v, &b, &b) && intersect(v, &a, &b, out);
    case CLIME_V_RELATION:
        return of_relation(v, t, out);
    default:
        return false;
    }
}

bool clime_verify_set_equal(const struct clime_verify_set *a, const struct clime_verify_set *b) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++) {
        const struct clime_verify_span *x = &a->span[i], *y = &b->span[i];
        if (x->lo_open != y->lo_open || x->hi_open != y->hi_open || !same(x->lo, y->lo) || !same(x->hi, y->hi))
            return false;
    }
    return true;
}
