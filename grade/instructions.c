/* Shared functions of the instruction checkers: arguments, words, pieces (see instructions.h). Any thread; no state. */
#include "grade/instructions.h"

#include "common/err.h"
#include "grade/text.h"

struct clime_str clime_instruction_text(struct clime_instruction *in, const char *name) {
    const struct cJSON *v = in->kwargs ? clime_tree_get(in->kwargs, name) : NULL;
    if (!v || clime_tree_kind(v) != CLIME_JSON_STRING) {
        in->missing = name;
        return clime_str_of("");
    }
    return clime_str_of(clime_tree_str(v, ""));
}

double clime_instruction_number(struct clime_instruction *in, const char *name) {
    const struct cJSON *v = in->kwargs ? clime_tree_get(in->kwargs, name) : NULL;
    if (v && clime_tree_kind(v) == CLIME_JSON_NUMBER) return clime_tree_num(v, 0);
    in->missing = name;
    return 0;
}

const struct cJSON *clime_instruction_list(struct clime_instruction *in, const char *name) {
    const struct cJSON *v = in->kwargs ? clime_tree_get(in->kwargs, name) : NULL;
    bool texts = v && clime_tree_kind(v) == CLIME_JSON_ARRAY;
    for (const struct cJSON *one = texts ? clime_tree_first(v) : NULL; one; one = clime_tree_next(one))
        texts = texts && clime_tree_kind(one) == CLIME_JSON_STRING;
    if (!texts) in->missing = name;
    return texts ? clime_tree_first(v) : NULL;
}

bool clime_instruction_word(struct clime_str *rest, struct clime_str *word) {
    size_t n, from = 0, to;
    while (from < rest->len && clime_rtext_is_space(clime_rtext_char(*rest, from, &n))) from += n;
    for (to = from; to < rest->len && !clime_rtext_is_space(clime_rtext_char(*rest, to, &n));) to += n;
    *word = clime_rtext_slice(*rest, from, to);
    *rest = clime_rtext_slice(*rest, to, rest->len);
    return word->len > 0;
}

bool clime_instruction_piece(struct clime_str *rest, const char *mark, struct clime_str *piece) {
    if (!rest->ptr) return false;
    int64_t at = clime_rtext_find(*rest, mark, 0);
    *piece = at < 0 ? *rest : clime_rtext_slice(*rest, 0, (size_t)at);
    *rest = at < 0 ? (struct clime_str){NULL, 0} : clime_rtext_slice(*rest, (size_t)at + strlen(mark), rest->len);
    return true;
}

bool clime_instruction_is_punctuation(char c) {
    return c && strchr("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c);
}

struct clime_str clime_instruction_strip(struct clime_str s, bool left, bool right) {
    while (left && s.len && (s.ptr[0] == ' ' || clime_instruction_is_punctuation(s.ptr[0])))
        s = clime_rtext_slice(s, 1, s.len);
    while (right && s.len && (s.ptr[s.len - 1] == ' ' || clime_instruction_is_punctuation(s.ptr[s.len - 1]))) s.len--;
    return s;
}

size_t clime_instruction_count_words(struct clime_str s) {
    size_t count = 0, n;
    bool inside = false;
    for (size_t i = 0; i < s.len; i += n) {
        bool word = clime_rtext_is_word(clime_rtext_char(s, i, &n));
        count += word && !inside;
        inside = word;
    }
    return count;
}

/* \b at offset `at`: exactly one side is a word character. */
static bool is_boundary(struct clime_str s, size_t at) {
    size_t n;
    bool before = at > 0 && clime_rtext_is_word(clime_rtext_char_before(s, at));
    bool behind = at < s.len && clime_rtext_is_word(clime_rtext_char(s, at, &n));
    return before != behind;
}

size_t clime_instruction_count_whole(struct clime_str s, struct clime_str word) {
    size_t count = 0;
    if (word.len == 0) return 0;
    for (size_t i = 0; i + word.len <= s.len;) {
        const char *at = memmem(s.ptr + i, s.len - i, word.ptr, word.len);
        if (!at) break;
        i = (size_t)(at - s.ptr);
        bool whole = is_boundary(s, i) && is_boundary(s, i + word.len);
        count += whole;
        i += whole ? word.len : 1;
    }
    return count;
}

void clime_instruction_without_punctuation(struct clime_buf *out, struct clime_str s) {
    clime_rtext_init(out, s);
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++)
        if (!clime_instruction_is_punctuation(s.ptr[i])) out->data[n++] = s.ptr[i];
    out->len = n;
    if (out->data) out->data[n] = 0;
}

bool clime_instruction_same_lower(struct clime_str a, struct clime_str b) {
    struct clime_buf x, y;
    clime_rtext_init(&x, a);
    clime_rtext_init(&y, b);
    clime_rtext_lower(&x);
    clime_rtext_lower(&y);
    bool same = clime_str_eq(clime_buf_str(&x), clime_buf_str(&y));
    clime_buf_free(&x);
    clime_buf_free(&y);
    return same;
}

size_t clime_instruction_numbers(struct clime_str s, struct clime_str *out, size_t max) {
    size_t n = 0;
    for (size_t i = 0; i < s.len; i++) {
        size_t from = i;
        while (i < s.len && clime_rtext_is_digit(s.ptr[i])) i++;
        if (i == from) continue;
        if (n < max) out[n] = clime_rtext_slice(s, from, i);
        n++;
    }
    return n;
}

struct clime_instruction_words clime_instruction_words_of(struct clime_str s) {
    struct clime_instruction_words list = {xcalloc(s.len / 2 + 2, sizeof *list.w), 0};
    while (clime_instruction_word(&s, &list.w[list.n])) list.n++;
    return list;
}
