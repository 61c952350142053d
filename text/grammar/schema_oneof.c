/* oneOf: whether no value that one schema gives fits another one too. Called by schema.c.
 *
 * "Gives" is what the compiler makes of a schema (properties that are named and no others, the types that are meant);
 * "fits" is the standard's reading. So each direction is asked for itself. An answer of false means "not plain".
 */
#include "text/grammar/schema.h"
#include "text/output/tools.h"

#define MAX_DEPTH 8

static bool fails(struct clime_schema *s, const struct cJSON *a, const struct cJSON *b, int depth);

static bool member_of(const struct clime_schema_set *set, const char *key) {
    for (int i = 0; i < set->n; i++)
        if (clime_tree_get(set->at[i].schema, key)) return true;
    return false;
}

/* The types that the standard lets a value of the set have: only those that `type` names. */
static unsigned accepted_types(struct clime_schema *s, const struct clime_schema_set *set) {
    unsigned types = ~0u;
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *type = clime_tree_get(set->at[i].schema, "type");
        struct clime_schema_set one = {.at = {{set->at[i].schema, 0}}, .n = 1};
        if (type) types &= clime_schema_set_types(s, &one);
    }
    return types;
}

static bool is_listed(const struct clime_schema_set *set, const struct cJSON *value) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *one = clime_tree_get(set->at[i].schema, "const"),
                           *many = clime_tree_get(set->at[i].schema, "enum");
        bool in = !many;
        for (const struct cJSON *c = clime_tree_first(many); c && !in; c = clime_tree_next(c))
            in = clime_schema_same(c, value);
        if (!in || (one && !clime_schema_same(one, value))) return false;
    }
    return true;
}

/* Every listed value of a set is not listed in another that has a list. */
static bool lists_apart(const struct clime_schema_set *a, const struct clime_schema_set *b) {
    if (!member_of(b, "enum") && !member_of(b, "const")) return false;
    for (int i = 0; i < a->n; i++) {
        const struct cJSON *one = clime_tree_get(a->at[i].schema, "const"),
                           *many = clime_tree_get(a->at[i].schema, "enum");
        if (!one && !many) continue;
        const struct cJSON *c = one ? one : clime_tree_first(many);
        bool apart = true;
        for (; c && apart; c = one ? NULL : clime_tree_next(c)) apart = !is_listed(b, c);
        if (apart) return true;
    }
    return false;
}

static const struct cJSON *property(const struct clime_schema_set *set, const char *name) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *p = clime_tree_get(clime_tree_get(set->at[i].schema, "properties"), name);
        if (p) return p;
    }
    return NULL;
}

static bool is_open(const struct clime_schema_set *set) {
    return member_of(set, "additionalProperties") || member_of(set, "patternProperties") ||
           !(member_of(set, "properties") || member_of(set, "required"));
}

static bool is_required(const struct clime_schema_set *set, const char *name) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *c = clime_tree_first(clime_tree_get(set->at[i].schema, "required"));
        for (; c; c = clime_tree_next(c))
            if (strcmp(clime_tree_str(c, ""), name) == 0) return true;
    }
    return false;
}

static bool forbids(const struct clime_schema_set *set, const char *name) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *m = set->at[i].schema, *more = clime_tree_get(m, "additionalProperties");
        if (clime_tree_kind(more) == CLIME_JSON_BOOL && !clime_tree_bool(more, true) &&
            !clime_tree_get(clime_tree_get(m, "properties"), name) && !clime_tree_get(m, "patternProperties"))
            return true;
    }
    return false;
}

/* Every object of a lacks something that b requires, or has something that b refuses. */
static bool objects_fail(struct clime_schema *s, const struct clime_schema_set *a, const struct clime_schema_set *b,
                         int depth) {
    bool names_all = !is_open(a) && !member_of(a, "anyOf") && !member_of(a, "oneOf"); /* that it may have */
    for (int i = 0; i < b->n && names_all; i++) {
        const struct cJSON *c = clime_tree_first(clime_tree_get(b->at[i].schema, "required"));
        for (; c; c = clime_tree_next(c)) {
            const char *name = clime_tree_str(c, "");
            if (!property(a, name) && !is_required(a, name)) return true;
        }
    }
    for (int i = 0; i < a->n; i++) {
        const struct cJSON *c = clime_tree_first(clime_tree_get(a->at[i].schema, "required"));
        for (; c; c = clime_tree_next(c)) {
            const char *name = clime_tree_str(c, "");
            const struct cJSON *ours = property(a, name), *theirs = property(b, name);
            if (forbids(b, name)) return true;
            if (is_required(a, name) && ours && theirs && fails(s, ours, theirs, depth + 1)) return true;
        }
    }
    return false;
}

/* Every value that a gives does not fit b. */
static bool fails(struct clime_schema *s, const struct cJSON *a, const struct cJSON *b, int depth) {
    struct clime_schema_set from = {.n = 0}, to = {.n = 0};
    if (depth > MAX_DEPTH) return false;
    clime_schema_join(s, &from, a);
    clime_schema_join(s, &to, b);
    if (to.never || from.never) return true;
    unsigned gives = clime_schema_set_types(s, &from);
    if (!(gives & accepted_types(s, &to)) || lists_apart(&from, &to)) return true;
    return gives == clime_schema_type(clime_str_of("object")) && objects_fail(s, &from, &to, depth);
}

bool clime_schema_apart(struct clime_schema *s, const struct cJSON *a, const struct cJSON *b) {
    return fails(s, a, b, 0) && fails(s, b, a, 0);
}
