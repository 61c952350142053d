/* Fuzzes every text that the trainer is sent: the bodies of the environments' interface, the replies of /generate and
 * of a teacher, the rewards of a command or URL.
 *
 * Invariants: a text is refused with a message, or gives what is inside its limits; nothing is leaked either way (run
 * under the address sanitizer). Each case is also read with some of its letters written as escapes, which changes
 * nothing of what a JSON text says: so every key and every string comes with an escape.
 */
#include "fuzz.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/scan.h"
#include "trainer/env/environments_int.h"
#include "trainer/rollout/generate.h"
#include "trainer/rollout/teacher.h"

#define N_PROMPT 2
#define N_RESPONSE 3

static void check_error(enum clime_err rc, const struct clime_error *e) {
    CHECK(rc == e->code && (!rc || e->msg[0]));
}

static double read_lease(struct clime_str body) {
    struct clime_error e = {0};
    double wait_s = -1;
    enum clime_err rc = clime_env_lease_read(body, &wait_s, &e);
    check_error(rc, &e);
    CHECK(rc || (wait_s >= 0 && wait_s <= 60));
    return rc ? -1 : wait_s;
}

static int read_result(struct clime_str body) {
    struct clime_error e = {0};
    struct clime_env_result r = {0};
    bool renew = false;
    enum clime_err rc = clime_env_result_read(body, &r, &renew, &e);
    check_error(rc, &e);
    if (!rc) CHECK(renew + (r.error != NULL) + (r.n_parts > 0) == 1);
    for (int i = 0; i < r.n_parts && !rc; i++)
        CHECK(!r.parts[i].has_reward || isfinite(r.parts[i].reward.value) || r.parts[i].reward.object);
    int n = rc ? -1 : r.n_parts;
    clime_env_result_free(&r);
    return n;
}

static int read_turn(struct clime_str body, enum clime_env_api api) {
    struct clime_error e = {0};
    struct clime_env_body b;
    enum clime_err rc = clime_env_body_read(body, api, &b, &e);
    check_error(rc, &e);
    if (!rc) {
        CHECK(b.ask.n_stop <= CLIME_ENV_MAX_STOP && (b.ask.max_new == -1 || b.ask.max_new > 0));
        for (int i = 0; i < b.ask.n_stop; i++) CHECK(b.ask.stop[i][0]);
        for (size_t i = 0; i < b.ask.n_ids; i++) CHECK(b.ask.ids[i] >= 0);
        CHECK(b.ask.chat == (api != CLIME_ENV_GENERATE) && b.ask.chat == (b.ask.messages.ptr != NULL));
        CHECK((b.ask.tools.ptr != NULL) == (b.ask.known != NULL));
    }
    int n = rc ? -1 : b.ask.n_stop;
    clime_env_body_free(&b);
    return n;
}

static struct clime_sample *new_sample(int n_response) {
    struct clime_sample *s = clime_sample_new();
    s->n_prompt = N_PROMPT;
    s->n_response = n_response;
    s->ids = xcalloc(N_PROMPT + N_RESPONSE, sizeof *s->ids);
    for (int i = 0; i < N_PROMPT + n_response; i++) s->ids[i] = i + 1;
    return s;
}

static bool nobody_left(void *arg) {
    (void)arg;
    return false;
}

static bool be_told(void *arg, const struct clime_partial *so_far) {
    (void)arg;
    CHECK(so_far->n >= 0 && so_far->n <= N_RESPONSE);
    for (int i = 0; i < so_far->n; i++) CHECK(so_far->logp[i] <= 0);
    return true;
}

/* The reply as the one event of a stream, in two pieces; before it, the text itself as a piece of one. */
static enum clime_generate_outcome read_events(struct clime_str reply, bool alone) {
    static const struct clime_listener listener = {nobody_left, be_told, NULL};
    struct clime_sampling_options sampling = {.temperature = 1, .max_response_len = N_RESPONSE};
    struct clime_request r = {.sample = new_sample(0), .sampling = &sampling, .rid = "r/0", .listener = &listener};
    struct clime_generate_stream *s = clime_generate_stream_new(&r);
    struct clime_error e = {0};
    if (!alone) clime_generate_stream_feed(s, reply.ptr, reply.len);
    clime_generate_stream_feed(s, "data: ", 6);
    clime_generate_stream_feed(s, reply.ptr, reply.len / 2);
    clime_generate_stream_feed(s, reply.ptr + reply.len / 2, reply.len - reply.len / 2);
    clime_generate_stream_feed(s, "\n\n", 2);
    enum clime_generate_outcome out = clime_generate_stream_end(s, true, &e);
    CHECK(out == CLIME_GENERATE_DONE || (e.code && e.msg[0]));
    clime_generate_stream_free(s);
    clime_sample_free(r.sample);
    return out;
}

static int read_generate(struct clime_str reply) {
    struct clime_sampling_options sampling = {.temperature = 1, .max_response_len = N_RESPONSE};
    struct clime_request r = {.sample = new_sample(0), .sampling = &sampling, .rid = "r/0"};
    struct clime_error e = {0};
    enum clime_generate_outcome out = clime_generate_read(&r, reply, &e);
    const struct clime_sample *s = r.sample;
    CHECK(out == CLIME_GENERATE_DONE || (e.code && e.msg[0]));
    CHECK(s->n_prompt == N_PROMPT && s->n_response <= N_RESPONSE);
    read_events(reply, false);
    bool done = read_events(reply, true) == CLIME_GENERATE_DONE; /* an empty line ends an event */
    CHECK(done == (out == CLIME_GENERATE_DONE) || memmem(reply.ptr, reply.len, "\n\n", 2));
    if (out == CLIME_GENERATE_DONE) CHECK(s->status == CLIME_SAMPLE_COMPLETED || s->status == CLIME_SAMPLE_TRUNCATED);
    for (int i = 0; i < s->n_response; i++) CHECK(s->logp[i] <= 0 && isfinite(s->logp[i]) && s->mask[i] == 1);
    clime_sample_free(r.sample);
    return (int)out;
}

static int read_teacher(struct clime_str reply) {
    struct clime_sample *s = new_sample(N_RESPONSE);
    struct clime_error e = {0};
    enum clime_err rc = clime_teacher_read(s, reply, &e);
    check_error(rc, &e);
    CHECK(!rc == (s->teacher_logp != NULL));
    for (int i = 0; i < N_RESPONSE && !rc; i++) CHECK(isfinite(s->teacher_logp[i]));
    clime_sample_free(s);
    return (int)rc;
}

static int read_rewards(struct clime_str json) {
    struct clime_reward one = {0}, list[2] = {{0}};
    enum clime_err rc = clime_reward_from_json(json, NULL, &one);
    check_error(rc, &one.error);
    CHECK(rc || one.object || isfinite(one.value));
    clime_reward_free(&one);
    enum clime_err keyed = clime_reward_from_json(json, "score", &one);
    check_error(keyed, &one.error);
    CHECK(keyed || isfinite(one.value));
    clime_reward_free(&one);
    enum clime_err both = clime_reward_list_from_json(json, NULL, 2, list);
    check_error(both, &list[0].error);
    for (int i = 0; i < 2; i++) clime_reward_free(&list[i]);
    return (int)rc * 10000 + (int)keyed * 100 + (int)both;
}

/* Each letter inside a string that is no escape already, every third, as \u00XX. */
static void escape(struct clime_str in, struct clime_buf *out) {
    bool inside = false;
    int letters = 0;
    for (size_t i = 0; i < in.len; i++) {
        char c = in.ptr[i];
        if (c == '"') inside = !inside;
        if (inside && c == '\\') {
            size_t n = i + 1 < in.len && in.ptr[i + 1] == 'u' ? 6 : 2;
            if (n > in.len - i) n = in.len - i;
            clime_buf_add(out, in.ptr + i, n);
            i += n - 1;
        } else if (inside && ((c >= 'a' && c <= 'z') || c == '_') && letters++ % 3 == 0) {
            clime_buf_printf(out, "\\u%04x", (unsigned)c);
        } else {
            clime_buf_add(out, &c, 1);
        }
    }
}

struct verdict {
    double lease;
    int result, chat, responses, messages, generate, reply, teacher, rewards;
};

static struct verdict read_all(struct clime_str text) {
    return (struct verdict){.lease = read_lease(text),
                            .result = read_result(text),
                            .chat = read_turn(text, CLIME_ENV_CHAT),
                            .responses = read_turn(text, CLIME_ENV_RESPONSES),
                            .messages = read_turn(text, CLIME_ENV_MESSAGES),
                            .generate = read_turn(text, CLIME_ENV_GENERATE),
                            .reply = read_generate(text),
                            .teacher = read_teacher(text),
                            .rewards = read_rewards(text)};
}

static void target(const char *data, size_t len) {
    struct clime_str text = {data, len};
    struct clime_error e = {0};
    struct clime_buf escaped;
    struct verdict v = read_all(text), w;
    clime_buf_init(&escaped, 1 << 20);
    escape(text, &escaped);
    w = read_all(clime_buf_str(&escaped));
    if (clime_json_check(data, len, &e)) {
        CHECK(v.lease == w.lease && v.result == w.result && v.chat == w.chat && v.generate == w.generate);
        CHECK(v.responses == w.responses && v.messages == w.messages);
        CHECK(v.reply == w.reply && v.teacher == w.teacher && v.rewards == w.rewards);
    }
    clime_buf_free(&escaped);
}

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }

int main(int argc, char **argv) {
    static const struct clime_str seeds[] = {
        SEED("{\"wait_s\":20}"),
        SEED("{\"reward\":1.5,\"metadata\":{\"a\":[1]},\"truncated\":true}"),
        SEED("{\"samples\":[{\"turn\":0,\"reward\":{\"score\":1}},{\"turn\":1,\"reward\":null,\"metadata\":null}]}"),
        SEED("{\"error\":\"the tool broke\"}"),
        SEED("{\"renew\":true}"),
        SEED("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[],\"max_tokens\":5,"
             "\"stop\":[\"\\n\",\"b\"],\"n\":1,\"stream\":true}"),
        SEED("{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"h\"},"
             "{\"type\":\"tool_use\",\"id\":\"1\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":["
             "{\"type\":\"tool_result\",\"tool_use_id\":\"1\",\"content\":\"x\"}]}],\"system\":\"s\","
             "\"tools\":[{\"name\":\"f\",\"input_schema\":{}}],\"tool_choice\":{\"type\":\"auto\"}}"),
        SEED("{\"input\":[{\"type\":\"reasoning\",\"content\":[{\"text\":\"h\"}]},{\"type\":\"function_call\","
             "\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":"
             "\"1\",\"output\":\"x\"}],\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"text\":{\"format\":"
             "{\"type\":\"text\"}},\"tool_choice\":\"none\",\"parallel_tool_calls\":false}"),
        SEED("{\"text\":\"a\",\"sampling_params\":{\"max_new_tokens\":3,\"stop\":\"x\"}}"),
        SEED("{\"input_ids\":[1,2,3]}"),
        SEED("{\"text\":\"ab\",\"meta_info\":{\"output_token_logprobs\":[[-0.5,7,null],[-1e-3,8,\"b\"]],"
             "\"finish_reason\":{\"type\":\"stop\",\"matched\":8},\"token_versions\":[[\"0@r\",2]],\"kept_kv\":[[0,1]],"
             "\"completion_tokens\":2,\"cached_tokens\":0}}"),
        SEED("{\"meta_info\":{\"input_token_logprobs\":[[null,2],[-0.25,3,null],[-1.5,4,\"x\"],[-2,5]]}}"),
        SEED("{\"score\":0.5,\"acc\":true}"),
        SEED("[1,{\"score\":2}]"),
    };
    static const char *const words[] = {
        "null",        "true",     "[]",       "{}",           "-1",      "1e9",     "1e308", "\"turn\":",  "\"stop\"",
        "\"reward\":", "\"type\"", "[[-1,2]]", "\"samples\":", "\\u0000", "\\ud800", "0.5",   "4294967296", NULL};
    static const struct fuzz f = {.seeds = seeds,
                                  .n_seeds = (int)CLIME_COUNT(seeds),
                                  .words = words,
                                  .max_bytes = 4096,
                                  .iterations = 100000,
                                  .target = target};
    return fuzz_main(argc, argv, &f);
}
