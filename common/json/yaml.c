/* Converts libyaml's document tree to JSON (see yaml.h). Called on parsing options and by the build. Invariant: the
 * buffer's cap ends the walk, which bounds documents of nested aliases. */
#include "common/json/yaml.h"

#include <stdlib.h>
#include <yaml.h>

#include "common/json/scan.h"
#include "common/json/write.h"

static bool is_number(const char *text) {
    struct clime_error e;
    return strchr("-0123456789", text[0]) && clime_json_check(text, strlen(text), &e);
}

static void write_scalar(struct clime_jw *w, const yaml_node_t *n) {
    const char *text = (const char *)n->data.scalar.value;
    if (n->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        clime_jw_str(w, (struct clime_str){text, n->data.scalar.length});
    else if (!text[0] || !strcmp(text, "~") || !strcmp(text, "null"))
        clime_jw_null(w);
    else if (!strcmp(text, "true") || !strcmp(text, "false"))
        clime_jw_bool(w, text[0] == 't');
    else if (is_number(text))
        clime_jw_raw(w, clime_str_of(text));
    else
        clime_jw_strz(w, text);
}

static enum clime_err bad(const yaml_node_t *n, const char *why, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INPUT, "line %zu: %s", n->start_mark.line + 1, why);
}

static int by_name(const void *a, const void *b) {
    const yaml_node_t *x = *(const yaml_node_t *const *)a, *y = *(const yaml_node_t *const *)b;
    size_t n = x->data.scalar.length, m = y->data.scalar.length;
    int order = memcmp(x->data.scalar.value, y->data.scalar.value, n < m ? n : m);
    if (order || n != m) return order ? order : n < m ? -1 : 1;
    return x->start_mark.index < y->start_mark.index ? -1 : 1;
}

/* Names must be scalars and unique: which of two values is meant is unknown. */
static enum clime_err check_names(yaml_document_t *d, const yaml_node_t *mapping, struct clime_error *e) {
    const yaml_node_pair_t *pairs = mapping->data.mapping.pairs.start;
    size_t n = (size_t)(mapping->data.mapping.pairs.top - pairs);
    const yaml_node_t **keys = xcalloc(n + 1, sizeof *keys);
    enum clime_err rc = CLIME_OK;
    for (size_t i = 0; i < n && !rc; i++) {
        keys[i] = yaml_document_get_node(d, pairs[i].key);
        if (keys[i]->type != YAML_SCALAR_NODE) rc = bad(keys[i], "a name must be text", e);
    }
    if (!rc) qsort(keys, n, sizeof *keys, by_name);
    for (size_t i = 1; i < n && !rc; i++)
        if (keys[i]->data.scalar.length == keys[i - 1]->data.scalar.length &&
            !memcmp(keys[i]->data.scalar.value, keys[i - 1]->data.scalar.value, keys[i]->data.scalar.length))
            rc = clime_fail(e, CLIME_ERR_INPUT, "line %zu: \"%.100s\" stands there for the second time",
                            keys[i]->start_mark.line + 1, (const char *)keys[i]->data.scalar.value);
    free(keys);
    return rc;
}

static enum clime_err write_node(struct clime_jw *w, yaml_document_t *d, int id, int depth, struct clime_error *e) {
    const yaml_node_t *n = yaml_document_get_node(d, id);
    enum clime_err rc = CLIME_OK;
    if (depth >= CLIME_JSON_MAX_DEPTH || w->out->full)
        return clime_fail(e, CLIME_ERR_LIMIT, "line %zu: the document is too %s", n->start_mark.line + 1,
                          w->out->full ? "large" : "deep");
    if (n->type == YAML_SCALAR_NODE) {
        write_scalar(w, n);
    } else if (n->type == YAML_SEQUENCE_NODE) {
        clime_jw_array(w);
        for (yaml_node_item_t *i = n->data.sequence.items.start; i < n->data.sequence.items.top && !rc; i++)
            rc = write_node(w, d, *i, depth + 1, e);
        if (!rc) clime_jw_close(w);
    } else {
        rc = check_names(d, n, e);
        clime_jw_object(w);
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top && !rc; p++) {
            const yaml_node_t *key = yaml_document_get_node(d, p->key);
            clime_jw_key_str(w, (struct clime_str){(const char *)key->data.scalar.value, key->data.scalar.length});
            rc = write_node(w, d, p->value, depth + 1, e);
        }
        if (!rc) clime_jw_close(w); /* after an error a name may lack its value */
    }
    return rc;
}

enum clime_err clime_yaml_to_json(struct clime_str text, struct clime_buf *out, struct clime_error *e) {
    yaml_parser_t parser;
    yaml_document_t document;
    struct clime_jw w;
    enum clime_err rc = CLIME_OK;
    CHECK(yaml_parser_initialize(&parser));
    yaml_parser_set_input_string(&parser, (const unsigned char *)text.ptr, text.len);
    if (!yaml_parser_load(&parser, &document)) {
        rc = clime_fail(e, CLIME_ERR_INPUT, "line %zu: %s", parser.problem_mark.line + 1,
                        parser.problem ? parser.problem : "no YAML");
        goto done;
    }
    clime_jw_init(&w, out);
    if (yaml_document_get_root_node(&document))
        rc = write_node(&w, &document, 1, 0, e);
    else
        rc = clime_fail(e, CLIME_ERR_INPUT, "the document is empty");
    if (!rc && out->full) rc = clime_fail(e, CLIME_ERR_LIMIT, "the document is too large");
    yaml_document_delete(&document);
done:
    yaml_parser_delete(&parser);
    return rc;
}
