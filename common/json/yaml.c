/* The tree that libyaml loads, written as JSON. Called when options are parsed and by the build. Invariant: the
 * buffer's cap ends the walk, so a document of aliases to aliases costs no more than it. */
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
        clime_jw_close(w);
    } else {
        clime_jw_object(w);
        for (yaml_node_pair_t *p = n->data.mapping.pairs.start; p < n->data.mapping.pairs.top && !rc; p++) {
            const yaml_node_t *key = yaml_document_get_node(d, p->key);
            if (key->type != YAML_SCALAR_NODE) return bad(key, "a name must be text", e);
            clime_jw_key_str(w, (struct clime_str){(const char *)key->data.scalar.value, key->data.scalar.length});
            rc = write_node(w, d, p->value, depth + 1, e);
        }
        clime_jw_close(w);
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
