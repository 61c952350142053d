/* Multiple choice (GPQA and similar): tests the letter that a response chooses. Any thread; no state.
 *
 * The letter is sought after "answer is", before "is correct", after "final answer", then as the last isolated capital;
 * text up to the last </think> is ignored. Without a letter, the right answer's text in the response counts. The
 * patterns and their order are slime's, quirks included ("answers" chooses S).
 */
#include <ctype.h>
#include <stdlib.h>

#include "common/json/tree.h"
#include "grade/answer.h"
#include "grade/grade.h"
#include "grade/text.h"

#define MAX_CHOICES 26
static const char ALPHABET[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ";

static struct clime_str without_thoughts(struct clime_str s) {
    int64_t at = clime_rtext_rfind(s, "</think>");
    return at < 0 ? s : clime_rtext_slice(s, (size_t)at + strlen("</think>"), s.len);
}

static bool word_at(struct clime_str s, size_t at, const char *word) {
    size_t n = strlen(word);
    return at <= s.len && s.len - at >= n && strncasecmp(s.ptr + at, word, n) == 0;
}

static size_t skip_space(struct clime_str s, size_t at) {
    size_t n;
    while (at < s.len && clime_rtext_is_space(clime_rtext_char(s, at, &n))) at += n;
    return at;
}

static char letter_at(struct clime_str s, size_t at) {
    return at < s.len && isalpha((unsigned char)s.ptr[at]) ? (char)toupper((unsigned char)s.ptr[at]) : 0;
}

/* \s*(?:is|:)?\s*([A-Z]) at s[at], any case; tries first with the optional word, then without. */
static char letter_behind(struct clime_str s, size_t at) {
    size_t i = skip_space(s, at), verb = word_at(s, i, "is") ? 2 : word_at(s, i, ":") ? 1 : 0;
    char c = verb ? letter_at(s, skip_space(s, i + verb)) : 0;
    return c ? c : letter_at(s, i);
}

/* The first letter after one of the n words, which follow "final" and white space when `final` is set. */
static char behind_words(struct clime_str s, const char *const *words, size_t n, bool final) {
    for (size_t at = 0; at < s.len; at++) {
        size_t i = at;
        if (final && !word_at(s, at, "final")) continue;
        if (final) i = skip_space(s, at + strlen("final"));
        for (size_t w = 0; w < n; w++) {
            char c = word_at(s, i, words[w]) ? letter_behind(s, i + strlen(words[w])) : 0;
            if (c) return c;
        }
    }
    return 0;
}

/* ([A-Z])\s*is\s*(?:the)?\s*correct, any case. */
static char before_correct(struct clime_str s) {
    for (size_t at = 0; at < s.len; at++) {
        char c = letter_at(s, at);
        size_t i = c ? skip_space(s, at + 1) : 0;
        if (!c || !word_at(s, i, "is")) continue;
        i = skip_space(s, i + 2);
        if (word_at(s, i, "correct") || (word_at(s, i, "the") && word_at(s, skip_space(s, i + 3), "correct"))) return c;
    }
    return 0;
}

char clime_answer_choice(struct clime_str response, const char *valid) {
    static const char *const words[] = {"answer", "option", "choice"};
    struct clime_str s = without_thoughts(response);
    for (int pattern = 0; pattern < 3; pattern++) {
        char c = pattern == 1 ? before_correct(s) : behind_words(s, words, pattern == 0 ? 3 : 2, pattern == 2);
        if (c && strchr(valid, c)) return c;
    }
    for (size_t at = s.len; at-- > 0;) {
        size_t n;
        if (s.ptr[at] < 'A' || s.ptr[at] > 'Z' || !strchr(valid, s.ptr[at])) continue;
        if (at > 0 && clime_rtext_is_word(clime_rtext_char_before(s, at))) continue;
        if (at + 1 < s.len && clime_rtext_is_word(clime_rtext_char(s, at + 1, &n))) continue;
        return s.ptr[at];
    }
    return 0;
}

/* Lower case; replaces runs of other characters than a-z and 0-9 by a space. */
static void plain_words(struct clime_buf *t) {
    clime_rtext_lower(t);
    size_t n = 0;
    for (size_t i = 0; i < t->len; i++) {
        char c = t->data[i];
        if ((c >= 'a' && c <= 'z') || clime_rtext_is_digit(c))
            t->data[n++] = c;
        else if (n && t->data[n - 1] != ' ')
            t->data[n++] = ' ';
    }
    while (n && t->data[n - 1] == ' ') n--;
    t->len = n;
    if (t->data) t->data[n] = 0;
}

/* A question: the letters, the text of each choice, the right letter. */
struct question {
    char valid[MAX_CHOICES + 1];
    struct clime_buf choices[MAX_CHOICES]; /* normalised */
    int n_choices;
    char right; /* 0 = unknown */
};

static void add_scalar(struct clime_buf *out, const struct cJSON *n) {
    switch (clime_tree_kind(n)) {
    case CLIME_JSON_STRING:
        clime_buf_adds(out, clime_tree_str(n, ""));
        break;
    case CLIME_JSON_BOOL:
        clime_buf_adds(out, clime_tree_bool(n, false) ? "True" : "False");
        break;
    case CLIME_JSON_NULL:
        clime_buf_adds(out, "None");
        break;
    case CLIME_JSON_NUMBER: {
        double v = clime_tree_num(n, 0);
        if (v == (double)(int64_t)v)
            clime_rtext_print_whole(out, v);
        else
            clime_rtext_print_float(out, v);
        break;
    }
    default:
        break;
    }
}

static void add_target(struct clime_buf *out, const struct cJSON *n) {
    clime_rtext_init(out, clime_str_of(""));
    add_scalar(out, n);
    plain_words(out);
}

static enum clime_err read_question(const struct cJSON *meta, const struct clime_grader_input *in, struct question *q,
                                    struct clime_error *e) {
    const struct cJSON *choices = clime_tree_get(meta, "choices"), *valid = clime_tree_get(meta, "valid_letters");
    const struct cJSON *right = clime_tree_get(meta, "correct_letter");
    size_t n = 0;
    for (const struct cJSON *c = clime_tree_first(choices); c; c = clime_tree_next(c)) {
        if (q->n_choices == MAX_CHOICES) return clime_fail(e, CLIME_ERR_LIMIT, "more than %d choices", MAX_CHOICES);
        add_target(&q->choices[q->n_choices++], c);
    }
    for (const struct cJSON *v = clime_tree_first(valid); v; v = clime_tree_next(v)) {
        const char *z = clime_tree_str(v, "");
        if (!isalpha((unsigned char)z[0]) || z[1])
            return clime_fail(e, CLIME_ERR_INPUT, "valid_letters holds \"%s\"", z);
        if (n < MAX_CHOICES) q->valid[n++] = (char)toupper((unsigned char)z[0]);
    }
    if (n == 0) memcpy(q->valid, ALPHABET, q->n_choices ? (size_t)q->n_choices : 10);
    struct clime_str letter = clime_rtext_strip(clime_str_of(clime_tree_str(right, "")));
    if (letter.len) q->right = letter.len == 1 ? (char)toupper((unsigned char)letter.ptr[0]) : '?';
    struct clime_str label = clime_rtext_strip(in->label);
    double number;
    if (in->label_kind == CLIME_JSON_STRING) {
        char c = label.len == 1 ? (char)toupper((unsigned char)label.ptr[0]) : 0;
        if (c && !q->right && strchr(q->valid, c)) q->right = c;
    } else if (in->label_kind == CLIME_JSON_BOOL) {
        q->right = q->valid[!in->label_is_falsy];
    } else if (in->label_kind == CLIME_JSON_NUMBER && clime_rtext_float(in->label, &number) && number > -1 &&
               number < (double)strlen(q->valid)) {
        q->right = q->valid[(int)number];
    }
    return CLIME_OK;
}

/* True when the words of target occur in the response's words. */
static bool holds(const struct clime_buf *words, const struct clime_buf *target) {
    if (target->len == 0) return false;
    struct clime_buf padded;
    clime_rtext_init(&padded, clime_str_of(" "));
    clime_buf_add(&padded, target->data, target->len);
    clime_buf_addc(&padded, ' ');
    bool found = clime_rtext_find(clime_buf_str(words), padded.data, 0) >= 0;
    clime_buf_free(&padded);
    return found;
}

static const char *const text_keys[] = {"correct_answer", "answer_text"};

static bool is_text(const struct cJSON *value) {
    return clime_tree_kind(value) == CLIME_JSON_STRING || clime_tree_kind(value) == CLIME_JSON_NUMBER;
}

/* Tests the response for the texts that count as the right answer. */
static bool text_matches(const struct cJSON *meta, const struct clime_grader_input *in, const struct question *q,
                         const struct clime_buf *label) {
    struct clime_buf words, target;
    clime_rtext_init(&words, without_thoughts(in->response));
    plain_words(&words);
    char *body = clime_buf_take(&words);
    clime_buf_printf(&words, " %s ", body);
    free(body);
    const char *place = q->right ? strchr(q->valid, q->right) : NULL;
    bool found = place && place - q->valid < q->n_choices && holds(&words, &q->choices[place - q->valid]);
    for (size_t i = 0; i < CLIME_COUNT(text_keys) && !found; i++) {
        const struct cJSON *value = clime_tree_get(meta, text_keys[i]);
        if (!is_text(value)) continue;
        add_target(&target, value);
        found = holds(&words, &target);
        clime_buf_free(&target);
    }
    struct clime_str z = clime_rtext_strip(in->label);
    bool is_letter = z.len == 1 && strchr(q->valid, toupper((unsigned char)z.ptr[0]));
    if (!found && in->label_kind == CLIME_JSON_STRING && z.len && !is_letter) found = holds(&words, label);
    clime_buf_free(&words);
    return found;
}

/* True when the right answer is known in any form. */
static bool has_target(const struct cJSON *meta, const struct question *q, bool has_text) {
    bool has = q->right || has_text;
    for (size_t i = 0; i < CLIME_COUNT(text_keys) && !has; i++) has = is_text(clime_tree_get(meta, text_keys[i]));
    return has;
}

enum clime_err clime_grade_gpqa(const struct clime_grader_input *in, struct clime_reward *out) {
    struct cJSON *meta = NULL;
    struct question q = {.right = 0};
    struct clime_buf label;
    enum clime_err rc = CLIME_OK;
    clime_rtext_init(&label, in->label);
    plain_words(&label);
    if (in->metadata.len && (rc = clime_tree_parse(in->metadata.ptr, in->metadata.len, &meta, &out->error))) goto done;
    if ((rc = read_question(meta, in, &q, &out->error))) goto done;
    bool has_text = in->label_kind == CLIME_JSON_STRING && clime_rtext_strip(in->label).len > 0;
    for (int i = 0; i < q.n_choices && has_text && !q.right && i < (int)strlen(q.valid); i++)
        if (clime_str_eq(clime_buf_str(&q.choices[i]), clime_buf_str(&label))) q.right = q.valid[i];
    if (!has_target(meta, &q, has_text)) {
        rc = clime_fail(
            &out->error, CLIME_ERR_INPUT,
            "gpqa needs a label that is one of the choices, or correct_letter, correct_answer or answer_text "
            "in the metadata");
        goto done;
    }
    char chosen = clime_answer_choice(in->response, q.valid);
    if (chosen && q.right)
        out->value = chosen == q.right;
    else
        out->value = text_matches(meta, in, &q, &label);
done:
    for (int i = 0; i < q.n_choices; i++) clime_buf_free(&q.choices[i]);
    clime_buf_free(&label);
    clime_tree_free(meta);
    return rc;
}
