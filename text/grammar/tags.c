/* Choices, and structural tags: free text in which tag contents follow a schema. Called by grammar.c, on the compiling
 * thread. SGLang's and XGrammar's JSON, in both forms:
 *
 *   {"type": "structural_tag", "structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}
 *   {"type": "structural_tag", "format": {"type": "sequence" | "or" | "tag" | "triggered_tags" | ..., ...}}
 */
#include <stdlib.h>

#include "common/json/members.h"
#include "text/grammar/readers.h"

#define MAX_TAGS 256
#define MAX_NESTING 32

struct reader {
    struct clime_exprs *x;
    const struct clime_vocab_trie *v;
    struct clime_arena *arena;
    struct clime_error *e;
    enum clime_err err;
    int depth;
};

static int bad(struct reader *r, const char *what) {
    if (!r->err) r->err = clime_fail(r->e, CLIME_ERR_INPUT, "structural tag: %s", what);
    return CLIME_EXPR_NEVER_NODE;
}

static struct clime_json scan(struct reader *r, struct clime_str raw, const char *name) {
    struct clime_json j;
    clime_json_init(&j, raw.ptr ? raw.ptr : "", raw.len, r->arena, r->e);
    if (raw.len == 0 && !r->err) r->err = clime_fail(r->e, CLIME_ERR_INPUT, "structural tag: \"%s\" is missing", name);
    j.failed = raw.len == 0;
    return j;
}

static void end(struct reader *r, struct clime_json *j) {
    if (!r->err && !clime_json_end(j)) r->err = clime_error_prefix(r->e, "structural tag");
}

static const char *text_z(struct reader *r, struct clime_str s) {
    const char *z = clime_arena_strdup(r->arena, s);
    if (!z || (s.len && memchr(s.ptr, '\0', s.len))) bad(r, "a text with a NUL in it, or too much text");
    return z ? z : "";
}

/* ---- members of the two forms ---- */

struct tag {
    struct clime_str begin, end, content, schema; /* content, schema: raw */
};

struct format {
    struct clime_str type, value, pattern, grammar, json_schema, elements, begin, end, content, triggers, tags,
        structures, format;
    bool at_least_one, stop_after_first;
};

#define TAG(field, kind)                                                                                               \
    { #field, CLIME_MEMBER_##kind, offsetof(struct tag, field) }
#define FORMAT(field, kind)                                                                                            \
    { #field, CLIME_MEMBER_##kind, offsetof(struct format, field) }

static const struct clime_member tag_rows[] = {TAG(begin, STRING), TAG(end, STRING), TAG(content, RAW),
                                               TAG(schema, RAW)};
static const struct clime_members tag_members = {tag_rows, CLIME_COUNT(tag_rows)};
static const struct clime_member format_rows[] = {
    FORMAT(type, STRING),    FORMAT(value, STRING),      FORMAT(pattern, STRING),
    FORMAT(grammar, STRING), FORMAT(json_schema, RAW),   FORMAT(elements, RAW),
    FORMAT(begin, STRING),   FORMAT(end, STRING),        FORMAT(content, RAW),
    FORMAT(triggers, RAW),   FORMAT(tags, RAW),          FORMAT(structures, RAW),
    FORMAT(format, RAW),     FORMAT(at_least_one, BOOL), FORMAT(stop_after_first, BOOL)};
static const struct clime_members format_members = {format_rows, CLIME_COUNT(format_rows)};

static void read_object(struct reader *r, struct clime_str raw, const char *name, const struct clime_members *m,
                        void *out) {
    struct clime_json j = scan(r, raw, name);
    struct clime_str key;
    for (clime_json_object(&j); !r->err && clime_json_key(&j, &key);) {
        if (clime_members_read(m, &j, key, out)) continue;
        if (!clime_str_is(key, "type") && !r->err)
            r->err = clime_fail(r->e, CLIME_ERR_INPUT, "structural tag: \"" CLIME_STR_FMT "\" is not supported",
                                (int)(key.len < 60 ? key.len : 60), key.ptr);
        clime_json_skip(&j, NULL);
    }
    if (!r->err) end(r, &j);
}

/* ---- free text with tags in it ---- */

static int read_format(struct reader *r, struct clime_str raw);

static int content_of(struct reader *r, const struct tag *t) {
    int node = CLIME_EXPR_NEVER_NODE;
    if (t->content.len > 0) return read_format(r, t->content);
    enum clime_err err = clime_schema_read(r->x, t->schema.len ? t->schema : clime_str_of("{}"), false, &node, r->e);
    if (err && !r->err) r->err = err;
    return node;
}

static int read_triggers(struct reader *r, const struct format *f, struct clime_str tags, const char *name) {
    const char *triggers[CLIME_MAX_MARKERS];
    struct clime_expr_list then[CLIME_MAX_MARKERS] = {{0}};
    int nodes[CLIME_MAX_MARKERS], n = 0, n_tags = 0;
    int text = clime_expr_rule_new(r->x, clime_str_of("text")), more = clime_expr_rule(r->x, text);
    struct clime_str s;
    struct clime_json j = scan(r, f->triggers, "triggers");
    for (clime_json_array(&j); clime_json_item(&j) && clime_json_string(&j, &s);) {
        if (s.len == 0 || n == CLIME_MAX_MARKERS) return bad(r, "triggers must be texts, 64 at most");
        triggers[n++] = text_z(r, s);
    }
    end(r, &j);
    j = scan(r, tags, name);
    for (clime_json_array(&j); clime_json_item(&j) && !r->err;) {
        struct clime_str raw;
        struct tag t = {.begin = {NULL, 0}};
        bool any = false;
        if (!clime_json_skip(&j, &raw) || ++n_tags > MAX_TAGS) return bad(r, "more than 256 tags");
        read_object(r, raw, "a tag", &tag_members, &t);
        int content = r->err ? CLIME_EXPR_NEVER_NODE : content_of(r, &t);
        for (int i = 0; i < n && !r->err; i++) {
            size_t len = strlen(triggers[i]);
            if (!clime_str_starts(t.begin, triggers[i])) continue;
            const int kids[] = {clime_expr_marker(r->x, r->v, (struct clime_str){t.begin.ptr + len, t.begin.len - len}),
                                content, clime_expr_marker(r->x, r->v, t.end), more};
            clime_expr_list_add(&then[i], clime_expr_seq(r->x, kids, CLIME_COUNT(kids)));
            any = true;
        }
        if (!any) bad(r, "a tag that begins with none of the triggers");
    }
    end(r, &j);
    for (int i = 0; i < n; i++) nodes[i] = clime_expr_list_alt(r->x, &then[i]);
    if (r->err || n == 0) return bad(r, "there are no triggers");
    int body = clime_expr_text_until(r->x, r->v, triggers, nodes, n, true);
    clime_expr_rule_is(r->x, text, body);
    return more;
}

/* ---- formats ---- */

static int read_elements(struct reader *r, struct clime_str raw, bool all) {
    struct clime_expr_list nodes = {0};
    struct clime_json j = scan(r, raw, "elements");
    struct clime_str one;
    for (clime_json_array(&j); clime_json_item(&j) && clime_json_skip(&j, &one) && !r->err;)
        clime_expr_list_add(&nodes, read_format(r, one));
    end(r, &j);
    return all ? clime_expr_list_seq(r->x, &nodes) : clime_expr_list_alt(r->x, &nodes);
}

static int read_tag(struct reader *r, const struct format *f) {
    struct format inside = {.type = {NULL, 0}};
    const char *close = text_z(r, f->end);
    int begin = clime_expr_marker(r->x, r->v, f->begin);
    read_object(r, f->content, "content", &format_members, &inside);
    if (clime_str_is(inside.type, "any_text") && *close)
        return clime_expr_seq2(r->x, begin, clime_expr_text_until(r->x, r->v, &close, NULL, 1, false));
    const int kids[] = {begin, read_format(r, f->content), clime_expr_marker(r->x, r->v, f->end)};
    return clime_expr_seq(r->x, kids, 3);
}

static int read_format(struct reader *r, struct clime_str raw) {
    struct format f = {.type = {NULL, 0}};
    int node = CLIME_EXPR_NEVER_NODE;
    enum clime_err err = CLIME_OK;
    read_object(r, raw, "content", &format_members, &f);
    if (r->err) return node;
    if (++r->depth > MAX_NESTING) return bad(r, "formats nest too deep");
    if (clime_str_is(f.type, "const_string"))
        node = clime_expr_marker(r->x, r->v, f.value);
    else if (clime_str_is(f.type, "json_schema"))
        err = clime_schema_read(r->x, f.json_schema, false, &node, r->e);
    else if (clime_str_is(f.type, "regex"))
        err = clime_regex_read(r->x, f.pattern, CLIME_SPELL_UTF8, false, &node, r->e);
    else if (clime_str_is(f.type, "grammar"))
        err = clime_ebnf_read(r->x, f.grammar, &node, r->e);
    else if (clime_str_is(f.type, "any_text"))
        node = clime_expr_text_until(r->x, r->v, NULL, NULL, 0, true);
    else if (clime_str_is(f.type, "sequence") || clime_str_is(f.type, "or"))
        node = read_elements(r, f.elements, clime_str_is(f.type, "sequence"));
    else if (clime_str_is(f.type, "tag"))
        node = read_tag(r, &f);
    else if (clime_str_is(f.type, "triggered_tags") && !f.at_least_one && !f.stop_after_first)
        node = read_triggers(r, &f, f.tags, "tags");
    else
        bad(r, "this type of format, or at_least_one or stop_after_first, is not supported");
    if (err && !r->err) r->err = err;
    r->depth--;
    return node;
}

enum clime_err clime_tags_read(struct clime_exprs *x, const struct clime_vocab_trie *v, struct clime_str json, int *out,
                               struct clime_error *e) {
    struct clime_arena a;
    struct format f = {.type = {NULL, 0}};
    clime_arena_init(&a, 2 * json.len + 65536);
    struct reader r = {.x = x, .v = v, .arena = &a, .e = e};
    read_object(&r, json, "format", &format_members, &f);
    if (!r.err) *out = f.format.len > 0 ? read_format(&r, f.format) : read_triggers(&r, &f, f.structures, "structures");
    clime_arena_free(&a);
    return r.err;
}

/* ---- choices ---- */

enum clime_err clime_choice_read(struct clime_exprs *x, struct clime_str json, int *out, struct clime_error *e) {
    struct clime_expr_list all = {0};
    struct clime_arena a;
    struct clime_json j;
    struct clime_str s;
    clime_arena_init(&a, 2 * json.len + 4096);
    clime_json_init(&j, json.ptr, json.len, &a, e);
    for (clime_json_array(&j); clime_json_item(&j) && clime_json_string(&j, &s);)
        clime_expr_list_add(&all, clime_expr_literal(x, s));
    bool fine = clime_json_end(&j), some = all.n > 0;
    *out = clime_expr_list_alt(x, &all);
    clime_arena_free(&a);
    if (!fine) return clime_error_prefix(e, "choice");
    return some ? CLIME_OK : clime_fail(e, CLIME_ERR_INPUT, "choice: the list is empty");
}
