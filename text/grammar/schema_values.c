/* JSON building blocks of schemas: white space, literals, any value, strings. Called by schema.c.
 *
 * White space: only what models usually write, and bounded. After ":" a space; after "," and the opening and before the
 * closing bracket a space, or a newline and up to 32 spaces or 8 tabs; none elsewhere.
 */
#include <math.h>
#include <stdio.h>

#include "common/json/write.h"
#include "text/grammar/schema.h"

int clime_schema_shared(struct clime_schema *s, int *rule, const char *name) {
    *rule = clime_expr_rule_new(s->x, clime_str_of(name));
    return *rule;
}

int clime_schema_space(struct clime_schema *s) {
    if (s->space < 0) {
        int spaces = clime_expr_repeat(s->x, clime_expr_text(s->x, " "), 0, 32);
        int tabs = clime_expr_repeat(s->x, clime_expr_text(s->x, "\t"), 1, 8);
        int line = clime_expr_seq2(s->x, clime_expr_text(s->x, "\n"), clime_expr_alt2(s->x, spaces, tabs));
        s->space = clime_expr_optional(s->x, clime_expr_alt2(s->x, clime_expr_text(s->x, " "), line));
    }
    return s->space;
}

int clime_schema_wrap(struct clime_schema *s, const char *open, int inside, const char *close) {
    const int kids[] = {clime_expr_text(s->x, open), clime_schema_space(s), inside, clime_schema_space(s),
                        clime_expr_text(s->x, close)};
    return clime_expr_seq(s->x, kids, CLIME_COUNT(kids));
}

/* ---- strings ---- */

static int json_char(struct clime_schema *s) {
    if (s->json_char < 0) s->json_char = clime_expr_json_char(s->x);
    return s->json_char;
}

static int quoted(struct clime_schema *s, int inside) {
    int quote = clime_expr_text(s->x, "\"");
    const int kids[] = {quote, inside, quote};
    return clime_expr_seq(s->x, kids, 3);
}

int clime_schema_any_string(struct clime_schema *s) {
    if (s->string < 0) {
        int rule = clime_schema_shared(s, &s->string, "string");
        clime_expr_rule_is(s->x, rule, quoted(s, clime_expr_repeat(s->x, json_char(s), 0, CLIME_EXPR_INF)));
    }
    return clime_expr_rule(s->x, s->string);
}

/* Formats as patterns: what every reader accepts, not all that the standards allow. A model must be able to copy its
 * input: dates are calendar dates. */
static const struct {
    const char *name, *pattern;
} formats[] = {
#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DAYS "(0[1-9]|1[0-9]|2[0-8])"
#define DATE "(" YEAR "-((0[1-9]|1[0-2])-" DAYS "|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)|" LEAP "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define N "[0-9]{1,4}"
#define SPAN "T(" N "H(" N "M(" N "S)?)?|" N "M(" N "S)?|" N "S)"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define BYTE "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX "[0-9a-fA-F]"
#define H HEX "{1,4}"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX "{2})"
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(" N "W|(" N "Y(" N "M(" N "D)?)?|" N "M(" N "D)?|" N "D)(" SPAN ")?|" SPAN ")$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,32}){0,3}@" LABEL "(\\." LABEL "){1,4}$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,6}$"},
    {"ipv4", "^" BYTE "(\\." BYTE "){3}$"},
    {"ipv6", "^((" H ":){7}" H "|(" H ":){1,7}:|(" H ":){1,6}:" H "|(" H ":){1,5}(:" H "){1,2}|(" H ":){1,4}(:" H
             "){1,3}|(" H ":){1,3}(:" H "){1,4}|(" H ":){1,2}(:" H "){1,5}|" H ":(:" H "){1,6}|:((:" H "){1,7}|:))$"},
    {"uri", "^https?://" LABEL "(\\." LABEL "){0,6}(:[1-9][0-9]{0,3})?(/" PCHAR "{0,40}){0,8}(\\?(" PCHAR
            "|[/?]){0,100})?(#(" PCHAR "|[/?]){0,40})?$"},
};

static const char *format_pattern(struct clime_schema *s, const char *name) {
    for (size_t i = 0; i < CLIME_COUNT(formats); i++)
        if (strcmp(formats[i].name, name) == 0) return formats[i].pattern;
    clime_schema_bad(s, "the format \"%.60s\" is not supported", name);
    return "";
}

int clime_schema_pattern(struct clime_schema *s, const char *pattern) {
    int node = CLIME_EXPR_NEVER_NODE;
    enum clime_err err = clime_regex_read(s->x, clime_str_of(pattern), CLIME_SPELL_JSON, true, &node, s->e);
    if (err && !s->err) s->err = clime_error_prefix(s->e, "schema: \"%.100s\"", pattern);
    return node;
}

int clime_schema_string(struct clime_schema *s, const struct clime_schema_set *set) {
    int64_t min = 0, max = CLIME_EXPR_INF;
    const char *pattern = NULL;
    int n_patterns = 0;
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema, *p = clime_tree_get(m, "pattern"), *f = clime_tree_get(m, "format");
        int64_t low = clime_schema_count(s, m, "minLength", 0), high = clime_schema_count(s, m, "maxLength", max);
        if (low > min) min = low;
        if (max < 0 || high < max) max = high;
        if (p)
            pattern = clime_tree_str(p, ""); /* zod adds the format's own pattern */
        else if (f)
            pattern = format_pattern(s, clime_tree_str(f, ""));
        n_patterns += p || f;
    }
    if (n_patterns > 1) return clime_schema_bad(s, "two patterns or formats for one string are not supported");
    if (n_patterns == 1 && (min > 0 || max >= 0))
        return clime_schema_bad(
            s, "minLength or maxLength beside pattern or format is not supported: say it in the pattern");
    if (n_patterns == 1) return quoted(s, clime_schema_pattern(s, pattern));
    if (min == 0 && max < 0) return clime_schema_any_string(s);
    return quoted(s, clime_expr_repeat(s->x, json_char(s), (int)min, (int)max));
}

/* ---- literals ---- */

static void write_value(struct clime_schema *s, struct clime_jw *w, const struct cJSON *v) {
    char z[40];
    double d;
    switch (clime_tree_kind(v)) {
    case CLIME_JSON_STRING:
        clime_jw_strz(w, clime_tree_str(v, ""));
        break;
    case CLIME_JSON_NUMBER:
        d = clime_tree_num(v, 0);
        if (fabs(d) >= CLIME_SCHEMA_EXACT)
            clime_schema_bad(s, "a number from 2^53 on in enum or const is not supported: digits of it are lost");
        if (d == floor(d)) {
            snprintf(z, sizeof z, "%.0f", d == 0 ? 0 : d);
            clime_jw_raw(w, clime_str_of(z));
        } else {
            clime_jw_double(w, d);
        }
        break;
    case CLIME_JSON_BOOL:
        clime_jw_bool(w, clime_tree_bool(v, false));
        break;
    case CLIME_JSON_ARRAY:
    case CLIME_JSON_OBJECT:
        if (clime_tree_kind(v) == CLIME_JSON_ARRAY)
            clime_jw_array(w);
        else
            clime_jw_object(w);
        for (const struct cJSON *c = clime_tree_first(v); c; c = clime_tree_next(c)) {
            if (clime_tree_kind(v) == CLIME_JSON_OBJECT) clime_jw_key(w, clime_tree_key(c));
            write_value(s, w, c);
        }
        clime_jw_close(w);
        break;
    case CLIME_JSON_NULL:
    case CLIME_JSON_ERROR:
        clime_jw_null(w);
    }
}

int clime_schema_literal(struct clime_schema *s, const struct cJSON *value) {
    struct clime_buf out;
    struct clime_jw w;
    clime_buf_init(&out, CLIME_GRAMMAR_MAX_SOURCE * 8);
    clime_jw_init(&w, &out);
    write_value(s, &w, value);
    if (out.full) s->x->full = true;
    int node = clime_expr_literal(s->x, clime_buf_str(&out));
    clime_buf_free(&out);
    return node;
}

static bool same(struct clime_schema *s, const struct cJSON *a, const struct cJSON *b) {
    enum clime_json_kind kind = clime_tree_kind(a);
    if (!clime_schema_spend(s, 1) || kind != clime_tree_kind(b)) return false;
    if (kind == CLIME_JSON_NUMBER) return clime_tree_num(a, 0) == clime_tree_num(b, 0);
    if (kind == CLIME_JSON_STRING) return strcmp(clime_tree_str(a, ""), clime_tree_str(b, "")) == 0;
    if (kind == CLIME_JSON_BOOL) return clime_tree_bool(a, false) == clime_tree_bool(b, false);
    if (kind != CLIME_JSON_ARRAY && kind != CLIME_JSON_OBJECT) return true;
    const int size = clime_tree_size(a);
    if (size != clime_tree_size(b)) return false;
    const struct cJSON *x = clime_tree_first(a), *y = clime_tree_first(b);
    for (; x && y; x = clime_tree_next(x), y = clime_tree_next(y)) {
        if (kind == CLIME_JSON_OBJECT) {
            const struct cJSON *other = clime_schema_spend(s, size) ? clime_tree_get(b, clime_tree_key(x)) : NULL;
            if (!other || !same(s, x, other)) return false;
        } else if (!same(s, x, y)) {
            return false;
        }
    }
    return true;
}

bool clime_schema_lists(struct clime_schema *s, const struct cJSON *schema, const struct cJSON *value) {
    const struct cJSON *one = clime_tree_get(schema, "const"), *many = clime_tree_get(schema, "enum");
    bool in = !many;
    for (const struct cJSON *c = clime_tree_first(many); c && !in && !s->err; c = clime_tree_next(c))
        in = same(s, c, value);
    return in && (!one || same(s, one, value));
}

/* ---- any value ---- */

/* One or more pieces separated by commas. */
static int listed(struct clime_schema *s, int piece) {
    const int more[] = {clime_expr_text(s->x, ","), clime_schema_space(s), piece};
    return clime_expr_seq2(s->x, piece, clime_expr_repeat(s->x, clime_expr_seq(s->x, more, 3), 0, CLIME_EXPR_INF));
}

int clime_schema_any(struct clime_schema *s) {
    if (s->value < 0) {
        int rule = clime_schema_shared(s, &s->value, "value"), value = clime_expr_rule(s->x, rule);
        int object = clime_expr_rule_new(s->x, clime_str_of("object")),
            array = clime_expr_rule_new(s->x, clime_str_of("array"));
        const int pair[] = {clime_schema_any_string(s), clime_expr_text(s->x, ":"),
                            clime_expr_optional(s->x, clime_expr_text(s->x, " ")), value};
        int pairs = clime_schema_wrap(s, "{", listed(s, clime_expr_seq(s->x, pair, 4)), "}");
        int items = clime_schema_wrap(s, "[", listed(s, value), "]");
        clime_expr_rule_is(s->x, object, clime_expr_alt2(s->x, clime_expr_text(s->x, "{}"), pairs));
        clime_expr_rule_is(s->x, array, clime_expr_alt2(s->x, clime_expr_text(s->x, "[]"), items));
        const int kinds[] = {clime_expr_rule(s->x, object), clime_expr_rule(s->x, array),
                             clime_schema_any_string(s),    clime_schema_any_number(s, false),
                             clime_expr_text(s->x, "true"), clime_expr_text(s->x, "false"),
                             clime_expr_text(s->x, "null")};
        clime_expr_rule_is(s->x, rule, clime_expr_alt(s->x, kinds, CLIME_COUNT(kinds)));
    }
    return clime_expr_rule(s->x, s->value);
}
