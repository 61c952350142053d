/* clime-train task: writes DIR/warmup.jsonl ({"prompt","response"} for sft), DIR/train.jsonl and DIR/heldout.jsonl
 * ({"prompt","label"} for rl and eval). Runs alone on the main thread.
 *
 * All questions of a kind are listed, shuffled by the seed and dealt out, so the parts are disjoint by construction.
 * A kind is a row in the table below: how many questions there are, and the text and answer of the i-th. */
#include "trainer/cmd/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/json/write.h"
#include "common/log.h"
#include "common/options/options.h"
#include "common/os/dirs.h"
#include "common/rng.h"

#define MAX_QUESTIONS ((int64_t)4 << 20)

struct kind {
    const char *name;
    int64_t (*count)(int64_t max_operand);
    void (*ask)(int64_t max_operand, int64_t i, char question[64], char answer[32]);
};

static int64_t count_pairs(int64_t max) {
    return (max + 1) * (max + 1);
}

static void ask_add(int64_t max, int64_t i, char question[64], char answer[32]) {
    int64_t a = i / (max + 1), b = i % (max + 1);
    snprintf(question, 64, "%lld+%lld", (long long)a, (long long)b);
    snprintf(answer, 32, "%lld", (long long)(a + b));
}

static void ask_subtract(int64_t max, int64_t i, char question[64], char answer[32]) {
    int64_t a = i / (max + 1), b = i % (max + 1);
    snprintf(question, 64, "%lld-%lld", (long long)a, (long long)b);
    snprintf(answer, 32, "%lld", (long long)(a - b));
}

static void ask_larger(int64_t max, int64_t i, char question[64], char answer[32]) {
    int64_t a = i / (max + 1), b = i % (max + 1);
    snprintf(question, 64, "larger of %lld and %lld", (long long)a, (long long)b);
    snprintf(answer, 32, "%lld", (long long)(a > b ? a : b));
}

static int64_t count_fours(int64_t max) {
    return max > 99 ? INT64_MAX : (max + 1) * (max + 1) * (max + 1) * (max + 1);
}

static void ask_largest(int64_t max, int64_t i, char question[64], char answer[32]) {
    long long x[4], most = 0;
    for (int k = 3; k >= 0; k--, i /= max + 1) {
        x[k] = (long long)(i % (max + 1));
        if (x[k] > most) most = x[k];
    }
    snprintf(question, 64, "largest of %lld %lld %lld %lld", x[0], x[1], x[2], x[3]);
    snprintf(answer, 32, "%lld", most);
}

static const struct kind kinds[] = {
    {"add", count_pairs, ask_add},
    {"subtract", count_pairs, ask_subtract},
    {"larger", count_pairs, ask_larger},
    {"largest", count_fours, ask_largest},
};

struct task_options {
    int kind;
    int64_t max_operand, n_warmup, n_train, n_heldout, seed;
};

/* Refuses existing files: the names are common, so they may hold anything. */
static enum clime_err refuse_taken(const char *dir, struct clime_error *e) {
    static const char *const names[] = {"warmup", "heldout", "train"};
    enum clime_err err = CLIME_OK;
    for (size_t i = 0; i < CLIME_COUNT(names) && !err; i++) {
        char *path = xasprintf("%s/%s.jsonl", dir, names[i]);
        if (!access(path, F_OK))
            err = clime_fail(e, CLIME_ERR_INPUT, "%s is there already: remove it, or name another folder", path);
        free(path);
    }
    return err;
}

static enum clime_err write_part(const char *dir, const char *name, const struct task_options *o, const int64_t *which,
                                 int64_t n, const char *answer_key, struct clime_error *e) {
    char *path = xasprintf("%s/%s.jsonl", dir, name);
    FILE *f = fopen(path, "wb");
    struct clime_buf line;
    clime_buf_init(&line, 4096);
    bool bad = !f;
    for (int64_t i = 0; !bad && i < n; i++) {
        char question[64], answer[32];
        struct clime_jw w;
        kinds[o->kind].ask(o->max_operand, which[i], question, answer);
        clime_buf_clear(&line);
        clime_jw_init(&w, &line);
        clime_jw_object(&w);
        clime_jw_put_strz(&w, "prompt", question);
        clime_jw_put_strz(&w, answer_key, answer);
        clime_jw_close(&w);
        clime_buf_addc(&line, '\n');
        bad = fwrite(line.data, 1, line.len, f) != line.len;
    }
    if (f && fclose(f)) bad = true;
    clime_buf_free(&line);
    enum clime_err err = bad ? clime_fail(e, CLIME_ERR_IO, "cannot write %s", path) : CLIME_OK;
    if (!err) printf("%s: %lld questions\n", path, (long long)n);
    free(path);
    return err;
}

static enum clime_err write_task(const char *dir, const struct task_options *o, struct clime_error *e) {
    int64_t n = kinds[o->kind].count(o->max_operand), wanted = o->n_warmup + o->n_heldout + o->n_train;
    if (n > MAX_QUESTIONS)
        return clime_fail(e, CLIME_ERR_LIMIT, "--max-operand %lld gives %lld questions; at most %lld can be dealt out",
                          (long long)o->max_operand, (long long)n, (long long)MAX_QUESTIONS);
    if (wanted > n)
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%lld questions are wanted and kind '%s' has %lld with --max-operand %lld", (long long)wanted,
                          kinds[o->kind].name, (long long)n, (long long)o->max_operand);
    enum clime_err err = refuse_taken(dir, e);
    if (err || (err = clime_make_dirs(dir, e))) return err;
    int64_t *order = xmalloc((size_t)n * sizeof *order);
    struct clime_rng rng;
    clime_rng_init(&rng, (uint64_t)o->seed);
    for (int64_t i = 0; i < n; i++) order[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t k = (int64_t)clime_rng_below(&rng, (uint64_t)i + 1), keep = order[i];
        order[i] = order[k];
        order[k] = keep;
    }
    int64_t n_train = o->n_train ? o->n_train : n - o->n_warmup - o->n_heldout;
    err = write_part(dir, "warmup", o, order, o->n_warmup, "response", e);
    if (!err) err = write_part(dir, "heldout", o, order + o->n_warmup, o->n_heldout, "label", e);
    if (!err) err = write_part(dir, "train", o, order + o->n_warmup + o->n_heldout, n_train, "label", e);
    free(order);
    return err;
}

int clime_task_main(int argc, char **argv) {
    struct clime_error e = {0};
    struct task_options o = {0};
    const char *dir = NULL;
    const struct clime_opt table[] = {
        {"kind", CLIME_OPT_CHOICE, &o.kind, "add", "add|subtract|larger|largest", "what is asked"},
        {"max-operand", CLIME_OPT_INT, &o.max_operand, "99", "N", "operands are 0..N", 1, 99999},
        {"num-warmup", CLIME_OPT_INT, &o.n_warmup, "1000", "N", "questions with answers, for sft", 0, 1 << 22},
        {"num-heldout", CLIME_OPT_INT, &o.n_heldout, "200", "N", "questions for evaluation", 1, 1 << 22},
        {"num-train", CLIME_OPT_INT, &o.n_train, "0", "N", "questions for rl; 0 = all that are left", 0, 1 << 22},
        {"seed", CLIME_OPT_INT, &o.seed, "1234", "N", "seed of the deal", 0, 9e15},
    };
    enum clime_err err = clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, &dir, 1,
                                             "clime-train task DIR [options]\nWrites generated questions.", &e);
    if (!err && !dir) err = clime_fail(&e, CLIME_ERR_INPUT, "task needs the folder to write: clime-train task DIR");
    if (!err) err = write_task(dir, &o, &e);
    if (err) LOG_ERROR("task: %s", e.msg);
    return err ? 1 : 0;
}
