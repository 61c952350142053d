/* Equality of an answer and the truth (see verify.h). Called by verify.c, any thread.
 *
 * The rules are those published by Math-Verify (github.com/huggingface/Math-Verify), decided by values instead of
 * simplification: an assignment counts as its right side when the other answer is none; lists and \{ \} compare without
 * order, tuples with it; two numbers in round brackets are a pair or an open interval, as the other side requires;
 * relations may be reversed and multiplied by a constant; a set of numbers may be written as a relation.
 */
#include "common/err.h"
#include "grade/text.h"
#include "grade/verify/verify.h"

static bool equal(struct clime_verify *v, clime_verify_tree truth, clime_verify_tree answer, int depth);

/* Only names: x, f(x), AB, (p, q), S_1 : S. */
static bool is_name(clime_verify_tree t) {
    switch (t->kind) {
    case CLIME_V_SYMBOL:
    case CLIME_V_TEXT:
    case CLIME_V_CALL:
        return true;
    case CLIME_V_PRODUCT:
    case CLIME_V_QUOTIENT:
    case CLIME_V_TUPLE:
    case CLIME_V_LIST:
        for (int i = 0; i < t->n; i++)
            if (!is_name(t->kid[i])) return false;
        return t->n > 0;
    default:
        return false;
    }
}

static bool is_equation(clime_verify_tree t) {
    if (t->kind != CLIME_V_RELATION) return false;
    for (size_t i = 0; i < t->name.len; i++)
        if (t->name.ptr[i] != '=') return false;
    return true;
}

/* x = 1; also 1 = y = x = 1, whose last name counts. */
static bool is_assignment(clime_verify_tree t) {
    return is_equation(t) && (is_name(t->kid[0]) || (t->n > 2 && is_name(t->kid[t->n - 2])));
}

static clime_verify_tree last(clime_verify_tree t) {
    return t->kid[t->n - 1];
}

/* Shortens a = b = c to a = c. */
static clime_verify_tree shortened(struct clime_verify *v, clime_verify_tree t) {
    if (t->n == 2) return t;
    clime_verify_tree name = t->kid[is_name(t->kid[0]) ? 0 : t->n - 2];
    return clime_verify_node(v, CLIME_V_RELATION, clime_str_of("="), 0, 2, (clime_verify_tree[]){name, last(t)});
}

static bool is_collection(clime_verify_tree t) {
    return t->kind == CLIME_V_LIST || t->kind == CLIME_V_SET || t->kind == CLIME_V_TUPLE ||
           t->kind == CLIME_V_INTERVAL || t->kind == CLIME_V_UNION || t->kind == CLIME_V_INTERSECT ||
           t->kind == CLIME_V_WITHOUT || t->kind == CLIME_V_REALS;
}

static bool is_finite_set(clime_verify_tree t) {
    return t->kind == CLIME_V_LIST || t->kind == CLIME_V_SET;
}

/* ---- plus-minus ---- */

/* The tree with every plus-minus replaced by plus (sign 1) or minus (-1). */
static clime_verify_tree with_sign(struct clime_verify *v, clime_verify_tree t, int sign) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS];
    if (!t || !clime_verify_holds(t, CLIME_V_SIGNED)) return t;
    for (int i = 0; i < t->n; i++) kids[i] = with_sign(v, t->kid[i], sign);
    if (t->kind != CLIME_V_SIGNED) return clime_verify_node(v, t->kind, t->name, t->op, t->n, kids);
    if (!kids[0] || t->op * sign > 0) return kids[0];
    return clime_verify_one(v, CLIME_V_NEGATE, kids[0]);
}

/* Expands plus-minus to a set of two; in a list, one element to two. */
static clime_verify_tree expand(struct clime_verify *v, clime_verify_tree t) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS];
    int n = 0;
    if (!t || !clime_verify_holds(t, CLIME_V_SIGNED)) return t;
    if (is_finite_set(t)) {
        for (int i = 0; i < t->n; i++) {
            bool both = clime_verify_holds(t->kid[i], CLIME_V_SIGNED);
            if (n + 2 > CLIME_VERIFY_MAX_KIDS) return NULL;
            kids[n++] = with_sign(v, t->kid[i], 1);
            if (both) kids[n++] = with_sign(v, t->kid[i], -1);
        }
    } else if (t->kind == CLIME_V_RELATION) {
        for (int i = 0; i < t->n; i++) kids[n++] = expand(v, t->kid[i]);
        return clime_verify_node(v, t->kind, t->name, t->op, n, kids);
    } else {
        kids[n++] = with_sign(v, t, 1);
        kids[n++] = with_sign(v, t, -1);
    }
    return clime_verify_node(v, CLIME_V_SET, clime_str_of(""), 0, n, kids);
}

/* ---- words ---- */

/* The letters and digits of a text or a product of symbols, in lower case; false when it is neither. A difference of
 * such ("two-point") counts when the other side is a text. */
static bool spell(clime_verify_tree t, bool with_text, struct clime_buf *out) {
    if (t->kind == CLIME_V_PRODUCT || (with_text && (t->kind == CLIME_V_SUM || t->kind == CLIME_V_NEGATE))) {
        for (int i = 0; i < t->n; i++)
            if (!spell(t->kid[i], with_text, out)) return false;
        return true;
    }
    if (t->kind != CLIME_V_TEXT && t->kind != CLIME_V_SYMBOL) return false;
    for (size_t i = 0; i < t->name.len; i++) {
        char c = t->name.ptr[i];
        if (c >= 'A' && c <= 'Z') c = (char)(c - 'A' + 'a');
        if ((c >= 'a' && c <= 'z') || clime_rtext_is_digit(c) || (unsigned char)c >= 0x80) clime_buf_addc(out, c);
    }
    return true;
}

static bool same_words(clime_verify_tree a, clime_verify_tree b) {
    struct clime_buf x, y;
    clime_buf_init(&x, CLIME_VERIFY_MAX_BYTES);
    clime_buf_init(&y, CLIME_VERIFY_MAX_BYTES);
    bool ok = spell(a, b->kind == CLIME_V_TEXT, &x) && spell(b, a->kind == CLIME_V_TEXT, &y) && x.len &&
              clime_str_eq(clime_buf_str(&x), clime_buf_str(&y));
    clime_buf_free(&x);
    clime_buf_free(&y);
    return ok;
}

/* ---- collections ---- */

static bool same_order(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b, int depth) {
    if (a->n != b->n) return false;
    for (int i = 0; i < a->n; i++)
        if (!equal(v, a->kid[i], b->kid[i], depth)) return false;
    return true;
}

/* Each element of a is in b and vice versa: repeated elements count once. Skips the search when they match in order. */
static bool any_order(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b, int depth) {
    bool found[CLIME_VERIFY_MAX_KIDS] = {false};
    if (same_order(v, a, b, depth)) return true;
    for (int i = 0; i < a->n; i++) {
        bool one = false;
        for (int k = 0; k < b->n && !v->spent; k++)
            if (equal(v, a->kid[i], b->kid[k], depth)) one = found[k] = true;
        if (!one) return false;
    }
    for (int k = 0; k < b->n; k++)
        if (!found[k]) return false;
    return !v->spent;
}

static bool is_pair(clime_verify_tree t) {
    return t->kind == CLIME_V_TUPLE && t->n == 2;
}

static bool same_collection(struct clime_verify *v, clime_verify_tree truth, clime_verify_tree answer, int depth) {
    struct clime_verify_set x, y;
    if (truth->kind == CLIME_V_INTERVAL && answer->kind == CLIME_V_INTERVAL)
        return truth->op == answer->op && same_order(v, truth, answer, depth); /* the ends may be symbols */
    if (truth->kind == CLIME_V_TUPLE || answer->kind == CLIME_V_TUPLE) {
        bool tuples = truth->kind == answer->kind;
        if ((tuples || is_finite_set(truth) || is_finite_set(answer)) && same_order(v, truth, answer, depth))
            return true;
        if (tuples || !(is_pair(truth) || is_pair(answer))) return false;
        if (is_finite_set(truth) || is_finite_set(answer)) return false; /* an interval is not a set of two */
    }
    if (is_finite_set(truth) && is_finite_set(answer)) return any_order(v, truth, answer, depth);
    return clime_verify_set_of(v, truth, &x) && clime_verify_set_of(v, answer, &y) && clime_verify_set_equal(&x, &y);
}

/* ---- relations ---- */

static clime_verify_tree difference(struct clime_verify *v, clime_verify_tree t) {
    return clime_verify_two(v, CLIME_V_SUM, t->kid[0], clime_verify_one(v, CLIME_V_NEGATE, t->kid[1]));
}

static char turned(char op) {
    return op == '<' ? '>' : op == '>' ? '<' : op == 'L' ? 'G' : op == 'G' ? 'L' : op;
}

static bool same_relation(struct clime_verify *v, clime_verify_tree truth, clime_verify_tree answer, int depth) {
    struct clime_verify_set x, y;
    if (truth->n == answer->n && clime_str_eq(truth->name, answer->name) && same_order(v, truth, answer, depth))
        return true;
    if (truth->n == 2 && answer->n == 2) {
        char op = truth->name.ptr[0], other = answer->name.ptr[0];
        clime_verify_tree a = difference(v, truth), b = difference(v, answer);
        int sign = a && b ? clime_verify_ratio(v, a, b) : 0;
        bool symmetric = op == '=' || op == '#';
        if (sign && symmetric) return op == other;
        if (sign) return op == (sign > 0 ? other : turned(other));
    }
    bool equations = is_equation(truth) || is_equation(answer); /* x = 1 and y = 1 are different sets of points */
    return !equations && clime_verify_set_of(v, truth, &x) && clime_verify_set_of(v, answer, &y) &&
           clime_verify_set_equal(&x, &y);
}

/* Compares a relation with a set. */
static bool same_as_set(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b) {
    struct clime_verify_set x, y;
    return clime_verify_set_of(v, a, &x) && clime_verify_set_of(v, b, &y) && clime_verify_set_equal(&x, &y);
}

static bool same_matrix(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b, int depth) {
    return a->kind == b->kind && a->op == b->op && same_order(v, a, b, depth);
}

static bool equal(struct clime_verify *v, clime_verify_tree truth, clime_verify_tree answer, int depth) {
    if (!truth || !answer || depth > 16 || !clime_verify_step(v, 1)) return false;
    bool truth_assigns = is_assignment(truth), answer_assigns = is_assignment(answer);
    bool answer_equation = is_equation(answer), truth_equation = is_equation(truth);
    depth++;
    if (truth_assigns) truth = shortened(v, truth);
    if (answer_assigns) answer = shortened(v, answer);
    if (!truth || !answer) return false;
    if (answer_equation && !truth_equation)
        answer = last(answer);
    else if (truth_assigns && !answer_equation)
        truth = last(truth);
    bool truth_relates = truth->kind == CLIME_V_RELATION, answer_relates = answer->kind == CLIME_V_RELATION;
    if (truth_relates && answer_relates) return same_relation(v, truth, answer, depth);
    if (truth_relates || answer_relates) return same_as_set(v, truth, answer);
    if (is_finite_set(truth) && truth->n == 1 && !is_finite_set(answer)) truth = truth->kid[0];
    if (is_finite_set(answer) && answer->n == 1 && !is_finite_set(truth)) answer = answer->kid[0];
    if (is_collection(truth) && is_collection(answer)) return same_collection(v, truth, answer, depth);
    if (is_collection(truth) || is_collection(answer)) return false;
    if (truth->kind == CLIME_V_MATRIX || answer->kind == CLIME_V_MATRIX) return same_matrix(v, truth, answer, depth);
    if (same_words(truth, answer)) return true;
    return clime_verify_scalar_equal(v, truth, answer);
}

/* x = 1, 2 means that x is 1 or 2: makes one assignment of a list when no other element has a name. */
static clime_verify_tree named_list(struct clime_verify *v, clime_verify_tree t) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS], sides[2];
    if (t->kind != CLIME_V_LIST || !is_assignment(t->kid[0])) return t;
    for (int i = 0; i < t->n; i++) {
        kids[i] = i ? t->kid[i] : last(t->kid[0]);
        if (i && t->kid[i]->kind == CLIME_V_RELATION) return t;
    }
    sides[0] = t->kid[0]->kid[0];
    sides[1] = clime_verify_node(v, CLIME_V_LIST, t->name, 0, t->n, kids);
    return clime_verify_node(v, CLIME_V_RELATION, clime_str_of("="), 0, 2, sides);
}

bool clime_verify_equal(struct clime_verify *v, clime_verify_tree truth, clime_verify_tree answer) {
    truth = expand(v, named_list(v, truth));
    answer = expand(v, named_list(v, answer));
    return equal(v, truth, answer, 0) && !v->spent;
}
