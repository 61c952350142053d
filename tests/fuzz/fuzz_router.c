/* Fuzzes what the router reads of a client: bodies, for their cost and pages; paths and queries; labels of weights. And
 * of a worker: the events of a stream that another one may have to go on with.
 *
 * Invariants: a cost is within its bounds; pages depend on the prompt's beginning alone, so that what is cut off behind
 * changes none before; a target has no segment that leads elsewhere, and no byte that ends a request line; a request to
 * go on is JSON, and all memory that was counted is given back.
 */
#include "fuzz.h"

#include <stdlib.h>

#include "common/arena.h"
#include "common/err.h"
#include "common/json/scan.h"
#include "router/forward.h"
#include "router/policy/request.h"
#include "router/replay.h"

static void check_request(struct clime_str body) {
    struct clime_arena arena;
    struct clime_route_request rq;
    clime_arena_init(&arena, body.len + 4096);
    clime_route_request_read(&rq, clime_str_of("s"), body, &arena);
    CHECK(rq.cost >= 1 && rq.cost <= (int64_t)1 << 40);
    CHECK(rq.n_pages >= 0 && rq.n_pages <= CLIME_ROUTE_PAGES && (size_t)rq.n_pages <= body.len / 64);
    clime_arena_free(&arena);
}

static void check_target(struct clime_str text) {
    const char *mark = memchr(text.ptr, '?', text.len);
    struct clime_str path = {text.ptr, mark ? (size_t)(mark - text.ptr) : text.len}, query = {"", 0};
    struct clime_error e = {0};
    char *target;
    if (mark) query = (struct clime_str){mark + 1, text.len - path.len - 1};
    if (clime_forward_target(path, query, &target, &e)) {
        CHECK(!target && e.code && e.msg[0]);
        return;
    }
    size_t n = strcspn(target, "?");
    CHECK(target[0] == '/');
    for (size_t i = 0; target[i]; i++) CHECK(target[i] > ' ' && target[i] < 127 && target[i] != '#');
    for (size_t i = 0; i < n; i++) {
        if (target[i] != '/') continue;
        size_t len = strcspn(target + i + 1, "/?");
        CHECK(len > 0 && !(len == 1 && target[i + 1] == '.') && !(len == 2 && !strncmp(target + i + 1, "..", 2)));
    }
    free(target);
}

static void check_label(struct clime_str body) {
    char label[CLIME_LABEL_SIZE];
    CHECK(clime_version_read(body, label) || !label[0]);
    CHECK(strlen(label) < CLIME_LABEL_SIZE && !clime_version_is_older(label, label));
}

/* Each line an event. */
static void check_replay(struct clime_str text, const char *kind) {
    struct clime_replay_memory memory = {.max = 20000};
    struct clime_replay p;
    struct clime_buf request, event;
    int status = 0;
    clime_replay_init(&p, &memory);
    clime_buf_init(&event, 1 << 16);
    CHECK(clime_replay_begin(&p, kind));
    for (size_t at = 0, end; at < text.len; at = end + 1) {
        const char *line = memchr(text.ptr + at, '\n', text.len - at);
        end = line ? (size_t)(line - text.ptr) : text.len;
        clime_buf_clear(&event);
        clime_buf_adds(&event, "data: ");
        clime_buf_add(&event, text.ptr + at, end - at);
        clime_buf_adds(&event, "\n\n");
        enum clime_replay_verdict v = clime_replay_event(&p, clime_buf_str(&event), &status);
        CHECK(v != CLIME_REPLAY_ERROR || (status >= 500 && status < 600));
    }
    clime_buf_init(&request, 0);
    if (clime_replay_request(&p, clime_str_of("{\"text\":\"x\"}"), &request)) {
        struct clime_error e;
        CHECK(clime_json_check(request.data, request.len, &e));
    }
    clime_replay_free(&p);
    CHECK(atomic_load(&memory.used) == 0);
    clime_buf_free(&request);
    clime_buf_free(&event);
}

static void target(const char *data, size_t len) {
    struct clime_str text = {data, len};
    check_replay(text, "cumulative");
    check_replay(text, "incremental");
    check_request(text);
    check_target(text);
    check_label(text);
}

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }

int main(int argc, char **argv) {
    static const struct clime_str seeds[] = {
        SEED("{\"input_ids\":[[1,2,3],[4]],\"sampling_params\":[{\"max_new_tokens\":6,\"n\":2},{}],\"model\":"
             "\"m\\u0061\"}"),
        SEED("{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\\ude00 hello\"}],\"max_tokens\":5,\"n\":3}"),
        SEED("{\"prompt\":[\"one\",\"two\"],\"max_completion_tokens\":1e3}"),
        SEED("{\"weight_version\":\"17\"}"),
        SEED("/v1/models/org/name..x/..?q=%20{}&a=#"),
        SEED("/v1/models/a b"),
        SEED("{\"index\":1,\"output_ids\":[5,6],\"meta_info\":{\"id\":\"a\",\"completion_tokens\":2,\"seed\":7,"
             "\"finish_reason\":null,\"output_token_logprobs\":[[-1.0,5,null],[-2.0,6,null]]}}\n"
             "{\"index\":1,\"output_ids\":[8],\"meta_info\":{\"completion_tokens\":3,\"finish_reason\":{}}}\n"
             "{\"error\":{\"code\":503}}"),
    };
    static const char *const words[] = {
        "/..", "/.", "//", "%2e", "?", "\"n\":", "1e308", "-1", "[[", "\\u0000", "null", NULL};
    const struct fuzz f = {.seeds = seeds,
                           .n_seeds = (int)CLIME_COUNT(seeds),
                           .words = words,
                           .max_bytes = 1500,
                           .iterations = 200000,
                           .target = target};
    return fuzz_main(argc, argv, &f);
}
