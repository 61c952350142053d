/* Word overlap after SQuAD's normalisation (Rajpurkar et al., 2016), with HotpotQA's rule that yes, no and noanswer
 * match only themselves. Any thread; no state.
 *
 * Merging the sorted words counts the overlap of the multisets: n log n for any input, no table.
 */
#include <ctype.h>
#include <stdlib.h>

#include "grade/answer.h"
#include "grade/grade.h"
#include "grade/text.h"

/* The length of "a", "an" or "the" as a whole word at s[at], else 0. */
static size_t article_at(struct clime_str s, size_t at) {
    static const char *const articles[] = {"the", "an", "a"};
    size_t n;
    if (at > 0 && clime_rtext_is_word(clime_rtext_char_before(s, at))) return 0;
    for (size_t i = 0; i < CLIME_COUNT(articles); i++) {
        struct clime_str rest = clime_rtext_slice(s, at, s.len);
        size_t len = strlen(articles[i]);
        if (clime_str_starts(rest, articles[i]) &&
            (rest.len == len || !clime_rtext_is_word(clime_rtext_char(rest, len, &n))))
            return len;
    }
    return 0;
}

void clime_answer_squad(struct clime_buf *t) {
    clime_rtext_lower(t);
    size_t n = 0;
    for (size_t i = 0; i < t->len; i++)
        if ((unsigned char)t->data[i] >= 0x80 || !ispunct((unsigned char)t->data[i])) t->data[n++] = t->data[i];
    t->len = n;
    struct clime_str s = clime_buf_str(t);
    struct clime_buf out;
    clime_buf_init(&out, t->cap);
    bool gap = false;
    for (size_t i = 0, len; i < s.len; i += len) {
        size_t article = article_at(s, i);
        if (article || clime_rtext_is_space(clime_rtext_char(s, i, &len))) {
            if (article) len = article;
            gap = true;
            continue;
        }
        if (gap && out.len) clime_buf_addc(&out, ' ');
        gap = false;
        clime_buf_add(&out, s.ptr + i, len);
    }
    clime_buf_free(t);
    *t = out;
}

static int by_bytes(const void *a, const void *b) {
    const struct clime_str *x = a, *y = b;
    int c = memcmp(x->ptr, y->ptr, x->len < y->len ? x->len : y->len);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

/* The words of a normalised text, sorted; the caller frees them. */
static struct clime_str *sorted_words(struct clime_str s, size_t *n_words) {
    size_t n = s.len > 0;
    for (size_t i = 0; i < s.len; i++) n += s.ptr[i] == ' ';
    struct clime_str *words = xmalloc((n + 1) * sizeof *words);
    *n_words = n;
    for (size_t i = 0, from = 0, w = 0; w < n; i++)
        if (i == s.len || s.ptr[i] == ' ') {
            words[w++] = clime_rtext_slice(s, from, i);
            from = i + 1;
        }
    qsort(words, n, sizeof *words, by_bytes);
    return words;
}

static bool is_special(struct clime_str s) {
    return clime_str_is(s, "yes") || clime_str_is(s, "no") || clime_str_is(s, "noanswer");
}

double clime_answer_f1(struct clime_str prediction, struct clime_str truth) {
    struct clime_buf p, t;
    clime_rtext_init(&p, prediction);
    clime_rtext_init(&t, truth);
    clime_answer_squad(&p);
    clime_answer_squad(&t);
    struct clime_str ps = clime_buf_str(&p), ts = clime_buf_str(&t);
    double f1 = 0;
    if (clime_str_eq(ps, ts) || (!is_special(ps) && !is_special(ts))) {
        size_t np, nt, same = 0;
        struct clime_str *pw = sorted_words(ps, &np), *tw = sorted_words(ts, &nt);
        for (size_t i = 0, j = 0; i < np && j < nt;) {
            int c = by_bytes(&pw[i], &tw[j]);
            same += c == 0;
            i += c <= 0;
            j += c >= 0;
        }
        if (same) {
            double precision = (double)same / (double)np, recall = (double)same / (double)nt;
            f1 = 2 * precision * recall / (precision + recall);
        }
        free(pw);
        free(tw);
    }
    clime_buf_free(&p);
    clime_buf_free(&t);
    return f1;
}

enum clime_err clime_grade_f1(const struct clime_grader_input *in, struct clime_reward *out) {
    if (in->label_kind != CLIME_JSON_STRING)
        return clime_fail(&out->error, CLIME_ERR_INPUT, "f1 needs a label that is a string");
    out->value = clime_answer_f1(in->response, in->label);
    return CLIME_OK;
}
