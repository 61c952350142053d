/* Inert options. Called by the parsers of command lines; owns nothing. */
#include "common/options/inert.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

int clime_inert_options(const struct clime_inert *rows, size_t n, bool hidden, int max, struct clime_inert_given *given,
                        struct clime_opt *out) {
    int at = 0;
    for (const struct clime_inert *r = rows; r < rows + n; r++)
        for (const char *const *name = r->names; *name; name++, at++) {
            CHECK(at < max);
            out[at] = (struct clime_opt){.name = *name,
                                         .type = r->flag ? CLIME_OPT_BOOL : CLIME_OPT_STRING,
                                         .value = r->flag ? (void *)&given[at].flag : (void *)&given[at].value,
                                         .choices = r->ok && r->ok[0] ? r->ok : NULL,
                                         .refused = r->ok && !r->ok[0],
                                         .hidden = hidden,
                                         .help = r->why};
        }
    return at;
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
    for (const struct clime_inert *r = rows; r < rows + n; r++)
        for (const char *const *name = r->names; *name; name++, given++) {
            if (r->flag && given->flag && r->ok)
                return clime_fail(e, CLIME_ERR_INPUT, "--%s cannot be honoured: %s", *name, r->why);
            if (!r->flag && given->value && !accepted(r->ok, given->value))
                return clime_fail(e, CLIME_ERR_INPUT, "--%s %s cannot be honoured: %s", *name, given->value, r->why);
        }
    return CLIME_OK;
}

void clime_inert_list(const struct clime_inert *rows, size_t n, const struct clime_inert_given *given,
                      struct clime_buf *out) {
    for (const struct clime_inert *r = rows; r < rows + n; r++)
        for (const char *const *name = r->names; *name; name++, given++)
            if (r->flag ? given->flag : given->value != NULL)
                clime_buf_printf(out, "  --%s%s%s: %s\n", *name, r->flag ? "" : " ", r->flag ? "" : given->value,
                                 r->why);
}
