/* The body of a /generate call, and replies: good ones, refused ones, broken ones. And pass@k. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include "common/base64.h"
#include "common/os/dirs.h"
#include "model/config/config.h"
#include "trainer/rollout/asker.h"
#include "trainer/rollout/generate.h"
#include "trainer/rollout/scores.h"
#include "trainer/sample/label.h"

static struct clime_sampling_options sampling = {
    .temperature = 0.5, .top_p = 1, .top_k = -1, .max_response_len = 8, .max_context_len = 10};

static struct clime_request request(void) {
    struct clime_sample *s = clime_sample_new();
    s->n_prompt = 3;
    s->ids = xcalloc(3, sizeof *s->ids);
    s->ids[2] = 7;
    s->seed = UINT64_MAX;
    return (struct clime_request){.sample = s, .sampling = &sampling, .rid = "r/0/1/2/3", .n_tries = 4, .version = 12};
}

static void test_body(void **state) {
    struct clime_request r = request();
    struct clime_buf b;
    (void)state;
    clime_buf_init(&b, 4096);
    clime_generate_body(&r, &b);
    assert_string_equal(b.data,
                        "{\"rid\":\"r/0/1/2/3.4\",\"input_ids\":[0,0,7],\"sampling_params\":{\"temperature\":0.5,"
                        "\"top_p\":1.0,\"top_k\":-1,\"max_new_tokens\":7,\"skip_special_tokens\":false,"
                        "\"no_stop_trim\":true,\"spaces_between_special_tokens\":false,"
                        "\"sampling_seed\":18446744073709551615},\"return_logprob\":true}");
    clime_buf_free(&b);
    clime_sample_free(r.sample);
    assert_int_equal(clime_sampling_room(&sampling, 1), 8);
    assert_int_equal(clime_sampling_room(&sampling, 9), 1);
    assert_int_equal(clime_sampling_room(&sampling, 11), 0);
}

#define REPLY(finish, runs, kept, n, tokens)                                                                           \
    "{\"text\":\"x\",\"meta_info\":{\"id\":\"r\",\"finish_reason\":" finish ",\"token_versions\":[" runs               \
    "],\"kept_kv\":[" kept "],\"completion_tokens\":" n ",\"cached_tokens\":2,\"output_token_logprobs\":[" tokens      \
    "]}}"
#define META(finish, version, n, tokens) REPLY(finish, "[\"" version "@r\"," n "]", "", n, tokens)
#define NOTHING(finish) REPLY(finish, "", "", "0", "")
#define STOP "{\"type\":\"stop\",\"matched\":5}"

static void test_replies(void **state) {
    static const struct {
        const char *reply;
        enum clime_generate_outcome out;
        const char *says;
    } cases[] = {
        {NOTHING("{\"type\":\"abort\",\"message\":\"Aborted\"}"), CLIME_GENERATE_ABORTED, "Aborted"},
        {META(STOP, "11", "1", "[-1,5,null]"), CLIME_GENERATE_STALE, "version 11, wanted 12"},
        {META(STOP, "012", "1", "[-1,5,null]"), CLIME_GENERATE_STALE, "\"012@r\", wanted version 12 of run r"},
        {META(STOP, "13", "1", "[-1,5,null]"), CLIME_GENERATE_STALE, "version 13"},
        {META(STOP, "", "1", "[-1,5,null]"), CLIME_GENERATE_STALE, "\"@r\""},
        {REPLY(STOP, "[\"12@s\",1]", "", "1", "[-1,5]"), CLIME_GENERATE_STALE, "\"12@s\", wanted version 12 of run r"},
        {REPLY(STOP, "[\"12\",1]", "", "1", "[-1,5]"), CLIME_GENERATE_STALE, "\"12\", wanted version 12 of run r"},
        {REPLY(STOP, "[\"12@r\",1],[\"14@r\",1]", "", "2", "[-1,5],[-1,5]"), CLIME_GENERATE_STALE, "version 14"},
        {REPLY(STOP, "[\"12@r\",1]", "", "2", "[-1,5],[-1,5]"), CLIME_GENERATE_BROKEN, "2 tokens"},
        {REPLY(STOP, "[\"12@r\",3]", "", "2", "[-1,5],[-1,5]"), CLIME_GENERATE_BROKEN, "2 tokens"},
        {REPLY(STOP, "[\"12@r\",2]", "[2,1]", "2", "[-1,5],[-1,5]"), CLIME_GENERATE_BROKEN, "2 tokens"},
        {REPLY(STOP, "[\"12@r\",0]", "", "2", "[-1,5],[-1,5]"), CLIME_GENERATE_BROKEN, "reply"},
        {META(STOP, "12", "2", "[-1,5,null]"), CLIME_GENERATE_BROKEN, "1 log-probabilities for 2"},
        {NOTHING(STOP), CLIME_GENERATE_BROKEN, "0 log-probabilities"},
        {META(STOP, "12", "1", "[0.5,5,null]"), CLIME_GENERATE_BROKEN, "0.5"},
        {META(STOP, "12", "1", "[null,5,null]"), CLIME_GENERATE_BROKEN, "reply"},
        {META(STOP, "12", "1", "[-1,-5,null]"), CLIME_GENERATE_BROKEN, "reply"},
        {META(STOP, "12", "1", "[-1e999,5,null]"), CLIME_GENERATE_BROKEN, ""},
        {META(STOP, "12", "1", "[],[-1,5]"), CLIME_GENERATE_BROKEN, "without its log-probability"},
        {META(STOP, "12", "1", "[-1],[-1,5]"), CLIME_GENERATE_BROKEN, "without its log-probability"},
        {REPLY(STOP, "[],[\"12@r\",1]", "", "1", "[-1,5]"), CLIME_GENERATE_BROKEN, "without its number"},
        {REPLY(STOP, "[\"12@r\"]", "", "1", "[-1,5]"), CLIME_GENERATE_BROKEN, "without its number"},
        {REPLY(STOP, "[\"12@r\",1]", "[],[2,1]]", "1", "[-1,5]"), CLIME_GENERATE_BROKEN, "reply"},
        {META("{\"type\":\"tired\"}", "12", "1", "[-1,5,null]"), CLIME_GENERATE_BROKEN, "tired"},
        {"{\"text\":\"x\"}", CLIME_GENERATE_BROKEN, ""},
        {"{\"meta_info\":", CLIME_GENERATE_BROKEN, "reply"},
        {"<html>", CLIME_GENERATE_BROKEN, "reply"},
        {"", CLIME_GENERATE_BROKEN, "reply"},
    };
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_request r = request();
        struct clime_error e = {0};
        assert_int_equal(clime_generate_read(&r, clime_str_of(cases[i].reply), &e), cases[i].out);
        assert_non_null(strstr(e.msg, cases[i].says));
        assert_int_equal(r.sample->status, CLIME_SAMPLE_PENDING);
        assert_int_equal(r.sample->n_response, 0);
        clime_sample_free(r.sample);
    }
}

static void test_good_reply(void **state) {
    struct clime_request r = request();
    struct clime_error e = {0};
    (void)state;
    /* 0.1f as the server writes it; the smallest float below 0; a number whose double would round to another float */
    const char *reply = META(STOP, "12", "3", "[-0.1,5,null],[-1e-45,0,\"t\"],[-16777217.000000001,511]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(reply), &e), CLIME_GENERATE_DONE);
    const struct clime_sample *s = r.sample;
    assert_int_equal(s->status, CLIME_SAMPLE_COMPLETED);
    assert_int_equal(s->n_response, 3);
    assert_int_equal(s->ids[2], 7);
    assert_int_equal(s->ids[3], 5);
    assert_int_equal(s->ids[5], 511);
    assert_true(s->logp[0] == -0.1f && s->logp[1] < 0 && s->logp[2] == -16777218.0f);
    assert_int_equal(s->mask[0] + s->mask[1] + s->mask[2], 3);
    assert_int_equal(s->n_versions, 1);
    assert_true(s->versions[0].version == 12 && s->versions[0].n == 3);
    assert_string_equal(s->finish, STOP);
    assert_int_equal(s->cached_tokens, 2);
    assert_true(s->temperature == 0.5f);
    clime_sample_free(r.sample);

    r = request();
    reply = META("{\"type\":\"length\",\"length\":1}", "12", "1", "[-1,5,null]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(reply), &e), CLIME_GENERATE_DONE);
    assert_int_equal(r.sample->status, CLIME_SAMPLE_TRUNCATED);
    clime_sample_free(r.sample);
}

/* An aborted sample keeps what it got and goes on from there, under other weights. */
static void test_aborted_and_continued(void **state) {
    struct clime_request r = request();
    struct clime_error e = {0};
    atomic_bool stop;
    struct clime_buf b;
    (void)state;
    const char *cut = META("{\"type\":\"abort\"}", "12", "2", "[-1,5,null],[-2,6,null]");
    atomic_init(&stop, false);
    r.stop = &stop;
    assert_int_equal(clime_generate_read(&r, clime_str_of(cut), &e), CLIME_GENERATE_ABORTED); /* nobody asked for it */
    assert_int_equal(r.sample->n_response, 0);
    atomic_store(&stop, true);
    assert_int_equal(clime_generate_read(&r, clime_str_of(cut), &e), CLIME_GENERATE_DONE);
    assert_int_equal(r.sample->status, CLIME_SAMPLE_ABORTED);
    assert_int_equal(r.sample->n_response, 2);

    r.version = 14;
    clime_buf_init(&b, 4096);
    clime_generate_body(&r, &b);
    assert_non_null(strstr(b.data, "\"input_ids\":[0,0,7,5,6]"));
    assert_non_null(strstr(b.data, "\"max_new_tokens\":5")); /* of 7 */
    clime_buf_free(&b);
    const char *many = META(STOP, "14", "6", "[-1,5],[-1,5],[-1,5],[-1,5],[-1,5],[-1,5]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(many), &e), CLIME_GENERATE_BROKEN);
    assert_int_equal(clime_generate_read(&r, clime_str_of(NOTHING("{\"type\":\"abort\"}")), &e),
                     CLIME_GENERATE_DONE); /* cut before its first token */
    assert_int_equal(r.sample->n_versions, 1);
    assert_int_equal(clime_generate_read(&r, clime_str_of(META(STOP, "14", "2", "[-3,8],[-4,9]")), &e),
                     CLIME_GENERATE_DONE);
    const struct clime_sample *s = r.sample;
    assert_int_equal(s->status, CLIME_SAMPLE_COMPLETED);
    assert_int_equal(s->n_response, 4);
    const int32_t ids[] = {0, 0, 7, 5, 6, 8, 9};
    assert_memory_equal(s->ids, ids, sizeof ids);
    assert_true(s->logp[0] == -1 && s->logp[3] == -4);
    assert_int_equal(s->n_versions, 2);
    assert_true(s->versions[0].version == 12 && s->versions[0].n == 2);
    assert_true(s->versions[1].version == 14 && s->versions[1].n == 2);
    for (int k = 0; k < 3; k++) clime_sample_drop_token(r.sample);
    assert_true(s->n_response == 1 && s->n_versions == 1 && s->versions[0].n == 1);
    clime_sample_free(r.sample);
}

#define SETS(sets, logp)                                                                                               \
    "{\"meta_info\":{\"finish_reason\":" STOP ",\"token_versions\":[[\"12@r\",2]],\"completion_tokens\":2,"            \
    "\"output_token_logprobs\":[[-1,5],[-2,6]],\"output_token_sampling_mask\":[" sets                                  \
    "],\"output_token_sampling_logprobs\":[" logp "]}}"

/* What each token was drawn from comes with it, reply after reply; a run that cuts takes no reply without. */
static void test_sets(void **state) {
    static const char *const bad[] = {META(STOP, "12", "2", "[-1,5],[-2,6]"),
                                      SETS("[5]", "0"),
                                      SETS("[5],[6]", "0"),
                                      SETS("[5],[6,7]", "0,-0.5,-1"),
                                      SETS("[5],[7,6]", "0,-0.5"),
                                      SETS("[5],[6,6]", "0,-0.5"),
                                      SETS("[5],[7]", "0,-0.5"),
                                      SETS("[5],[]", "0,-0.5"),
                                      SETS("[5],[-6,6]", "0,-0.5"),
                                      SETS("[5],[6]", "0,0.5"),
                                      SETS("[5],[6]", "0,null")};
    struct clime_request r = request();
    struct clime_sampling_options cut = sampling;
    struct clime_error e = {0};
    struct clime_buf b;
    (void)state;
    cut.kept = true;
    r.sampling = &cut;
    clime_buf_init(&b, 4096);
    clime_generate_body(&r, &b);
    assert_non_null(strstr(b.data, "\"return_sampling_mask\":true"));
    clime_buf_free(&b);
    for (int turn = 0; turn < 2; turn++) {
        for (size_t i = 0; i < CLIME_COUNT(bad); i++)
            assert_int_equal(clime_generate_read(&r, clime_str_of(bad[i]), &e), CLIME_GENERATE_BROKEN);
        assert_int_equal(clime_generate_read(&r, clime_str_of(SETS("[5],[3,6,900]", "0,-0.5")), &e),
                         CLIME_GENERATE_DONE);
        cut.max_response_len = 9;
    }
    struct clime_sample *s = r.sample;
    const uint32_t n[] = {1, 3, 1, 3};
    const int32_t ids[] = {5, 3, 6, 900, 5, 3, 6, 900};
    assert_true(s->n_response == 4 && s->n_kept == 8 && s->kept_logp[3] == -0.5f && s->logp[3] == -2);
    assert_memory_equal(s->kept_n, n, sizeof n);
    assert_memory_equal(s->kept, ids, sizeof ids);
    const uint64_t sum = clime_sample_checksum(s);
    s->kept[6] = 7;
    assert_true(clime_sample_checksum(s) != sum);
    clime_sample_drop_token(s);
    assert_true(s->n_kept == 5 && clime_sample_count_kept(s) == 5);
    clime_sample_free(s);
}

/* New weights came while it was generated: each token is of those that sampled it, and it is known which had KV of
 * older ones behind them. */
static void test_labels(void **state) {
    char label[CLIME_VERSION_LABEL], long_one[200];
    (void)state;
    clime_label_write(label, 123, "run.token");
    struct clime_str run = clime_label_run(clime_str_of(label));
    assert_true(clime_str_is(run, "run.token") && clime_str_is(clime_label_name(run), "run"));
    assert_int_equal(clime_label_version(clime_str_of(label), clime_str_of("run.token")), 123);
    assert_int_equal(clime_label_version(clime_str_of(label), clime_str_of("run.other")), -1);
    assert_int_equal(clime_label_run(clime_str_of("default")).len, 0);

    clime_label_copy(label, clime_str_of("default"));
    assert_string_equal(label, "default");
    memset(long_one, 'a', 100);
    clime_label_copy(label, (struct clime_str){long_one, CLIME_VERSION_LABEL - 1});
    assert_int_equal(strspn(label, "a"), CLIME_VERSION_LABEL - 1);
    clime_label_copy(label, (struct clime_str){long_one, CLIME_VERSION_LABEL});
    assert_int_equal(strspn(label, "a"), CLIME_VERSION_LABEL - 4);
    assert_string_equal(label + CLIME_VERSION_LABEL - 4, "...");
    for (int i = 1; i < 199; i++) long_one[i] = i % 2 ? '\xc3' : '\xa9';
    clime_label_copy(label, (struct clime_str){long_one, 199}); /* no character is cut */
    assert_int_equal(strlen(label), CLIME_VERSION_LABEL - 2);
    assert_string_equal(label + CLIME_VERSION_LABEL - 5, "...");
}

static void test_versions_in_flight(void **state) {
    struct clime_request r = request();
    struct clime_error e = {0};
    _Atomic int64_t newest = 14;
    (void)state;
    r.newest = &newest;
    const char *back = REPLY(STOP, "[\"14@r\",1],[\"12@r\",1]", "", "2", "[-1,5],[-1,6]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(back), &e), CLIME_GENERATE_STALE);
    const char *future = REPLY(STOP, "[\"12@r\",1],[\"16@r\",1]", "", "2", "[-1,5],[-1,6]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(future), &e), CLIME_GENERATE_STALE);
    assert_non_null(strstr(e.msg, "version 16, wanted 12 or later"));

    const char *kept = REPLY(STOP, "[\"12@r\",2],[\"14@r\",1]", "[2,1]", "3", "[-1,5],[-1,6],[-1,7]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(kept), &e), CLIME_GENERATE_DONE);
    struct clime_sample *s = r.sample;
    assert_true(s->n_versions == 2 && s->versions[0].version == 12 && s->versions[0].n == 2);
    assert_true(s->versions[1].version == 14 && s->versions[1].n == 1);
    assert_int_equal(s->mixed_kv, 3);

    /* cut and continued: the first run goes on, and the first mark stays */
    r.version = 14;
    const char *more = REPLY(STOP, "[\"14@r\",1],[\"14@r\",1]", "[0,1]", "2", "[-1,8],[-1,9]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(more), &e), CLIME_GENERATE_DONE);
    assert_true(s->n_response == 5 && s->n_versions == 2 && s->versions[1].n == 3 && s->mixed_kv == 3);
    for (int k = 0; k < 2; k++) clime_sample_drop_token(s);
    assert_int_equal(s->mixed_kv, 3);
    clime_sample_drop_token(s); /* the marked one */
    assert_true(s->n_response == 2 && s->n_versions == 1 && s->mixed_kv == 0);
    clime_sample_free(s);

    r = request(); /* an update during its prefill: no token is of the weights that began it */
    const char *prefill = REPLY(STOP, "[\"12@r\",1]", "[0,1]", "1", "[-1,5]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(prefill), &e), CLIME_GENERATE_DONE);
    assert_int_equal(r.sample->mixed_kv, 1);
    clime_sample_free(r.sample);
}

/* ---- experts ---- */

/* The reply of a server that drew n tokens and says the experts of `positions` from `from` on: of position p of one
 * layer p and p + 1. bad: what it says is in another order. */
static enum clime_generate_outcome say_experts(struct clime_request *r, const char *finish, int n, int from,
                                               int positions, bool bad, struct clime_error *e) {
    int32_t said[2 * 16];
    struct clime_buf experts, tokens;
    clime_buf_init(&experts, 4096);
    clime_buf_init(&tokens, 4096);
    for (int p = 0; p < positions; p++) {
        said[2 * p] = from + p + bad;
        said[2 * p + 1] = from + p + !bad;
    }
    clime_base64_encode(said, (size_t)positions * 8, &experts);
    char runs[24];
    snprintf(runs, sizeof runs, "[\"12@r\",%d]", n);
    for (int i = 0; i < n; i++) clime_buf_printf(&tokens, "%s[-1,%d]", i ? "," : "", 5 + i);
    char *reply = xasprintf("{\"meta_info\":{\"finish_reason\":{\"type\":\"%s\"},\"token_versions\":[%s],"
                            "\"kept_kv\":[],\"completion_tokens\":%d,\"output_token_logprobs\":[%s],"
                            "\"routed_experts\":\"%.*s\",\"routed_experts_start_len\":%d}}",
                            finish, n ? runs : "", n, n ? tokens.data : "", (int)experts.len,
                            experts.len ? experts.data : "", from);
    enum clime_generate_outcome out = clime_generate_read(r, clime_str_of(reply), e);
    free(reply);
    clime_buf_free(&experts);
    clime_buf_free(&tokens);
    return out;
}

static void check_experts(const struct clime_sample *s) {
    const int n = s->n_prompt + s->n_response - 1;
    assert_int_equal(s->expert_bytes, 2);
    assert_int_equal(clime_sample_experts_bytes(s), 2 * n);
    for (int p = 0; p < n; p++) assert_true(s->experts[2 * p] == p && s->experts[2 * p + 1] == p + 1);
}

static void asks_from(const struct clime_request *r, const char *from) {
    struct clime_buf b;
    clime_buf_init(&b, 4096);
    clime_generate_body(r, &b);
    assert_non_null(strstr(b.data, "\"return_routed_experts\":true"));
    if (!strstr(b.data, from)) fail_msg("%s", b.data);
    clime_buf_free(&b);
}

/* Of an answer in pieces each piece's follow those before it, and no position is missing. */
static void test_experts_in_pieces(void **state) {
    static struct clime_config c = {.L = 1, .router = {.E = 32, .k = 2}};
    struct clime_request r = request();
    struct clime_sample *s = r.sample;
    struct clime_error e = {0};
    atomic_bool stop = true;
    (void)state;
    r.stop = &stop;
    sampling.experts = &c;
    asks_from(&r, "\"routed_experts_start_len\":0}");
    assert_int_equal(say_experts(&r, "abort", 2, 0, 4, false, &e), CLIME_GENERATE_DONE);
    check_experts(s);
    asks_from(&r, "\"routed_experts_start_len\":4}");
    assert_int_equal(say_experts(&r, "abort", 0, 4, 0, false, &e), CLIME_GENERATE_DONE); /* nothing new */
    check_experts(s);
    assert_int_equal(say_experts(&r, "abort", 2, 4, 2, false, &e), CLIME_GENERATE_DONE);
    check_experts(s);
    clime_sample_drop_token(s);
    check_experts(s);
    asks_from(&r, "\"routed_experts_start_len\":5}");

    /* a server gave up what it had of it: all are asked for again */
    assert_int_equal(say_experts(&r, "abort", 1, 5, 0, false, &e), CLIME_GENERATE_DONE);
    assert_true(s->n_response == 4 && !s->experts);
    asks_from(&r, "\"routed_experts_start_len\":0}");
    assert_int_equal(say_experts(&r, "stop", 1, 0, 7, false, &e), CLIME_GENERATE_DONE);
    check_experts(s);
    clime_sample_free(s);

    r = request(); /* a session's turn: those before it are known */
    r.experts_from = 2;
    asks_from(&r, "\"routed_experts_start_len\":2}");
    assert_int_equal(say_experts(&r, "length", 2, 2, 2, false, &e), CLIME_GENERATE_DONE);
    assert_true(r.sample->experts[0] == 2 && r.sample->experts[3] == 4);
    clime_sample_free(r.sample);

    /* what is false, or missing, is no answer, and the sample is as it was */
    static const struct {
        int positions;
        bool bad;
        const char *why;
    } lies[] = {{0, false, "routed_experts: 0 bytes"},
                {3, false, "instead of"},
                {5, false, "instead of"},
                {4, true, "distinct and ascending"}};
    for (size_t i = 0; i < CLIME_COUNT(lies); i++) {
        r = request();
        assert_int_equal(say_experts(&r, "stop", 2, 0, lies[i].positions, lies[i].bad, &e), CLIME_GENERATE_BROKEN);
        if (!strstr(e.msg, lies[i].why)) fail_msg("%s", e.msg);
        assert_true(r.sample->n_response == 0 && !r.sample->experts);
        clime_sample_free(r.sample);
    }
    r = request();
    const char *silent = META(STOP, "12", "2", "[-1,5],[-1,6]");
    assert_int_equal(clime_generate_read(&r, clime_str_of(silent), &e), CLIME_GENERATE_BROKEN);
    clime_sample_free(r.sample);
    sampling.experts = NULL;
}

/* ---- as events ---- */

struct told {
    struct clime_partial last;
    int calls;
    bool refuse;
};

static bool nobody_left(void *arg) {
    (void)arg;
    return false;
}

static bool be_told(void *arg, const struct clime_partial *so_far) {
    struct told *t = arg;
    assert_true(so_far->n >= t->last.n);
    t->last = *so_far;
    t->calls++;
    return !t->refuse;
}

#define EVENT(json) "data: " json "\n\n"
#define FIRST EVENT(META("null", "12", "1", "[-1,5,null]"))
#define SECOND EVENT(META("null", "12", "3", "[-2,6,null],[-3,7,null]"))
#define LAST EVENT(META(STOP, "12", "4", "[-4,8,null]")) EVENT("[DONE]")

/* Events give the sample that the whole reply gives, wherever the network cuts them; what breaks off gives none. */
static void test_events(void **state) {
    static const struct {
        const char *events;
        enum clime_generate_outcome out;
        const char *says;
        int calls;
        bool refuse;
    } cases[] = {
        {FIRST ": heartbeat\n\n" SECOND LAST, CLIME_GENERATE_DONE, "", 2, false},
        {FIRST SECOND, CLIME_GENERATE_CUT, "before the answer does", 2, false},
        {"", CLIME_GENERATE_CUT, "before the answer does", 0, false},
        {FIRST EVENT("{\"error\":{\"message\":\"gone\"}}") EVENT("[DONE]"), CLIME_GENERATE_ABORTED, "gone", 1, false},
        {FIRST EVENT("{}") LAST, CLIME_GENERATE_ABORTED, "says nothing", 1, false},
        {FIRST EVENT("{\"meta_info\":") LAST, CLIME_GENERATE_BROKEN, "event", 1, false},
        {EVENT(META("null", "11", "1", "[-1,5,null]")) LAST, CLIME_GENERATE_STALE, "version 11, wanted 12", 0, false},
        {FIRST SECOND LAST, CLIME_GENERATE_BROKEN, "something else", 1, true},
        {FIRST EVENT(META("null", "12", "9", "[-1,5],[-1,5],[-1,5],[-1,5],[-1,5],[-1,5],[-1,5],[-1,5]")),
         CLIME_GENERATE_BROKEN, "more tokens", 1, false},
        {FIRST EVENT(NOTHING("{\"type\":\"abort\",\"message\":\"Aborted\"}")), CLIME_GENERATE_ABORTED, "Aborted", 1,
         false},
        {FIRST EVENT(META(STOP, "12", "5", "[-4,8,null]")), CLIME_GENERATE_BROKEN, "2 log-probabilities for 5", 1,
         false},
    };
    (void)state;
    for (size_t i = 0; i < 2 * CLIME_COUNT(cases); i++) {
        struct told told = {.refuse = cases[i / 2].refuse};
        struct clime_listener listener = {nobody_left, be_told, &told};
        struct clime_request r = request();
        struct clime_error e = {0};
        r.listener = &listener;
        struct clime_generate_stream *s = clime_generate_stream_new(&r);
        const char *at = cases[i / 2].events;
        size_t step = i % 2 ? 1 : strlen(at);
        bool wanted = true;
        for (size_t n; wanted && (n = strlen(at)) > 0; at += n < step ? n : step)
            wanted = clime_generate_stream_feed(s, at, n < step ? n : step);
        assert_int_equal(clime_generate_stream_end(s, true, &e), cases[i / 2].out);
        if (!strstr(e.msg, cases[i / 2].says)) fail_msg("%zu: %s", i / 2, e.msg);
        assert_int_equal(told.calls, cases[i / 2].calls);
        assert_int_equal(r.sample->n_response, i / 2 ? 0 : 4);
        for (int k = 0; k < r.sample->n_response; k++)
            assert_true(r.sample->ids[3 + k] == 5 + k && r.sample->logp[k] == -(float)(k + 1));
        clime_generate_stream_free(s);
        clime_sample_free(r.sample);
    }
}

/* An answer that comes whole, with blank lines or without, is read when all of it is there. */
static void test_whole_instead_of_events(void **state) {
    static const char answer[] = META(STOP, "12", "1", "[-1,5,null]");
    static const struct {
        size_t n;
        bool complete;
        enum clime_generate_outcome out;
    } cases[] = {{SIZE_MAX, true, CLIME_GENERATE_DONE},
                 {SIZE_MAX, false, CLIME_GENERATE_CUT},
                 {40, false, CLIME_GENERATE_CUT},
                 {40, true, CLIME_GENERATE_BROKEN}};
    struct told told = {0};
    struct clime_listener listener = {nobody_left, be_told, &told};
    char text[1024];
    (void)state;
    snprintf(text, sizeof text, "{\n\n%s\n", answer + 1);
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_request r = request();
        struct clime_error e = {0};
        r.listener = &listener;
        struct clime_generate_stream *s = clime_generate_stream_new(&r);
        size_t n = cases[i].n < strlen(text) ? cases[i].n : strlen(text);
        for (size_t at = 0; at < n; at++) assert_true(clime_generate_stream_feed(s, text + at, 1));
        assert_int_equal(clime_generate_stream_end(s, cases[i].complete, &e), cases[i].out);
        assert_int_equal(r.sample->n_response, cases[i].out == CLIME_GENERATE_DONE);
        clime_generate_stream_free(s);
        clime_sample_free(r.sample);
    }
    assert_int_equal(told.calls, 0);
}

/* An answer that goes on later loses what a stop string may have begun with; an empty one, which clients send for none,
 * begins nowhere. */
static void test_cut(void **state) {
    char dir[] = "/tmp/clime_generate.XXXXXX";
    const char *specials[] = {"<end>", "<pad>"}, *stops[] = {"", "bcd"};
    struct clime_sampling_options stopping = sampling;
    struct clime_tokenizer *tok;
    struct clime_error e = {0};
    struct clime_ids ids = {0};
    struct clime_request r = request();
    struct clime_sample *s = r.sample;
    (void)state;
    assert_non_null(mkdtemp(dir));
    assert_int_equal(clime_tokenizer_write_bytes(dir, specials, 2, "<end>", "<pad>", NULL, &e), CLIME_OK);
    assert_int_equal(clime_tokenizer_load(dir, &tok, &e), CLIME_OK);
    clime_dir_remove(dir, NULL);
    struct clime_tok_scratch *scratch = clime_tok_scratch_new(tok);
    assert_int_equal(clime_tokenizer_encode(tok, scratch, clime_str_of("aabc"), 0, 64, &ids, &e), CLIME_OK);
    assert_int_equal(ids.len, 4);
    s->ids = xrealloc(s->ids, (3 + ids.len) * sizeof *s->ids);
    memcpy(s->ids + 3, ids.data, ids.len * sizeof *s->ids);
    s->n_response = 4;
    s->logp = xcalloc(4, sizeof *s->logp);
    s->mask = xcalloc(4, sizeof *s->mask);
    s->versions = xcalloc(1, sizeof *s->versions);
    s->versions[s->n_versions++] = (struct clime_version_run){12, 4};
    stopping.stop = (struct clime_opt_list){.items = stops, .n = 2};
    r.sampling = &stopping;
    clime_asker_cut(tok, &r);
    assert_int_equal(s->n_response, 2);
    clime_ids_free(&ids);
    clime_tok_scratch_free(scratch);
    clime_tokenizer_free(tok);
    clime_sample_free(s);
}

/* Values of the estimator by counting all subsets. */
static void test_pass_at_k(void **state) {
    (void)state;
    for (int n = 1; n <= 8; n++)
        for (int c = 0; c <= n; c++)
            for (int k = 1; k <= n; k++) {
                int sets = 0, hits = 0;
                for (int m = 0; m < 1 << n; m++) {
                    if (__builtin_popcount((unsigned)m) != k) continue;
                    sets++;
                    hits += (m & ((1 << c) - 1)) != 0;
                }
                assert_true(fabs(clime_pass_at_k(n, c, k) - (double)hits / sets) < 1e-12);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_body),
                                       cmocka_unit_test(test_replies),
                                       cmocka_unit_test(test_good_reply),
                                       cmocka_unit_test(test_aborted_and_continued),
                                       cmocka_unit_test(test_sets),
                                       cmocka_unit_test(test_labels),
                                       cmocka_unit_test(test_versions_in_flight),
                                       cmocka_unit_test(test_experts_in_pieces),
                                       cmocka_unit_test(test_events),
                                       cmocka_unit_test(test_whole_instead_of_events),
                                       cmocka_unit_test(test_cut),
                                       cmocka_unit_test(test_pass_at_k)};
    return cmocka_run_group_tests_name("generate", tests, NULL, NULL);
}
