/* The tokenizer's normaliser as a list of steps.
 *
 * Called by text/tokenizer.c on text threads, and by the loader (normalised added tokens). Owns its steps.
 * Invariant: every step keeps UTF-8 valid, so patterns skip PCRE2's check.
 */
#include "text/normalize.h"

#include <stdlib.h>

#include "common/json/tree.h"
#include "text/unicode.h"

#define MAX_STEPS 16
#define MAX_TEXT_BYTES (1u << 30)

enum step_kind { STEP_FORM, STEP_PREPEND, STEP_REPLACE, STEP_STRIP };

struct step {
    enum step_kind kind;
    enum clime_norm_form form;
    char *prepend;
    struct clime_replace replace;
    bool left, right; /* sides that Strip strips */
};

struct clime_normalizer {
    struct step steps[MAX_STEPS];
    size_t n_steps;
};

void clime_norm_scratch_init(struct clime_norm_scratch *s) {
    memset(s, 0, sizeof *s);
    clime_buf_init(&s->text[0], MAX_TEXT_BYTES);
    clime_buf_init(&s->text[1], MAX_TEXT_BYTES);
}

void clime_norm_scratch_free(struct clime_norm_scratch *s) {
    clime_buf_free(&s->text[0]);
    clime_buf_free(&s->text[1]);
    free(s->cps);
    s->cps = NULL;
    s->cps_size = 0;
}

const char *clime_pattern_text(const struct cJSON *pattern, bool *literal) {
    const char *text = clime_tree_str(clime_tree_get(pattern, "String"), NULL);
    *literal = text != NULL;
    return text ? text : clime_tree_str(clime_tree_get(pattern, "Regex"), NULL);
}

enum clime_err clime_replace_load(const struct cJSON *node, struct clime_replace *out, struct clime_error *e) {
    bool literal = false;
    const char *pattern = clime_pattern_text(clime_tree_get(node, "pattern"), &literal);
    const char *content = clime_tree_str(clime_tree_get(node, "content"), NULL);
    if (!pattern || !*pattern || !content)
        return clime_fail(e, CLIME_ERR_INPUT, "Replace: needs a pattern (String or Regex) and a content");
    memset(out, 0, sizeof *out);
    if (!literal) {
        enum clime_err rc = clime_regex_new(clime_str_of(pattern), false, &out->re, e);
        if (rc) return rc;
    }
    out->literal = xstrdup(pattern);
    out->content = xstrdup(content);
    return CLIME_OK;
}

void clime_replace_free(struct clime_replace *r) {
    clime_regex_free(r->re);
    free(r->literal);
    free(r->content);
    memset(r, 0, sizeof *r);
}

/* Like memmem, whose address sanitizer check scans the rest of the text at each call: minutes for 60 MB. */
static const char *find_literal(const char *at, const char *end, const char *literal, size_t len) {
    if (len == 0) return at;
    for (; (size_t)(end - at) >= len && (at = memchr(at, literal[0], (size_t)(end - at) - len + 1)); at++)
        if (memcmp(at, literal, len) == 0) return at;
    return NULL;
}

enum clime_err clime_replace_run(const struct clime_replace *r, struct clime_matcher *m, struct clime_str text,
                                 struct clime_buf *out, struct clime_error *e) {
    size_t done = 0;
    for (size_t from = 0; from <= text.len;) {
        size_t start, end;
        if (r->re) {
            int found = clime_regex_find(r->re, m, text, from, &start, &end);
            if (found < 0) return clime_fail(e, CLIME_ERR_LIMIT, "Replace: the pattern passed its match limit");
            if (!found) break;
        } else {
            size_t len = strlen(r->literal);
            const char *at = find_literal(text.ptr + from, text.ptr + text.len, r->literal, len);
            if (!at) break;
            start = (size_t)(at - text.ptr);
            end = start + len;
        }
        if (end > start || start > done || !done) { /* an empty match right after a match does not count */
            clime_buf_add(out, text.ptr + done, start - done);
            clime_buf_adds(out, r->content);
            done = end;
        }
        from = end;
        if (end == start) { /* after an empty match advance one character */
            from++;
            while (from < text.len && ((uint8_t)text.ptr[from] & 0xC0) == 0x80) from++;
        }
    }
    clime_buf_add(out, text.ptr + done, text.len - done);
    return CLIME_OK;
}

static enum clime_err load_step(struct clime_normalizer *n, const struct cJSON *node, struct clime_error *e) {
    static const char *const FORMS[] = {"NFC", "NFD", "NFKC", "NFKD"}; /* in the order of the enum */
    const char *type = clime_tree_str(clime_tree_get(node, "type"), "");
    if (strcmp(type, "Sequence") == 0) {
        const struct cJSON *child = clime_tree_first(clime_tree_get(node, "normalizers"));
        for (; child; child = clime_tree_next(child)) {
            enum clime_err rc = load_step(n, child, e);
            if (rc) return rc;
        }
        return CLIME_OK;
    }
    if (n->n_steps == MAX_STEPS) return clime_fail(e, CLIME_ERR_LIMIT, "normalizer: more than %d steps", MAX_STEPS);
    struct step *step = &n->steps[n->n_steps++];
    for (size_t i = 0; i < CLIME_COUNT(FORMS); i++) {
        if (strcmp(type, FORMS[i]) != 0) continue;
        step->kind = STEP_FORM;
        step->form = (enum clime_norm_form)i;
        return CLIME_OK;
    }
    if (strcmp(type, "Prepend") == 0) {
        step->kind = STEP_PREPEND;
        step->prepend = xstrdup(clime_tree_str(clime_tree_get(node, "prepend"), ""));
        return CLIME_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        step->kind = STEP_REPLACE;
        return clime_replace_load(node, &step->replace, e);
    }
    if (strcmp(type, "Strip") == 0) {
        step->kind = STEP_STRIP;
        step->left = clime_tree_bool(clime_tree_get(node, "strip_left"), true);
        step->right = clime_tree_bool(clime_tree_get(node, "strip_right"), true);
        return CLIME_OK;
    }
    return clime_fail(e, CLIME_ERR_INPUT, "normalizer \"%s\" is not supported", type);
}

enum clime_err clime_normalizer_new(const struct cJSON *node, struct clime_normalizer **out, struct clime_error *e) {
    struct clime_normalizer *n = xcalloc(1, sizeof *n);
    enum clime_json_kind kind = clime_tree_kind(node);
    enum clime_err rc = kind == CLIME_JSON_ERROR || kind == CLIME_JSON_NULL ? CLIME_OK : load_step(n, node, e);
    if (rc) {
        clime_normalizer_free(n);
        return rc;
    }
    *out = n;
    return CLIME_OK;
}

void clime_normalizer_free(struct clime_normalizer *n) {
    if (!n) return;
    for (size_t i = 0; i < n->n_steps; i++) {
        free(n->steps[i].prepend);
        clime_replace_free(&n->steps[i].replace);
    }
    free(n);
}

static struct clime_str strip(struct clime_str s, bool left, bool right) {
    const char *end = s.ptr + s.len;
    for (const char *at = s.ptr; left && at < end; s.ptr = at)
        if (!clime_unicode_is_white_space(clime_unicode_next(&at, end))) break;
    while (right && end > s.ptr) {
        const char *last = end - 1;
        while (last > s.ptr && ((uint8_t)*last & 0xC0) == 0x80) last--;
        const char *at = last;
        if (!clime_unicode_is_white_space(clime_unicode_next(&at, end))) break;
        end = last;
    }
    s.len = (size_t)(end - s.ptr);
    return s;
}

enum clime_err clime_normalizer_run(const struct clime_normalizer *n, struct clime_norm_scratch *s,
                                    struct clime_matcher *m, struct clime_str text, struct clime_str *out,
                                    struct clime_error *e) {
    for (size_t i = 0; i < n->n_steps && text.len; i++) {
        const struct step *step = &n->steps[i];
        if (step->kind == STEP_STRIP) {
            text = strip(text, step->left, step->right);
            continue;
        }
        const char *first = s->text[0].data;
        struct clime_buf *to = &s->text[first && text.ptr >= first && text.ptr <= first + s->text[0].len];
        clime_buf_clear(to);
        enum clime_err rc = CLIME_OK;
        if (step->kind == STEP_PREPEND) {
            clime_buf_adds(to, step->prepend);
            clime_buf_add(to, text.ptr, text.len);
        } else if (step->kind == STEP_REPLACE) {
            rc = clime_replace_run(&step->replace, m, text, to, e);
        } else {
            clime_normalize_form(text, step->form, s, to);
        }
        if (rc) return rc;
        if (to->full) return clime_fail(e, CLIME_ERR_LIMIT, "normalised text is longer than %u bytes", MAX_TEXT_BYTES);
        text = clime_buf_str(to);
    }
    *out = text;
    return CLIME_OK;
}
