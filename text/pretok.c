/* The pre-tokenizer as a list of stages, each splitting the pieces of the one before.
 *
 * Called by text/tokenizer.c on text threads. Owns the stages and their patterns; the caller owns the scratch.
 * Invariant: a stage sees only its piece, as in the tokenizers library: look-ahead ends at the piece's end.
 * Choice: pieces flow through the stages depth first, so no list of pieces is built; the depth is the number of stages,
 * at most 16 small frames.
 */
#include "text/pretok.h"

#include <stdint.h>
#include <stdlib.h>

#include "common/json/tree.h"
#include "text/normalize.h"

#define MAX_TEXT_BYTES (1u << 30)

enum stage_kind { STAGE_SPLIT, STAGE_PREFIX_SPACE, STAGE_METASPACE };

/* Handling of a Split's matches (the library's SplitDelimiterBehavior). */
enum behavior { REMOVED, ISOLATED, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT, CONTIGUOUS };
static const char *const BEHAVIORS[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};

enum prepend { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER };
static const char *const PREPENDS[] = {"always", "first", "never"};

struct stage {
    enum stage_kind kind;
    struct clime_regex *re; /* splits at its matches; NULL: no split */
    enum behavior behavior;
    bool invert; /* swap matches and gaps */
    char *mark;  /* Metaspace: stands for a space */
    enum prepend prepend;
};

struct clime_pretok {
    struct stage stages[CLIME_PRETOK_MAX_STAGES];
    size_t n_stages;
    bool byte_level;
};

struct run {
    const struct clime_pretok *p;
    struct clime_pretok_scratch *s;
    struct clime_matcher *m;
    clime_piece_fn fn;
    void *arg;
    struct clime_error *e;
};

/* A Split's state between matches: the held piece. */
struct cutter {
    struct run *run;
    size_t stage;
    struct clime_str text;
    bool at_start;
    size_t start, end; /* held piece; empty = none */
    bool match;        /* the last range was a match */
};

void clime_pretok_scratch_init(struct clime_pretok_scratch *s) {
    for (size_t i = 0; i < CLIME_PRETOK_MAX_STAGES; i++) clime_buf_init(&s->text[i], MAX_TEXT_BYTES);
}

void clime_pretok_scratch_free(struct clime_pretok_scratch *s) {
    for (size_t i = 0; i < CLIME_PRETOK_MAX_STAGES; i++) clime_buf_free(&s->text[i]);
}

/* ---- load ---- */

static int find_name(const char *const *names, size_t n, const char *name) {
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0) return (int)i;
    return -1;
}

static struct stage *add_stage(struct clime_pretok *p, enum stage_kind kind) {
    if (p->n_stages == CLIME_PRETOK_MAX_STAGES) return NULL;
    struct stage *stage = &p->stages[p->n_stages++];
    stage->kind = kind;
    return stage;
}

static enum clime_err too_many(struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_LIMIT, "pre_tokenizer: more than %d stages", CLIME_PRETOK_MAX_STAGES);
}

static enum clime_err add_split(struct clime_pretok *p, const char *pattern, bool literal, enum behavior behavior,
                                bool invert, struct clime_error *e) {
    struct stage *stage = add_stage(p, STAGE_SPLIT);
    if (!stage) return too_many(e);
    stage->behavior = behavior;
    stage->invert = invert;
    return clime_regex_new(clime_str_of(pattern), literal, &stage->re, e);
}

static enum clime_err load_split(struct clime_pretok *p, const struct cJSON *node, struct clime_error *e) {
    bool literal = false;
    const char *pattern = clime_pattern_text(clime_tree_get(node, "pattern"), &literal);
    int behavior = find_name(BEHAVIORS, CLIME_COUNT(BEHAVIORS), clime_tree_str(clime_tree_get(node, "behavior"), ""));
    if (!pattern || !*pattern || behavior < 0)
        return clime_fail(e, CLIME_ERR_INPUT, "Split: needs a pattern (String or Regex) and a known behavior");
    bool invert = clime_tree_bool(clime_tree_get(node, "invert"), false);
    return add_split(p, pattern, literal, (enum behavior)behavior, invert, e);
}

static enum clime_err load_byte_level(struct clime_pretok *p, const struct cJSON *node, struct clime_error *e) {
    /* The pattern of GPT-2's encoder.py. */
    static const char GPT2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    if (clime_tree_bool(clime_tree_get(node, "add_prefix_space"), true) && !add_stage(p, STAGE_PREFIX_SPACE))
        return too_many(e);
    p->byte_level = true;
    if (!clime_tree_bool(clime_tree_get(node, "use_regex"), true)) return CLIME_OK;
    return add_split(p, GPT2, false, ISOLATED, false, e);
}

static enum clime_err load_metaspace(struct clime_pretok *p, const struct cJSON *node, struct clime_error *e) {
    const char *scheme = clime_tree_str(clime_tree_get(node, "prepend_scheme"), NULL);
    if (!scheme) scheme = clime_tree_bool(clime_tree_get(node, "add_prefix_space"), true) ? "always" : "never";
    int prepend = find_name(PREPENDS, CLIME_COUNT(PREPENDS), scheme);
    if (prepend < 0) return clime_fail(e, CLIME_ERR_INPUT, "Metaspace: prepend_scheme \"%s\" is not known", scheme);
    struct stage *stage = add_stage(p, STAGE_METASPACE);
    if (!stage) return too_many(e);
    stage->mark = xstrdup(clime_tree_str(clime_tree_get(node, "replacement"), "\xE2\x96\x81"));
    stage->prepend = (enum prepend)prepend;
    if (!clime_tree_bool(clime_tree_get(node, "split"), true)) return CLIME_OK;
    return add_split(p, stage->mark, true, MERGED_WITH_NEXT, false, e);
}

static enum clime_err load_stage(struct clime_pretok *p, const struct cJSON *node, struct clime_error *e) {
    const char *type = clime_tree_str(clime_tree_get(node, "type"), "");
    if (strcmp(type, "Sequence") == 0) {
        const struct cJSON *child = clime_tree_first(clime_tree_get(node, "pretokenizers"));
        for (; child; child = clime_tree_next(child)) {
            enum clime_err rc = load_stage(p, child, e);
            if (rc) return rc;
        }
        return CLIME_OK;
    }
    if (p->byte_level)
        return clime_fail(e, CLIME_ERR_INPUT, "pre_tokenizer \"%s\" after ByteLevel is not supported", type);
    if (strcmp(type, "Split") == 0) return load_split(p, node, e);
    if (strcmp(type, "ByteLevel") == 0) return load_byte_level(p, node, e);
    if (strcmp(type, "Metaspace") == 0) return load_metaspace(p, node, e);
    if (strcmp(type, "Digits") == 0) {
        bool each = clime_tree_bool(clime_tree_get(node, "individual_digits"), false);
        return add_split(p, "\\p{N}", false, each ? ISOLATED : CONTIGUOUS, false, e);
    }
    return clime_fail(e, CLIME_ERR_INPUT, "pre_tokenizer \"%s\" is not supported", type);
}

enum clime_err clime_pretok_new(const struct cJSON *node, struct clime_pretok **out, struct clime_error *e) {
    struct clime_pretok *p = xcalloc(1, sizeof *p);
    enum clime_json_kind kind = clime_tree_kind(node);
    enum clime_err rc = kind == CLIME_JSON_ERROR || kind == CLIME_JSON_NULL ? CLIME_OK : load_stage(p, node, e);
    if (rc) {
        clime_pretok_free(p);
        return rc;
    }
    *out = p;
    return CLIME_OK;
}

void clime_pretok_free(struct clime_pretok *p) {
    if (!p) return;
    for (size_t i = 0; i < p->n_stages; i++) {
        clime_regex_free(p->stages[i].re);
        free(p->stages[i].mark);
    }
    free(p);
}

bool clime_pretok_byte_level(const struct clime_pretok *p) {
    return p->byte_level;
}

/* ---- run ---- */

static enum clime_err run_stage(struct run *r, size_t i, struct clime_str piece, bool at_start);

static enum clime_err flush(struct cutter *c) {
    size_t start = c->start, end = c->end;
    c->start = c->end;
    if (start == end) return CLIME_OK;
    struct clime_str piece = {c->text.ptr + start, end - start};
    return run_stage(c->run, c->stage + 1, piece, c->at_start && start == 0);
}

/* Adds the next range of the text, in order and without gaps: it extends the held piece or replaces it. */
static enum clime_err add_range(struct cutter *c, size_t start, size_t end, bool match) {
    bool join = false;
    switch (c->run->p->stages[c->stage].behavior) {
    case REMOVED:
    case ISOLATED:
        break;
    case MERGED_WITH_PREVIOUS:
        join = match && !c->match;
        break;
    case MERGED_WITH_NEXT:
        join = !match && c->match;
        break;
    case CONTIGUOUS:
        join = match == c->match;
        break;
    }
    c->match = match;
    if (!join) {
        enum clime_err rc = flush(c);
        if (rc) return rc;
        c->start = start;
    }
    c->end = end;
    if (match && c->run->p->stages[c->stage].behavior == REMOVED) c->start = end;
    return CLIME_OK;
}

static enum clime_err split(struct run *r, size_t i, struct clime_str piece, bool at_start) {
    const struct stage *stage = &r->p->stages[i];
    struct cutter c = {.run = r, .stage = i, .text = piece, .at_start = at_start};
    size_t done = 0, last_end = SIZE_MAX;
    for (size_t from = 0; from < piece.len;) {
        size_t start, end;
        int found = clime_regex_find(stage->re, r->m, piece, from, &start, &end);
        if (found < 0) return clime_fail(r->e, CLIME_ERR_LIMIT, "pre-tokenizer: the pattern passed its match limit");
        if (!found) break;
        from = end;
        if (end == start) { /* an empty match splits too, but not right after a match */
            from++;
            while (from < piece.len && ((uint8_t)piece.ptr[from] & 0xC0) == 0x80) from++;
            if (start == last_end) continue;
        }
        enum clime_err rc = start > done ? add_range(&c, done, start, stage->invert) : CLIME_OK;
        if (!rc) rc = add_range(&c, start, end, !stage->invert);
        if (rc) return rc;
        done = last_end = end;
    }
    enum clime_err rc = done < piece.len ? add_range(&c, done, piece.len, stage->invert) : CLIME_OK;
    return rc ? rc : flush(&c);
}

/* Writes the piece with marks for spaces, and a leading mark by the prepend scheme. */
static enum clime_err metaspace(struct run *r, size_t i, struct clime_str piece, bool at_start) {
    const struct stage *stage = &r->p->stages[i];
    struct clime_buf *out = &r->s->text[i];
    size_t mark_len = strlen(stage->mark);
    bool has_mark = piece.ptr[0] == ' ' || (piece.len >= mark_len && memcmp(piece.ptr, stage->mark, mark_len) == 0);
    bool wanted = stage->prepend == PREPEND_ALWAYS || (stage->prepend == PREPEND_FIRST && at_start);
    clime_buf_clear(out);
    if (wanted && !has_mark) clime_buf_add(out, stage->mark, mark_len);
    for (size_t at = 0; at < piece.len;) {
        const char *space = memchr(piece.ptr + at, ' ', piece.len - at);
        size_t end = space ? (size_t)(space - piece.ptr) : piece.len;
        clime_buf_add(out, piece.ptr + at, end - at);
        if (space) clime_buf_add(out, stage->mark, mark_len);
        at = end + (space != NULL);
    }
    if (out->full) return clime_fail(r->e, CLIME_ERR_LIMIT, "Metaspace: text is longer than %u bytes", MAX_TEXT_BYTES);
    return run_stage(r, i + 1, clime_buf_str(out), at_start);
}

static enum clime_err run_stage(struct run *r, size_t i, struct clime_str piece, bool at_start) {
    if (i == r->p->n_stages) return r->fn(r->arg, piece, r->e);
    if (r->p->stages[i].kind == STAGE_SPLIT) return split(r, i, piece, at_start);
    if (r->p->stages[i].kind == STAGE_METASPACE) return metaspace(r, i, piece, at_start);
    if (piece.ptr[0] == ' ') return run_stage(r, i + 1, piece, at_start);
    struct clime_buf *out = &r->s->text[i];
    clime_buf_clear(out);
    clime_buf_addc(out, ' ');
    clime_buf_add(out, piece.ptr, piece.len);
    if (out->full) return clime_fail(r->e, CLIME_ERR_LIMIT, "ByteLevel: text is longer than %u bytes", MAX_TEXT_BYTES);
    return run_stage(r, i + 1, clime_buf_str(out), at_start);
}

enum clime_err clime_pretok_run(const struct clime_pretok *p, struct clime_pretok_scratch *s, struct clime_matcher *m,
                                struct clime_str text, bool at_start, clime_piece_fn fn, void *arg,
                                struct clime_error *e) {
    struct run r = {.p = p, .s = s, .m = m, .fn = fn, .arg = arg, .e = e};
    return text.len ? run_stage(&r, 0, text, at_start) : CLIME_OK;
}
