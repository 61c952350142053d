/* Parameters of a tool as tags: which are texts, which are JSON. Called by calls.c.
 *
 * A text between tags has no quotes and no escapes, so it can be limited to a list but not by a pattern or a length.
 */
#include "text/grammar/schema_params.h"

#include <stdlib.h>

#include "text/grammar/schema.h"
#include "text/output/tools.h"

static bool is_required(const struct cJSON *schema, const char *name) {
    const struct cJSON *c = clime_tree_first(clime_tree_get(schema, "required"));
    while (c && strcmp(clime_tree_str(c, ""), name) != 0) c = clime_tree_next(c);
    return c != NULL;
}

static const struct cJSON *keyword(const struct clime_schema_set *set, const char *key) {
    for (int i = 0; i < set->n; i++) {
        const struct cJSON *k = clime_tree_get(set->at[i].schema, key);
        if (k) return k;
    }
    return NULL;
}

static void read_param(struct clime_schema *s, const struct cJSON *schema, struct clime_schema_param *p) {
    static const char *const limits[] = {"minLength", "maxLength", "pattern", "format", "const"};
    struct clime_schema_set set = {.n = 0};
    struct clime_expr_list texts = {0};
    clime_schema_join(s, &set, schema);
    unsigned types = clime_schema_set_types(s, &set);
    const struct cJSON *listed = keyword(&set, "enum");
    bool options = keyword(&set, "anyOf") || keyword(&set, "oneOf");
    p->any_text = false;
    for (const struct cJSON *c = clime_tree_first(listed); c && listed; c = clime_tree_next(c)) {
        if (clime_tree_kind(c) != CLIME_JSON_STRING || set.n > 1) listed = NULL;
        clime_expr_list_add(&texts, clime_expr_text(s->x, clime_tree_str(c, "")));
    }
    p->node = clime_expr_list_alt(s->x, &texts);
    if (listed) return;
    if (!options && !(types & CLIME_TYPE_STRING)) {
        p->node = clime_schema_compile(s, &set);
        return;
    }
    for (size_t i = 0; i < CLIME_COUNT(limits); i++)
        if (keyword(&set, limits[i]))
            clime_schema_bad(s, "%s of the parameter %.60s is not supported in this model's form of calls", limits[i],
                             clime_tree_key(schema));
    if (options || keyword(&set, "enum"))
        clime_schema_bad(s, "alternatives for the parameter %.60s are not supported in this model's form of calls",
                         clime_tree_key(schema));
    p->any_text = true;
}

enum clime_err clime_schema_params_read(struct clime_exprs *x, struct clime_str json, struct clime_schema_params *out,
                                        struct clime_error *e) {
    struct cJSON *root = NULL;
    struct clime_schema s = {
        .x = x, .e = e, .space = -1, .string = -1, .json_char = -1, .number = -1, .integer = -1, .value = -1};
    enum clime_err err = clime_tree_parse(json.ptr, json.len, &root, e);
    if (err) return err;
    s.root = root;
    const struct cJSON *props = clime_tree_get(root, "properties");
    out->at = xcalloc((size_t)clime_tree_size(props) + 1, sizeof *out->at);
    for (const struct cJSON *c = clime_tree_first(props); c; c = clime_tree_next(c)) {
        struct clime_schema_param *p = &out->at[out->n++];
        const char *name = clime_tree_key(c);
        p->name = clime_str_of(xstrdup(name));
        p->required = is_required(root, name);
        read_param(&s, c, p);
    }
    clime_tree_free(root);
    free(s.rules);
    return s.err;
}

void clime_schema_params_free(struct clime_schema_params *p) {
    for (int i = 0; i < p->n; i++) free((void *)(uintptr_t)p->at[i].name.ptr);
    free(p->at);
    *p = (struct clime_schema_params){.n = 0};
}
