/* Options of other programs that are accepted without effect here, or refused with the reason: nothing is read and
 * ignored in silence. A table of them goes into a program's own table of options; what was given is checked after
 * parsing and listed where the program says what it does.
 */
#ifndef CLIME_COMMON_OPTIONS_INERT_H
#define CLIME_COMMON_OPTIONS_INERT_H

#include "common/options/options.h"

struct clime_inert {
    const char *name;
    bool flag;       /* takes no value */
    const char *ok;  /* accepted values "a|b"; NULL = any; "" = none */
    const char *why; /* it has no effect, or is refused */
};

struct clime_inert_given { /* what the command line said of a row */
    bool flag;
    const char *value; /* NULL = not given */
};

/* Fills out[n] with the rows as options; given[n] receives what is said. */
void clime_inert_options(const struct clime_inert *rows, size_t n, struct clime_inert_given *given,
                         struct clime_opt *out);
/* CLIME_ERR_INPUT with the row's reason for a value that is not accepted. */
enum clime_err clime_inert_check(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                                 struct clime_error *e);
/* One line, "  --name value: why", for each row that was given. */
void clime_inert_list(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                      struct clime_buf *out);

#endif
