/* Packets of weights: a version made from random bases by packets is the bits of the version, whatever changed; what
 * was damaged, belongs to another model or another base is refused, and says so. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/hash.h"
#include "common/thread/threadpool.h"
#include "model/packet/packet.h"
#include "model/packet/shelf.h"

static struct clime_pool *pool;

static uint32_t draw(uint64_t *state) {
    *state += 0x9E3779B97F4A7C15u;
    return (uint32_t)(clime_hash64(state, 1) >> 16);
}

static uint8_t *random_bytes(size_t n, uint64_t seed) {
    uint8_t *p = xmalloc(n + 1);
    for (size_t i = 0; i < n; i++) p[i] = (uint8_t)draw(&seed);
    return p;
}

/* A copy of a with about one element in `every` changed; every = 0: none. */
static uint8_t *changed(const struct clime_packet_shape *s, const uint8_t *a, uint32_t every, bool near,
                        uint64_t seed) {
    size_t bytes = (size_t)s->n * s->width;
    uint8_t *b = xmalloc(bytes + 1);
    memcpy(b, a, bytes);
    for (int64_t i = 0; i < s->n && every; i++) {
        if (draw(&seed) % every) continue;
        if (near)
            b[i * s->width] ^= 1;
        else
            for (uint32_t k = 0; k < s->width; k++) b[i * s->width + k] = (uint8_t)draw(&seed);
    }
    return b;
}

/* What travels: the manifest and the payload, read back as a stranger would. flat becomes the version, or an error. */
static enum clime_err travel(const struct clime_packet *p, const struct clime_packet_shape *s, void *flat,
                             struct clime_error *e) {
    struct clime_packet *q;
    enum clime_err rc = clime_packet_read(p->manifest, p->manifest_bytes, s, &q, e);
    if (rc) return rc;
    assert_memory_equal(p->id, q->id, CLIME_PACKET_ID);
    assert_int_equal(p->version, q->version);
    assert_int_equal(p->base, q->base);
    uint64_t at = 0;
    const uint8_t *piece;
    uint8_t *wire = xmalloc((size_t)clime_packet_bytes(p));
    for (size_t n; (n = clime_packet_piece(p, at, &piece)) > 0; at += n) memcpy(wire + at, piece, n);
    assert_int_equal(at, clime_packet_bytes(p));
    for (int i = 0; i < q->n_blocks && !rc; i++) rc = clime_packet_apply(q, i, wire + clime_packet_at(q, i), flat, e);
    clime_packet_free(q);
    free(wire);
    return rc;
}

static void test_round_trips(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 3, 4, 63, 64, 65, 1000, 5000};
    static const uint32_t everys[] = {0, 1, 2, 5, 100, 3000};
    for (uint32_t width = 2; width <= 4; width += 2)
        for (size_t k = 0; k < CLIME_COUNT(sizes); k++)
            for (size_t j = 0; j < CLIME_COUNT(everys) * 2; j++) {
                const struct clime_packet_shape s = {.layout = 7, .n = sizes[k], .width = width, .block = 64};
                size_t bytes = (size_t)s.n * width;
                uint8_t *a = random_bytes(bytes, k + j), *b = changed(&s, a, everys[j / 2], j % 2, 99 + j);
                uint8_t *x = xmalloc(bytes + 1), *nothing = xcalloc(1, bytes + 1);
                struct clime_error e = {0};
                struct clime_packet *delta = clime_packet_make(pool, &s, 4, a, 5, b);
                struct clime_packet *whole = clime_packet_make(pool, &s, -1, NULL, 5, b);
                memcpy(x, a, bytes);
                assert_int_equal(travel(delta, &s, x, &e), CLIME_OK);
                assert_memory_equal(x, b, bytes);
                assert_int_equal(travel(whole, &s, nothing, &e), CLIME_OK);
                assert_memory_equal(nothing, b, bytes);
                assert_true(delta->payload_bytes <= whole->payload_bytes);
                clime_packet_free(delta);
                clime_packet_free(whole);
                free(a);
                free(b);
                free(x);
                free(nothing);
            }
}

/* Blocks of the size that is used, and what a delta is for: few changes are few bytes. */
static void test_few_changes_are_few_bytes(void **state) {
    (void)state;
    const struct clime_packet_shape s = {
        .layout = 7, .n = 3 * CLIME_PACKET_BLOCK + 5, .width = 2, .block = CLIME_PACKET_BLOCK};
    size_t bytes = (size_t)s.n * 2;
    uint8_t *a = random_bytes(bytes, 1), *b = changed(&s, a, 100, true, 2);
    struct clime_error e = {0};
    struct clime_packet *p = clime_packet_make(pool, &s, 0, a, 1, b);
    assert_int_equal(travel(p, &s, a, &e), CLIME_OK);
    assert_memory_equal(a, b, bytes);
    assert_in_range(p->n_changed, s.n / 120, s.n / 80);
    if (clime_packet_bytes(p) > bytes / 100)
        fail_msg("%llu of %zu bytes", (unsigned long long)clime_packet_bytes(p), bytes);
    clime_packet_free(p);
    free(a);
    free(b);
}

static void test_a_chain_and_another_base(void **state) {
    (void)state;
    const struct clime_packet_shape s = {.layout = 7, .n = 1000, .width = 2, .block = 128};
    size_t bytes = (size_t)s.n * 2;
    uint8_t *v[4], *x = xmalloc(bytes);
    struct clime_packet *p[4] = {0};
    struct clime_error e = {0};
    v[0] = random_bytes(bytes, 5);
    for (int i = 1; i < 4; i++) {
        v[i] = changed(&s, v[i - 1], 20, true, (uint64_t)i);
        p[i] = clime_packet_make(pool, &s, i - 1, v[i - 1], i, v[i]);
    }
    memcpy(x, v[0], bytes);
    for (int i = 1; i < 4; i++) assert_int_equal(travel(p[i], &s, x, &e), CLIME_OK);
    assert_memory_equal(x, v[3], bytes);
    memcpy(x, v[0], bytes); /* one version is left out */
    assert_int_equal(travel(p[1], &s, x, &e), CLIME_OK);
    assert_int_equal(travel(p[3], &s, x, &e), CLIME_ERR_INPUT);
    assert_non_null(strstr(e.msg, "another base"));
    for (int i = 0; i < 4; i++) {
        clime_packet_free(p[i]);
        free(v[i]);
    }
    free(x);
}

static void test_other_models_are_refused(void **state) {
    (void)state;
    const struct clime_packet_shape s = {.layout = 7, .n = 1000, .width = 2, .block = 128};
    uint8_t *a = random_bytes(2000, 5);
    struct clime_packet *p = clime_packet_make(pool, &s, -1, NULL, 1, a), *q;
    const struct clime_packet_shape others[] = {
        {8, 1000, 2, 128}, {7, 1001, 2, 128}, {7, 500, 4, 128}, {7, 1000, 2, 64}, {7, 100000, 2, 128}};
    for (size_t i = 0; i < CLIME_COUNT(others); i++) {
        struct clime_error e = {0};
        assert_int_equal(clime_packet_read(p->manifest, p->manifest_bytes, &others[i], &q, &e), CLIME_ERR_INPUT);
        assert_null(q);
    }
    clime_packet_free(p);
    free(a);
}

/* One bit of the manifest: it is refused, or has another name; and however it is applied, nothing is written outside
 * (the sanitizers see). One bit of a block: it is said that these are not the packet's bytes, and flat is as it was. */
static void test_flipped_bits(void **state) {
    (void)state;
    const struct clime_packet_shape s = {.layout = 7, .n = 300, .width = 2, .block = 128};
    uint8_t *a = random_bytes(600, 5), *b = changed(&s, a, 9, false, 6), *x = xmalloc(600);
    struct clime_packet *p = clime_packet_make(pool, &s, 0, a, 1, b), *q;
    int n_read = 0;
    for (size_t bit = 0; bit < p->manifest_bytes * 8; bit++) {
        struct clime_error e = {0};
        p->manifest[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (!clime_packet_read(p->manifest, p->manifest_bytes, &s, &q, &e)) {
            n_read++;
            assert_memory_not_equal(p->id, q->id, CLIME_PACKET_ID);
            memcpy(x, a, 600);
            for (int i = 0; i < q->n_blocks; i++)
                if (q->blocks[i].packed_bytes <= p->blocks[i].packed_bytes) /* what is there can be read */
                    clime_packet_apply(q, i, p->blocks[i].packed, x, &e);
            clime_packet_free(q);
        } else {
            assert_int_equal(e.code, CLIME_ERR_INPUT);
        }
        p->manifest[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    assert_true(n_read > 0);
    for (size_t bit = 0; bit < p->blocks[0].packed_bytes * 8u; bit++) {
        struct clime_error e = {0};
        p->blocks[0].packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
        memcpy(x, a, 600);
        assert_int_equal(clime_packet_apply(p, 0, p->blocks[0].packed, x, &e), CLIME_ERR_INTERNAL);
        assert_memory_equal(x, a, 600);
        p->blocks[0].packed[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    clime_packet_free(p);
    free(a);
    free(b);
    free(x);
}

static void test_sums_say_which_version(void **state) {
    (void)state;
    const struct clime_packet_shape s = {.layout = 7, .n = 300, .width = 4, .block = 128};
    uint8_t *a = random_bytes(1200, 5), *b = changed(&s, a, 9, false, 6);
    uint64_t sums_a[3], sums_b[3];
    struct clime_packet *p = clime_packet_make(pool, &s, 0, a, 1, b);
    assert_int_equal(clime_packet_n_blocks(&s), 3);
    clime_packet_sums(pool, &s, a, sums_a);
    clime_packet_sums(pool, &s, b, sums_b);
    for (int i = 0; i < 3; i++) {
        assert_true(p->blocks[i].base_sum == sums_a[i]);
        assert_true(p->blocks[i].result_sum == sums_b[i]);
    }
    clime_packet_free(p);
    free(a);
    free(b);
}

struct listed {
    int64_t version[16], base[16];
    int n;
};

static void list_one(void *arg, const struct clime_packet *p) {
    struct listed *l = arg;
    l->version[l->n] = p->version;
    l->base[l->n++] = p->base;
}

static struct listed look(struct clime_shelf *s) {
    struct listed l = {.n = 0};
    clime_shelf_each(s, list_one, &l);
    return l;
}

static void test_a_shelf_is_bounded(void **state) {
    (void)state;
    const struct clime_packet_shape s = {.layout = 7, .n = 300, .width = 4, .block = 128};
    uint8_t *a = random_bytes(1200, 5), *b = changed(&s, a, 9, false, 6);
    struct clime_packet *whole = clime_packet_make(pool, &s, -1, NULL, 0, a);
    uint64_t whole_bytes = clime_packet_bytes(whole);
    struct clime_shelf *shelf = clime_shelf_new(3, 4 * whole_bytes), *small = clime_shelf_new(3, whole_bytes - 1);
    clime_shelf_put(shelf, whole);
    for (int v = 1; v <= 6; v++)
        clime_shelf_put(shelf, clime_packet_make(pool, &s, v - 1, v % 2 ? a : b, v, v % 2 ? b : a));
    clime_shelf_put(shelf, clime_packet_make(pool, &s, 5, b, 6, a)); /* twice */
    struct listed l = look(shelf);
    assert_int_equal(l.n, 4); /* the whole one and the last three */
    assert_int_equal(l.base[0], -1);
    for (int i = 1; i < 4; i++) assert_int_equal(l.version[i], 3 + i);
    clime_shelf_put(shelf, clime_packet_make(pool, &s, -1, NULL, 6, a));
    l = look(shelf);
    assert_int_equal(l.n, 4);
    assert_int_equal(l.version[3], 6);
    assert_int_equal(l.base[3], -1); /* the newest whole one in place of the old */
    assert_true(clime_shelf_bytes(shelf) <= 4 * whole_bytes);
    clime_shelf_put(small, clime_packet_make(pool, &s, -1, NULL, 0, a));
    assert_int_equal(look(small).n, 0);
    assert_int_equal(clime_shelf_bytes(small), 0);
    for (int v = 1; v <= 9; v++)
        clime_shelf_put(small, clime_packet_make(pool, &s, v - 1, v % 2 ? a : b, v, v % 2 ? b : a));
    assert_true(look(small).n >= 1 && clime_shelf_bytes(small) < whole_bytes);
    assert_int_equal(look(small).version[look(small).n - 1], 9);
    clime_shelf_free(shelf);
    clime_shelf_free(small);
    free(a);
    free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),
        cmocka_unit_test(test_few_changes_are_few_bytes),
        cmocka_unit_test(test_a_chain_and_another_base),
        cmocka_unit_test(test_other_models_are_refused),
        cmocka_unit_test(test_flipped_bits),
        cmocka_unit_test(test_sums_say_which_version),
        cmocka_unit_test(test_a_shelf_is_bounded),
    };
    pool = clime_pool_new(2);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    clime_pool_free(pool);
    return failed;
}
