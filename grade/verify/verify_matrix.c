/* Evaluates sums and products of matrices in trees (see verify.h). Called by verify_read.c once per answer, any thread.
 *
 * Afterwards a matrix is at the top of the tree or does not matter: the cells of the result are scalar trees, compared
 * one by one.
 */
#include "common/err.h"
#include "grade/verify/verify.h"

static clime_verify_tree matrix_of(struct clime_verify *v, int columns, int n, const clime_verify_tree *cells) {
    return clime_verify_node(v, CLIME_V_MATRIX, clime_str_of(""), columns, n, cells);
}

static clime_verify_tree add(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b) {
    clime_verify_tree cells[CLIME_VERIFY_MAX_KIDS];
    if (a->n != b->n || a->op != b->op) return NULL;
    for (int i = 0; i < a->n; i++) cells[i] = clime_verify_two(v, CLIME_V_SUM, a->kid[i], b->kid[i]);
    return matrix_of(v, a->op, a->n, cells);
}

/* Each cell c becomes c * by, or c / by. */
static clime_verify_tree scale(struct clime_verify *v, enum clime_verify_kind kind, clime_verify_tree a,
                               clime_verify_tree by) {
    clime_verify_tree cells[CLIME_VERIFY_MAX_KIDS];
    for (int i = 0; i < a->n; i++) cells[i] = clime_verify_two(v, kind, a->kid[i], by);
    return matrix_of(v, a->op, a->n, cells);
}

static clime_verify_tree multiply(struct clime_verify *v, clime_verify_tree a, clime_verify_tree b) {
    clime_verify_tree cells[CLIME_VERIFY_MAX_KIDS], terms[CLIME_VERIFY_MAX_KIDS];
    int rows = a->n / a->op, inner = a->op, columns = b->op;
    if (b->n / b->op != inner || rows * columns > CLIME_VERIFY_MAX_KIDS) return NULL;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            for (int k = 0; k < inner; k++)
                terms[k] = clime_verify_two(v, CLIME_V_PRODUCT, a->kid[i * inner + k], b->kid[k * columns + j]);
            cells[i * columns + j] = clime_verify_node(v, CLIME_V_SUM, clime_str_of(""), 0, inner, terms);
        }
    return matrix_of(v, columns, rows * columns, cells);
}

static bool is_matrix(clime_verify_tree t) {
    return t->kind == CLIME_V_MATRIX;
}

static clime_verify_tree power(struct clime_verify *v, clime_verify_tree t) {
    clime_verify_tree base = t->kid[0], exponent = t->kid[1], out = base;
    int n = exponent->kind == CLIME_V_NUMBER && exponent->name.len == 1 ? exponent->name.ptr[0] - '0' : 0;
    if (n < 1 || n > 9) return t; /* a transpose, an inverse: keep it */
    for (int i = 1; i < n && out; i++) out = multiply(v, out, base);
    return out;
}

/* Rebuilds node t with its kids' matrices evaluated. */
static clime_verify_tree rebuilt(struct clime_verify *v, clime_verify_tree t) {
    clime_verify_tree kids[CLIME_VERIFY_MAX_KIDS];
    for (int i = 0; i < t->n; i++) kids[i] = clime_verify_matrices(v, t->kid[i]);
    return clime_verify_node(v, t->kind, t->name, t->op, t->n, kids);
}

clime_verify_tree clime_verify_matrices(struct clime_verify *v, clime_verify_tree t) {
    if (!t || t->n == 0 || is_matrix(t) || !clime_verify_holds(t, CLIME_V_MATRIX)) return t;
    t = rebuilt(v, t);
    if (!t) return NULL;
    clime_verify_tree a = t->kid[0], b = t->n > 1 ? t->kid[1] : NULL;
    switch (t->kind) {
    case CLIME_V_SUM: {
        clime_verify_tree out = a;
        for (int i = 1; i < t->n && out; i++)
            out = is_matrix(out) && is_matrix(t->kid[i]) ? add(v, out, t->kid[i]) : NULL;
        return out;
    }
    case CLIME_V_PRODUCT:
        if (is_matrix(a) && is_matrix(b)) return multiply(v, a, b);
        return is_matrix(a) ? scale(v, CLIME_V_PRODUCT, a, b) : is_matrix(b) ? scale(v, CLIME_V_PRODUCT, b, a) : t;
    case CLIME_V_QUOTIENT:
        return is_matrix(a) && !is_matrix(b) ? scale(v, CLIME_V_QUOTIENT, a, b) : t;
    case CLIME_V_NEGATE:
        return is_matrix(a)
                   ? scale(v, CLIME_V_PRODUCT, a, clime_verify_one(v, CLIME_V_NEGATE, clime_verify_integer(v, 1)))
                   : t;
    case CLIME_V_POWER:
        return is_matrix(a) ? power(v, t) : t;
    default:
        return t;
    }
}
