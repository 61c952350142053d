/* Fuzzes the bodies of the generating endpoints: /generate, /v1/completions, /v1/chat/completions, /v1/responses,
 * /v1/messages.
 *
 * Invariants: a body is refused with a message, or gives prompts whose parameters are inside their limits; the messages
 * and tools that a body in another form becomes are JSON; nothing is leaked either way (run under the address
 * sanitizer).
 */
#include "fuzz.h"

#include <stdlib.h>

#include "server/api/generate_parse.h"
#include "server/api/messages.h"
#include "server/api/openai.h"
#include "server/api/responses.h"
#include "server/job/fields.h"

static struct clime_server server;

static void check_generation(const struct clime_generation *gen) {
    CHECK(gen->n_prompts >= 1 && gen->n_prompts <= CLIME_MAX_OUTPUTS);
    for (int i = 0; i < gen->n_prompts; i++) {
        const struct clime_prompt *p = &gen->prompts[i];
        const struct clime_sampling_params *s = p->params;
        CHECK(p->is_text + (p->chat != NULL) <= 1);
        CHECK(s->n >= 1 && s->n <= CLIME_MAX_N && s->temperature >= 0 && s->top_p > 0 && s->top_p <= 1);
        CHECK(s->repetition_penalty > 0 && s->max_new_tokens >= -1 && s->stream_interval >= 1);
        CHECK(s->n_stop <= CLIME_MAX_STOP && s->n_stop_ids <= CLIME_MAX_STOP_IDS && s->n_bias <= CLIME_MAX_BIAS);
        for (int k = 1; k < s->n_bias; k++) CHECK(s->bias[k - 1].id < s->bias[k].id);
        CHECK(p->logp->top >= 0 && p->logp->top <= CLIME_MAX_TOP_LOGPROBS && p->logp->prompt_temperature > 0);
        CHECK(p->logp->n_ids <= CLIME_MAX_CHOSEN_LOGPROBS && p->rid.len <= CLIME_MAX_RID);
    }
}

static void check_result(const struct clime_generation *gen, enum clime_err err, const struct clime_error *e) {
    if (!err)
        check_generation(gen);
    else
        CHECK(e->msg[0] && err == e->code);
}

static void check_made(const struct clime_chat_prompt *p) {
    CHECK(clime_json_check(p->messages.ptr, p->messages.len, NULL) && p->messages.ptr[0] == '[');
    CHECK(p->tools.len == 0 || clime_json_check(p->tools.ptr, p->tools.len, NULL));
}

/* The conversations of Responses and Messages. */
static void other_forms(struct clime_str body) {
    struct clime_generation gen;
    for (int form = 0; form < 3; form++) {
        struct clime_responses_request q = {.r = {.server = &server}};
        struct clime_messages_request m = {.r = {.server = &server}};
        struct clime_openai_request *r = form ? &m.r : &q.r;
        struct clime_error e = {0};
        clime_generation_begin(&gen, &server, NULL, body);
        enum clime_err err = form ? clime_messages_parse(&gen, form == 2, &m, &e) : clime_responses_parse(&gen, &q, &e);
        check_result(&gen, err, &e);
        if (!err) check_made(&r->prompt);
        clime_generation_end(&gen);
        clime_buf_free(&r->event);
    }
}

static void target(const char *data, size_t len) {
    struct clime_str body = {data, len};
    struct clime_generation gen;
    struct clime_generate_options options = {0};
    struct clime_error e = {0};
    clime_generation_begin(&gen, &server, NULL, body);
    check_result(&gen, clime_generate_parse(&gen, &options, &e), &e);
    clime_generation_end(&gen);
    for (int chat = 0; chat < 2; chat++) {
        struct clime_openai_request r = {.server = &server};
        e = (struct clime_error){0};
        clime_generation_begin(&gen, &server, NULL, body);
        check_result(&gen, clime_openai_parse(&gen, chat, &r, &e), &e);
        clime_generation_end(&gen);
        clime_buf_free(&r.event);
    }
    other_forms(body);
}

#define SEED(text)                                                                                                     \
    { text, sizeof text - 1 }

int main(int argc, char **argv) {
    static const struct clime_str seeds[] = {
        SEED("{\"rid\":\"r\",\"input_ids\":[1,2,3],\"sampling_params\":{\"temperature\":0.7,\"top_p\":0.9,\"top_k\":5,"
             "\"max_new_tokens\":4,\"stop\":[\"a\",\"b\"],\"stop_regex\":\"a+\",\"bad_words\":[\"a\"],\"stop_token_"
             "ids\":[2],\"logit_bias\":{\"5\":1,\"4\":2},"
             "\"sampling_seed\":18446744073709551615,\"n\":2},\"return_logprob\":true,\"top_logprobs_num\":2}"),
        SEED("{\"input_ids\":[[1],[2,3]],\"sampling_params\":[{\"n\":1},{}],\"rid\":[\"a\",\"b\"],"
             "\"logprob_start_len\":[0,-1],\"token_ids_logprob\":[[1],[2,3]],\"return_logprob\":[true,false]}"),
        SEED("{\"text\":[\"a\",\"\\u00e9\"],\"stream\":true,\"cache_salt\":\"s\",\"regex\":null,\"image_data\":[]}"),
        SEED("{\"prompt\":[[1,2],[3]],\"max_tokens\":5,\"logprobs\":2,\"echo\":true,\"n\":3,\"best_of\":3,"
             "\"stream_options\":{\"include_usage\":true},\"seed\":-5}"),
        SEED("{\"prompt\":[\"a\",\"b\"],\"temperature\":null,\"stop\":\"x\",\"suffix\":null}"),
        SEED("{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":\"function\"}],"
             "\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},\"max_completion_tokens\":9,"
             "\"chat_template_kwargs\":{\"a\":1},\"logprobs\":true,\"top_logprobs\":3,\"return_token_ids\":true}"),
        SEED(
            "{\"input\":[{\"role\":\"developer\",\"content\":\"s\"},{\"role\":\"user\",\"content\":[{\"type\":"
            "\"input_text\",\"text\":\"a\"}]},{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"text\":\"t\"}]},{"
            "\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":"
            "\"function_call_output\",\"call_id\":\"c\",\"output\":\"o\"}],\"instructions\":\"i\",\"tools\":[{\"type\":"
            "\"function\",\"name\":\"f\",\"parameters\":{}}],\"reasoning\":{\"effort\":\"low\"}}"),
        SEED("{\"input\":[{\"type\":\"function_call\",\"call_id\":\"c\",\"namespace\":\"n\",\"name\":\"f\","
             "\"arguments\":"
             "\"{}\"}],\"tools\":[{\"type\":\"namespace\",\"name\":\"n\",\"description\":\"d\",\"tools\":[{\"type\":"
             "\"function\","
             "\"name\":\"f\",\"strict\":null},{\"type\":\"custom\",\"name\":\"g\"}]}],\"tool_choice\":{\"type\":"
             "\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{\"type\":\"namespace\",\"name\":\"n\"}]},\"text\":{"
             "\"format\":{"
             "\"type\":\"json_object\"}}}"),
        SEED("{\"max_tokens\":5,\"system\":[{\"type\":\"text\",\"text\":\"s\"}],\"messages\":[{\"role\":\"user\","
             "\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\",\"thinking\":\"t\"},{"
             "\"type\":"
             "\"tool_use\",\"id\":\"c\",\"name\":\"f\",\"input\":{}}]},{\"role\":\"user\",\"content\":[{\"type\":"
             "\"tool_result\",\"tool_use_id\":\"c\",\"content\":\"o\"}]}],\"tools\":[{\"name\":\"f\",\"input_schema\":{"
             "}}],"
             "\"tool_choice\":{\"type\":\"none\"},\"thinking\":{\"type\":\"enabled\"},\"stop_sequences\":[\"x\"]}"),
    };
    static const char *const words[] = {"null",        "true",         "[]",       "{}",      "-1",         "1e9",
                                        "\"stop\":",   "\"n\":",       "\"text\"", "\"rid\"", "\"prompt\"", "[[1]]",
                                        "\"stream\":", "\"logprobs\"", "\\ud800",  "0.5",     "4294967296", NULL};
    static const struct fuzz f = {.seeds = seeds,
                                  .n_seeds = (int)CLIME_COUNT(seeds),
                                  .words = words,
                                  .max_bytes = 4096,
                                  .iterations = 100000,
                                  .target = target};
    clime_sampling_defaults(&server.openai_defaults);
    static const char *names[] = {"policy"};
    server.model_names = names;
    server.n_model_names = 1;
    server.field_watch = clime_field_watch_new(true);
    return fuzz_main(argc, argv, &f);
}
