/* The reward type countdown: an equation over given numbers that reaches a target. Any thread; no state.
 *
 * Scored like TinyZero and AReaL on the last <answer> of the response's last line: 1 when it uses every number exactly
 * once and equals the target, 0.1 when it does not, 0 when absent. Evaluates only + - * / and parentheses, in long
 * double. The label is {"target": 24, "numbers": [1, 2, 3]} (or "nums"), or the target alone with the numbers in the
 * metadata.
 */
#include <math.h>

#include "common/json/tree.h"
#include "grade/grade.h"
#include "grade/text.h"

#define FORMAT_SCORE 0.1
#define MAX_NUMBERS 64
#define MAX_EXPRESSION 1024
#define MAX_DEPTH 64

struct parser {
    struct clime_str s;
    size_t at;
    int depth;
    bool failed;
    double used[MAX_NUMBERS];
    int n_used;
};

static long double sum(struct parser *p);

static char peek(struct parser *p) {
    while (p->at < p->s.len && strchr(" \t\r\f\v", p->s.ptr[p->at])) p->at++;
    return p->at < p->s.len ? p->s.ptr[p->at] : 0;
}

static long double operand(struct parser *p) {
    long double x = 0;
    char c = peek(p);
    if (p->failed || ++p->depth > MAX_DEPTH) {
        p->failed = true;
        return 0;
    }
    if (c == '-' || c == '+') {
        p->at++;
        x = operand(p);
        if (c == '-') x = -x;
    } else if (c == '(') {
        p->at++;
        x = sum(p);
        p->failed |= peek(p) != ')';
        p->at++;
    } else {
        size_t from = p->at;
        for (; p->at < p->s.len && clime_rtext_is_digit(p->s.ptr[p->at]); p->at++)
            x = 10 * x + (long double)(p->s.ptr[p->at] - '0');
        bool zeros = p->at > from + 1 && p->s.ptr[from] == '0'; /* 07 is no number */
        p->failed |= p->at == from || zeros || p->n_used == MAX_NUMBERS;
        if (!p->failed) p->used[p->n_used++] = (double)x;
    }
    p->depth--;
    return x;
}

static long double product(struct parser *p) {
    long double x = operand(p);
    for (char c; !p->failed && ((c = peek(p)) == '*' || c == '/');) {
        p->at++;
        long double y = operand(p);
        p->failed |= c == '/' && y == 0;
        if (!p->failed) x = c == '*' ? x * y : x / y;
    }
    return x;
}

static long double sum(struct parser *p) {
    long double x = product(p);
    for (char c; !p->failed && ((c = peek(p)) == '+' || c == '-');) {
        p->at++;
        x = c == '+' ? x + product(p) : x - product(p);
    }
    return x;
}

struct question {
    double target, numbers[MAX_NUMBERS];
    int n;
    bool has_target, has_numbers;
};

static void read_question(const struct cJSON *tree, struct question *q) {
    const struct cJSON *target = clime_tree_get(tree, "target"), *list = clime_tree_get(tree, "numbers");
    if (!list) list = clime_tree_get(tree, "nums");
    if (clime_tree_kind(target) == CLIME_JSON_NUMBER) {
        q->target = clime_tree_num(target, 0);
        q->has_target = true;
    }
    if (!list || clime_tree_kind(list) != CLIME_JSON_ARRAY) return;
    q->has_numbers = true;
    q->n = 0;
    for (const struct cJSON *x = clime_tree_first(list); x; x = clime_tree_next(x)) {
        if (clime_tree_kind(x) != CLIME_JSON_NUMBER || q->n == MAX_NUMBERS) {
            q->has_numbers = false;
            return;
        }
        q->numbers[q->n++] = clime_tree_num(x, 0);
    }
}

static bool uses_all(const struct parser *p, const struct question *q) {
    bool taken[MAX_NUMBERS] = {false};
    if (p->n_used != q->n) return false;
    for (int i = 0; i < q->n; i++) {
        int k = 0;
        while (k < q->n && (taken[k] || p->used[k] != q->numbers[i])) k++;
        if (k == q->n) return false;
        taken[k] = true;
    }
    return true;
}

/* The content of the last <answer> of the last line; false when absent. */
static bool find_answer(struct clime_str s, struct clime_str *out) {
    int64_t line = clime_rtext_rfind(s, "\n");
    s = clime_rtext_slice(s, (size_t)(line + 1), s.len);
    int64_t end = clime_rtext_rfind(s, "</answer>");
    if (end < 0) return false;
    s.len = (size_t)end;
    int64_t begin = clime_rtext_rfind(s, "<answer>");
    if (begin < 0) return false;
    *out = clime_rtext_strip(clime_rtext_slice(s, (size_t)begin + strlen("<answer>"), s.len));
    return true;
}

enum clime_err clime_grade_countdown(const struct clime_grader_input *in, struct clime_reward *out) {
    struct question q = {0};
    struct cJSON *tree = NULL;
    struct parser p = {0};
    if (in->metadata.len && !clime_tree_parse(in->metadata.ptr, in->metadata.len, &tree, &out->error)) {
        read_question(tree, &q);
        clime_tree_free(tree);
    }
    if (out->error.code) return out->error.code;
    if (in->label_kind == CLIME_JSON_OBJECT) {
        if (clime_tree_parse(in->label.ptr, in->label.len, &tree, &out->error)) return out->error.code;
        read_question(tree, &q);
        clime_tree_free(tree);
    } else {
        q.has_target |= clime_rtext_float(in->label, &q.target);
    }
    if (!q.has_target || !q.has_numbers)
        return clime_fail(&out->error, CLIME_ERR_INPUT,
                          "countdown needs {\"target\", \"numbers\"} as its label, or the numbers in the metadata");
    if (!find_answer(in->response, &p.s)) return CLIME_OK;
    out->value = FORMAT_SCORE;
    if (p.s.len > MAX_EXPRESSION) return CLIME_OK;
    long double x = sum(&p);
    bool whole = !p.failed && peek(&p) == 0 && p.at == p.s.len;
    if (whole && uses_all(&p, &q) && fabsl(x - (long double)q.target) < 1e-5L) out->value = 1;
    return CLIME_OK;
}
