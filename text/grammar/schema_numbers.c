/* Numbers within bounds, as digit expressions. Called by schema.c.
 *
 * Digits are compared from the left: once a digit is above (or below) the bound's, the rest is free. Integer parts have
 * at most 18 digits, to fit every reader's integers; bounds beyond that are ignored. A number with an exclusive bound
 * has at most as many decimals as 15 digits allow: rounding to a double must not move it onto the bound.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/grammar/schema.h"

#define MAX_DIGITS 18
#define MAX_WHOLE ((int64_t)999999999999999999)
#define MAX_DECIMALS 12 /* most decimals of a bound */
#define TOO_LARGE 1e18  /* beyond any number of MAX_DIGITS digits */

static int digits(struct clime_schema *s, int min, int max) {
    return clime_expr_repeat(s->x, clime_expr_range(s->x, '0', '9'), min, max);
}

/* Without bounds: JSON numbers with as many digits as a double or a 64-bit integer has. */
int clime_schema_any_number(struct clime_schema *s, bool integer) {
    int *rule = integer ? &s->integer : &s->number;
    if (*rule < 0) {
        int r = clime_schema_shared(s, rule, integer ? "integer" : "number");
        int whole =
            clime_expr_alt2(s->x, clime_expr_text(s->x, "0"),
                            clime_expr_seq2(s->x, clime_expr_range(s->x, '1', '9'), digits(s, 0, MAX_DIGITS - 1)));
        int sign = clime_expr_optional(s->x, clime_expr_text(s->x, "-"));
        int point = clime_expr_seq2(s->x, clime_expr_text(s->x, "."), digits(s, 1, 16));
        int e = clime_expr_alt2(s->x, clime_expr_text(s->x, "e"), clime_expr_text(s->x, "E"));
        int plus = clime_expr_alt2(s->x, clime_expr_text(s->x, "+"), clime_expr_text(s->x, "-"));
        const int power[] = {e, clime_expr_optional(s->x, plus), digits(s, 1, 2)};
        const int all[] = {sign, whole, clime_expr_optional(s->x, point),
                           clime_expr_optional(s->x, clime_expr_seq(s->x, power, 3))};
        clime_expr_rule_is(s->x, r, clime_expr_seq(s->x, all, integer ? 2 : 4));
    }
    return clime_expr_rule(s->x, *rule);
}

/* ---- digits between bounds ---- */

static int one_digit(struct clime_schema *s, int lo, int hi) {
    return lo > hi ? CLIME_EXPR_NEVER_NODE : clime_expr_range(s->x, '0' + lo, '0' + hi);
}

/* Strings of n digits between lo and hi. */
static int same_length(struct clime_schema *s, const char *lo, const char *hi, int n) {
    static const char nines[] = "99999999999999999999", zeros[] = "00000000000000000000";
    if (n == 0) return CLIME_EXPR_EMPTY_NODE;
    int l = lo[0] - '0', h = hi[0] - '0';
    if (memcmp(lo, zeros, (size_t)n) == 0 && memcmp(hi, nines, (size_t)n) == 0) return digits(s, n, n);
    if (l == h) return clime_expr_seq2(s->x, one_digit(s, l, h), same_length(s, lo + 1, hi + 1, n - 1));
    const int kids[] = {clime_expr_seq2(s->x, one_digit(s, l, l), same_length(s, lo + 1, nines, n - 1)),
                        clime_expr_seq2(s->x, one_digit(s, l + 1, h - 1), digits(s, n - 1, n - 1)),
                        clime_expr_seq2(s->x, one_digit(s, h, h), same_length(s, zeros, hi + 1, n - 1))};
    return clime_expr_alt(s->x, kids, 3);
}

/* Whole numbers lo..hi, 0 <= lo. */
static int whole_range(struct clime_schema *s, int64_t lo, int64_t hi) {
    struct clime_expr_list all = {0};
    char a[24], b[24];
    if (hi > MAX_WHOLE) hi = MAX_WHOLE;
    for (int64_t from = lo, ten = 10; from <= hi; from = ten) { /* ten: the least number with one more digit */
        while (ten <= from) ten *= 10;
        int64_t to = hi < ten - 1 ? hi : ten - 1;
        int n = snprintf(a, sizeof a, "%lld", (long long)from);
        snprintf(b, sizeof b, "%lld", (long long)to);
        clime_expr_list_add(&all, same_length(s, a, b, n));
    }
    return clime_expr_list_alt(s->x, &all);
}

/* lo..hi of either sign. */
static int integer_range(struct clime_schema *s, int64_t lo, int64_t hi) {
    struct clime_expr_list all = {0};
    int minus = clime_expr_text(s->x, "-");
    if (lo < 0) clime_expr_list_add(&all, clime_expr_seq2(s->x, minus, whole_range(s, hi < 0 ? -hi : 1, -lo)));
    if (hi >= 0) clime_expr_list_add(&all, whole_range(s, lo > 0 ? lo : 0, hi));
    return clime_expr_list_alt(s->x, &all);
}

/* ---- decimals ---- */

struct bound { /* >= 0 */
    int64_t whole;
    char part[MAX_DECIMALS + 1]; /* decimals without trailing zeros */
    bool excluded, none;
};

struct decimals {
    struct clime_schema *s;
    int most; /* most decimals to write */
};

/* Further decimals; some: not all 0. */
static int rest(const struct decimals *d, int done, bool some) {
    struct clime_exprs *x = d->s->x;
    int room = d->most - done;
    if (!some) return digits(d->s, 0, room > 0 ? room : 0);
    if (room < 1) return CLIME_EXPR_NEVER_NODE;
    return clime_expr_alt2(x, clime_expr_seq2(x, one_digit(d->s, 1, 9), digits(d->s, 0, room - 1)),
                           clime_expr_seq2(x, clime_expr_text(x, "0"), rest(d, done + 1, true)));
}

static int zeros(const struct decimals *d, int done, int least) {
    return clime_expr_repeat(d->s->x, clime_expr_text(d->s->x, "0"), least, d->most > done ? d->most - done : 0);
}

/* Decimals from the i-th on, not below the bound's. */
static int above(const struct decimals *d, const struct bound *b, int i) {
    struct clime_exprs *x = d->s->x;
    if (i >= d->most) return b->part[i] || b->excluded ? CLIME_EXPR_NEVER_NODE : CLIME_EXPR_EMPTY_NODE;
    if (!b->part[i]) return rest(d, i, b->excluded);
    int c = b->part[i] - '0';
    return clime_expr_alt2(x, clime_expr_seq2(x, one_digit(d->s, c + 1, 9), rest(d, i + 1, false)),
                           clime_expr_seq2(x, one_digit(d->s, c, c), above(d, b, i + 1)));
}

/* ... not above the bound's; ends: no (more) decimals allowed too. */
static int below(const struct decimals *d, const struct bound *b, int i, bool ends) {
    struct clime_exprs *x = d->s->x;
    if (!b->part[i] || i >= d->most) {
        if (b->excluded && !b->part[i]) return CLIME_EXPR_NEVER_NODE;
        return zeros(d, i, !ends);
    }
    int c = b->part[i] - '0';
    const int kids[] = {clime_expr_seq2(x, one_digit(d->s, 0, c - 1), rest(d, i + 1, false)),
                        clime_expr_seq2(x, one_digit(d->s, c, c), below(d, b, i + 1, true)),
                        ends ? CLIME_EXPR_EMPTY_NODE : CLIME_EXPR_NEVER_NODE};
    return clime_expr_alt(x, kids, 3);
}

/* Decimals from the i-th on, between those of two bounds with the same integer part and equal decimals so far. */
static int between(const struct decimals *d, const struct bound *lo, const struct bound *hi, int i) {
    struct clime_exprs *x = d->s->x;
    bool equal = !lo->part[i] && !hi->part[i];
    if (equal && (lo->excluded || hi->excluded)) return CLIME_EXPR_NEVER_NODE;
    if (equal) return i == 0 && d->most == 0 ? CLIME_EXPR_NEVER_NODE : zeros(d, i, i == 0);
    int l = lo->part[i] ? lo->part[i] - '0' : 0, h = hi->part[i] ? hi->part[i] - '0' : 0;
    if (l == h) return clime_expr_seq2(x, one_digit(d->s, l, l), between(d, lo, hi, i + 1));
    int low = lo->part[i] ? above(d, lo, i + 1) : rest(d, i + 1, lo->excluded);
    const int kids[] = {clime_expr_seq2(x, one_digit(d->s, l, l), low),
                        clime_expr_seq2(x, one_digit(d->s, l + 1, h - 1), rest(d, i + 1, false)),
                        clime_expr_seq2(x, one_digit(d->s, h, h), below(d, hi, i + 1, true))};
    return clime_expr_alt(x, kids, 3);
}

static int with_point(struct clime_schema *s, int decimals) {
    return clime_expr_seq2(s->x, clime_expr_text(s->x, "."), decimals);
}

/* An integer part, then decimals. */
static int whole_then(struct clime_schema *s, int64_t whole, int decimals) {
    char z[24];
    snprintf(z, sizeof z, "%lld", (long long)whole);
    return clime_expr_seq2(s->x, clime_expr_text(s->x, z), decimals);
}

/* Numbers without a sign between two bounds. */
static int unsigned_range(const struct decimals *d, const struct bound *lo, const struct bound *hi) {
    struct clime_schema *s = d->s;
    struct clime_exprs *x = s->x;
    int any = clime_expr_optional(x, with_point(s, digits(s, 1, d->most > 0 ? d->most : 1)));
    if (d->most == 0) any = CLIME_EXPR_EMPTY_NODE;
    int64_t last = hi->none ? MAX_WHOLE : hi->whole - 1;
    if (!hi->none && hi->whole == lo->whole) {
        if (!lo->part[0] && !lo->excluded) /* including the whole number itself */
            return whole_then(
                s, lo->whole,
                clime_expr_alt2(x, hi->part[0] || !hi->excluded ? CLIME_EXPR_EMPTY_NODE : CLIME_EXPR_NEVER_NODE,
                                with_point(s, below(d, hi, 0, false))));
        return whole_then(s, lo->whole, with_point(s, between(d, lo, hi, 0)));
    }
    int up = with_point(s, lo->part[0] || lo->excluded ? above(d, lo, 0) : digits(s, 1, d->most > 0 ? d->most : 1));
    if (d->most == 0) up = CLIME_EXPR_NEVER_NODE;
    if (!lo->part[0] && !lo->excluded) up = clime_expr_optional(x, up);
    const int kids[] = {
        lo->whole < MAX_WHOLE ? clime_expr_seq2(x, whole_range(s, lo->whole + 1, last), any) : CLIME_EXPR_NEVER_NODE,
        whole_then(s, lo->whole, up),
        hi->none ? CLIME_EXPR_NEVER_NODE
                 : whole_then(
                       s, hi->whole,
                       clime_expr_alt2(x, hi->part[0] || !hi->excluded ? CLIME_EXPR_EMPTY_NODE : CLIME_EXPR_NEVER_NODE,
                                       d->most > 0 ? with_point(s, below(d, hi, 0, false)) : CLIME_EXPR_NEVER_NODE))};
    return clime_expr_alt(x, kids, 3);
}

/* Converts v >= 0 to a bound; false: too many decimals. */
static bool bound_of(double v, bool excluded, struct bound *b) {
    char z[64];
    snprintf(z, sizeof z, "%.*f", MAX_DECIMALS, v);
    char *point = strchr(z, '.');
    *b = (struct bound){.whole = (int64_t)v, .excluded = excluded};
    memcpy(b->part, point + 1, MAX_DECIMALS);
    for (int n = MAX_DECIMALS; n > 0 && b->part[n - 1] == '0'; n--) b->part[n - 1] = '\0';
    return strtod(z, NULL) == v;
}

/* ---- the keywords ---- */

struct limits {
    double lo, hi; /* infinite = none */
    bool lo_excluded, hi_excluded;
    bool never; /* no number of 18 digits fits */
};

/* The tree's numbers are doubles: from 2^53 on the written one may be slightly inside, so the safe bound is the next
 * double. Below 2^53 it is exact. */
static double inward(double v, bool low) {
    return fabs(v) < CLIME_SCHEMA_EXACT ? v : nextafter(v, low ? INFINITY : -INFINITY);
}

static void narrow(struct clime_schema *s, struct limits *l, const struct cJSON *schema, const char *key, bool low,
                   bool excluded) {
    const struct cJSON *n = clime_tree_get(schema, key);
    double v = clime_tree_num(n, NAN);
    if (!n || clime_tree_kind(n) == CLIME_JSON_BOOL) return; /* draft 4's exclusive flag: handled with its bound */
    if (isnan(v)) {
        clime_schema_bad(s, "%s must be a number", key);
        return;
    }
    if (fabs(v) >= TOO_LARGE) {
        l->never |= (v > 0) == low;
        return;
    }
    double next = inward(v, low);
    excluded &= next == v; /* the next double is inside in any case */
    v = next;
    double *to = low ? &l->lo : &l->hi;
    bool *flag = low ? &l->lo_excluded : &l->hi_excluded;
    if (low ? v > *to : v < *to) {
        *to = v;
        *flag = excluded;
    } else if (v == *to) {
        *flag |= excluded;
    }
}

static int64_t clipped(double v, int64_t none) {
    return isinf(v) ? none : (int64_t)v;
}

static int integers(struct clime_schema *s, const struct limits *l) {
    double lo = ceil(l->lo), hi = floor(l->hi);
    int64_t from = clipped(lo, -MAX_WHOLE), to = clipped(hi, MAX_WHOLE);
    if (l->lo_excluded && lo == l->lo) from++;
    if (l->hi_excluded && hi == l->hi) to--;
    return integer_range(s, from, to);
}

static int numbers(struct clime_schema *s, const struct limits *l) {
    struct bound lo = {.none = true}, hi = {.none = true};
    struct clime_expr_list all = {0};
    struct decimals d = {s, 6};
    bool fine = true;
    if (l->lo > l->hi || (l->lo == l->hi && (l->lo_excluded || l->hi_excluded))) return CLIME_EXPR_NEVER_NODE;
    if (!isinf(l->lo)) fine &= bound_of(fabs(l->lo), l->lo_excluded, &lo);
    if (!isinf(l->hi)) fine &= bound_of(fabs(l->hi), l->hi_excluded, &hi);
    int part = (int)(strlen(lo.part) > strlen(hi.part) ? strlen(lo.part) : strlen(hi.part));
    int64_t most = lo.whole > hi.whole ? lo.whole : hi.whole;
    int whole = snprintf(NULL, 0, "%lld", (long long)most);
    if (part > d.most) d.most = part;
    if ((l->lo_excluded || l->hi_excluded) && whole + d.most > 15) d.most = whole < 15 ? 15 - whole : 0;
    if (!fine || part > d.most)
        return clime_schema_bad(s, "a bound of more than 15 digits, or 12 decimals, is not supported");
    struct bound zero = {.whole = 0};
    if (l->lo < 0) { /* negative ones, by their absolute value */
        struct bound near_zero = l->hi < 0 ? hi : zero;
        if (l->hi == 0) near_zero.excluded = l->hi_excluded;
        clime_expr_list_add(&all,
                            clime_expr_seq2(s->x, clime_expr_text(s->x, "-"), unsigned_range(&d, &near_zero, &lo)));
    }
    if (l->hi >= 0) clime_expr_list_add(&all, unsigned_range(&d, l->lo >= 0 ? &lo : &zero, &hi));
    return clime_expr_list_alt(s->x, &all);
}

int clime_schema_number(struct clime_schema *s, const struct clime_schema_set *set, bool integer) {
    struct limits l = {.lo = -INFINITY, .hi = INFINITY};
    for (int i = 0; i < set->n; i++) integer |= clime_tree_num(clime_tree_get(set->at[i].schema, "multipleOf"), 0) == 1;
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema, *of = clime_tree_get(m, "multipleOf");
        narrow(s, &l, m, "minimum", true, clime_tree_bool(clime_tree_get(m, "exclusiveMinimum"), false));
        narrow(s, &l, m, "maximum", false, clime_tree_bool(clime_tree_get(m, "exclusiveMaximum"), false));
        narrow(s, &l, m, "exclusiveMinimum", true, true);
        narrow(s, &l, m, "exclusiveMaximum", false, true);
        if (of && clime_tree_num(of, 0) != 1) clime_schema_bad(s, "multipleOf is not supported");
    }
    if (l.never) return CLIME_EXPR_NEVER_NODE;
    if (isinf(l.lo) && isinf(l.hi)) return clime_schema_any_number(s, integer);
    return integer ? integers(s, &l) : numbers(s, &l);
}
