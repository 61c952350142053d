/* What masks cost a step: 32 sequences under four JSON schemas, a real vocabulary, tokens drawn at random of those
 * allowed.
 *
 * Usage: bench_grammar TOKENIZER_DIR [vocabulary [step_us]]. step_us: a decode step of 32 sequences to hold the figures
 * against. Measured is what the engine thread does for grammars between two steps: the token is taken, the next mask
 * found and copied. First with nothing kept, every state new, then with other draws, as in a rollout's later requests.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/rng.h"
#include "text/grammar/grammar.h"

#define N 32
#define STEPS 120

static const char *const schemas[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"age\":{\"type\":\"integer\",\"minimum\":0,"
    "\"maximum\":150},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\"}},\"city\":{\"type\":\"string\",\"maxLength\":80}},"
    "\"required\":[\"name\",\"age\",\"tags\",\"city\"]}",
    "{\"type\":\"object\",\"properties\":{\"steps\":{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{"
    "\"explanation\":{"
    "\"type\":\"string\"},\"output\":{\"type\":\"string\"}},\"required\":[\"explanation\",\"output\"]}},\"answer\":{"
    "\"type\":\"number\"}},"
    "\"required\":[\"steps\",\"answer\"]}",
    "{\"type\":\"object\"}",
    "{\"$ref\":\"#/$defs/"
    "node\",\"$defs\":{\"node\":{\"type\":\"object\",\"properties\":{\"op\":{\"enum\":[\"+\",\"-\",\"*\",\"/"
    "\"]},\"left\":{"
    "\"$ref\":\"#/$defs/side\"},\"right\":{\"$ref\":\"#/$defs/"
    "side\"},\"note\":{\"type\":\"string\"}},\"required\":[\"op\",\"left\",\"right\","
    "\"note\"]},\"side\":{\"anyOf\":[{\"type\":\"integer\"},{\"$ref\":\"#/$defs/node\"}]}}}",
};

static double spent_us, slowest_us;
static int64_t n_masks;

/* Of this thread, so that others on the machine do not count. */
static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* One of the allowed tokens, each as likely; -1: only the end may come. */
static int32_t draw(const uint32_t *mask, int V, struct clime_rng *rng) {
    int64_t n = 0;
    for (int i = 0; i < (V + 31) / 32; i++) n += __builtin_popcount(mask[i]);
    if (n == 0) return -1;
    n = (int64_t)clime_rng_below(rng, (uint64_t)n);
    for (int32_t id = 0;; id++)
        if (mask[id >> 5] >> (id & 31) & 1 && n-- == 0) return id;
}

static void run(struct clime_grammar *const *g, int V, uint64_t seed) {
    struct clime_grammar_state *s[N];
    size_t bytes = ((size_t)V + 31) / 32 * 4;
    uint32_t *mask = xmalloc(bytes);
    struct clime_rng rng;
    clime_rng_init(&rng, seed);
    spent_us = slowest_us = n_masks = 0;
    for (int i = 0; i < N; i++) s[i] = clime_grammar_state_new(g[i % (int)CLIME_COUNT(schemas)]);
    for (int step = 0; step < STEPS; step++) {
        double step_us = 0;
        for (int i = 0; i < N; i++) {
            double t0 = now_us();
            struct clime_grammar_next next = clime_grammar_state_next(s[i]);
            if (next.allowed) memcpy(mask, next.allowed, bytes);
            step_us += now_us() - t0;
            n_masks++;
            int32_t id = next.allowed ? draw(mask, V, &rng) : -1;
            if (id >= 0) {
                clime_grammar_state_add(s[i], id);
                continue;
            }
            clime_grammar_state_free(s[i]); /* the next request of its kind */
            s[i] = clime_grammar_state_new(g[i % (int)CLIME_COUNT(schemas)]);
        }
        spent_us += step_us;
        if (step_us > slowest_us) slowest_us = step_us;
    }
    for (int i = 0; i < N; i++) clime_grammar_state_free(s[i]);
    free(mask);
}

static void print(const char *what, double step_us) {
    double mean = spent_us / STEPS;
    printf("masks of %d sequences, %s: %.0f us a step (slowest %.0f), %.2f us a mask", N, what, mean, slowest_us,
           spent_us / (double)n_masks);
    if (step_us > 0) printf(", %.1f %% of a step of %.0f us", 100 * mean / step_us, step_us);
    printf("\n");
}

int main(int argc, char **argv) {
    struct clime_tokenizer *t = NULL;
    struct clime_error e = {0};
    struct clime_grammar *g[CLIME_COUNT(schemas)];
    if (argc < 2) {
        fprintf(stderr, "usage: bench_grammar TOKENIZER_DIR [vocabulary [step_us]]\n");
        return 2;
    }
    if (clime_tokenizer_load(argv[1], &t, &e)) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    int V = argc > 2 ? (int)strtol(argv[2], NULL, 10) : clime_tokenizer_n_vocab(t);
    double step_us = argc > 3 ? strtod(argv[3], NULL) : 0;
    size_t n_eos;
    const int32_t *eos = clime_tokenizer_eos(t, &n_eos);
    double t0 = now_us();
    struct clime_vocab_trie *trie = clime_vocab_trie_new(t, V, eos, n_eos);
    double t1 = now_us();
    for (size_t i = 0; i < CLIME_COUNT(schemas); i++) {
        const struct clime_grammar_source s = {.kind = CLIME_GRAMMAR_SCHEMA, .text = clime_str_of(schemas[i])};
        if (clime_grammar_compile(trie, &s, &g[i], &e)) {
            fprintf(stderr, "%s\n", e.msg);
            return 1;
        }
    }
    double t2 = now_us();
    printf("vocabulary of %d: trie of %d nodes in %.1f ms; a schema compiled in %.2f ms\n", V, trie->n_nodes,
           (t1 - t0) / 1e3, (t2 - t1) / 1e3 / (double)CLIME_COUNT(schemas));
    run(g, V, 1);
    print("every state new", step_us);
    for (uint64_t seed = 2; seed < 10; seed++) run(g, V, seed);
    print("later requests", step_us);
    for (size_t i = 0; i < CLIME_COUNT(schemas); i++) {
        printf("%s%.1f MB", i ? ", " : "kept by the four: ", (double)clime_grammar_bytes(g[i]) / 1e6);
        clime_grammar_unref(g[i]);
    }
    printf("\n");
    clime_vocab_trie_free(trie);
    clime_tokenizer_free(t);
    return 0;
}
