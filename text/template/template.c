/* Chat templates: the public functions. Compile on any thread; render on text threads (stack), many at once.
 *
 * Each call owns one struct clime_tr: an arena for everything it allocates, and the return point of every failure. This
 * file has the only setjmp. State that must survive it (arena, output buffer, spans) is reached through pointers that
 * do not change between setjmp and longjmp, so no local needs to be volatile.
 */
#include "text/template/template.h"

#include <stdlib.h>

#include "common/utf8.h"
#include "text/template/eval.h"

#define MAX_SOURCE ((size_t)1 << 20)
#define COMPILE_MEMORY ((size_t)256 << 20)
#define COMPILE_STEPS ((size_t)500 * 1000 * 1000)
#define DEFAULT_STEPS ((size_t)20 * 1000 * 1000)
#define DEFAULT_MEMORY ((size_t)256 << 20)
#define MAX_DEPTH 3000

static void check_utf8(struct clime_tr *tr, struct clime_str s, const char *what) {
    uint32_t cp;
    for (size_t at = 0; at < s.len;) {
        int n = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        if (n < 0) clime_tr_fail(tr, CLIME_ERR_INPUT, "%s is not valid UTF-8 at byte %zu", what, at);
        at += (size_t)n;
    }
}

static void compile(struct clime_tr *tr, struct clime_str source, struct clime_template *t) {
    if (source.len > MAX_SOURCE)
        clime_tr_fail(tr, CLIME_ERR_LIMIT, "the chat template is longer than %zu bytes", MAX_SOURCE);
    check_utf8(tr, source, "the chat template");
    clime_template_parse(tr, clime_template_lex(tr, source), t);
    tr->line = 0;
    clime_template_hide(tr, t);
}

enum clime_err clime_template_compile(struct clime_str source, struct clime_template **out, struct clime_error *e) {
    struct clime_error ignored = {0};
    struct clime_template *t = xcalloc(1, sizeof *t);
    struct clime_tr *tr = xcalloc(1, sizeof *tr);
    enum clime_err rc = CLIME_OK;
    tr->err = e ? e : &ignored;
    tr->steps_left = COMPILE_STEPS;
    tr->max_depth = MAX_DEPTH;
    clime_arena_init(&tr->arena, COMPILE_MEMORY);
    if (setjmp(tr->trap) == 0)
        compile(tr, source, t);
    else
        rc = tr->err->code;
    t->arena = tr->arena;
    free(tr);
    if (rc) {
        clime_template_free(t);
        return rc;
    }
    *out = t;
    return CLIME_OK;
}

void clime_template_free(struct clime_template *t) {
    if (!t) return;
    clime_arena_free(&t->arena);
    free(t);
}

bool clime_template_has_generation(const struct clime_template *t) {
    return t->has_generation;
}

void clime_spans_free(struct clime_spans *s) {
    free(s->data);
    *s = (struct clime_spans){0};
}

/* ---- rendering ---- */

struct rendering {
    struct clime_tr tr;
    struct clime_tenv env;
    struct clime_tout top;
};

static void set_token(struct clime_tr *tr, const char *name, const char *text) {
    if (!text) return;
    struct clime_str s = clime_str_of(text);
    check_utf8(tr, s, name);
    clime_tdict_set(tr, tr->env->vars, clime_tv_strz(name), clime_tv_str(tr, s));
}

static void render(struct clime_tr *tr, const struct clime_template_input *in) {
    struct clime_tenv *env = tr->env;
    env->vars = clime_tdict_new(tr);
    set_token(tr, "bos_token", in->bos_token);
    set_token(tr, "eos_token", in->eos_token);
    for (size_t i = 0; i < in->n_vars; i++) {
        struct clime_tv object = clime_tv_from_json(tr, in->vars[i], "chat template variables");
        if (object.kind != CLIME_T_DICT)
            clime_tr_fail(tr, CLIME_ERR_INPUT, "the variables of a chat template must be a JSON object");
        for (size_t k = 0; k < object.dict->n; k++)
            clime_tdict_set(tr, env->vars, object.dict->items[k].key, object.dict->items[k].value);
    }
    struct clime_tv *tools = clime_tdict_getz(tr, env->vars, clime_str_of("tools"));
    if (in->sort_tools && tools) *tools = clime_tv_sort_keys(tr, *tools);
    env->root = clime_tscope_open(tr, NULL, &env->t->body);
    clime_texec(tr, &env->t->body, env->root);
}

enum clime_err clime_template_render(const struct clime_template *t, const struct clime_template_input *in,
                                     struct clime_buf *out, struct clime_spans *spans, struct clime_error *e) {
    struct clime_error ignored = {0};
    struct rendering *r = xcalloc(1, sizeof *r);
    size_t out_len = out->len, n_spans = spans ? spans->n : 0;
    enum clime_err rc = CLIME_OK;
    r->tr.err = e ? e : &ignored;
    r->tr.steps_left = in->limits.max_steps ? in->limits.max_steps : DEFAULT_STEPS;
    r->tr.max_depth = in->limits.max_depth > 0 && in->limits.max_depth < MAX_DEPTH ? in->limits.max_depth : MAX_DEPTH;
    r->tr.env = &r->env;
    r->top.sink = out;
    r->env =
        (struct clime_tenv){.t = t, .out = &r->top, .top = &r->top, .base = out->len, .spans = spans, .now = in->now};
    clime_arena_init(&r->tr.arena, in->limits.max_memory ? in->limits.max_memory : DEFAULT_MEMORY);
    if (setjmp(r->tr.trap) == 0)
        render(&r->tr, in);
    else
        rc = r->tr.err->code;
    clime_arena_free(&r->tr.arena);
    free(r);
    if (rc) {
        out->len = out_len;
        out->full = false;
        if (out->data) out->data[out_len] = '\0';
        if (spans) spans->n = n_spans;
    }
    return rc;
}
