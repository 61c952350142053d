/* Recorded decode steps without a device: which size a step gets, and that a size runs, is recorded, is replayed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "server/engine/step_graphs.h"

struct clime_graph {
    int number;
};

static struct clime_graph made[8];
static int n_made, n_freed, n_queued, n_launched, last_launched;
static bool recording, memory_lacks;

static void begin(struct clime_dev *d) {
    (void)d;
    assert_false(recording);
    recording = true;
}

static enum clime_err end(struct clime_dev *d, struct clime_graph **out, struct clime_error *e) {
    (void)d;
    assert_true(recording);
    recording = false;
    if (memory_lacks) return clime_fail(e, CLIME_ERR_LIMIT, "no memory");
    made[n_made].number = n_made;
    *out = &made[n_made++];
    return CLIME_OK;
}

static void launch(struct clime_dev *d, struct clime_graph *g) {
    (void)d;
    assert_false(recording);
    last_launched = g->number;
    n_launched++;
}

static void free_graph(struct clime_dev *d, struct clime_graph *g) {
    (void)d, (void)g;
    n_freed++;
}

static const struct clime_ops ops = {
    .graph_begin = begin, .graph_end = end, .graph_launch = launch, .graph_free = free_graph};

static void queue(void *arg) {
    assert_ptr_equal(arg, &n_queued);
    n_queued++;
}

static int reset(void **state) {
    (void)state;
    n_made = n_freed = n_queued = n_launched = 0;
    recording = memory_lacks = false;
    return 0;
}

static void test_sizes(void **state) {
    static const int rows[] = {16, 1, 4, 300, 8};
    struct clime_model m = {.ops = &ops};
    static struct clime_step_graphs g;
    struct clime_step_size s;
    (void)state;
    clime_step_graphs_init(&g, &m, rows, 5, 64, 24);
    assert_true(clime_step_graphs_size(&g, 1, 1, &s));
    assert_true(s.rows == 1 && s.pages == 4);
    assert_true(clime_step_graphs_size(&g, 5, 9, &s));
    assert_true(s.rows == 8 && s.pages == 16);
    assert_true(clime_step_graphs_size(&g, 16, 17, &s));
    assert_true(s.rows == 16 && s.pages == 24); /* no more than there are */
    assert_false(clime_step_graphs_size(&g, 17, 1, &s));
    clime_step_graphs_init(&g, &m, NULL, 0, 64, 24);
    assert_false(clime_step_graphs_size(&g, 1, 1, &s));
    m.ops = &clime_cpu_ops; /* records nothing */
    clime_step_graphs_init(&g, &m, rows, 5, 64, 24);
    assert_false(clime_step_graphs_size(&g, 1, 1, &s));
}

static void test_default(void **state) {
    int out[CLIME_GRAPH_MAX_SIZES];
    (void)state;
    for (int max = 1; max <= 300; max++) {
        int n = clime_step_graphs_default(max, out);
        for (int i = 1; i < n; i++) assert_true(out[i] > out[i - 1]);
        assert_int_equal(out[n - 1], max <= CLIME_GRAPH_MAX_ROWS ? max : CLIME_GRAPH_MAX_ROWS);
    }
}

static void test_runs(void **state) {
    static const int rows[] = {1, 8};
    static const struct clime_step_size small = {1, 4}, large = {8, 4}, longer = {8, 8};
    struct clime_model m = {.ops = &ops};
    static struct clime_step_graphs g;
    (void)state;
    clime_step_graphs_init(&g, &m, rows, 2, 8, 64);
    clime_step_graphs_run(&g, small, queue, &n_queued); /* first: as it is */
    assert_true(n_queued == 1 && n_made == 0 && n_launched == 0);
    clime_step_graphs_run(&g, small, queue, &n_queued); /* second: recorded and replayed */
    assert_true(n_queued == 2 && n_made == 1 && n_launched == 1);
    clime_step_graphs_run(&g, small, queue, &n_queued);
    assert_true(n_queued == 2 && n_launched == 2);
    for (int i = 0; i < 3; i++) clime_step_graphs_run(&g, large, queue, &n_queued);
    for (int i = 0; i < 2; i++) clime_step_graphs_run(&g, longer, queue, &n_queued);
    assert_true(n_made == 3 && last_launched == 2);
    clime_step_graphs_run(&g, large, queue, &n_queued);
    assert_true(last_launched == 1 && n_queued == 6 && n_launched == 6);
    clime_step_graphs_free(&g);
    assert_int_equal(n_freed, 3);
}

static void test_no_memory(void **state) {
    static const int rows[] = {8};
    static const struct clime_step_size size = {8, 4};
    struct clime_model m = {.ops = &ops};
    static struct clime_step_graphs g;
    (void)state;
    memory_lacks = true;
    clime_step_graphs_init(&g, &m, rows, 1, 8, 64);
    clime_step_graphs_run(&g, size, queue, &n_queued);
    clime_step_graphs_run(&g, size, queue, &n_queued); /* the attempt queued nothing: it runs after it */
    assert_true(n_queued == 3 && n_launched == 0);
    clime_step_graphs_run(&g, size, queue, &n_queued); /* not tried again */
    assert_true(n_queued == 4 && n_made == 0 && n_launched == 0);
    clime_step_graphs_free(&g);
    assert_int_equal(n_freed, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_sizes, reset), cmocka_unit_test_setup(test_default, reset),
        cmocka_unit_test_setup(test_runs, reset), cmocka_unit_test_setup(test_no_memory, reset)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
