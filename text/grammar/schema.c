/* JSON schemas to expressions: sets of schemas, references, alternatives. Called by grammar.c, on the compiling thread.
 *
 * The grammar accepts only texts that the schema accepts, but not always all: properties come in the schema's order,
 * objects and tuples have only what the schema names unless it allows more, and keywords of one type without `type`
 * imply that type. An unknown keyword is rejected by name, never ignored.
 *
 * Invariant: a set's schemas are in the request's tree, in order of discovery (also the properties' order), each once,
 * so there are finitely many sets.
 */
#include "text/grammar/schema.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "text/output/tools.h"

#define MAX_NESTING 400
#define MAX_SETS 4096
#define MAX_COMPARISONS ((int64_t)1 << 24) /* a few seconds at most */
#define TYPE_ALL                                                                                                       \
    (CLIME_TYPE_NULL | CLIME_TYPE_INTEGER | CLIME_TYPE_NUMBER | CLIME_TYPE_BOOLEAN | CLIME_TYPE_OBJECT |               \
     CLIME_TYPE_ARRAY | CLIME_TYPE_STRING)
#define NUMBERS (CLIME_TYPE_INTEGER | CLIME_TYPE_NUMBER)

int clime_schema_bad(struct clime_schema *s, const char *fmt, ...) {
    char text[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (!s->err) s->err = clime_fail(s->e, CLIME_ERR_INPUT, "schema: %s", text);
    return CLIME_EXPR_NEVER_NODE;
}

bool clime_schema_spend(struct clime_schema *s, int64_t n) {
    s->spent += n;
    if (s->spent > MAX_COMPARISONS)
        clime_schema_bad(s,
                         "it is too large: values or names that are held against one another take over %d million "
                         "comparisons",
                         (int)(MAX_COMPARISONS >> 20));
    return !s->err;
}

/* ---- keywords ---- */

static const struct {
    const char *name;
    unsigned types;            /* types that it constrains; 0 = none, or handled here */
    enum clime_json_kind kind; /* kind of its value; 0 = checked by its reader */
} keywords[] = {
    {"type", 0, 0},
    {"enum", 0, CLIME_JSON_ARRAY},
    {"const", 0, 0},
    {"$ref", 0, CLIME_JSON_STRING},
    {"allOf", 0, 0},
    {"anyOf", 0, 0},
    {"oneOf", 0, 0},
    {"nullable", 0, CLIME_JSON_BOOL},
    {"title", 0, 0},
    {"description", 0, 0},
    {"default", 0, 0},
    {"examples", 0, 0},
    {"example", 0, 0},
    {"$schema", 0, 0},
    {"$id", 0, 0},
    {"$comment", 0, 0},
    {"$defs", 0, 0},
    {"definitions", 0, 0},
    {"deprecated", 0, 0},
    {"readOnly", 0, 0},
    {"writeOnly", 0, 0},
    {"discriminator", 0, 0},
    {"strict", 0, 0},
    {"contentEncoding", 0, 0},
    {"contentMediaType", 0, 0},
    {"minLength", CLIME_TYPE_STRING, 0},
    {"maxLength", CLIME_TYPE_STRING, 0},
    {"pattern", CLIME_TYPE_STRING, CLIME_JSON_STRING},
    {"format", CLIME_TYPE_STRING, CLIME_JSON_STRING},
    {"minimum", NUMBERS, 0},
    {"maximum", NUMBERS, 0},
    {"exclusiveMinimum", NUMBERS, 0},
    {"exclusiveMaximum", NUMBERS, 0},
    {"multipleOf", NUMBERS, 0},
    {"items", CLIME_TYPE_ARRAY, 0},
    {"prefixItems", CLIME_TYPE_ARRAY, CLIME_JSON_ARRAY},
    {"additionalItems", CLIME_TYPE_ARRAY, 0},
    {"minItems", CLIME_TYPE_ARRAY, 0},
    {"maxItems", CLIME_TYPE_ARRAY, 0},
    {"uniqueItems", CLIME_TYPE_ARRAY, CLIME_JSON_BOOL},
    {"properties", CLIME_TYPE_OBJECT, CLIME_JSON_OBJECT},
    {"required", CLIME_TYPE_OBJECT, CLIME_JSON_ARRAY},
    {"additionalProperties", CLIME_TYPE_OBJECT, 0},
    {"unevaluatedProperties", CLIME_TYPE_OBJECT, 0},
    {"minProperties", CLIME_TYPE_OBJECT, 0},
    {"maxProperties", CLIME_TYPE_OBJECT, 0},
    {"propertyNames", CLIME_TYPE_OBJECT, 0},
    {"patternProperties", CLIME_TYPE_OBJECT, CLIME_JSON_OBJECT},
};

static bool has_names(const struct cJSON *list) {
    const struct cJSON *c = clime_tree_first(list);
    while (c && clime_tree_kind(c) == CLIME_JSON_STRING) c = clime_tree_next(c);
    return c == NULL;
}

static void check_kind(struct clime_schema *s, const struct cJSON *keyword, enum clime_json_kind kind) {
    static const char *const names[] = {[CLIME_JSON_BOOL] = "true or false",
                                        [CLIME_JSON_STRING] = "a string",
                                        [CLIME_JSON_ARRAY] = "a list",
                                        [CLIME_JSON_OBJECT] = "an object"};
    if (kind && clime_tree_kind(keyword) != kind)
        clime_schema_bad(s, "%s must be %s", clime_tree_key(keyword), names[kind]);
    if (!strcmp(clime_tree_key(keyword), "required") && !has_names(keyword))
        clime_schema_bad(s, "required must be a list of names");
}

/* The types that a schema's keywords constrain. An unknown or malformed keyword is an error: ignored, it would not
 * constrain anything. */
static unsigned spoken_of(struct clime_schema *s, const struct cJSON *schema) {
    unsigned types = 0;
    for (const struct cJSON *c = clime_tree_first(schema); c; c = clime_tree_next(c)) {
        const char *key = clime_tree_key(c);
        size_t i = 0;
        while (i < CLIME_COUNT(keywords) && strcmp(keywords[i].name, key) != 0) i++;
        if (i < CLIME_COUNT(keywords)) {
            types |= keywords[i].types;
            check_kind(s, c, keywords[i].kind);
        } else if (strncmp(key, "x-", 2) != 0) {
            clime_schema_bad(s, "the keyword \"%.60s\" is not supported", key);
        }
    }
    return types;
}

int64_t clime_schema_count(struct clime_schema *s, const struct cJSON *schema, const char *key, int64_t absent) {
    const struct cJSON *n = clime_tree_get(schema, key);
    if (!n) return absent;
    double v = clime_tree_num(n, -1);
    if (v > CLIME_EXPR_MAX_REPEAT && strncmp(key, "max", 3) == 0) return absent; /* longer than any output */
    if (!(v >= 0 && v <= CLIME_EXPR_MAX_REPEAT) || v != floor(v)) {
        clime_schema_bad(s, "%s must be a whole number up to %d", key, CLIME_EXPR_MAX_REPEAT);
        return absent;
    }
    return (int64_t)v;
}

/* ---- references ---- */

/* Unescapes one step of a JSON pointer: ~0, ~1 and %XX. */
static const char *unescape(const char *at, char *out, size_t size) {
    size_t n = 0;
    for (; *at && *at != '/' && n + 1 < size; at++) {
        char c = *at;
        if (c == '%' && clime_hex_digit(at[1]) >= 0 && clime_hex_digit(at[2]) >= 0) {
            c = (char)(clime_hex_digit(at[1]) * 16 + clime_hex_digit(at[2]));
            at += 2;
        }
        if (c == '~' && (at[1] == '0' || at[1] == '1')) c = *++at == '0' ? '~' : '/';
        out[n++] = c;
    }
    out[n] = '\0';
    return at;
}

const struct cJSON *clime_schema_resolve(struct clime_schema *s, const char *ref) {
    const struct cJSON *at = s->root;
    char step[512];
    if (ref[0] != '#') {
        clime_schema_bad(s, "$ref \"%.80s\" is not supported: only \"#/...\" within the schema is", ref);
        return NULL;
    }
    for (const char *p = ref + 1; *p && at;) {
        if (*p != '/') break;
        p = unescape(p + 1, step, sizeof step);
        const struct cJSON *next = clime_tree_get(at, step);
        if (clime_tree_kind(at) == CLIME_JSON_ARRAY) {
            char *end;
            long i = strtol(step, &end, 10);
            next = end > step && !*end && i >= 0 ? clime_tree_first(at) : NULL;
            while (i-- > 0 && next) next = clime_tree_next(next);
        }
        at = next;
        if (!*p) return at ? at : (clime_schema_bad(s, "$ref \"%.80s\" leads nowhere", ref), NULL);
    }
    if (!ref[1]) return s->root;
    clime_schema_bad(s, "$ref \"%.80s\" leads nowhere", ref);
    return NULL;
}

/* ---- sets ---- */

void clime_schema_join(struct clime_schema *s, struct clime_schema_set *set, const struct cJSON *schema) {
    enum clime_json_kind kind = clime_tree_kind(schema);
    int i = 0;
    if (s->err) return;
    if (kind == CLIME_JSON_BOOL) {
        if (!clime_tree_bool(schema, true)) set->never = true;
        return;
    }
    if (kind != CLIME_JSON_OBJECT) {
        clime_schema_bad(s, "a schema must be an object or a boolean");
        return;
    }
    while (i < set->n && set->at[i].schema != schema) i++;
    if (i < set->n) {
        if (set->at[i].open) clime_schema_bad(s, "a $ref or allOf that leads back to itself is not supported");
        if (set->at[i].done)
            clime_schema_bad(s, "an alternative that leads back to itself for the same value is not supported");
        return;
    }
    if (!clime_tree_first(schema)) return; /* {}: anything */
    if (set->n == CLIME_MAX_CONJUNCTS) {
        clime_schema_bad(s, "more than %d schemas hold for one value", CLIME_MAX_CONJUNCTS);
        return;
    }
    set->at[set->n++] = (struct clime_schema_member){.schema = schema, .open = true};
    const struct cJSON *ref = clime_tree_get(schema, "$ref"), *all = clime_tree_get(schema, "allOf");
    if (ref) {
        const struct cJSON *to = clime_schema_resolve(s, clime_tree_str(ref, ""));
        if (to) clime_schema_join(s, set, to);
    }
    if (all && clime_tree_kind(all) != CLIME_JSON_ARRAY) clime_schema_bad(s, "allOf must be a list");
    for (const struct cJSON *c = clime_tree_first(all); c; c = clime_tree_next(c)) clime_schema_join(s, set, c);
    set->at[i].open = false;
}

static unsigned type_of_name(struct clime_schema *s, const char *name) {
    unsigned t = clime_schema_type(clime_str_of(name));
    if (t == CLIME_TYPE_NUMBER) t = NUMBERS;
    if (t == 0 || t & CLIME_TYPE_OTHER) clime_schema_bad(s, "the type \"%.60s\" is not supported", name);
    return t;
}

static unsigned declared_types(struct clime_schema *s, const struct cJSON *schema) {
    const struct cJSON *type = clime_tree_get(schema, "type");
    unsigned types = type ? 0 : TYPE_ALL;
    if (clime_tree_kind(type) == CLIME_JSON_STRING) types = type_of_name(s, clime_tree_str(type, ""));
    if (clime_tree_kind(type) == CLIME_JSON_ARRAY)
        for (const struct cJSON *c = clime_tree_first(type); c; c = clime_tree_next(c))
            types |= type_of_name(s, clime_tree_str(c, ""));
    if (type && types == 0) clime_schema_bad(s, "type must be a name or a list of names");
    return types;
}

unsigned clime_schema_set_types(struct clime_schema *s, const struct clime_schema_set *set) {
    unsigned types = set->never ? 0 : TYPE_ALL;
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *schema = set->at[i].schema;
        unsigned own = declared_types(s, schema), meant = spoken_of(s, schema);
        if (own == TYPE_ALL && meant != 0) own = meant;
        if (clime_tree_bool(clime_tree_get(schema, "nullable"), false)) own |= CLIME_TYPE_NULL;
        types &= own;
    }
    return types;
}

/* ---- values that are listed ---- */

static unsigned type_of_value(const struct cJSON *v) {
    double d;
    switch (clime_tree_kind(v)) {
    case CLIME_JSON_NULL:
        return CLIME_TYPE_NULL;
    case CLIME_JSON_BOOL:
        return CLIME_TYPE_BOOLEAN;
    case CLIME_JSON_NUMBER:
        d = clime_tree_num(v, 0);
        return fabs(d) < CLIME_SCHEMA_EXACT && d == floor(d) ? CLIME_TYPE_INTEGER : CLIME_TYPE_NUMBER;
    case CLIME_JSON_STRING:
        return CLIME_TYPE_STRING;
    case CLIME_JSON_ARRAY:
        return CLIME_TYPE_ARRAY;
    case CLIME_JSON_OBJECT:
        return CLIME_TYPE_OBJECT;
    case CLIME_JSON_ERROR:
        break;
    }
    return 0;
}

/* True if a listed value fits the set's other keywords; keywords that need evaluation are errors. listed_by: the schema
 * whose enum has the value, not searched again. */
static bool fits(struct clime_schema *s, const struct clime_schema_set *set, const struct cJSON *value,
                 const struct cJSON *listed_by, unsigned types) {
    unsigned type = type_of_value(value);
    if (!(types & type) || !clime_schema_spend(s, set->n)) return false;
    for (int i = 0; i < set->n; i++) {
        if (set->at[i].schema != listed_by && !clime_schema_lists(s, set->at[i].schema, value)) return false;
        if (spoken_of(s, set->at[i].schema) & type) {
            clime_schema_bad(s, "enum or const beside keywords that limit the same value is not supported");
            return false;
        }
    }
    return true;
}

static int compile_listed(struct clime_schema *s, const struct clime_schema_set *set, const struct cJSON *from) {
    struct clime_expr_list all = {0};
    unsigned types = TYPE_ALL;
    for (int i = 0; i < set->n; i++) types &= declared_types(s, set->at[i].schema);
    const struct cJSON *one = clime_tree_get(from, "const");
    const struct cJSON *c = one ? one : clime_tree_first(clime_tree_get(from, "enum"));
    for (; c && !s->err; c = one ? NULL : clime_tree_next(c))
        if (fits(s, set, c, one ? NULL : from, types)) clime_expr_list_add(&all, clime_schema_literal(s, c));
    for (int i = 0; i < set->n; i++) /* OpenAPI: null in addition to the list */
        if (clime_tree_bool(clime_tree_get(set->at[i].schema, "nullable"), false) && set->n == 1)
            clime_expr_list_add(&all, clime_expr_text(s->x, "null"));
    return clime_expr_list_alt(s->x, &all);
}

/* ---- a set becomes an expression ---- */

static int compile_options(struct clime_schema *s, const struct clime_schema_set *set, int member, unsigned done,
                           const struct cJSON *options) {
    struct clime_expr_list all = {0};
    if (clime_tree_kind(options) != CLIME_JSON_ARRAY || !clime_tree_first(options))
        return clime_schema_bad(s, "anyOf and oneOf must be lists with something in them");
    for (const struct cJSON *c = clime_tree_first(options); c && !s->err; c = clime_tree_next(c)) {
        struct clime_schema_set with;
        clime_schema_option(s, set, member, done, c, &with);
        clime_expr_list_add(&all, clime_schema_compile(s, &with));
    }
    return clime_expr_list_alt(s->x, &all);
}

static int compile_types(struct clime_schema *s, const struct clime_schema_set *set) {
    struct clime_expr_list all = {0};
    unsigned types = clime_schema_set_types(s, set);
    if (types & CLIME_TYPE_OBJECT) clime_expr_list_add(&all, clime_schema_object(s, set));
    if (types & CLIME_TYPE_ARRAY) clime_expr_list_add(&all, clime_schema_array(s, set));
    if (types & CLIME_TYPE_STRING) clime_expr_list_add(&all, clime_schema_string(s, set));
    if (types & NUMBERS) clime_expr_list_add(&all, clime_schema_number(s, set, !(types & CLIME_TYPE_NUMBER)));
    if (types & CLIME_TYPE_BOOLEAN) {
        clime_expr_list_add(&all, clime_expr_text(s->x, "true"));
        clime_expr_list_add(&all, clime_expr_text(s->x, "false"));
    }
    if (types & CLIME_TYPE_NULL) clime_expr_list_add(&all, clime_expr_text(s->x, "null"));
    return clime_expr_list_alt(s->x, &all);
}

static int compile_body(struct clime_schema *s, const struct clime_schema_set *set) {
    for (int i = 0; i < set->n && !s->err; i++) {
        const struct cJSON *schema = set->at[i].schema, *any = clime_tree_get(schema, "anyOf"),
                           *one = clime_tree_get(schema, "oneOf");
        spoken_of(s, schema);
        if (any && !(set->at[i].done & CLIME_DONE_ANY_OF)) return compile_options(s, set, i, CLIME_DONE_ANY_OF, any);
        if (one && !(set->at[i].done & CLIME_DONE_ONE_OF)) return compile_options(s, set, i, CLIME_DONE_ONE_OF, one);
    }
    for (int i = 0; i < set->n && !s->err; i++)
        if (clime_tree_get(set->at[i].schema, "enum") || clime_tree_get(set->at[i].schema, "const"))
            return compile_listed(s, set, set->at[i].schema);
    return s->err ? CLIME_EXPR_NEVER_NODE : compile_types(s, set);
}

static bool same_set(const struct clime_schema_set *a, const struct clime_schema_set *b) {
    bool same = a->n == b->n;
    for (int i = 0; i < a->n && same; i++) same = a->at[i].schema == b->at[i].schema && a->at[i].done == b->at[i].done;
    return same;
}

int clime_schema_compile(struct clime_schema *s, const struct clime_schema_set *set) {
    if (s->err || set->never) return CLIME_EXPR_NEVER_NODE;
    if (set->n == 0) return clime_schema_any(s);
    for (int i = 0; i < s->n_rules; i++)
        if (same_set(&s->rules[i].set, set)) return clime_expr_rule(s->x, s->rules[i].rule);
    if (s->depth == MAX_NESTING || s->n_rules == MAX_SETS)
        return clime_schema_bad(s, "it is too large: over %d schemas within one another, or %d in all", MAX_NESTING,
                                MAX_SETS);
    if (s->n_rules == s->rules_size) {
        s->rules_size = s->rules_size ? s->rules_size * 2 : 32;
        s->rules = xrealloc(s->rules, (size_t)s->rules_size * sizeof *s->rules);
    }
    const char *title = clime_tree_str(clime_tree_get(set->at[0].schema, "title"), "a schema");
    int rule = clime_expr_rule_new(s->x, clime_str_of(title));
    s->rules[s->n_rules].set = *set;
    s->rules[s->n_rules++].rule = rule;
    s->depth++;
    int body = compile_body(s, set);
    s->depth--;
    clime_expr_rule_is(s->x, rule, body);
    return clime_expr_rule(s->x, rule);
}

enum clime_err clime_schema_read(struct clime_exprs *x, struct clime_str json, bool object, int *out,
                                 struct clime_error *e) {
    static const char objects[] = "{\"type\":\"object\"}";
    struct cJSON *root = NULL, *also = NULL;
    struct clime_schema s = {
        .x = x, .e = e, .space = -1, .string = -1, .json_char = -1, .number = -1, .integer = -1, .value = -1};
    struct clime_schema_set set = {.n = 0};
    if (memmem(json.ptr, json.len, "\\u0000", 6)) /* the tree's strings are NUL-terminated */
        return clime_fail(e, CLIME_ERR_INPUT, "schema: the character \\u0000 is not supported");
    enum clime_err err = clime_tree_parse(json.ptr, json.len, &root, e);
    if (err) return clime_error_prefix(e, "schema");
    s.root = root;
    clime_schema_join(&s, &set, root);
    if (object && !(err = clime_tree_parse(objects, sizeof objects - 1, &also, e))) clime_schema_join(&s, &set, also);
    *out = clime_schema_compile(&s, &set);
    clime_tree_free(root);
    clime_tree_free(also);
    clime_schema_free(&s);
    return err ? err : s.err;
}
