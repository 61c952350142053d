/* The fuzzing loop (see fuzz.h). */
#include "fuzz.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/err.h"
#include "common/hash.h"
#include "common/options/options.h"
#include "common/rng.h"

static int64_t seed, now_at;

/* Says which case was running; called when a sanitizer or CHECK ends the program. */
static void report(void) {
    char line[100];
    int n =
        snprintf(line, sizeof line, "fuzz: failed at --seed %lld --only %lld\n", (long long)seed, (long long)now_at);
    if (write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

static void on_abort(int signal_number) {
    (void)signal_number;
    report();
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak)); /* the address sanitizer's */
const char *__ubsan_default_options(void);                                         /* called by the other one */

const char *__ubsan_default_options(void) {
    return "abort_on_error=1:print_stacktrace=1";
}

struct text {
    char *data;
    size_t len, max;
};

static void cut(struct text *t, size_t at, size_t n) {
    memmove(t->data + at, t->data + at + n, t->len - at - n);
    t->len -= n;
}

static void paste(struct text *t, size_t at, const char *piece, size_t n) {
    if (n > t->max - t->len) n = t->max - t->len;
    memmove(t->data + at + n, t->data + at, t->len - at);
    memcpy(t->data + at, piece, n);
    t->len += n;
}

static size_t pick(struct clime_rng *r, size_t n) {
    return n ? (size_t)clime_rng_below(r, n) : 0;
}

static void mutate(const struct fuzz *f, struct clime_rng *r, struct text *t) {
    static const unsigned char bytes[] = {0,   1,   9,    10,   31,   32,   '"',  '\\', '0',
                                          '9', '-', 0x7f, 0x80, 0xbf, 0xc2, 0xed, 0xf4, 0xff};
    size_t at = pick(r, t->len + 1), left = t->len - at;
    switch (clime_rng_below(r, 8)) {
    case 0:
        if (left) t->data[at] = (char)(t->data[at] ^ 1 << pick(r, 8));
        break;
    case 1:
        if (left) t->data[at] = (char)bytes[pick(r, sizeof bytes)];
        break;
    case 2:
        paste(t, at, (const char *)&bytes[pick(r, sizeof bytes)], 1);
        break;
    case 3:
        cut(t, at, pick(r, left < 16 ? left + 1 : 16));
        break;
    case 4:
        t->len = at;
        break;
    case 5: { /* repeats a piece of itself: depth and length grow */
        char piece[256];
        size_t n = pick(r, left < sizeof piece ? left + 1 : sizeof piece);
        memcpy(piece, t->data + at, n);
        for (size_t k = pick(r, 8); k > 0; k--) paste(t, at, piece, n);
        break;
    }
    case 6: { /* the end of another seed */
        struct clime_str other = f->seeds[pick(r, (size_t)f->n_seeds)];
        size_t from = pick(r, other.len + 1);
        t->len = at;
        paste(t, at, other.ptr + from, other.len - from);
        break;
    }
    default: {
        size_t n = 0;
        while (f->words[n]) n++;
        const char *word = n ? f->words[pick(r, n)] : "";
        paste(t, at, word, strlen(word));
    }
    }
}

static void one_case(const struct fuzz *f, struct text *t) {
    struct clime_rng r;
    clime_rng_init(&r, clime_hash64((uint64_t[]){(uint64_t)seed, (uint64_t)now_at}, 2));
    struct clime_str base = f->seeds[pick(&r, (size_t)f->n_seeds)];
    t->len = 0;
    paste(t, 0, base.ptr, base.len);
    for (size_t k = 1 + pick(&r, 6); k > 0; k--) mutate(f, &r, t);
    char *exact = xmalloc(t->len); /* so that a sanitizer sees the first byte past the end */
    if (t->len) memcpy(exact, t->data, t->len);
    f->target(exact, t->len);
    free(exact);
}

void fuzz_folder(char out[64]) {
    const char *tmp = getenv("TMPDIR");
    CHECK(snprintf(out, 64, "%s/clime-fuzz-XXXXXX", tmp && *tmp ? tmp : "/tmp") < 64 && mkdtemp(out));
}

int fuzz_main(int argc, char **argv, const struct fuzz *f) {
    int64_t n, only, minutes;
    char iterations[24];
    snprintf(iterations, sizeof iterations, "%d", f->iterations);
    const struct clime_opt table[] = {
        {.name = "seed", .type = CLIME_OPT_INT, .value = &seed, .def = "1", .help = "of the whole run"},
        {.name = "iterations", .type = CLIME_OPT_INT, .value = &n, .def = iterations, .help = "cases to run"},
        {.name = "cpu-minutes",
         .type = CLIME_OPT_INT,
         .value = &minutes,
         .def = "0",
         .help = "run for so long instead"},
        {.name = "only", .type = CLIME_OPT_INT, .value = &only, .def = "-1", .help = "run this case alone"},
    };
    struct clime_error e;
    if (clime_options_parse(table, (int)CLIME_COUNT(table), argc, argv, NULL, 0, "usage: fuzz_x [options]", &e) !=
        CLIME_OK) {
        fprintf(stderr, "%s\n", e.msg);
        return 2;
    }
    signal(SIGABRT, on_abort);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(report);
    struct text t = {.data = xmalloc(f->max_bytes), .max = f->max_bytes};
    int64_t begin = only < 0 ? 0 : only, end = only >= 0 ? only + 1 : minutes ? INT64_MAX : n;
    for (now_at = begin; now_at < end && (!minutes || clock() / CLOCKS_PER_SEC < minutes * 60); now_at++)
        one_case(f, &t);
    free(t.data);
    printf("%s: %lld cases\n", argv[0], (long long)(now_at - begin));
    return 0;
}
