/* Pieces that come one by one become rows at even distances (kernels/runs.h): whatever the pieces, the bytes of the
 * runs are theirs, each once. */
#include "kernels/runs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 1 << 16 };

struct copier {
    char from[ROOM], to[ROOM], want[ROOM];
    struct clime_runs runs;
    int n_runs;
};

static void copy(struct copier *c, const struct clime_run *r) {
    c->n_runs++;
    clime_cpu_ops.copy_rows(NULL, r->n, r->bytes, r->at[0], r->step[0], r->at[1], r->step[1]);
}

static void add(struct copier *c, size_t to, size_t from, size_t bytes) {
    struct clime_run out;
    assert_true(to + bytes <= ROOM && from + bytes <= ROOM);
    memcpy(c->want + to, c->from + from, bytes);
    if (clime_runs_add(&c->runs, &(struct clime_run){bytes, 1, 2, {c->to + to, c->from + from}, {0}}, &out))
        copy(c, &out);
}

static void end(struct copier *c, int n_runs) {
    struct clime_run out;
    while (clime_runs_end(&c->runs, &out)) copy(c, &out);
    assert_memory_equal(c->to, c->want, ROOM);
    if (n_runs) assert_int_equal(c->n_runs, n_runs);
    free(c);
}

static struct copier *begin(void) {
    struct copier *c = calloc(1, sizeof *c);
    for (int i = 0; i < ROOM; i++) c->from[i] = (char)(i * 7 + i / 251);
    return c;
}

static void even(void **state) {
    (void)state;
    struct copier *c = begin();
    for (size_t i = 0; i < 50; i++) add(c, i * 100, i * 300, 64);
    end(c, 1);
}

static void two_by_turns(void **state) {
    (void)state;
    struct copier *c = begin();
    for (size_t i = 0; i < 50; i++) {
        add(c, i * 100, 10000 + i * 300, 90);
        add(c, 20000 + i * 10, 10090 + i * 300, 10);
    }
    end(c, 2);
}

static void without_gaps(void **state) {
    (void)state;
    struct copier *c = begin();
    struct clime_run out;
    for (size_t i = 0; i < 9; i++) add(c, 50 + i * 64, 128 + i * 64, 64);
    assert_true(clime_runs_end(&c->runs, &out));
    assert_true(out.n == 1 && out.bytes == 9 * 64 && out.step[0] == out.bytes && out.step[1] == out.bytes);
    copy(c, &out);
    end(c, 1);
}

/* Backwards, onto each other, at other distances, of other lengths, a sum's three places: none goes on. */
static void none_goes_on(void **state) {
    (void)state;
    struct copier *c = begin();
    add(c, 1000, 1000, 64);
    add(c, 900, 1100, 64);
    add(c, 1100, 1010, 64); /* reads what the first reads: steps shorter than a row are no rows */
    add(c, 1200, 3000, 32);
    end(c, 4);
    struct clime_runs r = {0};
    struct clime_run out;
    char x[4096];
    clime_runs_add(&r, &(struct clime_run){16, 1, 3, {x, x + 100, x + 200}, {0}}, &out);
    clime_runs_add(&r, &(struct clime_run){16, 1, 3, {x + 16, x + 116, x + 300}, {0}}, &out);
    clime_runs_add(&r, &(struct clime_run){16, 1, 3, {x + 32, x + 132, x + 401}, {0}}, &out);
    assert_int_equal(r.n, 2);
    assert_int_equal(r.open[0].n, 2);
    assert_int_equal(r.open[0].step[2], 100);
}

static void any(void **state) {
    (void)state;
    uint32_t seed = 1;
    for (int round = 0; round < 200; round++) {
        struct copier *c = begin();
        size_t to = 0;
        for (int i = 0; i < 300; i++) {
            seed = seed * 1664525u + 1013904223u;
            const size_t bytes = 8 + (seed >> 20) % 3 * 8, gap = (seed >> 24) % 4 ? 8 : 24;
            add(c, to, (seed >> 8) % 2 ? to / 2 : to, bytes);
            to += bytes + gap;
        }
        end(c, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(even), cmocka_unit_test(two_by_turns),
                                       cmocka_unit_test(without_gaps), cmocka_unit_test(none_goes_on),
                                       cmocka_unit_test(any)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
