/* A grammar as a program: a recursive automaton over bytes, immutable once compiled. The machine (machine.h) runs it.
 *
 * An op is a position in a rule. Only BYTE consumes a byte. A call pushes a frame, RET pops it; a tail call pushes
 * none, so lists and alternatives cost no depth. A counted repetition is one frame with a counter: "a{0,5000}" is as
 * small as "a{0,5}".
 *
 * No dead ends: every reachable op can reach the end of its rule, and `need` is the minimum of further frames, so that
 * the machine never enters a path that max_depth would cut.
 */
#ifndef CLIME_TEXT_GRAMMAR_PROGRAM_H
#define CLIME_TEXT_GRAMMAR_PROGRAM_H

#include "text/grammar/expr.h"

enum clime_op_kind {
    CLIME_OP_RET,
    CLIME_OP_BYTE,   /* one of sets[a], then b */
    CLIME_OP_SPLIT,  /* a or b */
    CLIME_OP_CALL,   /* the rule that begins at a, then b */
    CLIME_OP_REPEAT, /* the rule that begins at a, min to max times, then b */
    CLIME_OP_NEVER
};

struct clime_op {
    enum clime_op_kind kind;
    int32_t a, b;
    int32_t min, max; /* max < 0: unbounded */
    int32_t need;     /* least frames above its own until its rule's end */
};

struct clime_grammar_program {
    struct clime_op *ops; /* [0] is RET */
    int n_ops, size;
    struct clime_byte_set *sets;
    int n_sets;
    int32_t start;
    int max_depth;         /* frames */
    uint8_t class_of[256]; /* bytes in the same sets form one class */
    int n_classes;
};

#define CLIME_PROGRAM_MAX_OPS (1 << 19)
#define CLIME_GRAMMAR_MAX_DEPTH 512

/* Compiles root. CLIME_ERR_INPUT: it matches no text, a rule is left-recursive, or nesting exceeds max_depth;
 * CLIME_ERR_LIMIT: too large. On error p is empty. */
enum clime_err clime_grammar_program_compile(struct clime_exprs *x, int root, int max_depth,
                                             struct clime_grammar_program *p, struct clime_error *e);
void clime_grammar_program_free(struct clime_grammar_program *p);

#endif
