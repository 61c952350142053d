/* Options of other programs that are accepted without effect here, or refused with the reason: nothing is read and
 * ignored in silence. A table of them goes into a program's own table of options; what was given is checked after
 * parsing and listed where the program says what it does.
 */
#ifndef CLIME_COMMON_OPTIONS_INERT_H
#define CLIME_COMMON_OPTIONS_INERT_H

#include "common/options/options.h"

struct clime_inert {
    const char *const *names; /* that have one reason: WORDS("a", "b") */
    bool flag;                /* takes no value */
    const char *ok;           /* accepted values "a|b"; NULL = any; "" = none */
    const char *why;          /* it has no effect, or is refused */
};

#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

struct clime_inert_given { /* what the command line said of a name */
    bool flag;
    const char *value; /* NULL = not given */
};

/* Fills out with the names of n rows as options and returns their number, at most max; given[max] receives what is
 * said, in the order of the names. hidden: as in struct clime_opt. */
int clime_inert_options(const struct clime_inert *rows, size_t n, bool hidden, int max, struct clime_inert_given *given,
                        struct clime_opt *out);
/* CLIME_ERR_INPUT with the row's reason for a value that is not accepted. */
enum clime_err clime_inert_check(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                                 struct clime_error *e);
/* One line, "  --name value: why", for each name that was given. */
void clime_inert_list(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                      struct clime_buf *out);

#endif
