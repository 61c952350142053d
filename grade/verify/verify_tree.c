/* Tree nodes, the step budget and the deadline (see verify.h). Called by the parser, the matrices and the comparison,
 * any thread; nodes are in the comparison's arena and cost a step each.
 */
#include <time.h>

#include "common/buf.h"
#include "common/err.h"
#include "grade/verify/verify.h"

#define CLOCK_EVERY 4096 /* steps */

/* CPU time of the thread: verdicts do not depend on the machine's load. */
int64_t clime_verify_used_us(void) {
    struct timespec t;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

bool clime_verify_step(struct clime_verify *v, int64_t n) {
    int64_t before = v->steps / CLOCK_EVERY;
    v->steps += n;
    if (v->steps / CLOCK_EVERY != before && clime_verify_used_us() > v->deadline_us) v->late = true;
    if (v->late || v->steps > CLIME_VERIFY_MAX_STEPS) v->spent = true;
    return !v->spent;
}

clime_verify_tree clime_verify_node(struct clime_verify *v, enum clime_verify_kind kind, struct clime_str name, int op,
                                    int n, const clime_verify_tree *kids) {
    for (int i = 0; i < n; i++)
        if (!kids[i]) return NULL;
    if (n > CLIME_VERIFY_MAX_KIDS || !clime_verify_step(v, 1)) return NULL;
    struct clime_verify_node *t = clime_arena_zalloc(&v->arena, sizeof *t);
    clime_verify_tree *copy = clime_arena_alloc(&v->arena, (size_t)(n ? n : 1) * sizeof *copy);
    if (!t || !copy) {
        v->spent = true;
        return NULL;
    }
    if (n) memcpy(copy, kids, (size_t)n * sizeof *copy);
    t->kind = kind;
    t->name = name;
    t->op = op;
    t->n = n;
    t->kid = copy;
    return t;
}

clime_verify_tree clime_verify_two(struct clime_verify *v, enum clime_verify_kind kind, clime_verify_tree a,
                                   clime_verify_tree b) {
    clime_verify_tree kids[2] = {a, b};
    return clime_verify_node(v, kind, clime_str_of(""), 0, 2, kids);
}

clime_verify_tree clime_verify_one(struct clime_verify *v, enum clime_verify_kind kind, clime_verify_tree a) {
    return clime_verify_node(v, kind, clime_str_of(""), 0, 1, &a);
}

clime_verify_tree clime_verify_integer(struct clime_verify *v, int64_t n) {
    char *digits = clime_arena_alloc(&v->arena, 24);
    if (!digits) return NULL;
    struct clime_buf b;
    clime_buf_init(&b, 24);
    clime_buf_printf(&b, "%lld", (long long)n);
    memcpy(digits, b.data, b.len);
    struct clime_str name = {digits, b.len};
    clime_buf_free(&b);
    return clime_verify_node(v, CLIME_V_NUMBER, name, 0, 0, NULL);
}

bool clime_verify_holds(clime_verify_tree t, enum clime_verify_kind kind) {
    if (t->kind == kind) return true;
    for (int i = 0; i < t->n; i++)
        if (clime_verify_holds(t->kid[i], kind)) return true;
    return false;
}
