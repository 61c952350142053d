/* Options of other programs, accepted without effect or refused with a reason; none is silently ignored. A table of
 * them becomes part of a program's option table; values are checked after parsing and listed in the start-up output.
 */
#ifndef CLIME_COMMON_OPTIONS_INERT_H
#define CLIME_COMMON_OPTIONS_INERT_H

#include "common/options/options.h"

struct clime_inert {
    const char *const *names; /* that share one reason: WORDS("a", "b") */
    bool flag;                /* takes no value */
    const char *ok;           /* accepted values "a|b"; NULL = any; "" = none */
    const char *why;          /* why it has no effect or is refused */
};

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

struct clime_inert_given { /* the command line's value of a name */
    bool flag;
    const char *value; /* NULL = absent */
};

/* Fills `out` with an option for each name of n rows and returns their number, at most max; given[max] receives the
 * values, in the order of the names. hidden: as in struct clime_opt. */
int clime_inert_options(const struct clime_inert *rows, size_t n, bool hidden, int max, struct clime_inert_given *given,
                        struct clime_opt *out);
/* CLIME_ERR_INPUT with the row's reason for an unaccepted value. */
enum clime_err clime_inert_check(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                                 struct clime_error *e);
/* Appends a line "  --name value: why" for each name used. */
void clime_inert_list(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                      struct clime_buf *out);

#endif
