/* Resources of compiling or rendering one chat template (memory, steps, depth), and its failure path.
 *
 * Internal to text/template/. One struct clime_tr per compilation or rendering, on one thread.
 *
 * Errors leave by longjmp to the one setjmp in text/template/template.c. About 200 places can fail (every operator,
 * filter, allocation), all of them deep in recursion; nothing on the way owns anything but arena memory, so unwinding
 * leaks nothing. That invariant is the rule of these files: between setjmp and longjmp no malloc, no open file, no
 * lock.
 */
#ifndef CLIME_TEXT_TEMPLATE_VALUE_RUN_H
#define CLIME_TEXT_TEMPLATE_VALUE_RUN_H

#include <setjmp.h>
#include <stdint.h>

#include "common/arena.h"
#include "common/buf.h"
#include "common/err.h"

struct clime_tr {
    struct clime_arena arena; /* every value, node and string of this run */
    jmp_buf trap;
    struct clime_error *err;
    int line;          /* of the current token or node; 0 = none */
    size_t steps_left; /* units of work */
    int depth, max_depth;
    struct clime_tenv *env; /* of a rendering (eval.h); NULL while compiling */
    char *tail;             /* end of the newest concatenation, which may grow in place up to tail_end */
    char *tail_end;
};

/* Sets the error, "template line N: ..." and leaves by longjmp. */
void clime_tr_fail(struct clime_tr *tr, enum clime_err code, const char *fmt, ...)
    __attribute__((format(printf, 3, 4), noreturn));

void *clime_tr_alloc(struct clime_tr *tr, size_t bytes) __attribute__((returns_nonnull)); /* not zeroed */
void *clime_tr_zalloc(struct clime_tr *tr, size_t bytes) __attribute__((returns_nonnull));

/* Counts work units; fails when none are left. Walking bytes costs one unit per 16. */
void clime_tr_charge(struct clime_tr *tr, size_t units);

/* Around every recursion whose depth the template or the data decides. */
void clime_tr_enter(struct clime_tr *tr);
static inline void clime_tr_leave(struct clime_tr *tr) {
    tr->depth--;
}

/* Text under construction: in the arena, or appended to sink where one is set. Zero-initialise. */
struct clime_tout {
    char *data;
    size_t len, size;
    struct clime_buf *sink;
};
void clime_tout_add(struct clime_tr *tr, struct clime_tout *o, const char *p, size_t n);
void clime_tout_str(struct clime_tr *tr, struct clime_tout *o, struct clime_str s);
void clime_tout_adds(struct clime_tr *tr, struct clime_tout *o, const char *z);
void clime_tout_addc(struct clime_tr *tr, struct clime_tout *o, char c);
void clime_tout_put(struct clime_tr *tr, struct clime_tout *o, int32_t cp); /* as UTF-8 */
void clime_tout_printf(struct clime_tr *tr, struct clime_tout *o, const char *fmt, ...)
    __attribute__((format(printf, 3, 4))); /* at most 511 bytes */

/* a followed by b. Grows a in place when it is the newest concatenation, so that a template which builds its text with
 * `s = s + x` in a loop costs linear memory. */
struct clime_str clime_tr_concat(struct clime_tr *tr, struct clime_str a, struct clime_str b);

#endif
