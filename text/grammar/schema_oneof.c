/* Alternatives, and of oneOf whether no value that one schema gives fits another one too. Called by schema.c and
 * schema_params.c.
 *
 * "Gives" is what the compiler makes of a schema (properties that are named and no others, the types that are meant);
 * "fits" is the standard's reading. So each direction is asked for itself. An answer of false means "not plain".
 */
#include <stdlib.h>

#include "common/json/write.h"
#include "text/grammar/schema.h"
#include "text/output/tools.h"

#define MAX_DEPTH 8
#define PAIR 64 /* two schemas take as long as so many values */

static bool fails(struct clime_schema *s, const struct cJSON *a, const struct cJSON *b, const struct cJSON *also,
                  int depth);

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

static bool is_listed(struct clime_schema *s, const struct clime_schema_set *set, const struct cJSON *value) {
    for (int i = 0; i < set->n; i++)
        if (!clime_schema_lists(s, set->at[i].schema, value)) return false;
    return true;
}

/* Every listed value of a set is not listed in another that has a list. */
static bool lists_apart(struct clime_schema *s, const struct clime_schema_set *a, const struct clime_schema_set *b) {
    if (!member_of(b, "enum") && !member_of(b, "const")) return false;
    for (int i = 0; i < a->n; i++) {
        const struct cJSON *one = clime_tree_get(a->at[i].schema, "const"),
                           *many = clime_tree_get(a->at[i].schema, "enum");
        if (!one && !many) continue;
        const struct cJSON *c = one ? one : clime_tree_first(many);
        bool apart = true;
        for (; c && apart && !s->err; c = one ? NULL : clime_tree_next(c)) apart = !is_listed(s, b, c);
        if (apart) return true;
    }
    return false;
}

static const struct cJSON *property(struct clime_schema *s, const struct clime_schema_set *set, const char *name) {
    for (int i = 0; i < set->n && !s->err; i++) {
        const struct cJSON *all = clime_tree_get(set->at[i].schema, "properties"), *p = clime_tree_get(all, name);
        clime_schema_spend(s, clime_tree_size(all));
        if (p) return p;
    }
    return NULL;
}

static bool is_open(const struct clime_schema_set *set) {
    return member_of(set, "additionalProperties") || member_of(set, "patternProperties") ||
           !(member_of(set, "properties") || member_of(set, "required"));
}

static bool is_required(struct clime_schema *s, const struct clime_schema_set *set, const char *name) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *c = clime_tree_first(clime_tree_get(set->at[i].schema, "required"));
        for (; c && clime_schema_spend(s, 1); c = clime_tree_next(c))
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
        for (; c && !s->err; c = clime_tree_next(c)) {
            const char *name = clime_tree_str(c, "");
            const struct cJSON *ours = property(s, a, name), *theirs = property(s, b, name);
            if (!ours && !is_required(s, a, name)) return true;
            if (ours && theirs && fails(s, ours, theirs, NULL, depth + 1)) return true; /* left out, or another value */
        }
    }
    for (int i = 0; i < a->n; i++) {
        const struct cJSON *c = clime_tree_first(clime_tree_get(a->at[i].schema, "required"));
        for (; c && !s->err; c = clime_tree_next(c)) {
            const char *name = clime_tree_str(c, "");
            const struct cJSON *ours = property(s, a, name), *theirs = property(s, b, name);
            if (forbids(b, name)) return true;
            if (is_required(s, a, name) && ours && theirs && fails(s, ours, theirs, NULL, depth + 1)) return true;
        }
    }
    return false;
}

/* Every value that a gives, beside `also`, does not fit b. */
static bool fails(struct clime_schema *s, const struct cJSON *a, const struct cJSON *b, const struct cJSON *also,
                  int depth) {
    struct clime_schema_set from = {.n = 0}, to = {.n = 0};
    if (depth > MAX_DEPTH || !clime_schema_spend(s, PAIR)) return false;
    clime_schema_join(s, &from, a);
    if (also) clime_schema_join(s, &from, also);
    clime_schema_join(s, &to, b);
    if (to.never || from.never) return true;
    unsigned gives = clime_schema_set_types(s, &from);
    if (!(gives & accepted_types(s, &to)) || lists_apart(s, &from, &to)) return true;
    return gives == clime_schema_type(clime_str_of("object")) && objects_fail(s, &from, &to, depth);
}

/* A schema that requires the property by which the alternatives are told apart; NULL: none is named. pydantic reads a
 * union by its tag, and leaves one that has a default out of `required`. Made once for each discriminator, since a set
 * is found again by its schemas. */
static const struct cJSON *tag_of(struct clime_schema *s, const struct cJSON *schema) {
    const struct cJSON *discriminator = clime_tree_get(schema, "discriminator");
    const char *name = clime_tree_str(clime_tree_get(discriminator, "propertyName"), NULL);
    struct cJSON *required = NULL;
    struct clime_buf text;
    struct clime_jw w;
    if (!name) return NULL;
    for (int i = 0; i < s->n_tags; i++)
        if (s->tags[i].discriminator == discriminator) return s->tags[i].required;
    clime_buf_init(&text, CLIME_GRAMMAR_MAX_SOURCE);
    clime_jw_init(&w, &text);
    clime_jw_object(&w);
    clime_jw_key(&w, "required");
    clime_jw_array(&w);
    clime_jw_strz(&w, name);
    clime_jw_close(&w);
    clime_jw_close(&w);
    enum clime_err err = clime_tree_parse(text.data, text.len, &required, s->e);
    clime_buf_free(&text);
    if (err) return s->err = s->err ? s->err : err, NULL;
    s->tags = xrealloc(s->tags, (size_t)(s->n_tags + 1) * sizeof *s->tags);
    s->tags[s->n_tags++] = (struct clime_schema_tag){discriminator, required};
    return required;
}

void clime_schema_option(struct clime_schema *s, const struct clime_schema_set *set, int member, unsigned done,
                         const struct cJSON *option, struct clime_schema_set *with) {
    const bool one = done == CLIME_DONE_ONE_OF;
    const struct cJSON *tag = one ? tag_of(s, set->at[member].schema) : NULL;
    *with = *set;
    with->at[member].done |= done;
    clime_schema_join(s, with, option);
    if (tag) clime_schema_join(s, with, tag);
    for (const struct cJSON *d = clime_tree_next(option); d && one && !s->err; d = clime_tree_next(d))
        if (!fails(s, option, d, tag, 0) || !fails(s, d, option, tag, 0))
            clime_schema_bad(s, "oneOf is supported only where it is plain that no value fits two of its schemas; "
                                "anyOf allows that");
}

void clime_schema_free(struct clime_schema *s) {
    for (int i = 0; i < s->n_tags; i++) clime_tree_free(s->tags[i].required);
    free(s->tags);
    free(s->rules);
}
