/* Regular expressions over PCRE2 (the only includer of pcre2.h).
 *
 * Called by text/pretok.c and text/normalize.c, at load and on text threads. Owns the compiled code; a matcher owns
 * match data, limits and the JIT stack of one thread.
 * Invariant: subjects are valid UTF-8 (checked once by clime_tokenizer_encode), so matching skips PCRE2's own check,
 * which is quadratic over a text of many pieces.
 * Choice: PCRE2_MULTILINE is always on, since in Oniguruma's syntax ^ and $ are line anchors.
 */
#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MATCH_LIMIT 100000000      /* backtracking steps per match: at most a second */
#define JIT_STACK_BYTES (1u << 20) /* grows to this, from 32 KiB */

struct clime_regex {
    pcre2_code *code;
    bool jit;
};

struct clime_matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

enum clime_err clime_regex_new(struct clime_str pattern, bool literal, struct clime_regex **out,
                               struct clime_error *e) {
    struct clime_buf text;
    clime_buf_init(&text, 1u << 20);
    enum clime_err rc = CLIME_OK;
    if (literal)
        clime_buf_add(&text, pattern.ptr, pattern.len);
    else
        rc = clime_regex_translate(pattern, &text, e);
    if (rc) goto done;
    if (text.full) {
        rc = clime_fail(e, CLIME_ERR_LIMIT, "pattern is longer than 1 MiB");
        goto done;
    }
    int code = 0;
    PCRE2_SIZE at = 0;
    uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.len, options, &code, &at, NULL);
    if (!compiled) {
        PCRE2_UCHAR why[200];
        pcre2_get_error_message(code, why, sizeof why);
        rc = clime_fail(e, CLIME_ERR_INPUT, "pattern: %s at byte %zu of " CLIME_STR_FMT, (char *)why, (size_t)at,
                        text.len > 200 ? 200 : (int)text.len, text.data ? text.data : "");
        goto done;
    }
    struct clime_regex *re = xcalloc(1, sizeof *re);
    re->code = compiled;
    re->jit = pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE) == 0; /* else the interpreter runs it */
    *out = re;
done:
    clime_buf_free(&text);
    return rc;
}

void clime_regex_free(struct clime_regex *re) {
    if (!re) return;
    pcre2_code_free(re->code);
    free(re);
}

struct clime_matcher *clime_matcher_new(void) {
    struct clime_matcher *m = xcalloc(1, sizeof *m);
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(32 * 1024, JIT_STACK_BYTES, NULL);
    CHECK(m->data && m->context);
    pcre2_set_match_limit(m->context, MATCH_LIMIT);
    if (m->stack) pcre2_jit_stack_assign(m->context, NULL, m->stack);
    return m;
}

void clime_matcher_free(struct clime_matcher *m) {
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    free(m);
}

int clime_regex_find(const struct clime_regex *re, struct clime_matcher *m, struct clime_str text, size_t from,
                     size_t *start, size_t *end) {
    PCRE2_SPTR subject = (PCRE2_SPTR)(text.ptr ? text.ptr : "");
    int n = re->jit ? pcre2_jit_match(re->code, subject, text.len, from, PCRE2_NO_UTF_CHECK, m->data, m->context)
                    : pcre2_match(re->code, subject, text.len, from, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (n == PCRE2_ERROR_NOMATCH) return 0;
    if (n < 0) return -1;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(m->data);
    *start = at[0];
    *end = at[1];
    return 1;
}
