/* Statements of a chat template: tokens to the tree of struct clime_template. Called once per compilation.
 *
 * Invariant: a node is complete before it is reachable from the template, so the evaluator never checks for missing
 * parts beyond those that ast.h calls optional.
 */
#include "text/template/parse.h"

static struct clime_tnode *parse_statement(struct clime_tparser *p);

/* "endfor else" style lists of closing tags. */
static bool at_end_tag(const struct clime_tparser *p, const char *const *ends) {
    for (; ends && *ends; ends++)
        if (clime_tparse_is_name(p, *ends)) return true;
    return false;
}

/* Statements and text up to a block that starts with one of ends (not consumed), or to the end of the template. */
static struct clime_tbody parse_body(struct clime_tparser *p, const char *const *ends) {
    struct clime_tnodes body = {0};
    struct clime_tnode *n;
    clime_tparse_enter(p);
    for (;;) {
        if (p->at->type == CLIME_TOK_DATA) {
            n = clime_tparse_node(p, CLIME_N_DATA);
            n->value = clime_tv_str(p->tr, p->at->text);
            clime_tparse_skip(p, CLIME_TOK_DATA);
        } else if (p->at->type == CLIME_TOK_VAR_BEGIN) {
            n = clime_tparse_node(p, CLIME_N_PRINT);
            clime_tparse_skip(p, CLIME_TOK_VAR_BEGIN);
            n->a = clime_tparse_tuple(p, CLIME_TUPLE_FULL, NULL);
            clime_tparse_expect(p, CLIME_TOK_VAR_END, "end of print statement");
        } else if (p->at->type == CLIME_TOK_BLOCK_BEGIN) {
            clime_tparse_skip(p, CLIME_TOK_BLOCK_BEGIN);
            if (at_end_tag(p, ends)) break;
            n = parse_statement(p);
            clime_tparse_expect(p, CLIME_TOK_BLOCK_END, "end of statement block");
        } else {
            break;
        }
        clime_tnodes_push(p->tr, &body, n);
    }
    if (ends && p->at->type == CLIME_TOK_EOF)
        clime_tr_fail(p->tr, CLIME_ERR_INPUT, "unexpected end of template, looking for '%s'", ends[0]);
    p->depth--;
    return (struct clime_tbody){.nodes = body.v, .n = body.n};
}

/* The rest of the opening tag, then the body. */
static struct clime_tbody parse_block_body(struct clime_tparser *p, const char *const *ends) {
    clime_tparse_skip(p, ':');
    clime_tparse_expect(p, CLIME_TOK_BLOCK_END, "end of statement block");
    return parse_body(p, ends);
}

/* A body that opens a scope: an outer `if` does not make it conditional. */
static struct clime_tbody parse_scope_body(struct clime_tparser *p, const char *end, const char *or_end) {
    const char *ends[] = {end, or_end, NULL};
    bool soft = p->soft;
    p->soft = false;
    struct clime_tbody body = parse_block_body(p, ends);
    p->soft = soft;
    return body;
}

/* A body whose output is captured: a break or continue in it cannot reach a loop outside. */
static struct clime_tbody parse_captured_body(struct clime_tparser *p, const char *end) {
    bool in_loop = p->in_loop;
    p->in_loop = false;
    struct clime_tbody body = parse_scope_body(p, end, NULL);
    p->in_loop = in_loop;
    clime_tparse_skip_name(p, end);
    return body;
}

static struct clime_tnode *parse_for(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_FOR);
    n->a = clime_tparse_target(p, false, "in");
    if (!clime_tparse_skip_name(p, "in")) clime_tparse_unexpected(p);
    n->b = clime_tparse_tuple(p, CLIME_TUPLE_NO_COND, "recursive");
    if (clime_tparse_skip_name(p, "if")) n->c = clime_tparse_expr(p);
    n->flag = clime_tparse_skip_name(p, "recursive");
    bool in_loop = p->in_loop;
    p->in_loop = true;
    n->body = parse_scope_body(p, "endfor", "else");
    p->in_loop = in_loop;
    if (clime_tparse_skip_name(p, "else")) n->other = parse_scope_body(p, "endfor", NULL);
    clime_tparse_skip_name(p, "endfor");
    return n;
}

static struct clime_tnode *parse_if(struct clime_tparser *p) {
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const last[] = {"endif", NULL};
    struct clime_tnode *first = NULL, **at = &first;
    bool soft = p->soft;
    p->soft = true;
    do {
        struct clime_tnode *n = clime_tparse_node(p, CLIME_N_IF);
        n->a = clime_tparse_tuple(p, CLIME_TUPLE_NO_COND, NULL);
        n->body = parse_block_body(p, ends);
        *at = n;
        if (clime_tparse_is_name(p, "elif")) {
            n->other.nodes = clime_tr_zalloc(p->tr, sizeof *n->other.nodes);
            n->other.n = 1;
            at = &n->other.nodes[0];
        } else if (clime_tparse_skip_name(p, "else")) {
            n->other = parse_block_body(p, last);
        }
    } while (clime_tparse_skip_name(p, "elif"));
    p->soft = soft;
    clime_tparse_skip_name(p, "endif");
    return first;
}

static struct clime_tnode *parse_set(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_SET);
    n->a = clime_tparse_target(p, true, NULL);
    if (clime_tparse_skip(p, '=')) {
        n->b = clime_tparse_tuple(p, CLIME_TUPLE_FULL, NULL);
        return n;
    }
    n->kind = CLIME_N_SET_BLOCK;
    n->b = clime_tparse_filters(p, NULL, false);
    n->body = parse_captured_body(p, "endset");
    return n;
}

static void parse_signature(struct clime_tparser *p, struct clime_tnode *n) {
    struct clime_tnodes params = {0}, defaults = {0};
    clime_tparse_expect(p, '(', "'('");
    while (p->at->type != ')') {
        if (params.n) clime_tparse_expect(p, ',', "','");
        struct clime_tnode *param = clime_tparse_node(p, CLIME_N_NAME);
        param->name = clime_tparse_name(p);
        struct clime_tnode *value = NULL;
        if (clime_tparse_skip(p, '='))
            value = clime_tparse_expr(p);
        else if (defaults.n && defaults.v[defaults.n - 1])
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "non-default argument follows default argument");
        clime_tnodes_push(p->tr, &params, param);
        clime_tnodes_push(p->tr, &defaults, value);
    }
    clime_tparse_skip(p, ')');
    n->list = params.v;
    n->defaults = defaults.v;
    n->n = params.n;
}

/* The body of a macro or call block; notes which of caller, kwargs and varargs it (or a macro in it) mentions. */
static void parse_macro_body(struct clime_tparser *p, struct clime_tnode *n, const char *end) {
    unsigned outer = p->uses;
    p->uses = 0;
    n->body = parse_captured_body(p, end);
    n->flag = (uint8_t)p->uses;
    for (uint32_t i = 0; i < n->n; i++) {
        const char *name = n->list[i]->name;
        if (name == p->t->kwargs) n->flag &= (uint8_t)~CLIME_USES_KWARGS;
        if (name == p->t->varargs) n->flag &= (uint8_t)~CLIME_USES_VARARGS;
        if (name == p->t->caller && (n->flag & CLIME_USES_CALLER) && !n->defaults[i])
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "the special \"caller\" argument must have a default");
    }
    p->uses |= outer;
}

static struct clime_tnode *parse_macro(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_MACRO);
    n->name = clime_tparse_name(p);
    parse_signature(p, n);
    parse_macro_body(p, n, "endmacro");
    return n;
}

static struct clime_tnode *parse_call_block(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_CALL_BLOCK);
    if (p->at->type == '(') parse_signature(p, n);
    n->a = clime_tparse_expr(p);
    if (n->a->kind != CLIME_N_CALL) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "expected call");
    parse_macro_body(p, n, "endcall");
    return n;
}

static struct clime_tnode *parse_filter_block(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_FILTER_BLOCK);
    n->b = clime_tparse_filters(p, NULL, true);
    n->body = parse_captured_body(p, "endfilter");
    return n;
}

static struct clime_tnode *parse_with(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_WITH);
    struct clime_tnodes list = {0};
    while (p->at->type != CLIME_TOK_BLOCK_END) {
        if (list.n) clime_tparse_expect(p, ',', "','");
        struct clime_tnode *target = clime_tparse_node(p, CLIME_N_NAME);
        target->name = clime_tparse_name(p);
        clime_tnodes_push(p->tr, &list, target);
        clime_tparse_expect(p, '=', "'='");
        clime_tnodes_push(p->tr, &list, clime_tparse_expr(p));
    }
    n->list = list.v;
    n->n = list.n;
    n->body = parse_scope_body(p, "endwith", NULL);
    clime_tparse_skip_name(p, "endwith");
    return n;
}

static struct clime_tnode *parse_block(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_BLOCK);
    n->name = clime_tparse_name(p);
    n->body = parse_captured_body(p, "endblock");
    clime_tparse_skip_name(p, n->name);
    return n;
}

static struct clime_tnode *parse_generation(struct clime_tparser *p) {
    struct clime_tnode *n = clime_tparse_node(p, CLIME_N_GENERATION);
    p->t->has_generation = true;
    n->body = parse_captured_body(p, "endgeneration");
    return n;
}

static struct clime_tnode *parse_loop_control(struct clime_tparser *p, enum clime_tnode_kind kind) {
    if (!p->in_loop) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "break or continue outside a loop");
    return clime_tparse_node(p, kind);
}

static struct clime_tnode *parse_statement(struct clime_tparser *p) {
    static const char *const refused[] = {"include", "import", "from", "extends", "autoescape"};
    struct clime_str tag = p->at->text;
    if (p->at->type != CLIME_TOK_NAME) clime_tr_fail(p->tr, CLIME_ERR_INPUT, "tag name expected");
    for (size_t i = 0; i < CLIME_COUNT(refused); i++)
        if (clime_str_is(tag, refused[i]))
            clime_tr_fail(p->tr, CLIME_ERR_INPUT, "'%s' is not supported in a chat template", refused[i]);
    if (clime_tparse_skip_name(p, "for")) return parse_for(p);
    if (clime_tparse_skip_name(p, "if")) return parse_if(p);
    if (clime_tparse_skip_name(p, "set")) return parse_set(p);
    if (clime_tparse_skip_name(p, "macro")) return parse_macro(p);
    if (clime_tparse_skip_name(p, "call")) return parse_call_block(p);
    if (clime_tparse_skip_name(p, "filter")) return parse_filter_block(p);
    if (clime_tparse_skip_name(p, "with")) return parse_with(p);
    if (clime_tparse_skip_name(p, "block")) return parse_block(p);
    if (clime_tparse_skip_name(p, "generation")) return parse_generation(p);
    if (clime_tparse_skip_name(p, "break")) return parse_loop_control(p, CLIME_N_BREAK);
    if (clime_tparse_skip_name(p, "continue")) return parse_loop_control(p, CLIME_N_CONTINUE);
    if (clime_tparse_skip_name(p, "print")) {
        struct clime_tnode *n = clime_tparse_node(p, CLIME_N_PRINT);
        n->a = clime_tparse_expr(p);
        return n;
    }
    clime_tr_fail(p->tr, CLIME_ERR_INPUT, "Encountered unknown tag '%.*s'", tag.len > 100 ? 100 : (int)tag.len,
                  tag.ptr);
}

void clime_template_parse(struct clime_tr *tr, struct clime_ttoken *tokens, struct clime_template *t) {
    struct clime_tparser p = {.tr = tr, .t = t, .at = tokens, .names = clime_tdict_new(tr)};
    static const char *const known[] = {"loop", "caller", "kwargs", "varargs"};
    const char **slots[] = {&t->loop, &t->caller, &t->kwargs, &t->varargs};
    for (size_t i = 0; i < CLIME_COUNT(known); i++) {
        *slots[i] = known[i];
        clime_tdict_set(tr, p.names, clime_tv_strz(known[i]), clime_tv_strz(known[i]));
    }
    t->body = parse_body(&p, NULL);
    for (const struct clime_tunknown *u = p.unknown; u; u = u->older) {
        if (u->soft) continue;
        tr->line = u->line;
        clime_tr_fail(tr, CLIME_ERR_INPUT, "No %s named '%.*s'.", u->what, u->name.len > 100 ? 100 : (int)u->name.len,
                      u->name.ptr);
    }
}
