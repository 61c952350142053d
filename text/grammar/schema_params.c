/* A tool's parameters as tags: texts or JSON. Called by calls.c.
 *
 * A text between tags has no quotes and no escapes, so it can be limited to a list but not by a pattern or a length.
 * The value reader (text/output/tools.h) uses types alone: a schema for which that is ambiguous is rejected.
 */
#include "text/grammar/schema_params.h"

#include <stdlib.h>

#include "text/grammar/schema.h"
#include "text/output/tools.h"

#define MAX_PARAMS 4096
#define ALTERNATIVE 4096 /* cost of an alternative in comparisons: nesting doubles them at each level */

static bool is_required(const struct clime_schema_set *set, const char *name) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *c = clime_tree_first(clime_tree_get(set->at[i].schema, "required"));
        while (c && strcmp(clime_tree_str(c, ""), name) != 0) c = clime_tree_next(c);
        if (c) return true;
    }
    return false;
}

/* The set's first schema, not marked done, with one of the keywords (NULL-terminated). */
static const struct cJSON *keyword(const struct clime_schema_set *set, const char *const *keys, const char **which) {
    for (; *keys; keys++)
        for (int i = 0; i < set->n; i++) {
            *which = *keys;
            if (clime_tree_get(set->at[i].schema, *keys)) return set->at[i].schema;
        }
    return NULL;
}

/* ---- values ---- */

/* True for a schema with only references and annotations. */
static bool says_nothing(const struct cJSON *schema) {
    static const char *const keys[] = {"$ref",        "allOf",   "anyOf",    "oneOf",   "title",
                                       "description", "default", "examples", "example", "$defs"};
    for (const struct cJSON *c = clime_tree_first(schema); c; c = clime_tree_next(c)) {
        size_t i = 0;
        while (i < CLIME_COUNT(keys) && strcmp(keys[i], clime_tree_key(c)) != 0) i++;
        if (i == CLIME_COUNT(keys)) return false;
    }
    return true;
}

/* The enum of texts that a value must be one of, as between tags; NULL = none. */
static const struct cJSON *listed_by(const struct clime_schema_set *set) {
    const struct cJSON *listed = NULL;
    int n = 0;
    for (int i = 0; i < set->n; i++) {
        if (says_nothing(set->at[i].schema)) continue;
        listed = clime_tree_get(set->at[i].schema, "enum");
        n++;
    }
    for (const struct cJSON *c = clime_tree_first(listed); c; c = clime_tree_next(c))
        if (clime_tree_kind(c) != CLIME_JSON_STRING) return NULL;
    return n == 1 && clime_tree_first(listed) ? listed : NULL;
}

/* True for null, unrestricted numbers or booleans: any value read as one fits. */
static bool is_any_word(struct clime_schema *s, const struct cJSON *schema) {
    static const char *const limits[] = {
        "enum",       "const", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
        "multipleOf", "anyOf", "oneOf",   NULL};
    struct clime_schema_set set = {.n = 0};
    const char *which;
    clime_schema_join(s, &set, schema);
    return !keyword(&set, limits, &which) &&
           !(clime_schema_set_types(s, &set) & (CLIME_TYPE_STRING | CLIME_TYPE_OBJECT | CLIME_TYPE_ARRAY));
}

static void read_value(struct clime_schema *s, const struct clime_schema_set *set, struct clime_schema_param *p);

/* Alternatives of the set's i-th schema. Non-text values are JSON and recognized by their form; if any text is allowed,
 * everything that looks like another type must fit that type. */
static void read_options(struct clime_schema *s, const struct clime_schema_set *set, int i, unsigned done,
                         const struct cJSON *options, struct clime_schema_param *p) {
    struct clime_expr_list all = {0};
    bool words = true, doubtful = false;
    for (const struct cJSON *c = clime_tree_first(options); c && clime_schema_spend(s, ALTERNATIVE);
         c = clime_tree_next(c)) {
        struct clime_schema_set with;
        struct clime_schema_param one = {.name = p->name};
        clime_schema_option(s, set, i, done, c, &with);
        read_value(s, &with, &one);
        p->any_text |= one.any_text;
        doubtful |= one.doubtful;
        words &= one.any_text || is_any_word(s, c);
        clime_expr_list_add(&all, one.node);
    }
    p->node = clime_expr_list_alt(s->x, &all);
    if ((p->any_text && !words) || (doubtful && clime_tree_size(options) > 1))
        clime_schema_bad(s,
                         "alternatives for the parameter " CLIME_STR_FMT
                         " that could be taken for one another are not supported in this model's form of calls",
                         CLIME_STR_ARG(p->name));
}

static void read_value(struct clime_schema *s, const struct clime_schema_set *set, struct clime_schema_param *p) {
    static const char *const limits[] = {"enum",     "const",    "minLength",  "maxLength", "pattern",
                                         "format",   "minimum",  "maximum",    "items",     "prefixItems",
                                         "minItems", "maxItems", "properties", "required",  NULL};
    const char *limit;
    struct clime_expr_list texts = {0};
    unsigned types = clime_schema_set_types(s, set);
    p->node = CLIME_EXPR_NEVER_NODE;
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *any = clime_tree_get(set->at[i].schema, "anyOf"),
                           *one = clime_tree_get(set->at[i].schema, "oneOf");
        bool open = any && !(set->at[i].done & CLIME_DONE_ANY_OF);
        if (!open && !(one && !(set->at[i].done & CLIME_DONE_ONE_OF))) continue;
        read_options(s, set, i, open ? CLIME_DONE_ANY_OF : CLIME_DONE_ONE_OF, open ? any : one, p);
        return;
    }
    const struct cJSON *listed = listed_by(set);
    for (const struct cJSON *c = clime_tree_first(listed); c; c = clime_tree_next(c)) {
        struct clime_str text = clime_str_of(clime_tree_str(c, ""));
        p->doubtful |= clime_json_check(text.ptr, text.len, NULL);
        clime_expr_list_add(&texts, clime_expr_literal(s->x, text));
    }
    if (listed) {
        p->node = clime_expr_list_alt(s->x, &texts);
    } else if (!(types & CLIME_TYPE_STRING)) {
        p->node = clime_schema_compile(s, set);
    } else {
        p->any_text = true;
        if (keyword(set, limits, &limit))
            clime_schema_bad(s,
                             "%s of the parameter " CLIME_STR_FMT
                             ", which may be a text, is not supported in this model's form of calls",
                             limit, CLIME_STR_ARG(p->name));
    }
}

/* ---- all parameters ---- */

static bool is_there(const struct clime_schema_params *params, const char *name) {
    for (int i = 0; i < params->n; i++)
        if (clime_str_is(params->at[i].name, name)) return true;
    return false;
}

static void read_param(struct clime_schema *s, const struct clime_schema_set *object, const char *name,
                       struct clime_schema_params *out) {
    struct clime_schema_set value = {.n = 0};
    if (is_there(out, name)) return;
    struct clime_schema_param *p = &out->at[out->n++];
    *p = (struct clime_schema_param){.name = clime_str_of(xstrdup(name)), .required = is_required(object, name)};
    for (int i = 0; i < object->n; i++) {
        const struct cJSON *own = clime_tree_get(clime_tree_get(object->at[i].schema, "properties"), name);
        if (own) clime_schema_join(s, &value, own);
    }
    read_value(s, &value, p);
}

/* Properties with a schema first, then those only required. */
static void read_object(struct clime_schema *s, const struct clime_schema_set *object,
                        struct clime_schema_params *out) {
    static const char *const limits[] = {
        "anyOf",         "oneOf", "enum", "const", "minProperties", "maxProperties", "patternProperties",
        "propertyNames", NULL};
    static const char *const named[] = {"properties", "required"};
    const char *limit;
    int n = 0;
    unsigned types = clime_schema_set_types(s, object);
    if (keyword(object, limits, &limit))
        clime_schema_bad(s, "%s beside a tool's properties is not supported in this model's form of calls", limit);
    if (!(types & CLIME_TYPE_OBJECT)) clime_schema_bad(s, "a tool's parameters must be an object");
    for (int i = 0; i < object->n; i++)
        for (int k = 0; k < 2; k++) n += clime_tree_size(clime_tree_get(object->at[i].schema, named[k]));
    if (n > 2 * MAX_PARAMS) /* required ones are named twice */
        clime_schema_bad(s, "a tool with more than %d parameters", MAX_PARAMS);
    if (s->err) return;
    out->at = xcalloc((size_t)n + 1, sizeof *out->at);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < object->n && !s->err; i++)
            for (const struct cJSON *c = clime_tree_first(clime_tree_get(object->at[i].schema, named[k])); c && !s->err;
                 c = clime_tree_next(c))
                read_param(s, object, k == 0 ? clime_tree_key(c) : clime_tree_str(c, ""), out);
}

enum clime_err clime_schema_params_read(struct clime_exprs *x, struct clime_str json, struct clime_schema_params *out,
                                        struct clime_error *e) {
    struct cJSON *root = NULL;
    struct clime_schema s = {
        .x = x, .e = e, .space = -1, .string = -1, .json_char = -1, .number = -1, .integer = -1, .value = -1};
    struct clime_schema_set set = {.n = 0};
    enum clime_err err = clime_tree_parse(json.ptr, json.len, &root, e);
    if (err) return err;
    s.root = root;
    clime_schema_join(&s, &set, root);
    read_object(&s, &set, out);
    clime_tree_free(root);
    clime_schema_free(&s);
    return s.err;
}

void clime_schema_params_free(struct clime_schema_params *p) {
    for (int i = 0; i < p->n; i++) free((void *)(uintptr_t)p->at[i].name.ptr);
    free(p->at);
    *p = (struct clime_schema_params){.n = 0};
}
