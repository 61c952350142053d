/* Workers that say nothing: frozen ones, known by their probes, and those that are suspected before.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "common/clock.h"
#include "tests/unit/router/fleet.h"

static enum clime_worker_state state_of(struct clime_workers *w, int64_t id) {
    struct clime_worker_view v = {0};
    return clime_workers_get(w, id, &v) ? v.state : CLIME_WORKER_FREE;
}

static bool suspected(struct clime_workers *w, int64_t id) {
    return clime_workers_silence(w, (int)id - 1, id).suspected;
}

static int64_t frozen_since(struct clime_workers *w, int64_t id) {
    return clime_workers_silence(w, (int)id - 1, id).frozen_since_us;
}

static void test_frozen_is_of_probes_alone(void **state) {
    (void)state;
    const struct clime_route_request rq = {.cost = 1};
    struct clime_workers *w = fleet(1, 0);
    struct clime_lease l;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(clime_workers_pick(w, &rq, none_tried, &l, NULL), CLIME_OK);
        clime_workers_release(w, &l, CLIME_OUTCOME_WORKER);
    }
    assert_int_equal(state_of(w, 1), CLIME_WORKER_DOWN);
    assert_int_equal(frozen_since(w, 1), 0);
    clime_workers_probed(w, 1, false, "");
    assert_int_equal(frozen_since(w, 1), 0);
    clime_workers_probed(w, 1, false, "");
    int64_t since = frozen_since(w, 1);
    assert_true(since > 0);
    clime_workers_probed(w, 1, false, "");
    assert_true(frozen_since(w, 1) == since);
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(frozen_since(w, 1), 0);
    assert_int_equal(clime_workers_silence(w, 0, 2).heard_us, 0); /* another one had the slot */
    clime_workers_free(w);
}

static void test_the_silent_one_among_others_is_suspected(void **state) {
    (void)state;
    struct clime_workers *w = fleet(3, 0);
    int64_t since = clime_now_us();
    clime_workers_unanswered(w, 0, 1, since);
    assert_false(suspected(w, 1)); /* nobody has said anything since: it may be ourselves */
    clime_workers_heard(w, 0, since + 1);
    clime_workers_heard(w, 1, since + 1);
    clime_workers_unanswered(w, 0, 1, since);
    assert_false(suspected(w, 1)); /* it sends, whatever its probe does */
    since += 2;
    clime_workers_heard(w, 1, since + 1);
    clime_workers_unanswered(w, 0, 1, since);
    assert_true(suspected(w, 1));
    assert_int_equal(state_of(w, 1), CLIME_WORKER_DOWN);
    assert_int_equal(frozen_since(w, 1), 0);
    clime_workers_unanswered(w, 2, 3, since);
    assert_true(suspected(w, 3));
    clime_workers_unanswered(w, 1, 2, since + 1);
    assert_false(suspected(w, 2)); /* the last one: there is nobody to compare it with */
    clime_workers_free(w);
}

static struct clime_workers *with_suspect(int64_t *since) {
    struct clime_workers *w = fleet(2, 0);
    *since = clime_now_us();
    clime_workers_heard(w, 1, *since + 1);
    clime_workers_unanswered(w, 0, 1, *since);
    assert_true(suspected(w, 1));
    return w;
}

static void test_a_suspect_is_back_with_its_first_word(void **state) {
    (void)state;
    int64_t since;
    struct clime_workers *w = with_suspect(&since);
    clime_workers_heard(w, 0, since + 2); /* a byte of a stream, while its probe is still open */
    assert_false(suspected(w, 1));
    clime_workers_unanswered(w, 0, 1, since);
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY);
    clime_workers_free(w);

    w = with_suspect(&since); /* an answer */
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY);
    assert_false(suspected(w, 1));
    clime_workers_free(w);

    w = with_suspect(&since); /* one after a probe that had none */
    clime_workers_probed(w, 1, false, "");
    assert_true(suspected(w, 1));
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY);
    clime_workers_free(w);

    w = with_suspect(&since); /* as many as take any worker down: it comes back as any does */
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, false, "");
    assert_true(!suspected(w, 1) && frozen_since(w, 1));
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_DOWN);
    clime_workers_probed(w, 1, true, "");
    assert_int_equal(state_of(w, 1), CLIME_WORKER_READY);
    clime_workers_free(w);
}

/* Suspicion neither brings back what is down for another reason nor keeps what is leaving. */
static void test_suspicion_and_other_states(void **state) {
    (void)state;
    const struct clime_route_request rq = {.cost = 1};
    struct clime_workers *w = fleet(2, 0);
    struct clime_lease l;
    for (int i = 0; i < 2; i++) clime_workers_probed(w, 1, false, "");
    clime_workers_probed(w, 2, true, "");
    int64_t since = clime_now_us();
    clime_workers_heard(w, 1, since + 1);
    clime_workers_unanswered(w, 0, 1, since);
    assert_false(suspected(w, 1));
    clime_workers_heard(w, 0, since + 2);
    clime_workers_unanswered(w, 0, 1, since);
    assert_int_equal(state_of(w, 1), CLIME_WORKER_DOWN);
    clime_workers_free(w);

    w = fleet(2, 0);
    assert_int_equal(clime_workers_pick(w, &rq, none_tried, &l, NULL), CLIME_OK);
    clime_workers_remove(w, l.id, (struct clime_str){0}, NULL);
    since = clime_now_us();
    clime_workers_heard(w, 1 - l.slot, since + 1);
    clime_workers_unanswered(w, l.slot, l.id, since);
    assert_true(suspected(w, l.id));
    assert_int_equal(state_of(w, l.id), CLIME_WORKER_DRAINING);
    clime_workers_heard(w, l.slot, since + 2);
    clime_workers_unanswered(w, l.slot, l.id, since);
    assert_int_equal(state_of(w, l.id), CLIME_WORKER_DRAINING);
    clime_workers_release(w, &l, CLIME_OUTCOME_SILENT);
    assert_int_equal(state_of(w, l.id), CLIME_WORKER_FREE);
    clime_workers_free(w);
}

static void fail_probes(struct clime_workers *w, int64_t id) {
    for (int i = 0; i < 2; i++) clime_workers_probed(w, id, false, "");
    assert_int_equal(state_of(w, id), CLIME_WORKER_DOWN);
}

static void test_who_is_gone_for_good_is_evicted(void **state) {
    (void)state;
    struct clime_workers *w = fleet(3, 0);
    const int64_t hour = (int64_t)3600 * 1000000, now = clime_now_us();
    const struct clime_str first = clime_str_of("http://127.0.0.1:9000"), third = clime_str_of("http://127.0.0.1:9002");
    clime_workers_name(w, 3);
    fail_probes(w, 1);
    fail_probes(w, 3);
    assert_int_equal(clime_workers_evict(w, hour), 0); /* just heard */
    for (int i = 0; i < 3; i++) clime_workers_heard(w, i, now - 2 * hour);
    assert_int_equal(clime_workers_evict(w, hour), 0); /* added within the hour */
    clime_sleep_us(2000);
    assert_int_equal(clime_workers_evict(w, 1000), 0); /* nobody is heard: it may be ourselves */
    clime_workers_heard(w, 1, clime_now_us() + hour);
    assert_int_equal(clime_workers_evict(w, 1000), 1); /* the third is named */
    assert_int_equal(state_of(w, 1), CLIME_WORKER_FREE);
    assert_int_equal(state_of(w, 3), CLIME_WORKER_DOWN);
    assert_true(clime_workers_is_evicted(w, first));
    assert_false(clime_workers_is_evicted(w, third));
    int64_t id;
    assert_int_equal(clime_workers_add(w, first, 0, &id, NULL), CLIME_OK);
    assert_int_equal(id, 4); /* another one */
    assert_false(clime_workers_is_evicted(w, first));
    assert_int_equal(clime_workers_remove(w, id, first, NULL), CLIME_OK);
    assert_false(clime_workers_is_evicted(w, first)); /* by an operator: it is to stay out */
    clime_workers_give_up(w, first);
    assert_true(clime_workers_is_evicted(w, first));
    clime_workers_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_frozen_is_of_probes_alone),
        cmocka_unit_test(test_the_silent_one_among_others_is_suspected),
        cmocka_unit_test(test_a_suspect_is_back_with_its_first_word),
        cmocka_unit_test(test_suspicion_and_other_states),
        cmocka_unit_test(test_who_is_gone_for_good_is_evicted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
