/* Grammars of tool calls in the model family's form (text/output/call_formats.h), with arguments by the tools' schemas:
 * for `tool_choice: required` or a named function; as an alternative to a response format; and for `strict` tools after
 * a call marker in free text. Called by grammar.c, on the compiling thread.
 *
 * Layout between markers follows the families' templates, to stay in the training distribution.
 */
#include <stdlib.h>

#include "text/grammar/schema_params.h"
#include "text/output/call_formats.h"
#include "text/output/call_readers.h"

#define MAX_TOOLS 512

struct tool {
    struct clime_str name, parameters; /* parameters: raw JSON */
    bool loose;                        /* unconstrained arguments */
};

struct reader {
    struct clime_exprs *x;
    const struct clime_vocab_trie *v;
    const struct clime_call_format *f;
    const struct clime_call_form *form;
    bool in_text; /* the opening marker of the call or section is already written */
    bool loose;   /* non-strict tools are not constrained by their schema */
    struct clime_error *e;
    enum clime_err err;
};

static int text(struct reader *r, const char *z) {
    return clime_expr_text(r->x, z);
}

static int marker(struct reader *r, const char *z) {
    return z ? clime_expr_marker(r->x, r->v, clime_str_of(z)) : CLIME_EXPR_EMPTY_NODE;
}

/* A call's opening, unless free text already ended with it. */
static int begin(struct reader *r) {
    bool there = r->in_text && !r->f->section_open;
    return there ? CLIME_EXPR_EMPTY_NODE : marker(r, r->form->begin);
}

static void settle(struct reader *r, const struct tool *t, enum clime_err err) {
    if (err && !r->err)
        r->err = clime_error_prefix(r->e, "%sthe parameters of " CLIME_STR_FMT, r->loose ? "strict: " : "",
                                    CLIME_STR_ARG(t->name));
}

static struct clime_str schema_of(const struct tool *t) {
    return t->loose ? clime_str_of("{}") : t->parameters.len > 0 ? t->parameters : clime_str_of("{\"properties\":{}}");
}

static int arguments(struct reader *r, const struct tool *t) {
    int node = CLIME_EXPR_NEVER_NODE;
    settle(r, t, clime_schema_read(r->x, schema_of(t), true, &node, r->e));
    return node;
}

/* {"name": "N", "arguments": {...}} */
static int object_call(struct reader *r, const struct tool *t) {
    bool llama = r->form->keep_begin && r->form->bare;
    const int kids[] = {text(r, "{\"name\": \""), clime_expr_json_text(r->x, t->name),
                        text(r, llama ? "\", \"parameters\": " : "\", \"arguments\": "), arguments(r, t), text(r, "}")};
    int object = clime_expr_seq(r->x, kids, CLIME_COUNT(kids));
    if (r->form->keep_begin) return object;
    const int wrapped[] = {begin(r), text(r, "\n"), object, text(r, "\n"), marker(r, r->form->end)};
    return clime_expr_seq(r->x, wrapped, CLIME_COUNT(wrapped));
}

/* NAME separator {...} */
static int header_call(struct reader *r, const struct tool *t) {
    const struct clime_call_form *form = r->form;
    bool fenced = form->end && form->end[0] == '`';
    int number = clime_expr_repeat(r->x, clime_expr_range(r->x, '0', '9'), 1, 2);
    int index = clime_expr_seq2(r->x, text(r, ":"), number);
    const int kids[] = {begin(r),
                        text(r, form->function_id ? "functions." : ""),
                        clime_expr_literal(r->x, t->name),
                        form->function_id ? index : CLIME_EXPR_EMPTY_NODE,
                        marker(r, form->separator),
                        arguments(r, t),
                        text(r, fenced ? "\n" : ""),
                        marker(r, form->end)};
    return clime_expr_seq(r->x, kids, CLIME_COUNT(kids));
}

/* A parameter as tags: a string value verbatim, others as JSON. */
static int tag_value(struct reader *r, const struct clime_schema_param *p) {
    const struct clime_call_form *form = r->form;
    const char *newline = form->trim_newline ? "\n" : "";
    const int head[] = {marker(r, form->key_open), clime_expr_literal(r->x, p->name), marker(r, form->key_close),
                        text(r, "\n"), marker(r, form->value_open)};
    int open = clime_expr_seq(r->x, head, CLIME_COUNT(head)), value = p->node;
    if (p->any_text) {
        /* if the closing tag is missing the next tag ends a value (call_tags.c): a text must not contain it */
        const char *const ends[] = {form->value_close, form->key_open, form->close};
        const int then[] = {CLIME_EXPR_EMPTY_NODE, CLIME_EXPR_NEVER_NODE, CLIME_EXPR_NEVER_NODE};
        value = clime_expr_text_until(r->x, r->v, ends, then, form->end ? 3 : 2, false);
    } else {
        const int kids[] = {value, text(r, newline), marker(r, form->value_close)};
        value = clime_expr_seq(r->x, kids, 3);
    }
    return clime_expr_seq2(r->x, open, clime_expr_seq2(r->x, value, text(r, "\n")));
}

/* Anything between a name and the end of its call, except another call's opening: that call would escape its schema if
 * this one were void. */
static int any_tags(struct reader *r) {
    const char *markers[1 + CLIME_MAX_CALL_FORMS] = {r->form->close};
    int then[1 + CLIME_MAX_CALL_FORMS] = {CLIME_EXPR_EMPTY_NODE}, n = 1;
    for (int i = 0; i < CLIME_MAX_CALL_FORMS && r->f->forms[i].read; i++, n++) {
        markers[n] = r->f->forms[i].begin;
        then[n] = CLIME_EXPR_NEVER_NODE;
    }
    return clime_expr_text_until(r->x, r->v, markers, then, n, false);
}

static int tags_call(struct reader *r, const struct tool *t) {
    const struct clime_call_form *form = r->form;
    struct clime_schema_params params = {.n = 0};
    struct clime_expr_list all = {0};
    if (!t->loose) settle(r, t, clime_schema_params_read(r->x, schema_of(t), &params, r->e));
    clime_expr_list_add(&all, begin(r));
    if (form->name_open) {
        clime_expr_list_add(&all, text(r, "\n"));
        clime_expr_list_add(&all, marker(r, form->name_open));
    }
    clime_expr_list_add(&all, clime_expr_literal(r->x, t->name));
    clime_expr_list_add(&all, marker(r, form->name_close));
    clime_expr_list_add(&all, text(r, "\n"));
    for (int i = 0; i < params.n && !r->err; i++) {
        int value = tag_value(r, &params.at[i]);
        clime_expr_list_add(&all, params.at[i].required ? value : clime_expr_optional(r->x, value));
    }
    clime_expr_list_add(&all, t->loose ? any_tags(r) : marker(r, form->close));
    if (form->end) {
        clime_expr_list_add(&all, text(r, "\n"));
        clime_expr_list_add(&all, marker(r, form->end));
    }
    clime_schema_params_free(&params);
    return clime_expr_list_seq(r->x, &all);
}

static int call_of(struct reader *r, const struct tool *t) {
    if (r->form->read == clime_call_read_object) return object_call(r, t);
    if (r->form->read == clime_call_read_header) return header_call(r, t);
    return tags_call(r, t);
}

/* ---- the whole ---- */

/* One or more calls, in their section. */
static int whole(struct reader *r, int call, bool one) {
    const struct clime_call_format *f = r->f;
    bool list = f->section_open && r->form->keep_begin; /* Mistral: a JSON list after the marker */
    bool repeats =
        f->section_open && !r->form->keep_begin && r->form->begin && !*r->form->begin; /* one section per call */
    int open = r->in_text ? CLIME_EXPR_EMPTY_NODE : marker(r, f->section_open);
    const char *glue = list ? ", " : f->between ? "; " : f->section_open ? (r->form->end[0] == '`' ? "\n" : "") : "\n";
    if (repeats) {
        int again = clime_expr_seq2(r->x, marker(r, f->section_open), call), first = clime_expr_seq2(r->x, open, call);
        return one ? first : clime_expr_seq2(r->x, first, clime_expr_repeat(r->x, again, 0, CLIME_EXPR_INF));
    }
    int more = clime_expr_seq2(r->x, text(r, glue), call);
    const int kids[] = {open, text(r, list ? "[" : ""), call,
                        one ? CLIME_EXPR_EMPTY_NODE : clime_expr_repeat(r->x, more, 0, CLIME_EXPR_INF),
                        marker(r, f->section_close)};
    return clime_expr_seq(r->x, kids, CLIME_COUNT(kids));
}

/* The form that the model writes. */
static const struct clime_call_form *form_of(const struct clime_call_format *f, const struct clime_vocab_trie *v) {
    const struct clime_call_form *second = &f->forms[1];
    if (!second->read) return &f->forms[0];
    if (second->separator)
        return clime_tokenizer_id(v->tokenizer, clime_str_of(second->separator)) >= 0 ? second : &f->forms[0];
    return second->keep_begin ? second : &f->forms[0]; /* Llama: the bare object */
}

static void read_function(struct clime_json *j, struct tool *t) {
    struct clime_str key;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        bool strict;
        if (clime_str_is(key, "function"))
            read_function(j, t);
        else if (clime_str_is(key, "name"))
            clime_json_string(j, &t->name);
        else if (clime_str_is(key, "strict") && clime_json_peek(j) == CLIME_JSON_BOOL)
            t->loose &= !clime_json_bool(j, &strict) || !strict;
        else
            clime_json_skip(j, clime_str_is(key, "parameters") ? &t->parameters : NULL);
    }
}

/* A call of any allowed tool, in the reader's form; *n: how many tools. */
static int any_call(struct reader *r, const struct clime_grammar_source *s, int *n) {
    struct clime_expr_list calls = {0};
    struct clime_arena a;
    struct clime_json j;
    *n = 0;
    clime_arena_init(&a, 2 * s->text.len + 4096);
    clime_json_init(&j, s->text.ptr, s->text.len, &a, r->e);
    for (clime_json_array(&j); clime_json_item(&j) && !r->err;) {
        struct tool t = {.name = {"", 0}, .parameters = {NULL, 0}, .loose = r->loose};
        read_function(&j, &t);
        if (j.failed || t.name.len == 0 || (s->tool.len > 0 && !clime_str_eq(s->tool, t.name))) continue;
        if (clime_str_is(t.parameters, "null")) t.parameters.len = 0;
        if (++*n > MAX_TOOLS)
            r->err = clime_fail(r->e, CLIME_ERR_INPUT, "tools: a grammar is of calls of at most %d tools", MAX_TOOLS);
        else
            clime_expr_list_add(&calls, call_of(r, &t));
    }
    if (!r->err && !clime_json_end(&j)) r->err = clime_error_prefix(r->e, "tools");
    clime_arena_free(&a);
    return clime_expr_list_alt(r->x, &calls);
}

/* Free text; after a call's or section's marker a call must follow, then text again. No text after a section: it would
 * not be part of the reply. */
static int calls_in_text(struct reader *r, const struct clime_grammar_source *s, int *n) {
    const struct clime_call_format *f = r->f;
    const char *markers[CLIME_MAX_CALL_FORMS];
    int then[CLIME_MAX_CALL_FORMS], n_markers = 0;
    int rule = clime_expr_rule_new(r->x, clime_str_of("text")), more = clime_expr_rule(r->x, rule);
    if (f->section_open) {
        then[n_markers] = whole(r, any_call(r, s, n), s->one_call);
        markers[n_markers++] = f->section_open;
    }
    for (; !f->section_open && n_markers < CLIME_MAX_CALL_FORMS && f->forms[n_markers].read; n_markers++) {
        r->form = &f->forms[n_markers];
        int call = any_call(r, s, n);
        then[n_markers] = s->one_call ? call : clime_expr_seq2(r->x, call, more);
        markers[n_markers] = r->form->begin;
    }
    clime_expr_rule_is(r->x, rule, clime_expr_text_until(r->x, r->v, markers, then, n_markers, true));
    return more;
}

enum clime_err clime_calls_read(struct clime_exprs *x, const struct clime_vocab_trie *v,
                                const struct clime_grammar_source *s, int *out, struct clime_error *e) {
    struct reader r = {.x = x, .v = v, .f = s->calls, .in_text = s->in_text, .e = e};
    int n = 0;
    r.loose = s->in_text || s->or_kind != CLIME_GRAMMAR_NONE;
    if (!clime_call_format_can_be_grammar(s->calls))
        return clime_fail(e, CLIME_ERR_INPUT, "tool_choice: calls can not be forced in this model's form of them%s",
                          s->calls ? "" : " (its template shows none; --tool-call-parser names one)");
    CHECK(!s->in_text || clime_call_format_is_marked(s->calls));
    r.form = form_of(s->calls, v);
    *out = s->in_text ? calls_in_text(&r, s, &n) : whole(&r, any_call(&r, s, &n), s->one_call);
    if (r.err) return r.err;
    if (n == 0 && s->tool.len > 0)
        return clime_fail(e, CLIME_ERR_INPUT, "tool_choice names " CLIME_STR_FMT ", which is not among the tools",
                          CLIME_STR_ARG(s->tool));
    return n == 0 ? clime_fail(e, CLIME_ERR_INPUT, "tool_choice: there are no tools to call") : CLIME_OK;
}
