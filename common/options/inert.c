/* Inert options. Called by the parsers of command lines; owns nothing. */
#include "common/options/inert.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

void clime_inert_options(const struct clime_inert *rows, size_t n, struct clime_inert_given *given,
                         struct clime_opt *out) {
    for (size_t i = 0; i < n; i++)
        out[i] = (struct clime_opt){.name = rows[i].name,
                                    .type = rows[i].flag ? CLIME_OPT_BOOL : CLIME_OPT_STRING,
                                    .value = rows[i].flag ? (void *)&given[i].flag : (void *)&given[i].value,
                                    .choices = rows[i].ok && rows[i].ok[0] ? rows[i].ok : NULL,
                                    .refused = rows[i].ok && !rows[i].ok[0],
                                    .help = rows[i].why};
}

static bool same_number(const char *a, const char *b) {
    char *end_a, *end_b;
    double x = strtod(a, &end_a), y = strtod(b, &end_b);
    return end_a != a && end_b != b && !*end_a && (!*end_b || *end_b == '|') && x == y;
}

static bool accepted(const char *ok, const char *value) {
    if (!ok) return true;
    size_t n = strlen(value);
    for (const char *at = ok; *at;) {
        size_t len = strcspn(at, "|");
        if ((len == n && !memcmp(at, value, n)) || same_number(value, at)) return true;
        at += len + (at[len] == '|');
    }
    return false;
}

enum clime_err clime_inert_check(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                                 struct clime_error *e) {
    for (size_t i = 0; i < n; i++) {
        const struct clime_inert *r = &rows[i];
        if (r->flag && given[i].flag && r->ok)
            return clime_fail(e, CLIME_ERR_INPUT, "--%s cannot be honoured: %s", r->name, r->why);
        if (!r->flag && given[i].value && !accepted(r->ok, given[i].value))
            return clime_fail(e, CLIME_ERR_INPUT, "--%s %s cannot be honoured: %s", r->name, given[i].value, r->why);
    }
    return CLIME_OK;
}

void clime_inert_list(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                      struct clime_buf *out) {
    for (size_t i = 0; i < n; i++)
        if (rows[i].flag ? given[i].flag : given[i].value != NULL)
            clime_buf_printf(out, "  --%s%s%s: %s\n", rows[i].name, rows[i].flag ? "" : " ",
                             rows[i].flag ? "" : given[i].value, rows[i].why);
}
