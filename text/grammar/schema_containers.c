/* Arrays and objects of JSON schemas. Called by schema.c.
 *
 * An object's properties come in the schema's order; models are shown that, and it keeps the automaton as small as the
 * schema. Other keys follow, if the schema explicitly allows them or names none; they must differ from the named ones.
 */
#include <stdlib.h>

#include "common/utf8.h"
#include "text/grammar/schema.h"
#include "text/output/tools.h"

#define MAX_PROPERTIES 4096

static int comma_then(struct clime_schema *s, int node) {
    const int kids[] = {clime_expr_text(s->x, ","), clime_schema_space(s), node};
    return clime_expr_seq(s->x, kids, 3);
}

/* ---- arrays ---- */

/* A schema's tuple: prefixItems, or draft 4's list of items. */
static const struct cJSON *tuple_of(const struct cJSON *schema) {
    const struct cJSON *items = clime_tree_get(schema, "items");
    return clime_tree_kind(items) == CLIME_JSON_ARRAY ? items : clime_tree_get(schema, "prefixItems");
}

/* The schema of items after the tuple; NULL = none. */
static const struct cJSON *items_of(const struct cJSON *schema) {
    const struct cJSON *items = clime_tree_get(schema, "items");
    return clime_tree_kind(items) == CLIME_JSON_ARRAY ? clime_tree_get(schema, "additionalItems") : items;
}

static const struct cJSON *nth(const struct cJSON *list, int n) {
    const struct cJSON *c = clime_tree_first(list);
    while (c && n-- > 0) c = clime_tree_next(c);
    return c;
}

/* The schemas of the i-th item. */
static struct clime_schema_set item_set(struct clime_schema *s, const struct clime_schema_set *set, int i) {
    struct clime_schema_set out = {.n = 0};
    for (int k = 0; k < set->n; k++) {
        const struct cJSON *m = set->at[k].schema, *own = nth(tuple_of(m), i);
        if (!own) own = items_of(m);
        if (own) clime_schema_join(s, &out, own);
    }
    return out;
}

int clime_schema_array(struct clime_schema *s, const struct clime_schema_set *set) {
    struct clime_exprs *x = s->x;
    int64_t min = 0, max = CLIME_EXPR_INF;
    int n_tuple = 0;
    bool closed = false; /* no items after the tuple */
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema;
        int64_t low = clime_schema_count(s, m, "minItems", 0), high = clime_schema_count(s, m, "maxItems", max);
        int n = clime_tree_size(tuple_of(m));
        if (low > min) min = low;
        if (max < 0 || high < max) max = high;
        if (n > n_tuple) n_tuple = n;
        closed |= n > 0 && !items_of(m);
        if (clime_tree_bool(clime_tree_get(m, "uniqueItems"), false))
            clime_schema_bad(s, "uniqueItems is not supported");
    }
    if (n_tuple > MAX_PROPERTIES) return clime_schema_bad(s, "a tuple of more than %d items", MAX_PROPERTIES);
    if (max >= 0 && max < n_tuple) n_tuple = (int)max;
    struct clime_schema_set rest = item_set(s, set, 1 << 20);
    int item = clime_schema_compile(s, &rest);
    if (n_tuple > 0 && closed && min <= n_tuple) item = CLIME_EXPR_NEVER_NODE;
    struct clime_expr_list inside = {0};
    for (int i = 0; i < n_tuple && !s->err; i++) {
        struct clime_schema_set own = item_set(s, set, i);
        int node = clime_schema_compile(s, &own);
        clime_expr_list_add(&inside, i > 0 ? comma_then(s, node) : node);
    }
    int64_t least = min - n_tuple > 0 ? min - n_tuple : 0, most = max < 0 ? max : max - n_tuple;
    if (n_tuple > 0) {
        clime_expr_list_add(&inside, clime_expr_repeat(x, comma_then(s, item), (int)least, (int)most));
    } else {
        int more =
            clime_expr_repeat(x, comma_then(s, item), least > 0 ? (int)least - 1 : 0, most < 0 ? -1 : (int)most - 1);
        clime_expr_list_add(&inside, most == 0 ? CLIME_EXPR_NEVER_NODE : clime_expr_seq2(x, item, more));
    }
    int some = clime_schema_wrap(s, "[", clime_expr_list_seq(x, &inside), "]");
    return min == 0 && n_tuple == 0 ? clime_expr_alt2(x, clime_expr_text(x, "[]"), some) : some;
}

/* ---- keys that differ from some names ---- */

struct names {
    struct clime_str *at;
    int n;
};

static int by_text(const void *a, const void *b) {
    const struct clime_str *x = a, *y = b;
    int c = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

/* The rest of a key that shares the first `at` bytes of the sorted names [from, to) and differs from them all. Up to
 * the difference it is spelt without escapes, so it cannot be another spelling of a name. */
static int other_key(struct clime_schema *s, const struct names *names, int from, int to, size_t at, int any) {
    struct clime_expr_list all = {0};
    struct clime_chars differ = {0};
    bool taken = names->at[from].len == at;
    clime_chars_add(&differ, 0, 0x1F);
    clime_chars_add(&differ, '"', '"');
    clime_chars_add(&differ, '\\', '\\');
    for (int i = from + taken; i < to;) {
        uint32_t c;
        struct clime_str name = names->at[i];
        int n = clime_utf8_decode(name.ptr + at, name.len - at, &c), end = i + 1;
        if (n < 1) n = 1;
        while (end < to && names->at[end].len >= at + (size_t)n &&
               memcmp(names->at[end].ptr + at, name.ptr + at, (size_t)n) == 0)
            end++;
        if (c >= 0x20 && c != '"' && c != '\\') /* a name that needs an escape here cannot match */
            clime_expr_list_add(&all, clime_expr_seq2(s->x, clime_expr_char(s->x, c, CLIME_SPELL_UTF8),
                                                      other_key(s, names, i, end, at + (size_t)n, any)));
        clime_chars_add(&differ, c, c);
        i = end;
    }
    if (!taken) clime_expr_list_add(&all, CLIME_EXPR_EMPTY_NODE);
    clime_chars_settle(&differ);
    clime_chars_invert(&differ);
    clime_expr_list_add(&all, clime_expr_seq2(s->x, clime_expr_chars(s->x, &differ, CLIME_SPELL_UTF8), any));
    clime_chars_free(&differ);
    return clime_expr_list_alt(s->x, &all);
}

static int key_besides(struct clime_schema *s, struct names *names) {
    if (names->n == 0) return clime_schema_any_string(s);
    int any = clime_expr_repeat(s->x, clime_expr_json_char(s->x), 0, CLIME_EXPR_INF);
    qsort(names->at, (size_t)names->n, sizeof *names->at, by_text);
    int quote = clime_expr_text(s->x, "\"");
    const int kids[] = {quote, other_key(s, names, 0, names->n, 0, any), quote};
    return clime_expr_seq(s->x, kids, 3);
}

/* ---- objects ---- */

struct property {
    const char *name;
    bool required;
    int pair; /* "name": value */
};

struct object {
    struct property *at;
    int n, size;
    int n_required;
    int extra;                   /* an unnamed pair; NEVER = not allowed */
    int64_t min, max;            /* properties */
    bool open, closed;           /* others are explicitly allowed, or forbidden */
    bool speaks;                 /* it constrains properties */
    const struct cJSON *pattern; /* the schema with patternProperties */
    const struct cJSON *names;   /* ... propertyNames */
};

static bool requires(const struct cJSON *schema, const char *name) {
    const struct cJSON *c = clime_tree_first(clime_tree_get(schema, "required"));
    while (c && strcmp(clime_tree_str(c, ""), name) != 0) c = clime_tree_next(c);
    return c != NULL;
}

static void add_name(struct clime_schema *s, struct object *o, const char *name) {
    for (int i = 0; i < o->n; i++)
        if (strcmp(o->at[i].name, name) == 0) return;
    if (o->n == MAX_PROPERTIES) {
        clime_schema_bad(s, "an object with more than %d properties", MAX_PROPERTIES);
        return;
    }
    if (o->n == o->size) {
        o->size = o->size ? o->size * 2 : 16;
        o->at = xrealloc(o->at, (size_t)o->size * sizeof *o->at);
    }
    o->at[o->n++] = (struct property){.name = name};
}

static int pair_of(struct clime_schema *s, int key, int value) {
    const int kids[] = {key, clime_expr_text(s->x, ":"), clime_expr_optional(s->x, clime_expr_text(s->x, " ")), value};
    return clime_expr_seq(s->x, kids, 4);
}

/* True if the schema, or a subschema for the same value, evaluates the property: it is allowed despite
 * unevaluatedProperties false. seen: bits of the set's members already visited. */
static bool evaluates(struct clime_schema *s, const struct clime_schema_set *set, const struct cJSON *schema,
                      const char *name, uint64_t *seen) {
    static const char *const lists[] = {"allOf", "anyOf", "oneOf"};
    const struct cJSON *ref = clime_tree_get(schema, "$ref");
    int i = 0;
    if (!clime_schema_spend(s, set->n)) return false;
    while (i < set->n && set->at[i].schema != schema) i++;
    if (i == set->n || *seen >> i & 1) return false;
    *seen |= (uint64_t)1 << i;
    if (clime_tree_get(clime_tree_get(schema, "properties"), name) || clime_tree_get(schema, "additionalProperties") ||
        (ref && evaluates(s, set, clime_schema_resolve(s, clime_tree_str(ref, "")), name, seen)))
        return true;
    for (size_t k = 0; k < CLIME_COUNT(lists); k++)
        for (const struct cJSON *c = clime_tree_first(clime_tree_get(schema, lists[k])); c; c = clime_tree_next(c))
            if (evaluates(s, set, c, name, seen)) return true;
    return false;
}

/* The pair of a property: each schema's own constraint, or its additionalProperties. */
static int property_pair(struct clime_schema *s, const struct clime_schema_set *set, const char *name) {
    struct clime_schema_set value = {.n = 0};
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema, *own = clime_tree_get(clime_tree_get(m, "properties"), name);
        if (!own) own = clime_tree_get(m, "additionalProperties");
        if (own) clime_schema_join(s, &value, own);
        if (!clime_tree_bool(clime_tree_get(m, "unevaluatedProperties"), true))
            value.never |= !evaluates(s, set, m, name, &(uint64_t){0});
    }
    int quote = clime_expr_text(s->x, "\"");
    const int key[] = {quote, clime_expr_json_text(s->x, clime_str_of(name)), quote};
    return pair_of(s, clime_expr_seq(s->x, key, 3), clime_schema_compile(s, &value));
}

static void gather(struct clime_schema *s, const struct clime_schema_set *set, struct object *o) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema, *props = clime_tree_get(m, "properties"),
                           *required = clime_tree_get(m, "required"), *more = clime_tree_get(m, "additionalProperties"),
                           *unseen = clime_tree_get(m, "unevaluatedProperties");
        int64_t low = clime_schema_count(s, m, "minProperties", 0),
                high = clime_schema_count(s, m, "maxProperties", o->max);
        for (const struct cJSON *c = clime_tree_first(props); c; c = clime_tree_next(c))
            add_name(s, o, clime_tree_key(c));
        for (const struct cJSON *c = clime_tree_first(required); c; c = clime_tree_next(c))
            add_name(s, o, clime_tree_str(c, ""));
        if (low > o->min) o->min = low;
        if (o->max < 0 || high < o->max) o->max = high;
        if (more)
            (clime_tree_kind(more) == CLIME_JSON_BOOL && !clime_tree_bool(more, true)) ? (o->closed = true)
                                                                                       : (o->open = true);
        if (unseen && clime_tree_kind(unseen) != CLIME_JSON_BOOL)
            clime_schema_bad(s, "unevaluatedProperties is supported as true or false only");
        o->closed |= unseen && !clime_tree_bool(unseen, true);
        if (clime_tree_first(clime_tree_get(m, "patternProperties"))) o->pattern = m;
        if (clime_tree_get(m, "propertyNames")) o->names = m;
        o->speaks |= props || clime_tree_first(required);
    }
    for (int i = 0; i < o->n && !s->err; i++) {
        for (int k = 0; k < set->n; k++) o->at[i].required |= requires(set->at[k].schema, o->at[i].name);
        o->n_required += o->at[i].required;
        o->at[i].pair = property_pair(s, set, o->at[i].name);
    }
}

/* Keys by a pattern: only alone in an object, so that no key is of two kinds. */
static void pattern_pair(struct clime_schema *s, const struct clime_schema_set *set, struct object *o) {
    const struct cJSON *c = clime_tree_first(clime_tree_get(o->pattern, "patternProperties"));
    struct clime_schema_set value = {.n = 0};
    int quote = clime_expr_text(s->x, "\"");
    if (o->n > 0 || clime_tree_next(c) || set->n > 1 || o->open || o->names) {
        clime_schema_bad(s, "patternProperties is supported with one pattern and without other properties only");
        return;
    }
    const int kids[] = {quote, clime_schema_pattern(s, clime_tree_key(c)), quote};
    clime_schema_join(s, &value, c);
    o->extra = pair_of(s, clime_expr_seq(s->x, kids, 3), clime_schema_compile(s, &value));
}

static void extra_pair(struct clime_schema *s, const struct clime_schema_set *set, struct object *o) {
    struct clime_schema_set value = {.n = 0}, key = {.n = 0};
    struct names names = {.n = o->n};
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema, *more = clime_tree_get(m, "additionalProperties"),
                           *own = clime_tree_get(m, "propertyNames");
        if (more) clime_schema_join(s, &value, more);
        if (own) clime_schema_join(s, &key, own);
    }
    names.at = xmalloc((size_t)(o->n + 1) * sizeof *names.at);
    for (int i = 0; i < o->n; i++) names.at[i] = clime_str_of(o->at[i].name);
    int name = CLIME_EXPR_NEVER_NODE;
    if (key.n == 0)
        name = key_besides(s, &names);
    else if (clime_schema_set_types(s, &key) != CLIME_TYPE_STRING)
        clime_schema_bad(s, "propertyNames is supported for strings only");
    else
        name = clime_schema_compile(s, &key);
    o->extra = pair_of(s, name, clime_schema_compile(s, &value));
    free(names.at);
}

/* Builds pairs from last to first: those that may follow another one, and those that may be first. */
static int members(struct clime_schema *s, const struct object *o) {
    struct clime_exprs *x = s->x;
    int most = o->max < 0 ? CLIME_EXPR_INF : (int)o->max - 1;
    int after = clime_expr_repeat(x, comma_then(s, o->extra), 0, most), first = clime_expr_seq2(x, o->extra, after);
    for (int i = o->n - 1; i >= 0; i--) {
        const struct property *p = &o->at[i];
        int begins = clime_expr_seq2(x, p->pair, after), goes_on = comma_then(s, begins);
        first = p->required ? begins : clime_expr_alt2(x, begins, first);
        after = p->required ? goes_on : clime_expr_alt2(x, goes_on, after);
    }
    return first;
}

int clime_schema_object(struct clime_schema *s, const struct clime_schema_set *set) {
    struct object o = {.max = CLIME_EXPR_INF, .extra = CLIME_EXPR_NEVER_NODE};
    int node = CLIME_EXPR_NEVER_NODE;
    gather(s, set, &o);
    if (o.names && o.n > 0) /* would require evaluating each name */
        clime_schema_bad(s, "propertyNames is supported without properties and required only");
    if (s->err) goto done;
    if (o.pattern)
        pattern_pair(s, set, &o);
    else if (!o.closed && (o.open || !o.speaks))
        extra_pair(s, set, &o);
    bool others = o.extra != CLIME_EXPR_NEVER_NODE;
    if (o.min > o.n_required && (o.min > 1 || (others && o.n > 0)))
        clime_schema_bad(s, "minProperties is supported up to what is required, or 1");
    if (o.max >= 0 && (o.n > 0 && (others || o.max < o.n)))
        clime_schema_bad(s, "maxProperties is supported where no properties are named only");
    int some = o.max == 0 ? CLIME_EXPR_NEVER_NODE : clime_schema_wrap(s, "{", members(s, &o), "}");
    bool empty = o.n_required == 0 && o.min == 0;
    node = clime_expr_alt2(s->x, empty ? clime_expr_text(s->x, "{}") : CLIME_EXPR_NEVER_NODE, some);
done:
    free(o.at);
    return node;
}
