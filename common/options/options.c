/* Command-line options from a table (see options.h); the help text is in help.c.
 *
 * Called once by each main before threads start; owns only the arrays of list options. Defaults use the parser of user
 * values, so a wrong default fails at the first start.
 */
#include "common/options/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/nearest.h"
#include "common/str.h"
#include "common/version.h"

#define MAX_KEYS 16
#define MAX_KEY_FILE 4096

static enum clime_err bad(struct clime_error *e, const struct clime_opt *o, const char *text, const char *want) {
    return clime_fail(e, CLIME_ERR_INPUT, "--%s: '%s' is not %s", o->name, text, want);
}

/* The shift of a size suffix, or -1. */
static int suffix_shift(char c) {
    static const char names[] = "kmgtKMGT";
    const char *hit = c ? strchr(names, c) : NULL;
    return hit ? (int)((hit - names) % 4 + 1) * 10 : -1;
}

/* Decimal digits with '_' between them, an optional sign, and in sizes a suffix. */
static bool parse_integer(const char *text, bool sizes, int64_t *out) {
    bool negative = *text == '-';
    const char *at = text + negative;
    int64_t v = 0;
    if (*at < '0' || *at > '9') return false;
    for (; (*at >= '0' && *at <= '9') || *at == '_'; at++) {
        if (*at == '_') {
            if (at[1] < '0' || at[1] > '9') return false;
            continue;
        }
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, *at - '0', &v)) return false;
    }
    int shift = sizes ? suffix_shift(*at) : -1;
    if (shift > 0) {
        if (__builtin_mul_overflow(v, (int64_t)1 << shift, &v)) return false;
        at++;
    }
    *out = negative ? -v : v;
    return *at == 0;
}

static bool parse_double(const char *text, double *out) {
    char *end;
    if (*text == 0 || *text == ' ') return false;
    *out = strtod(text, &end);
    return *end == 0 && isfinite(*out);
}

static int choice_index(const char *choices, const char *text) {
    size_t n = strlen(text);
    int index = 0;
    for (const char *at = choices; at; index++) {
        const char *bar = strchr(at, '|');
        size_t len = bar ? (size_t)(bar - at) : strlen(at);
        if (len == n && memcmp(at, text, n) == 0) return index;
        at = bar ? bar + 1 : NULL;
    }
    return -1;
}

static enum clime_err check_range(const struct clime_opt *o, const char *text, double v, struct clime_error *e) {
    if (o->min == 0 && o->max == 0) return CLIME_OK;
    if (o->max < o->min) {
        if (v >= o->min) return CLIME_OK;
        return clime_fail(e, CLIME_ERR_INPUT, "--%s: %s is less than %.15g", o->name, text, o->min);
    }
    if (v >= o->min && v <= o->max) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "--%s: %s is not between %.15g and %.15g", o->name, text, o->min, o->max);
}

/* Stores one value. For numbers the variable keeps its old value on error. */
static enum clime_err set_value(const struct clime_opt *o, const char *text, struct clime_error *e) {
    switch (o->type) {
    case CLIME_OPT_BOOL: {
        bool yes = strcmp(text, "true") == 0 || strcmp(text, "1") == 0;
        if (!yes && strcmp(text, "false") != 0 && strcmp(text, "0") != 0) return bad(e, o, text, "true or false");
        *(bool *)o->value = yes;
        return CLIME_OK;
    }
    case CLIME_OPT_INT:
    case CLIME_OPT_BYTES: {
        int64_t v;
        bool sizes = o->type == CLIME_OPT_BYTES;
        if (!parse_integer(text, sizes, &v)) return bad(e, o, text, sizes ? "a size such as 512m" : "an integer");
        if (check_range(o, text, (double)v, e) != CLIME_OK) return CLIME_ERR_INPUT;
        *(int64_t *)o->value = v;
        return CLIME_OK;
    }
    case CLIME_OPT_DOUBLE: {
        double v;
        if (!parse_double(text, &v)) return bad(e, o, text, "a number");
        if (check_range(o, text, v, e) != CLIME_OK) return CLIME_ERR_INPUT;
        *(double *)o->value = v;
        return CLIME_OK;
    }
    case CLIME_OPT_STRING:
    case CLIME_OPT_KEY:
        *(const char **)o->value = text;
        return CLIME_OK;
    case CLIME_OPT_CHOICE: {
        int index = choice_index(o->choices, text);
        if (index < 0) return clime_fail(e, CLIME_ERR_INPUT, "--%s: '%s' is none of %s", o->name, text, o->choices);
        *(int *)o->value = index;
        return CLIME_OK;
    }
    case CLIME_OPT_LIST: {
        struct clime_opt_list *l = o->value;
        l->items = xrealloc(l->items, (size_t)(l->n + 1) * sizeof l->items[0]);
        l->items[l->n++] = text;
        return CLIME_OK;
    }
    case CLIME_OPT_SECTION:
        break;
    }
    CHECK(!"a section has no value");
    return CLIME_ERR_INTERNAL;
}

static void set_default(const struct clime_opt *o) {
    if (o->given) *o->given = false;
    struct clime_error e;
    if (o->def) {
        CHECK(o->type != CLIME_OPT_LIST);
        if (set_value(o, o->def, &e) != CLIME_OK) clime_check_failed(__FILE__, __LINE__, e.msg);
        return;
    }
    switch (o->type) {
    case CLIME_OPT_BOOL:
        *(bool *)o->value = false;
        break;
    case CLIME_OPT_INT:
    case CLIME_OPT_BYTES:
        *(int64_t *)o->value = 0;
        break;
    case CLIME_OPT_DOUBLE:
        *(double *)o->value = 0;
        break;
    case CLIME_OPT_STRING:
        *(const char **)o->value = NULL;
        break;
    case CLIME_OPT_KEY:
        *(const char **)o->value = getenv(o->choices) && *getenv(o->choices) ? getenv(o->choices) : NULL;
        break;
    case CLIME_OPT_CHOICE:
        *(int *)o->value = 0;
        break;
    case CLIME_OPT_LIST:
        *(struct clime_opt_list *)o->value = (struct clime_opt_list){NULL, 0};
        break;
    case CLIME_OPT_SECTION:
        break;
    }
}

/* "--api-key-file" of the row "api-key". */
static bool names_file(struct clime_str name, const struct clime_opt *o) {
    size_t n = strlen(o->name);
    return name.len == n + 5 && memcmp(name.ptr, o->name, n) == 0 && memcmp(name.ptr + n, "-file", 5) == 0;
}

/* Reads a key of one line, trimmed. */
static enum clime_err read_key(const struct clime_opt *o, const char *path, struct clime_error *e) {
    static char *kept[MAX_KEYS]; /* option values are borrowed; these have no other owner */
    static int n_kept;
    struct clime_buf text;
    clime_buf_init(&text, MAX_KEY_FILE);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    struct clime_str key = clime_buf_str(&text);
    while (key.len > 0 && isspace((unsigned char)key.ptr[key.len - 1])) key.len--;
    while (key.len > 0 && isspace((unsigned char)key.ptr[0])) key.ptr++, key.len--;
    if (!rc && (key.len == 0 || memchr(key.ptr, '\n', key.len) || memchr(key.ptr, 0, key.len)))
        rc = clime_fail(e, CLIME_ERR_INPUT, "--%s-file: %s must hold one line, the key", o->name, path);
    if (!rc && n_kept == MAX_KEYS) rc = clime_fail(e, CLIME_ERR_LIMIT, "more than %d files of keys", MAX_KEYS);
    if (!rc) *(const char **)o->value = kept[n_kept++] = xstrndup(key.ptr, key.len);
    clime_buf_free(&text);
    return rc;
}

static const struct clime_opt *find(const struct clime_opt *table, int n, struct clime_str name) {
    for (int i = 0; i < n; i++) {
        if (table[i].type == CLIME_OPT_SECTION) continue;
        if (clime_str_is(name, table[i].name) || (table[i].alias && clime_str_is(name, table[i].alias)))
            return &table[i];
        if (table[i].type == CLIME_OPT_KEY && names_file(name, &table[i])) return &table[i];
    }
    return NULL;
}

static enum clime_err unknown(const struct clime_opt *table, int n, struct clime_str name, struct clime_error *e) {
    struct clime_nearest near = {.word = name};
    for (int i = 0; i < n; i++) {
        if (table[i].type == CLIME_OPT_SECTION) continue;
        clime_nearest_try(&near, table[i].name);
        if (table[i].alias) clime_nearest_try(&near, table[i].alias);
    }
    return clime_fail(e, CLIME_ERR_INPUT, "unknown option --" CLIME_STR_FMT "%s%s (see --help)", CLIME_STR_ARG(name),
                      near.best ? ", did you mean --" : "", near.best ? near.best : "");
}

static bool is_option(const char *word) {
    return word && word[0] == '-' && word[1] == '-';
}

/* Parses the option at argv[*i]; *i moves to its last word. argv ends with NULL. */
static enum clime_err parse_option(const struct clime_opt *table, int n, char **argv, int *i, struct clime_error *e) {
    const char *word = argv[*i] + 2, *equals = strchr(word, '=');
    struct clime_str name = {word, equals ? (size_t)(equals - word) : strlen(word)};
    const struct clime_opt *o = find(table, n, name);
    bool negated = false;
    if (!o && clime_str_starts(name, "no-")) {
        struct clime_str positive = {name.ptr + 3, name.len - 3};
        const struct clime_opt *clears = find(table, n, positive);
        if (clears && clears->type == CLIME_OPT_BOOL) {
            o = clears;
            negated = true;
        }
    }
    if (!o) return unknown(table, n, name, e);
    if (o->given) *o->given = true;
    if (negated && equals) return clime_fail(e, CLIME_ERR_INPUT, "--no-%s takes no value", o->name);
    if (o->type == CLIME_OPT_BOOL) return set_value(o, equals ? equals + 1 : negated ? "false" : "true", e);
    bool from_file = o->type == CLIME_OPT_KEY && names_file(name, o);
    if (equals) return from_file ? read_key(o, equals + 1, e) : set_value(o, equals + 1, e);
    if (!argv[*i + 1] || is_option(argv[*i + 1])) return clime_fail(e, CLIME_ERR_INPUT, "--%s needs a value", o->name);
    if (from_file) return read_key(o, argv[++*i], e);
    enum clime_err rc = CLIME_OK;
    do rc = set_value(o, argv[++*i], e);
    while (rc == CLIME_OK && o->type == CLIME_OPT_LIST && argv[*i + 1] && !is_option(argv[*i + 1]));
    return rc;
}

/* Handles --help and similar words: prints and exits; ignores others. next: the following word, when it is the last. */
static enum clime_err answer(const struct clime_opt *table, int n, const char *word, const char *next,
                             const char *usage, struct clime_error *e) {
    bool help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0, all = strcmp(word, "--help-all") == 0;
    bool markdown = strcmp(word, "--help-markdown") == 0;
    if (strcmp(word, "--version") == 0) {
        printf("%.*s " CLIME_VERSION "\n", (int)strcspn(usage, " "), usage);
        exit(0);
    }
    if (!help && !all && !markdown) return CLIME_OK;
    struct clime_buf text;
    clime_buf_init(&text, 1 << 20);
    if (!help) {
        clime_options_describe(table, n, markdown, &text);
    } else if (clime_options_help(table, n, next, &text, e)) {
        clime_buf_free(&text);
        return e->code;
    }
    struct clime_buf head;
    clime_buf_init(&head, 1 << 20);
    clime_options_usage(usage, &head);
    printf(markdown ? "```\n%s\n```\n\n%s" : "%s\n%s", markdown ? usage : clime_buf_str(&head).ptr,
           clime_buf_str(&text).ptr);
    exit(0);
}

enum clime_err clime_options_parse(const struct clime_opt *table, int n, int argc, char **argv, const char **positional,
                                   int max_positional, const char *usage, struct clime_error *e) {
    for (int i = 0; i < n; i++) set_default(&table[i]);
    for (int i = 0; i < max_positional; i++) positional[i] = NULL;
    int n_positional = 0;
    bool options_ended = false;
    for (int i = 1; i < argc; i++) {
        const char *next = i + 2 == argc ? argv[i + 1] : NULL;
        if (!options_ended && answer(table, n, argv[i], next, usage, e)) return e->code;
        if (!options_ended && strcmp(argv[i], "--") == 0) {
            options_ended = true;
        } else if (!options_ended && is_option(argv[i])) {
            enum clime_err rc = parse_option(table, n, argv, &i, e);
            if (rc != CLIME_OK) return rc;
        } else if (n_positional == max_positional) {
            return clime_fail(e, CLIME_ERR_INPUT, "unexpected argument '%s' (see --help)", argv[i]);
        } else {
            positional[n_positional++] = argv[i];
        }
    }
    return CLIME_OK;
}
