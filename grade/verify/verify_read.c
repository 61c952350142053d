/* Parser of answers: tokens to a tree (see verify.h). Called by verify_extract.c for every candidate, any thread; the
 * tree is in the comparison's arena.
 *
 * Recursive descent, one function per level: list, relation, set operation, sum, product, factor, operand. Depth is
 * limited by CLIME_VERIFY_MAX_DEPTH and every node costs a step. Implicit products bind like explicit ones, so "1/2x"
 * is x/2; an integer before a fraction of integers is a mixed number.
 */
#include <stdlib.h>

#include "common/err.h"
#include "grade/text.h"
#include "grade/verify/verify.h"

struct reader {
    struct clime_verify *v;
    const struct clime_verify_token *t;
    int n, at, depth, bars; /* bars: open | */
    bool failed;
};

static clime_verify_tree list(struct reader *r);
static clime_verify_tree sum(struct reader *r);
static clime_verify_tree factor(struct reader *r);

static clime_verify_tree fail(struct reader *r) {
    r->failed = true;
    return NULL;
}

static char peek(const struct reader *r) {
    return r->failed || r->at >= r->n ? 0 : r->t[r->at].kind;
}

static bool take(struct reader *r, char kind) {
    if (peek(r) != kind) return false;
    r->at++;
    return true;
}

static clime_verify_tree two(struct reader *r, enum clime_verify_kind kind, clime_verify_tree a, clime_verify_tree b) {
    return clime_verify_two(r->v, kind, a, b);
}

static clime_verify_tree call(struct reader *r, const char *name, clime_verify_tree a) {
    return clime_verify_node(r->v, CLIME_V_CALL, clime_str_of(name), 0, 1, &a);
}

static clime_verify_tree leaf(struct reader *r, enum clime_verify_kind kind, struct clime_str name) {
    return clime_verify_node(r->v, kind, name, 0, 0, NULL);
}

static clime_verify_tree number_node(struct reader *r, const struct clime_verify_token *t, struct clime_str digits) {
    clime_verify_tree n = leaf(r, CLIME_V_NUMBER, digits);
    if (n) ((struct clime_verify_node *)(uintptr_t)n)->is_float = t->is_float; /* not shared yet */
    return n;
}

/* The argument of a command: a group, or one symbol, or one digit of a number ("\frac12"). */
static clime_verify_tree argument(struct reader *r) {
    clime_verify_tree t;
    if (take(r, '{')) {
        t = list(r);
        return take(r, '}') ? t : fail(r);
    }
    if (peek(r) == 'n') {
        struct clime_verify_token *token = (struct clime_verify_token *)(uintptr_t)&r->t[r->at];
        struct clime_str digits = token->text, first = {digits.ptr, 1};
        if (digits.len == 1) {
            r->at++;
            return number_node(r, token, digits);
        }
        t = leaf(r, CLIME_V_NUMBER, first);
        token->text = clime_rtext_slice(digits, 1, digits.len);
        return t;
    }
    return factor(r);
}

/* Parses an exponent: a group, a number, or a factor. */
static clime_verify_tree exponent(struct reader *r) {
    if (peek(r) == '{') return argument(r);
    return factor(r);
}

/* Joins the token texts of from..to without braces and spaces: a subscript in a name. */
static struct clime_str subscript_text(struct reader *r, struct clime_str base, int from, int to) {
    size_t n = base.len + 1;
    for (int i = from; i < to; i++) n += r->t[i].text.len;
    char *name = clime_arena_alloc(&r->v->arena, n);
    struct clime_str out = {name, 0};
    if (!name) {
        fail(r);
        return base;
    }
    memcpy(name, base.ptr, base.len);
    out.len = base.len;
    name[out.len++] = '_';
    for (int i = from; i < to; i++) {
        if (r->t[i].kind == '{' || r->t[i].kind == '}') continue;
        memcpy(name + out.len, r->t[i].text.ptr, r->t[i].text.len);
        out.len += r->t[i].text.len;
    }
    return out;
}

/* Skips the subscript after a _: a group or one token. */
static bool skip_subscript(struct reader *r) {
    int depth = 0;
    do {
        char c = peek(r);
        if (c == 0) return false;
        depth += (c == '{') - (c == '}');
        r->at++;
    } while (depth > 0);
    return true;
}

static bool is_mixed(clime_verify_tree whole, clime_verify_tree fraction) {
    return whole->kind == CLIME_V_NUMBER && !whole->is_float && !whole->base && fraction &&
           fraction->kind == CLIME_V_QUOTIENT && fraction->kid[0]->kind == CLIME_V_NUMBER &&
           fraction->kid[1]->kind == CLIME_V_NUMBER && !fraction->kid[0]->is_float && !fraction->kid[1]->is_float;
}

/* A repeating decimal as a tree: (all - those before) / (10^a (10^b - 1)). */
static clime_verify_tree repeating(struct reader *r, struct clime_str fixed, struct clime_str period) {
    size_t point = 0, n = 0;
    while (point < fixed.len && fixed.ptr[point] != '.') point++;
    size_t places = fixed.len - point - 1;
    if (point == fixed.len || period.len == 0 || places + period.len > 16) return fail(r);
    char *all = clime_arena_alloc(&r->v->arena, fixed.len + period.len + 1);
    if (!all) return fail(r);
    for (size_t i = 0; i < fixed.len; i++)
        if (i != point) all[n++] = fixed.ptr[i];
    struct clime_str before = {all, n};
    char *whole = clime_arena_alloc(&r->v->arena, n + period.len);
    if (!whole) return fail(r);
    memcpy(whole, all, n);
    memcpy(whole + n, period.ptr, period.len);
    int64_t scale = 1, nines = 1;
    for (size_t i = 0; i < places; i++) scale *= 10;
    for (size_t i = 0; i < period.len; i++) nines *= 10;
    struct clime_str together = {whole, n + period.len};
    if (n == 0) before = clime_str_of("0");
    clime_verify_tree top = two(r, CLIME_V_SUM, leaf(r, CLIME_V_NUMBER, together),
                                clime_verify_one(r->v, CLIME_V_NEGATE, leaf(r, CLIME_V_NUMBER, before)));
    return two(r, CLIME_V_QUOTIENT, top, clime_verify_integer(r->v, scale * (nines - 1)));
}

static clime_verify_tree number(struct reader *r) {
    const struct clime_verify_token *t = &r->t[r->at++];
    clime_verify_tree v = number_node(r, t, t->text), next;
    if (!v) return fail(r);
    if (peek(r) == '_') { /* a base */
        int from = ++r->at;
        if (!skip_subscript(r)) return fail(r);
        struct clime_str base = subscript_text(r, clime_str_of(""), from, r->at);
        double b = 0;
        clime_rtext_float(clime_rtext_slice(base, 1, base.len), &b);
        ((struct clime_verify_node *)(uintptr_t)v)->base = b >= 2 && b <= 36 ? (int)b : 0;
        return v;
    }
    if (t->is_float && peek(r) == 'O' && r->at + 3 < r->n && r->t[r->at + 1].kind == '{' &&
        r->t[r->at + 2].kind == 'n' && r->t[r->at + 3].kind == '}') {
        struct clime_str period = r->t[r->at + 2].text;
        r->at += 4;
        return repeating(r, t->text, period);
    }
    if (peek(r) == 'F') { /* 7\frac{3}{4} */
        next = factor(r);
        return two(r, next && is_mixed(v, next) ? CLIME_V_SUM : CLIME_V_PRODUCT, v, next);
    }
    if (peek(r) == 'n' && r->at + 2 < r->n && r->t[r->at + 1].kind == '/' && r->t[r->at + 2].kind == 'n') {
        clime_verify_tree top = number_node(r, &r->t[r->at], r->t[r->at].text);
        clime_verify_tree below = number_node(r, &r->t[r->at + 2], r->t[r->at + 2].text);
        r->at += 3; /* 7 3/4 */
        return two(r, CLIME_V_SUM, v, two(r, CLIME_V_QUOTIENT, top, below));
    }
    return v;
}

static bool starts_operand(const struct reader *r) {
    char c = peek(r);
    return c && (strchr("naftFRBM({[S8rX0hkO", c) || (c == '|' && r->bars == 0));
}

/* Parses a function's argument without parentheses: factors up to a sign, a division sign, or another function. */
static clime_verify_tree function_argument(struct reader *r) {
    if (peek(r) == '(' || peek(r) == '{') return factor(r);
    clime_verify_tree v = factor(r);
    while (v && starts_operand(r) && peek(r) != 'f' && peek(r) != '(' && peek(r) != '[')
        v = two(r, CLIME_V_PRODUCT, v, factor(r));
    return v;
}

static clime_verify_tree function(struct reader *r) {
    struct clime_str name = r->t[r->at++].text;
    clime_verify_tree power = NULL, base = NULL, v;
    bool inverse = false;
    for (;;) {
        if (take(r, '^')) {
            power = exponent(r);
            inverse = power && power->kind == CLIME_V_NEGATE && power->kid[0]->kind == CLIME_V_NUMBER &&
                      clime_str_is(power->kid[0]->name, "1");
            if (!power) return fail(r);
        } else if (take(r, '_')) {
            base = argument(r);
            if (!base) return fail(r);
        } else {
            break;
        }
    }
    v = function_argument(r);
    if (!v) return fail(r);
    if (clime_str_is(name, "exp")) {
        v = two(r, CLIME_V_POWER, leaf(r, CLIME_V_SYMBOL, clime_str_of("e")), v);
    } else if (clime_str_is(name, "log") || clime_str_is(name, "lg") || base) {
        if (!base) base = clime_verify_integer(r->v, 10);
        v = two(r, CLIME_V_QUOTIENT, call(r, "ln", v), call(r, "ln", base));
    } else if (inverse && (clime_str_is(name, "sin") || clime_str_is(name, "cos") || clime_str_is(name, "tan"))) {
        return call(r, clime_str_is(name, "sin") ? "arcsin" : clime_str_is(name, "cos") ? "arccos" : "arctan", v);
    } else if (clime_str_is(name, "asin") || clime_str_is(name, "acos") || clime_str_is(name, "atan")) {
        v = call(r, clime_str_is(name, "asin") ? "arcsin" : clime_str_is(name, "acos") ? "arccos" : "arctan", v);
    } else {
        clime_verify_tree one[1] = {v};
        bool many = v->kind == CLIME_V_TUPLE;
        v = clime_verify_node(r->v, CLIME_V_CALL, name, 0, many ? v->n : 1, many ? v->kid : one);
    }
    return power ? two(r, CLIME_V_POWER, v, power) : v;
}

/* \sum_{k=1}^{n} body, an opaque function of its parts. */
static clime_verify_tree big_operator(struct reader *r) {
    struct clime_str name = r->t[r->at++].text;
    clime_verify_tree kids[3];
    int n = 0;
    while ((peek(r) == '_' || peek(r) == '^') && n < 2) {
        int from = ++r->at;
        if (!skip_subscript(r)) return fail(r);
        kids[n++] = leaf(r, CLIME_V_TEXT, subscript_text(r, clime_str_of(""), from, r->at));
    }
    kids[n++] = function_argument(r);
    return clime_verify_node(r->v, CLIME_V_CALL, name, 0, n, kids);
}

static clime_verify_tree symbol(struct reader *r) {
    const struct clime_verify_token *t = &r->t[r->at++];
    struct clime_str name = t->text;
    if (peek(r) == '_') {
        int from = ++r->at;
        if (!skip_subscript(r)) return fail(r);
        name = subscript_text(r, name, from, r->at);
    }
    bool is_function = t->text.len == 1 && strchr("fghFGH", t->text.ptr[0]) && peek(r) == '(';
    while (take(r, '\'')) name = subscript_text(r, name, r->at - 1, r->at);
    if (!is_function) return leaf(r, CLIME_V_SYMBOL, name);
    clime_verify_tree arg = factor(r);
    bool many = arg && arg->kind == CLIME_V_TUPLE;
    return clime_verify_node(r->v, CLIME_V_CALL, name, 0, many ? arg->n : 1, many ? arg->kid : &arg);
}

static clime_verify_tree matrix(struct reader *r) {
    clime_verify_tree cells[CLIME_VERIFY_MAX_KIDS];
    int n = 0, columns = 0, row = 0;
    r->at++;
    while (!r->failed && !take(r, 'E')) {
        if (take(r, 'W')) {
            if (row == 0) continue;
            if (columns && row != columns) return fail(r);
            columns = row;
            row = 0;
        } else if (row && !take(r, '&')) {
            return fail(r);
        } else {
            if (n == CLIME_VERIFY_MAX_KIDS) return fail(r);
            cells[n++] = sum(r);
            row++;
        }
    }
    if (row && columns && row != columns) return fail(r);
    if (!columns) columns = row;
    return n ? clime_verify_node(r->v, CLIME_V_MATRIX, clime_str_of(""), columns, n, cells) : fail(r);
}

static clime_verify_tree enclosed(struct reader *r, char close, const char *name) {
    r->at++;
    clime_verify_tree v = list(r);
    return take(r, close) ? call(r, name, v) : fail(r);
}

/* ( .. ) and [ .. ], closed by either: one element is itself, two may be an interval, more are a tuple. */
static clime_verify_tree bracketed(struct reader *r) {
    bool square = r->t[r->at++].kind == '[';
    int bars = r->bars;
    r->bars = 0;
    if (!square && take(r, ')')) return clime_verify_node(r->v, CLIME_V_TUPLE, clime_str_of(""), 0, 0, NULL);
    clime_verify_tree v = list(r);
    r->bars = bars;
    bool square_end = peek(r) == ']';
    if (!v || !(take(r, ']') || take(r, ')'))) return fail(r);
    if (v->kind != CLIME_V_LIST) return square == square_end ? v : fail(r);
    if (v->n == 2 && (square || square_end)) {
        int open = (square ? 0 : CLIME_V_OPEN_LEFT) | (square_end ? 0 : CLIME_V_OPEN_RIGHT);
        return clime_verify_node(r->v, CLIME_V_INTERVAL, clime_str_of(""), open, 2, v->kid);
    }
    return clime_verify_node(r->v, CLIME_V_TUPLE, clime_str_of(""), 0, v->n, v->kid);
}

static clime_verify_tree operand(struct reader *r) {
    clime_verify_tree v, below;
    switch (peek(r)) {
    case 'n':
        return number(r);
    case 'a':
        return symbol(r);
    case 'f':
        return function(r);
    case 't':
        return leaf(r, CLIME_V_TEXT, r->t[r->at++].text);
    case 'X':
        return big_operator(r);
    case 'M':
        return matrix(r);
    case '8':
        return leaf(r, CLIME_V_INFINITY, r->t[r->at++].text);
    case 'r':
        return leaf(r, CLIME_V_REALS, r->t[r->at++].text);
    case '0':
        r->at++;
        return clime_verify_node(r->v, CLIME_V_SET, clime_str_of(""), 0, 0, NULL);
    case 'F':
        r->at++;
        v = argument(r);
        below = v ? argument(r) : NULL;
        return two(r, CLIME_V_QUOTIENT, v, below);
    case 'B':
        r->at++;
        v = argument(r);
        below = v ? argument(r) : NULL;
        return clime_verify_node(r->v, CLIME_V_CALL, clime_str_of("binom"), 0, 2, (clime_verify_tree[]){v, below});
    case 'R':
        r->at++;
        below = NULL;
        if (take(r, '[')) {
            below = list(r);
            if (!below || !take(r, ']')) return fail(r);
        }
        v = argument(r);
        if (!below) below = clime_verify_integer(r->v, 2);
        return two(r, CLIME_V_POWER, v, two(r, CLIME_V_QUOTIENT, clime_verify_integer(r->v, 1), below));
    case 'O':
        r->at++;
        return argument(r);
    case 'h':
        return enclosed(r, 'H', "floor");
    case 'k':
        return enclosed(r, 'K', "ceil");
    case '|':
        r->bars++;
        v = enclosed(r, '|', "abs");
        r->bars--;
        return v;
    case '{':
        r->at++;
        if (take(r, '}')) return leaf(r, CLIME_V_TEXT, clime_str_of(""));
        v = list(r);
        return take(r, '}') ? v : fail(r);
    case 'S':
        r->at++;
        if (take(r, 'Z')) return clime_verify_node(r->v, CLIME_V_SET, clime_str_of(""), 0, 0, NULL);
        v = list(r);
        if (!v || !take(r, 'Z')) return fail(r);
        if (v->kind == CLIME_V_LIST) return clime_verify_node(r->v, CLIME_V_SET, clime_str_of(""), 0, v->n, v->kid);
        return clime_verify_one(r->v, CLIME_V_SET, v);
    case '(':
    case '[':
        return bracketed(r);
    default:
        return fail(r);
    }
}

static clime_verify_tree factor(struct reader *r) {
    clime_verify_tree v;
    if (r->failed || r->depth >= CLIME_VERIFY_MAX_DEPTH || !clime_verify_step(r->v, 1)) return fail(r);
    r->depth++;
    if (take(r, '+')) {
        v = factor(r);
    } else if (take(r, '-')) {
        v = clime_verify_one(r->v, CLIME_V_NEGATE, factor(r));
    } else if (peek(r) == 'P' || peek(r) == 'Q') {
        int sign = r->t[r->at++].kind == 'P' ? 1 : -1;
        v = factor(r);
        v = clime_verify_node(r->v, CLIME_V_SIGNED, clime_str_of(""), sign, 1, &v);
    } else {
        v = operand(r);
        for (bool more = true; more && v;) {
            if (take(r, '!'))
                v = clime_verify_one(r->v, CLIME_V_FACTORIAL, v);
            else if (take(r, '%'))
                v = clime_verify_one(r->v, CLIME_V_PERCENT, v);
            else if (take(r, '^'))
                v = two(r, CLIME_V_POWER, v, exponent(r));
            else
                more = false;
        }
    }
    r->depth--;
    return v ? v : fail(r);
}

static clime_verify_tree product(struct reader *r) {
    clime_verify_tree v = factor(r);
    while (v && !r->failed) {
        if (take(r, '/') || take(r, ':'))
            v = two(r, CLIME_V_QUOTIENT, v, factor(r));
        else if (take(r, '*') || starts_operand(r)) {
            clime_verify_tree next = factor(r);
            bool call = next && next->kind == CLIME_V_TUPLE && v->kind == CLIME_V_SYMBOL; /* u(x, t) */
            v = call ? clime_verify_node(r->v, CLIME_V_CALL, v->name, 0, next->n, next->kid)
                     : two(r, CLIME_V_PRODUCT, v, next);
        } else
            break;
    }
    return v;
}

/* a - b is a sum with a negated kid; a plus-minus b with a signed one. Sums stay flat, so a long one is not deep. */
static clime_verify_tree sum(struct reader *r) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS];
    int n = 0;
    kids[n++] = product(r);
    while (kids[n - 1] && !r->failed) {
        char c = peek(r);
        if (!c || !strchr("+-PQ", c)) break;
        if (n == CLIME_VERIFY_MAX_KIDS) return fail(r);
        r->at++;
        clime_verify_tree v = product(r);
        if (c == '-') v = clime_verify_one(r->v, CLIME_V_NEGATE, v);
        if (c == 'P' || c == 'Q')
            v = clime_verify_node(r->v, CLIME_V_SIGNED, clime_str_of(""), c == 'P' ? 1 : -1, 1, &v);
        kids[n++] = v;
    }
    if (n == 1) return kids[0];
    return clime_verify_node(r->v, CLIME_V_SUM, clime_str_of(""), 0, n, kids);
}

static clime_verify_tree set_operation(struct reader *r) {
    clime_verify_tree v = sum(r);
    while (v && !r->failed) {
        char c = peek(r);
        if (!c || !strchr("UID", c)) break;
        r->at++;
        v = two(r, c == 'U' ? CLIME_V_UNION : c == 'I' ? CLIME_V_INTERSECT : CLIME_V_WITHOUT, v, sum(r));
    }
    return v;
}

/* a = b <= c ...; drops what follows "about" in a chain of equalities, its approximation. */
static clime_verify_tree relation(struct reader *r) {
    clime_verify_tree kids[32];
    char ops[32];
    int n = 0;
    bool about = false;
    kids[n++] = set_operation(r);
    while (kids[n - 1] && !r->failed) {
        char c = peek(r);
        if (!c || !strchr("=#<>LG~i", c)) break;
        if (n == 32) return fail(r);
        r->at++;
        about |= c == '~' && n > 1;
        clime_verify_tree v = set_operation(r);
        if (about) {
            if (!v) break;
            continue;
        }
        ops[n - 1] = c == '~' || c == 'i' ? '=' : c; /* x in S: an assignment of a set */
        kids[n++] = v;
    }
    if (r->failed || n == 1) return kids[0];
    char *name = clime_arena_alloc(&r->v->arena, (size_t)n);
    if (!name) return fail(r);
    memcpy(name, ops, (size_t)(n - 1));
    return clime_verify_node(r->v, CLIME_V_RELATION, (struct clime_str){name, (size_t)(n - 1)}, 0, n, kids);
}

static clime_verify_tree list(struct reader *r) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS];
    int n = 0;
    if (r->failed || r->depth >= CLIME_VERIFY_MAX_DEPTH) return fail(r);
    r->depth += 2; /* each bracket counts twice: frames are large here */
    do {
        while (take(r, ',') || take(r, ';')) {
        } /* ", and" */
        if (n == CLIME_VERIFY_MAX_KIDS) return fail(r);
        kids[n++] = relation(r);
    } while (kids[n - 1] && (peek(r) == ',' || peek(r) == ';'));
    r->depth -= 2;
    if (r->failed || n == 1) return kids[0];
    return clime_verify_node(r->v, CLIME_V_LIST, clime_str_of(""), 0, n, kids);
}

clime_verify_tree clime_verify_read(struct clime_verify *v, struct clime_str s, bool prose) {
    struct clime_verify_token *tokens;
    struct reader r = {.v = v};
    r.n = clime_verify_lex(v, s, prose, &tokens);
    if (r.n <= 0) return NULL;
    r.t = tokens;
    clime_verify_tree t = list(&r);
    if (!t || r.failed || r.at != r.n || v->spent) return NULL;
    return clime_verify_matrices(v, t);
}
