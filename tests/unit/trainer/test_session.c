/* Sessions without HTTP and without a model: a scripted policy, real chat templates, clients that repeat histories. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#include <malloc.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/http/client.h"
#include "common/os/dirs.h"
#include "tests/unit/shared_data.h"
#include "trainer/env/environments_int.h"
#include "trainer/plugin/hooks.h"

#define MAX ((size_t)1 << 22)
#define TOOLS                                                                                                          \
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"description\":\"adds\",\"parameters\":{\"type\":"        \
    "\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}}}}}]"

struct world {
    struct clime_environments v;
    struct clime_tokenizer *tok;
    struct clime_task task;
    struct clime_request request;
    struct clime_sampling_options sampling;
    char dir[64];
    const char *says; /* what the policy says next */
    int64_t version;
};

static struct world begin(const char *source, const char *end) {
    struct world w = {.dir = "/tmp/clime_session.XXXXXX"};
    const char *specials[] = {end, "<pad>"};
    struct clime_error e = {0};
    assert_non_null(mkdtemp(w.dir));
    assert_int_equal(clime_tokenizer_write_bytes(w.dir, specials, 2, end, "<pad>", source, &e), CLIME_OK);
    assert_int_equal(clime_tokenizer_load(w.dir, &w.tok, &e), CLIME_OK);
    clime_dir_remove(w.dir, NULL);
    w.v.o.tok = w.tok;
    if (clime_chat_template_open(&w.v.template, w.tok, NULL, &e)) fail_msg("%s", e.msg);
    clime_env_choose_format(&w.v);
    w.sampling = (struct clime_sampling_options){.temperature = 1, .top_p = 1, .max_response_len = 1 << 20};
    w.request.sample = clime_sample_new();
    snprintf(w.request.rid, sizeof w.request.rid, "r");
    w.task =
        (struct clime_task){.last_turn = -1, .session = clime_session_new(), .scratch = clime_tok_scratch_new(w.tok)};
    return w;
}

static void end(struct world *w) {
    clime_session_free(w->task.session);
    clime_tok_scratch_free(w->task.scratch);
    clime_sample_free(w->request.sample);
    clime_chat_template_close(&w->v.template);
    clime_ids_free(&w->v.markers);
    clime_tokenizer_free(w->tok);
}

/* The policy: says w->says and ends its turn. */
static void speak(void *arg, struct clime_request *turn) {
    struct world *w = arg;
    struct clime_sample *s = turn->sample;
    struct clime_ids ids = {0};
    struct clime_error e = {0};
    assert_int_equal(clime_tokenizer_encode(w->tok, w->task.scratch, clime_str_of(w->says), 0, MAX, &ids, &e),
                     CLIME_OK);
    s->n_response = (int32_t)ids.len;
    s->ids = xrealloc(s->ids, ((size_t)s->n_prompt + ids.len) * sizeof *s->ids);
    memcpy(s->ids + s->n_prompt, ids.data, ids.len * sizeof *ids.data);
    s->logp = xcalloc(ids.len, sizeof *s->logp);
    for (size_t i = 0; i < ids.len; i++) s->logp[i] = -(float)(i + 1);
    s->versions = xcalloc(1, sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){w->version, s->n_response};
    s->n_versions = 1;
    s->status = CLIME_SAMPLE_COMPLETED;
    clime_ids_free(&ids);
}

/* One turn; the caller frees the reply. */
static char *turn(struct world *w, enum clime_env_api api, const char *body, const char *says) {
    struct clime_env_body b;
    struct clime_env_call call = {.ask = &b.ask};
    struct clime_error e = {0};
    struct clime_buf reply;
    clime_buf_init(&reply, MAX);
    w->says = says;
    w->request.sampling = &w->sampling;
    w->task.r = &w->request;
    if (clime_env_body_read(clime_str_of(body), api, &b, &e)) fail_msg("%s: %s", e.msg, body);
    clime_env_turn(&w->v, &w->task, &call, speak, w);
    if (call.error.code) fail_msg("%s: %s", call.error.msg, body);
    clime_env_reply(&b, &call, &reply);
    clime_env_call_free(&call);
    clime_env_body_free(&b);
    char *text = xstrndup(reply.data, reply.len);
    clime_buf_free(&reply);
    return text;
}

/* The raw value of the first member of this name in a JSON text, at any depth; the caller frees it. */
static char *member(const char *json, const char *name) {
    char *quoted = xasprintf("\"%s\":", name);
    const char *at = strstr(json, quoted);
    if (!at) fail_msg("%s is not in %s", name, json);
    struct clime_json j;
    struct clime_arena a;
    struct clime_error e = {0};
    struct clime_str raw;
    at += strlen(quoted);
    clime_arena_init(&a, MAX);
    clime_json_init(&j, at, strlen(at), &a, &e);
    assert_true(clime_json_skip(&j, &raw));
    clime_arena_free(&a);
    free(quoted);
    return xstrndup(raw.ptr, raw.len);
}

static int64_t count(const struct world *w, enum clime_turn_kind kind) {
    return clime_session_counts(w->task.session).n[kind];
}

/* A growing list of messages, and the body that asks with it. */
struct history {
    struct clime_buf list;
};

static void say(struct history *h, const char *message) {
    if (!h->list.data) clime_buf_init(&h->list, MAX);
    clime_buf_printf(&h->list, "%s%s", h->list.len ? "," : "", message);
}

static char *ask(const struct history *h, const char *more) {
    return xasprintf("{\"messages\":[%.*s]%s}", (int)h->list.len, h->list.data, more);
}

/* ---- rounds of tools by the families' own templates ---- */

struct family {
    const char *file, *end, *says; /* with %d, %d: the numbers */
    const char *edits[4];          /* pairs: what stands in the file, and what is rendered in its place */
};
#define DS(a) "<\xEF\xBD\x9C" a "\xEF\xBD\x9C>"
#define BAR "\xE2\x96\x81"
static const struct family families[] = {
    {"Qwen-Qwen3-0.6B", "<|im_end|>",
     "<think>\nhm\n</think>\n\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": %d, \"b\": %d}}\n</tool_call>"},
    {"GLM-4.6", "<|observation|>",
     "\n<think>hm</think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>%d</arg_value>\n<arg_key>b</arg_key>\n"
     "<arg_value>%d</arg_value>\n</tool_call>"},
    {"glm4moe", "<|observation|>",
     "\n<think>hm</think>\n<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>%d</arg_value>\n<arg_key>b</arg_key>\n"
     "<arg_value>%d</arg_value>\n</tool_call>"},
    {"meta-llama-Llama-3.1-8B-Instruct", "<|eot_id|>", "{\"name\": \"add\", \"parameters\": {\"a\": %d, \"b\": %d}}"},
    {"deepseek-ai-DeepSeek-V3.1", DS("end" BAR "of" BAR "sentence"),
     DS("tool" BAR "calls" BAR "begin") DS("tool" BAR "call" BAR "begin") "add" DS(
         "tool" BAR "sep") "{\"a\": %d, \"b\": %d}" DS("tool" BAR "call" BAR "end") DS("tool" BAR "calls" BAR "end")},
    /* This copy of the template changes a list in place, which is refused here as it is in transformers: with other
     * words for the same. The model counts its calls in their ids. */
    {"Kimi-K2-Instruct",
     "<|im_end|>",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.add:%1$d<|tool_call_argument_begin|>{\"a\": %1$d, "
     "\"b\": "
     "%2$d}<|tool_call_end|><|tool_calls_section_end|>",
     {"set _ = tool_response_queue.ids.append(formatted_id)",
      "set tool_response_queue.ids = tool_response_queue.ids + [formatted_id]",
      "set tool_call_id = tool_response_queue.ids.pop(0)",
      "set tool_call_id = tool_response_queue.ids[0] -%}{%- set tool_response_queue.ids = "
      "tool_response_queue.ids[1:]"}},
    {"Qwen3-Coder", "<|im_end|>",
     "<tool_call>\n<function=add>\n<parameter=a>\n%d\n</parameter>\n<parameter=b>\n%d\n</parameter>\n</function>\n"
     "</tool_call>"},
    {"Qwen-Qwen2.5-7B-Instruct", "<|im_end|>",
     "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": %d, \"b\": %d}}\n</tool_call>"},
};

/* Eight answers with a call each, each repeated as the client was given it: the tokens of all turns stay, and what was
 * sampled is found in the sample, with its numbers, and nothing else has mask 1. */
static void check_family(const struct family *f, const char *source) {
    struct world w = begin(source, f->end);
    struct history h = {0};
    struct clime_buf said;
    clime_buf_init(&said, MAX);
    say(&h, "{\"role\":\"user\",\"content\":\"2+3?\"}");
    for (int i = 0; i < 8; i++) {
        char *text = xasprintf(f->says, i, i + 1), *body = ask(&h, ",\"tools\":" TOOLS);
        char *whole = xasprintf("%s%s", text, f->end);
        w.version = i;
        char *reply = turn(&w, CLIME_ENV_CHAT, body, whole), *message = member(reply, "message");
        char *id = member(message, "id"), *reason = member(reply, "finish_reason");
        assert_string_equal(reason, "\"tool_calls\"");
        char *tool = xasprintf("{\"role\":\"tool\",\"tool_call_id\":%s,\"content\":\"%d\"}", id, 2 * i + 1);
        clime_buf_adds(&said, whole);
        say(&h, message);
        say(&h, tool);
        char *all[] = {text, body, whole, reply, message, id, reason, tool};
        for (size_t k = 0; k < CLIME_COUNT(all); k++) free(all[k]);
    }
    if (count(&w, CLIME_TURN_EXTENDED) != 7) {
        struct clime_turn_counts c = clime_session_counts(w.task.session);
        for (int k = 0; k < CLIME_N_TURN_KINDS; k++) print_message("%s %d\n", clime_turn_kinds[k].name, (int)c.n[k]);
        fail_msg("%s", f->file);
    }
    struct clime_sample *s = clime_sample_new();
    struct clime_ids sampled = {0};
    struct clime_buf again;
    clime_session_fill(w.task.session, w.task.last_turn, s);
    int at = 0, in_turn = 0, turns = 0, run = 0;
    for (int i = 0; i < s->n_response; at++, i++) {
        if (at == s->versions[run].n) run++, at = 0;
        if (!s->mask[i]) {
            assert_true(s->logp[i] == 0);
            in_turn = 0;
            continue;
        }
        turns += in_turn == 0;
        assert_true(s->logp[i] == -(float)++in_turn);
        assert_int_equal(s->versions[run].version, turns - 1);
        clime_ids_push(&sampled, s->ids[s->n_prompt + i]);
    }
    clime_buf_init(&again, MAX);
    clime_tokenizer_decode(w.tok, sampled.data, sampled.len, false, &again);
    assert_int_equal(turns, 8);
    assert_int_equal(again.len, said.len);
    assert_memory_equal(again.data, said.data, said.len);
    clime_ids_free(&sampled);
    clime_sample_free(s);
    clime_buf_free(&again);
    clime_buf_free(&said);
    clime_buf_free(&h.list);
    end(&w);
}

/* The text with each pair's first part replaced by its second. The caller frees it. */
static char *edited(const char *text, const char *const *pairs) {
    char *out = xstrdup(text);
    for (int i = 0; i < 4 && pairs[i]; i += 2) {
        const char *at = strstr(out, pairs[i]);
        if (!at) fail_msg("not in the template: %s", pairs[i]);
        char *next = xasprintf("%.*s%s%s", (int)(at - out), out, pairs[i + 1], at + strlen(pairs[i]));
        free(out);
        out = next;
    }
    return out;
}

static void test_families(void **state) {
    (void)state;
    for (size_t i = 0; i < CLIME_COUNT(families); i++) {
        char *name = xasprintf("templates/%s.jinja", families[i].file), *path = shared_data(name);
        struct clime_buf source;
        struct clime_error e = {0};
        clime_buf_init(&source, MAX);
        assert_int_equal(clime_buf_read_file(&source, path, &e), CLIME_OK);
        clime_buf_addc(&source, 0);
        char *template = edited(source.data, families[i].edits);
        check_family(&families[i], template);
        free(template);
        clime_buf_free(&source);
        free(name);
        free(path);
    }
}

/* ---- why a branch is one ---- */

/* Keeps the reasoning of a message only behind the last user's. */
static const char template[] =
    "{%- set ns = namespace(last=0) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}{%- set ns.last = "
    "loop.index0 "
    "-%}{%- endif -%}{%- endfor -%}{%- if tools -%}[{{ tools | length }}]{%- endif -%}"
    "{%- for m in messages -%}<{{ m.role }}>"
    "{%- if m.reasoning_content and loop.index0 > ns.last -%}<think>{{ m.reasoning_content }}</think>{%- endif -%}"
    "{{ m.content }}{%- for c in m.tool_calls or [] -%}<tool_call>{{ c.function | tojson }}</tool_call>{%- endfor -%}"
    "<end>{%- endfor -%}{%- if add_generation_prompt -%}<assistant>{%- endif -%}";

#define USER(x) "{\"role\":\"user\",\"content\":\"" x "\"}"
#define SAID(x) "{\"content\":\"" x "\",\"role\":\"assistant\",\"annotations\":[],\"refusal\":null}"

static void one(struct world *w, const char *messages, const char *more, const char *says, enum clime_turn_kind want) {
    int64_t before = count(w, want);
    char *body = xasprintf("{\"messages\":[%s]%s}", messages, more);
    free(turn(w, CLIME_ENV_CHAT, body, says));
    if (count(w, want) != before + 1) {
        struct clime_turn_counts c = clime_session_counts(w->task.session);
        for (int k = 0; k < CLIME_N_TURN_KINDS; k++) print_message("%s %d\n", clime_turn_kinds[k].name, (int)c.n[k]);
        fail_msg("not %s: %s", clime_turn_kinds[want].name, body);
    }
    free(body);
}

static void test_reasons(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    const char *thought = "<think>hm</think>5<end>";
#define TOOL ",{\"role\":\"tool\",\"content\":\"7\"}"
#define FULL "{\"role\":\"assistant\",\"content\":\"5\",\"reasoning\":\"hm\",\"reasoning_content\":\"hm\"}"
#define OLD_NAME "{\"role\":\"assistant\",\"content\":\"5\",\"reasoning\":\"hm\"}"
    one(&w, USER("a"), "", thought, CLIME_TURN_FIRST);
    one(&w, USER("a"), "", thought, CLIME_TURN_REWOUND);
    one(&w, USER("a") "," FULL TOOL, "", "8<end>", CLIME_TURN_EXTENDED);
    one(&w, USER("a") "," OLD_NAME TOOL, "", "9<end>", CLIME_TURN_REWOUND); /* the other name; from there again */
    one(&w, USER("a") "," SAID("5") TOOL, "", "8<end>", CLIME_TURN_REASONING);
    one(&w, USER("a") "," SAID("6") TOOL, "", "8<end>", CLIME_TURN_ANSWER);
    one(&w, USER("a") "," FULL "," USER("b"), "", "8<end>", CLIME_TURN_TEMPLATE); /* it drops what was thought */
    one(&w, USER("a") "," USER("b"), "", "8<end>", CLIME_TURN_MESSAGE);
    one(&w, USER("b"), "", "8<end>", CLIME_TURN_OTHER);
    one(&w, USER("a") "," FULL TOOL, ",\"tools\":" TOOLS, "8<end>", CLIME_TURN_TOOLS);
    one(&w, USER("b") "," SAID("8") "," USER("c"), "", "8<end>", CLIME_TURN_EXTENDED);
    /* behind exact tokens the client put another answer, and another message before the same one */
    one(&w, USER("b") "," SAID("8") "," USER("c") "," SAID("9") "," USER("d"), "", "8<end>", CLIME_TURN_ANSWER);
    one(&w, USER("b") "," SAID("8") "," USER("e") "," SAID("8") "," USER("d"), "", "8<end>", CLIME_TURN_MESSAGE);
    one(&w, USER("b") "," SAID("8") "," USER("e"), "", "8<end>", CLIME_TURN_REWOUND); /* tried otherwise */
    free(turn(&w, CLIME_ENV_GENERATE, "{\"input_ids\":[65,66]}", "8<end>"));
    assert_int_equal(count(&w, CLIME_TURN_IDS), 1);
    free(turn(&w, CLIME_ENV_GENERATE, "{\"text\":\"more\"}", "8<end>"));
    assert_int_equal(count(&w, CLIME_TURN_EXTENDED), 3);
    end(&w);
}

/* A model's vocabulary may be larger than its tokenizer's: what was sampled of it comes back in a context of ids. */
static void test_ids_that_the_tokenizer_lacks(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    int32_t ids[] = {65, 5000};
    float logp = -1;
    struct clime_version_run version = {1, 1};
    const struct clime_sample sampled = {
        .ids = ids, .n_prompt = 1, .n_response = 1, .logp = &logp, .versions = &version, .n_versions = 1};
    w.version = 1;
    w.task.last_turn = clime_session_add(w.task.session, -1, CLIME_TURN_FIRST, &sampled);
    free(turn(&w, CLIME_ENV_GENERATE, "{\"input_ids\":[65,5000,66]}", "8<end>"));
    assert_int_equal(count(&w, CLIME_TURN_EXTENDED), 1);
    end(&w);
}

/* A template that takes no history that ends with an answer still takes one behind which the user speaks. */
static void test_a_template_raises(void **state) {
    (void)state;
    struct world w =
        begin("{%- if messages[-1].role != 'user' -%}{{ raise_exception('the last is no user') }}{%- endif -%}"
              "{%- for m in messages -%}<{{ m.role }}>{{ m.content }}<end>{%- endfor -%}<assistant>",
              "<end>");
    one(&w, USER("a"), "", "5<end>", CLIME_TURN_FIRST);
    one(&w, USER("a") "," SAID("5") "," USER("b"), "", "6<end>", CLIME_TURN_TEMPLATE);
    end(&w);
}

/* Arguments come back as an object, in another order, with other spaces, and of a name that the policy said twice with
 * the last value alone: it is the same call, and the tokens are those that were sampled. Another number is another
 * call. */
static void test_calls_come_back(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    const char *says = "<tool_call>{\"name\":\"add\",  \"arguments\":{\"a\":1,\"b\":3,\"b\":2}}</tool_call><end>";
    const char *tools = ",\"tools\":" TOOLS;
#define CALL(args)                                                                                                     \
    "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"index\":0,\"type\":\"function\",\"id\":%s,"           \
    "\"function\":{\"arguments\":" args ",\"name\":\"add\"}}]}"
    static const char *const same[] = {CALL("\"{\\\"b\\\": 2, \\\"a\\\": 1}\""), CALL("{\"a\":1,\"b\":2}"),
                                       CALL("{\"a\":1.0,\"b\":20e-1}")};
    char *reply = turn(&w, CLIME_ENV_CHAT, "{\"messages\":[" USER("1+2") "],\"tools\":" TOOLS "}", says);
    char *calls = member(reply, "tool_calls"), *id = member(calls, "id");
    for (int i = 0; i < 3; i++) {
        char *call = xasprintf(same[i], id), *list = xasprintf(USER("1+2") ",%s" TOOL, call);
        one(&w, list, tools, "3<end>", i ? CLIME_TURN_REWOUND : CLIME_TURN_EXTENDED);
        int32_t path[4096];
        int n = clime_session_path(w.task.session, w.task.last_turn, path);
        struct clime_buf text;
        clime_buf_init(&text, MAX);
        clime_tokenizer_decode(w.tok, path, (size_t)n, false, &text);
        clime_buf_addc(&text, 0);
        assert_non_null(strstr(text.data, says));
        clime_buf_free(&text);
        free(call);
        free(list);
    }
    char *call = xasprintf(CALL("{\"a\":1,\"b\":3}"), id), *list = xasprintf(USER("1+2") ",%s" TOOL, call);
    one(&w, list, tools, "3<end>", CLIME_TURN_ANSWER);
    char *all[] = {reply, calls, id, call, list};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) free(all[i]);
    end(&w);
}

/* What a session cannot do is refused, however it is spelt. */
static void test_refused(void **state) {
    (void)state;
    static const struct {
        enum clime_env_api api;
        const char *body, *says; /* NULL: it is fine */
    } cases[] = {
        {CLIME_ENV_CHAT, "{\"messages\":[],\"tool_choice\":\"\\u006eone\"}", NULL},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"tool_choice\":\"required\"}", NULL},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"tool_choice\":{\"type\":\"function\"}}", NULL},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"tool_choice\":\"sometimes\"}", "sometimes is not supported"},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"response_format\":{\"type\":\"te\\u0078t\"}}", NULL},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"response_format\":{\"type\":\"json_object\"}}", "not json_object"},
        {CLIME_ENV_CHAT,
         "{\"messages\":[],\"response_format\":{\"type\":\"json_object\"},\"tool_choice\":\"required\"}", NULL},
        {CLIME_ENV_RESPONSES,
         "{\"input\":\"x\",\"tool_choice\":{\"type\":\"function\",\"name\":\"f\"},\"text\":{\"format\":{\"type\":"
         "\"json_schema\"}}}",
         NULL},
        {CLIME_ENV_RESPONSES,
         "{\"input\":\"x\",\"tool_choice\":\"auto\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}",
         "text.format: the policy writes freely"},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"top_logprobs\":1}", "top_logprobs"},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"n\":null,\"stop\":null,\"stream\":null,\"tools\":null}", NULL},
        {CLIME_ENV_RESPONSES, "{\"input\":\"x\",\"text\":{\"format\":{\"type\":\"json_schema\"}}}", "text.format"},
        {CLIME_ENV_RESPONSES, "{\"input\":\"x\",\"text\":{\"verbosity\":\"low\"},\"reasoning\":null}", NULL},
        {CLIME_ENV_RESPONSES, "{\"input\":\"x\",\"previous_response_id\":\"r\"}", "whole conversation"},
        {CLIME_ENV_RESPONSES, "{\"input\":\"x\",\"previous_response_id\":null}", NULL},
        {CLIME_ENV_RESPONSES, "{}", "input: missing"},
        {CLIME_ENV_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tool_choice\":{\"type\":\"any\"}}", NULL},
        {CLIME_ENV_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_config\":{\"format\":{\"type\":\"json_"
         "schema\"}}}",
         "output_config.format"},
        {CLIME_ENV_MESSAGES,
         "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"output_config\":{\"effort\":\"low\",\"format\":null}"
         "}",
         NULL},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"regex\":\"a+\"}", "regex"},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"continue_final_message\":true}", "continue_final_message"},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"stop_regex\":\"a+\"}", "stop_regex"},
        {CLIME_ENV_GENERATE, "{\"input_ids\":[1],\"sampling_params\":{\"bad_words\":[\"a\"]}}", "bad_words"},
        {CLIME_ENV_CHAT, "{\"messages\":[],\"continue_final_message\":false,\"guided_json\":null,\"top_k\":4}", NULL},
        {CLIME_ENV_GENERATE, "{\"sampling_params\":{\"n\":2}}", "one answer"},
        {CLIME_ENV_GENERATE, "{\"sampling_params\":{\"json_schema\":\"{\\\"type\\\":1}\"}}", "json_schema"},
        {CLIME_ENV_GENERATE, "{\"sampling_params\":{\"n\":1,\"json_schema\":null,\"temperature\":0}}", NULL},
        {CLIME_ENV_MESSAGES, "{\"messages\":[]}", "empty"},
        {CLIME_ENV_MESSAGES, "{}", "messages: missing"},
        {CLIME_ENV_RESPONSES, "{\"input\":\"x\",\"return_token_ids\":true}", "return_token_ids"},
        {CLIME_ENV_RESPONSES, "{\"input\":\"x\",\"return_token_ids\":false}", NULL},
    };
    for (size_t i = 0; i < CLIME_COUNT(cases); i++) {
        struct clime_env_body b;
        struct clime_error e = {0};
        enum clime_err rc = clime_env_body_read(clime_str_of(cases[i].body), cases[i].api, &b, &e);
        clime_env_body_free(&b);
        if (!rc != !cases[i].says || (rc && !strstr(e.msg, cases[i].says))) fail_msg("%s: %s", cases[i].body, e.msg);
    }
}

/* One conversation, begun in chat completions, gone on with as Responses, then as Messages: one chain of tokens. */
static void test_forms_agree(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    const char *says = "<think>hm</think><tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1}}</tool_call><end>";
    char *reply = turn(&w, CLIME_ENV_CHAT, "{\"messages\":[" USER("1+2") "],\"tools\":" TOOLS "}", says);
    char *calls = member(reply, "tool_calls"), *id = member(calls, "id");
    static const char functions[] = "\"tools\":[{\"type\":\"function\",\"name\":\"add\",\"description\":\"adds\","
                                    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},"
                                    "\"b\":{\"type\":\"integer\"}}}}]";
    char *body = xasprintf("{%s,\"input\":[{\"role\":\"user\",\"content\":\"1+2\"},"
                           "{\"type\":\"reasoning\",\"summary\":[],\"content\":[{\"type\":\"reasoning_text\",\"text\":"
                           "\"hm\"}]},{\"type\":\"function_call\",\"call_id\":%s,\"name\":\"add\",\"arguments\":"
                           "\"{\\\"a\\\": 1}\"},{\"type\":\"function_call_output\",\"call_id\":%s,\"output\":\"7\"}]}",
                           functions, id, id);
    char *second = turn(&w, CLIME_ENV_RESPONSES, body, "3<end>");
    assert_int_equal(count(&w, CLIME_TURN_EXTENDED), 1);
    char *output = member(second, "output"), *text = member(output, "text");
    assert_string_equal(text, "\"3\"");
    char *third = xasprintf(
        "{\"max_tokens\":9,\"tools\":[{\"name\":\"add\",\"description\":\"adds\",\"input_schema\":{\"type\":\"object\","
        "\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"integer\"}}}}],\"messages\":["
        "{\"role\":\"user\",\"content\":\"1+2\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"thinking\","
        "\"thinking\":\"hm\",\"signature\":\"\"},{\"type\":\"tool_use\",\"id\":%s,\"name\":\"add\",\"input\":{\"a\":1}}"
        "]},"
        "{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":%s,\"content\":\"7\"}]},"
        "{\"role\":\"assistant\",\"content\":\"3\"},{\"role\":\"user\",\"content\":\"so?\"}]}",
        id, id);
    char *counted = turn(&w, CLIME_ENV_COUNT, third, ""), *last = turn(&w, CLIME_ENV_MESSAGES, third, "yes<end>");
    /* the template drops what was thought before a user's message */
    assert_int_equal(count(&w, CLIME_TURN_TEMPLATE), 1);
    char *n = member(counted, "input_tokens"), *sent = member(last, "input_tokens");
    assert_string_equal(n, sent);
    char *all[] = {reply, calls, id, body, second, output, text, third, counted, last, n, sent};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) free(all[i]);
    end(&w);
}

/* The client's text ends before its stop string, whose tokens the policy has sampled: they stay, and the next turn goes
 * on from them. One that stands earlier, or came with the end of the turn, did not end the answer. */
static void test_stop_strings(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    static const char asked[] = "{\"messages\":[" USER("x") "%s],\"stop%s\":[\"zz\",\"STOP\"]}";
    char *body = xasprintf(asked, "", ""), *reply = turn(&w, CLIME_ENV_CHAT, body, "so STOP");
    char *content = member(reply, "content");
    assert_string_equal(content, "\"so \"");
    char *next = xasprintf(asked, ",{\"role\":\"assistant\",\"content\":\"so \"}," USER("y"), "_sequences");
    char *second = turn(&w, CLIME_ENV_MESSAGES, next, "and STOP");
    assert_int_equal(count(&w, CLIME_TURN_EXTENDED), 1);
    char *why = member(second, "stop_reason"), *which = member(second, "stop_sequence"), *text = member(second, "text");
    assert_string_equal(why, "\"stop_sequence\"");
    assert_string_equal(which, "\"STOP\"");
    assert_string_equal(text, "\"and \"");
    char *third = turn(&w, CLIME_ENV_CHAT, body, "a STOP b<end>"), *whole = member(third, "content");
    assert_string_equal(whole, "\"a STOP b\"");
    struct clime_sample *s = clime_sample_new();
    struct clime_buf said;
    clime_session_fill(w.task.session, 1, s);
    clime_buf_init(&said, MAX);
    clime_tokenizer_decode(w.tok, s->ids, (size_t)(s->n_prompt + s->n_response), false, &said);
    assert_non_null(strstr(said.data, "so STOP"));
    assert_non_null(strstr(said.data, "and STOP"));
    clime_buf_free(&said);
    clime_sample_free(s);
    char *all[] = {body, reply, content, next, second, why, which, text, third, whole};
    for (size_t i = 0; i < CLIME_COUNT(all); i++) free(all[i]);
    end(&w);
}

/* An answer read token by token says what it says as a whole, and never takes back what it has shown. */
static void test_readings_grow(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    static const char *const says[] = {
        "<think>h\xC3\xB6</think>5 \xE2\x82\xAC<tool_call>{\"name\":\"add\",\"arguments\":{\"a\":1}}</tool_call><end>",
        "so STOP",
        "so STO<end>",
        "a STOP b",
        "zSTzz",
        "<end>",
        "x<end>y<end>",
        "x\xE2\x82\xAC",
        "<think>STOP",
    };
    struct clime_arena a;
    struct clime_tools tools = {0};
    struct clime_error e = {0};
    clime_arena_init(&a, MAX);
    if (clime_tools_read(clime_str_of(TOOLS), &a, &tools, &e)) fail_msg("%s", e.msg);
    for (size_t i = 0; i < 4 * CLIME_COUNT(says); i++) {
        struct clime_env_ask asked = {.chat = true, .known = &tools, .stop = {"zz", "STOP"}, .n_stop = i % 2 ? 2 : 0};
        struct clime_ids ids = {0};
        if (clime_tokenizer_encode(w.tok, w.task.scratch, clime_str_of(says[i / 4]), 0, MAX, &ids, &e))
            fail_msg("%s", e.msg);
        int n = (int)ids.len - (i % 4 > 1); /* cut short, too: inside a character, a mark, a call */
        struct clime_env_reading whole, grown;
        clime_env_reading_begin(&whole, &w.v, &asked, true, NULL, 0);
        clime_env_reading_feed(&whole, ids.data, n, true, true);
        clime_env_reading_begin(&grown, &w.v, &asked, true, NULL, 0);
        for (int k = 1; k <= n; k++) {
            size_t shown = grown.n_safe;
            clime_env_reading_feed(&grown, ids.data, k, false, true);
            assert_true(grown.n_safe >= shown && grown.n_safe <= whole.text.len);
            if (grown.n_safe) assert_memory_equal(grown.text.data, whole.text.data, grown.n_safe);
        }
        clime_env_reading_feed(&grown, ids.data, n, true, true);
        assert_true(grown.text.len == whole.text.len && grown.matched == whole.matched);
        assert_true(grown.n == whole.n && grown.n_reasoning == whole.n_reasoning && grown.n_safe == whole.n_safe);
        assert_int_equal(grown.parse.segments.n, whole.parse.segments.n);
        for (int k = 0; k < whole.parse.segments.n; k++)
            assert_true(grown.parse.segments.at[k].kind == whole.parse.segments.at[k].kind &&
                        grown.parse.segments.at[k].begin == whole.parse.segments.at[k].begin &&
                        grown.parse.segments.at[k].end == whole.parse.segments.at[k].end);
        clime_env_reading_free(&whole);
        clime_env_reading_free(&grown);
        clime_ids_free(&ids);
    }
    clime_arena_free(&a);
    end(&w);
}

/* ---- streams ---- */

struct teller {
    const struct clime_environments *v;
    struct clime_env_stream *stream;
    const struct clime_sample *whole;
};

/* The owner's side: the beginning, for which the reader does not wait; token by token, and again from the beginning in
 * the middle, as after a try that broke off. */
static void *tell_all(void *arg) {
    const struct teller *t = arg;
    const int32_t *ids = t->whole->ids + t->whole->n_prompt;
    clime_env_stream_begin(t->stream, t->v, true, t->whole->ids, t->whole->n_prompt);
    for (int i = 1; i < 2 * t->whole->n_response; i++) {
        int n = i < t->whole->n_response / 2 ? i : i - t->whole->n_response / 2;
        if (n > t->whole->n_response) break;
        struct clime_partial so_far = {.ids = ids, .logp = t->whole->logp, .n = n};
        if (!clime_env_stream_tell(t->stream, &so_far)) break;
    }
    clime_env_stream_end(t->stream);
    return NULL;
}

/* What the deltas of a chat's stream say together. */
static void join_content(const char *events, struct clime_buf *out) {
    static const char name[] = "\"delta\":{\"content\":\"";
    for (const char *at = events; (at = strstr(at, name)); at++) {
        const char *text = at + sizeof name - 1;
        clime_buf_add(out, text, strcspn(text, "\""));
    }
}

/* Told by one thread and read by another, a stream says what the whole answer says; other tokens are refused. */
static void test_streams_from_two_threads(void **state) {
    (void)state;
    struct world w = begin(template, "<end>");
    const char *body = "{\"messages\":[" USER("x") "],\"stream\":true,\"logprobs\":true}";
    char *said = xasprintf("%0400d<end>", 7);
    struct clime_env_body b;
    struct clime_error e = {0};
    assert_int_equal(clime_env_body_read(clime_str_of(body), CLIME_ENV_CHAT, &b, &e), CLIME_OK);
    struct clime_env_call call = {.ask = &b.ask};
    w.says = said;
    w.request.sampling = &w.sampling;
    w.task.r = &w.request;
    clime_env_turn(&w.v, &w.task, &call, speak, &w);
    assert_int_equal(call.error.code, CLIME_OK);
    struct clime_env_stream *s = clime_env_stream_new(&b, &call);
    struct teller teller = {&w.v, s, call.answer};
    struct clime_buf out, text;
    pthread_t thread;
    clime_buf_init(&out, MAX);
    clime_buf_init(&text, MAX);
    assert_int_equal(pthread_create(&thread, NULL, tell_all, &teller), 0);
    for (int i = 0; i < 100; i++) clime_env_stream_news(s, &out);
    pthread_join(thread, NULL);
    assert_true(clime_env_stream_agrees(s, call.answer));
    int32_t other = call.answer->ids[call.answer->n_prompt] ^ 1;
    const struct clime_partial changed = {.ids = &other, .logp = call.answer->logp, .n = 1};
    assert_false(clime_env_stream_tell(s, &changed));
    clime_env_stream_last(s, &e, &out);
    clime_buf_addc(&out, 0);
    join_content(out.data, &text);
    assert_int_equal(text.len, 400);
    assert_memory_equal(text.data, said, 400);
    int numbers = 0;
    for (const char *at = out.data; (at = strstr(at, "\"logprob\":")); at++) numbers++;
    assert_int_equal(numbers, call.answer->n_response);
    assert_non_null(strstr(out.data, "\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"));
    clime_buf_free(&out);
    clime_buf_free(&text);
    clime_env_stream_free(s);
    clime_env_call_free(&call);
    clime_env_body_free(&b);
    free(said);
    end(&w);
}

static size_t in_use(void) {
    return mallinfo2().uordblks;
}

/* A session grows with what is new in it, not with what its clients repeat; also where the template writes the past
 * anew in each turn, so that each is a branch. */
/* A turn of n_given tokens and two sampled ones behind `parent`, with the experts of the positions that it brings, of
 * position p the byte p, and what the tokens were drawn from: the first from itself, the second from two. */
static int add_turn(struct clime_session *s, int parent, int n_given, bool mixed, bool experts) {
    struct clime_sample *x = clime_sample_new();
    const int begin = clime_session_path(s, parent, NULL), from = clime_session_experts_from(s, parent);
    x->n_prompt = begin + n_given;
    x->n_response = 2;
    x->ids = xcalloc((size_t)x->n_prompt + 2, sizeof *x->ids);
    clime_session_path(s, parent, x->ids);
    for (int i = begin; i < x->n_prompt + 2; i++) x->ids[i] = i < x->n_prompt ? i : 100 * clime_session_turns(s) + i;
    x->logp = xcalloc(2, sizeof *x->logp);
    x->kept_n = xcalloc(2, sizeof *x->kept_n);
    x->kept_logp = xcalloc(2, sizeof *x->kept_logp);
    x->kept = xcalloc(3, sizeof *x->kept);
    for (int i = 0; i < 2; i++) {
        x->kept[x->n_kept] = x->kept[x->n_kept + i] = x->ids[x->n_prompt + i];
        if (i) x->kept[1]--;
        x->kept_n[i] = (uint32_t)i + 1;
        x->n_kept += i + 1;
        x->kept_logp[i] = -(float)i;
    }
    x->versions = xcalloc(1, sizeof *x->versions);
    x->versions[x->n_versions++] = (struct clime_version_run){3, 2};
    x->mixed_kv = mixed;
    x->expert_bytes = 1;
    if (experts) x->experts = xcalloc((size_t)x->n_prompt + 2, 1);
    for (int p = from; experts && p < x->n_prompt + 1; p++) x->experts[p - from] = (uint8_t)p;
    const int turn = clime_session_add(s, parent, CLIME_TURN_EXTENDED, x);
    clime_sample_free(x);
    return turn;
}

/* What keeps memory counts against a session's limit: branches share tokens, not experts or sets (3 ids here). */
static void test_what_is_kept(void **state) {
    (void)state;
    for (int experts = 0; experts < 2; experts++) {
        struct clime_session *s = clime_session_new();
        add_turn(s, -1, 3, false, experts);
        assert_int_equal(clime_session_tokens(s), 5);
        add_turn(s, -1, 3, false, experts);
        assert_int_equal(clime_session_tokens(s), experts ? 9 : 8);
        clime_session_free(s);
    }
}

/* Joined without a gap along the path of a branch: experts where one of its turns has mixed KV, sets always. */
static void test_experts_of_turns(void **state) {
    static const struct {
        bool mixed[3], experts[3];
        bool joined;
    } cases[] = {{{false, true, false}, {true, true, true}, true},
                 {{true, false, false}, {true, true, true}, true},
                 {{false, false, false}, {true, true, true}, false},
                 {{false, true, false}, {true, false, true}, false}};
    (void)state;
    for (size_t c = 0; c < CLIME_COUNT(cases); c++) {
        struct clime_session *s = clime_session_new();
        struct clime_sample *out = clime_sample_new();
        int turn = -1;
        assert_int_equal(clime_session_experts_from(s, -1), 0);
        for (int i = 0; i < 3; i++) {
            if (i == 2) add_turn(s, turn, 7, false, true); /* another branch */
            turn = add_turn(s, turn, 3 - i, cases[c].mixed[i], cases[c].experts[i]);
        }
        clime_session_fill(s, turn, out);
        assert_int_equal(out->n_prompt + out->n_response, 3 + 2 + 2 + 2 + 1 + 2);
        assert_true((out->experts != NULL) == cases[c].joined);
        for (size_t p = 0; p < clime_sample_experts_bytes(out); p++) assert_int_equal(out->experts[p], p);
        assert_true(out->n_kept == 9 && clime_sample_count_kept(out) == 9);
        const int32_t *kept = out->kept; /* of what the policy sampled, and of nothing that it was given */
        for (int j = 0; j < out->n_response; kept += out->kept_n[j++]) {
            assert_int_equal(out->kept_n[j] > 0, out->mask[j]);
            if (!out->mask[j]) continue;
            assert_int_equal(kept[out->kept_n[j] - 1], out->ids[out->n_prompt + j]);
            assert_true(out->kept_logp[j] == 1 - (float)out->kept_n[j]);
        }
        clime_sample_free(out);
        clime_session_free(s);
    }
}

static void test_memory_is_linear(void **state) {
    (void)state;
    size_t before_probe = in_use();
    void *probe = xmalloc(1 << 16);
    bool told = in_use() >= before_probe + (1 << 16); /* the sanitizers' allocators do not tell */
    free(probe);
    if (!told) skip();
    for (int branches = 0; branches < 2; branches++) {
        struct world w = begin(template, "<end>");
        struct history h = {0};
        size_t before = in_use(), used[2];
        for (int i = 0; i < 256; i++) {
            char *user = xasprintf(USER("question %d"), i);
            say(&h, user);
            char *body = ask(&h, ""),
                 *reply = turn(&w, CLIME_ENV_CHAT, body, branches ? "<think>hm</think>5<end>" : "5<end>");
            char *message = member(reply, "message");
            say(&h, message);
            char *all[] = {user, body, reply, message};
            for (size_t k = 0; k < CLIME_COUNT(all); k++) free(all[k]);
            if (i % 128 == 127) used[i / 128] = in_use() - before - h.list.size;
        }
        assert_int_equal(count(&w, branches ? CLIME_TURN_TEMPLATE : CLIME_TURN_EXTENDED), 255);
        if (used[1] > 3 * used[0]) fail_msg("128 turns: %zu bytes, 256: %zu", used[0], used[1]);
        clime_buf_free(&h.list);
        end(&w);
    }
}

/* ---- many sessions at a time ---- */

#ifndef CROWD
#define CROWD 128
#endif
enum { TURNS = 300 };

/* Sessions of a generate hook: the first makes turns while a turn of each other one is under way. */
static struct crowd {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool released;
    int n_held;
    double seconds, switches; /* of a turn of the first */
    struct clime_environments *v;
    struct clime_task_owner owner;
    struct clime_request request[CROWD];
    pthread_t thread[CROWD];
} crowd;

static void wait_for_all(int n_held) {
    pthread_mutex_lock(&crowd.lock);
    while (crowd.n_held < n_held) pthread_cond_wait(&crowd.changed, &crowd.lock);
    pthread_mutex_unlock(&crowd.lock);
}

static void crowd_turn(void *arg, struct clime_request *turn) {
    struct clime_sample *s = turn->sample;
    (void)arg;
    if (turn->owner) {
        pthread_mutex_lock(&crowd.lock);
        crowd.n_held++;
        pthread_cond_broadcast(&crowd.changed);
        while (!crowd.released) pthread_cond_wait(&crowd.changed, &crowd.lock);
        pthread_mutex_unlock(&crowd.lock);
    }
    s->ids = xrealloc(s->ids, ((size_t)s->n_prompt + 1) * sizeof *s->ids);
    s->ids[s->n_prompt] = 'x';
    s->n_response = 1;
    s->logp = xcalloc(1, sizeof *s->logp);
    s->versions = xcalloc(1, sizeof *s->versions);
    s->versions[0] = (struct clime_version_run){0, 1};
    s->n_versions = 1;
    s->status = CLIME_SAMPLE_COMPLETED;
}

static bool never(void *arg) {
    (void)arg;
    return false;
}

static int crowd_generate(const struct clime_plugin_task *t, char *error, size_t error_bytes) {
    const struct clime_plugin_turn *turn;
    struct rusage before, after;
    (void)error, (void)error_bytes;
    if (t->group) return t->calls->generate(t->session, NULL, 0, 0, NULL, 0, &turn);
    wait_for_all(CROWD - 1);
    int64_t t0 = clime_now_us();
    int rc = 0;
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < TURNS && !rc; i++) rc = t->calls->generate(t->session, NULL, 0, 0, NULL, 0, &turn);
    getrusage(RUSAGE_SELF, &after);
    crowd.seconds = (double)(clime_now_us() - t0) / 1e6 / TURNS;
    crowd.switches = (double)(after.ru_nvcsw - before.ru_nvcsw) / TURNS;
    pthread_mutex_lock(&crowd.lock);
    crowd.released = true;
    pthread_cond_broadcast(&crowd.changed);
    pthread_mutex_unlock(&crowd.lock);
    return rc;
}

static void *crowd_member(void *arg) {
    clime_environments_run(crowd.v, arg, &crowd.owner);
    return NULL;
}

/* A turn wakes its own caller, not those of all sessions: it costs among many what it costs alone. */
static void test_a_turn_wakes_no_other_session(void **state) {
    (void)state;
    struct world w = begin("{{ messages[0]['content'] }}", "<end>");
    struct clime_hook hook = {.plugin = {.generate = crowd_generate}};
    const struct clime_environments_options o = {.hook = &hook, .tok = w.tok, .lease_us = 600000000, .max_attempts = 1};
    struct clime_error e = {0};
    pthread_mutex_init(&crowd.lock, NULL);
    pthread_cond_init(&crowd.changed, NULL);
    crowd.owner = (struct clime_task_owner){.turn = crowd_turn, .stopping = never};
    if (clime_environments_open(&o, &crowd.v, &e)) fail_msg("%s", e.msg);
    for (int i = 0; i < CROWD; i++) {
        struct clime_sample *s = clime_sample_new();
        s->group = i;
        s->ids = xcalloc(1, sizeof *s->ids);
        s->n_prompt = 1;
        crowd.request[i] = (struct clime_request){
            .sample = s, .sampling = &w.sampling, .prompt = "", .deadline_us = INT64_MAX, .owner = i ? &crowd : NULL};
        assert_int_equal(pthread_create(&crowd.thread[i], NULL, crowd_member, &crowd.request[i]), 0);
    }
    for (int i = 0; i < CROWD; i++) {
        pthread_join(crowd.thread[i], NULL);
        assert_int_equal(crowd.request[i].sample->status, CLIME_SAMPLE_COMPLETED);
        clime_sample_free(crowd.request[i].sample);
    }
    clime_environments_close(crowd.v);
    printf("%d sessions: %.0f turns/s, %.1f switches a turn\n", CROWD, 1 / crowd.seconds, crowd.switches);
    /* the owners look at their deadlines five times a second, which is of no turn */
    assert_true(crowd.switches < 12 + 2 * 5 * CROWD * crowd.seconds);
    end(&w);
}

/* ---- leases ---- */

static atomic_bool leaving;

static bool is_leaving(void *arg) {
    (void)arg;
    return atomic_load(&leaving);
}

struct offer {
    struct clime_environments *v;
    struct clime_request *r;
};

static void *offer(void *arg) {
    struct offer *o = arg;
    const struct clime_task_owner owner = {.stopping = is_leaving};
    clime_environments_run(o->v, o->r, &owner);
    return NULL;
}

/* Its id is all that a lease's holder shows, so it must not follow from the clock and the process: a program that
 * knows both within 50 ms once had 50,000 ids to try. */
static void test_a_lease_id_is_no_function_of_the_clock(void **state) {
    struct world w = begin(template, "<end>");
    char dir[] = "/tmp/clime_lease.XXXXXX", id[40] = "";
    struct clime_error e = {0};
    struct clime_buf url;
    pthread_t thread;
    (void)state;
    assert_non_null(mkdtemp(dir));
    const struct clime_environments_options o = {
        .host = "127.0.0.1", .tok = w.tok, .lease_us = 60000000, .max_attempts = 1, .n_tasks = 1, .run_dir = dir};
    struct offer all = {.r = &w.request};
    w.request.deadline_us = clime_now_us() + 60000000;
    w.request.sampling = &w.sampling;
    int64_t first_us = clime_wall_us();
    if (clime_environments_open(&o, &all.v, &e)) fail_msg("%s", e.msg);
    int64_t last_us = clime_wall_us();
    atomic_store(&leaving, false);
    pthread_create(&thread, NULL, offer, &all);
    clime_buf_init(&url, 100);
    clime_buf_printf(&url, "http://127.0.0.1:%d/tasks/lease", clime_http_server_port(all.v->http));
    const struct clime_http_call call = {.method = "POST",
                                         .url = url.data,
                                         .body = clime_str_of("{\"wait_s\": 20}"),
                                         .timeout_us = 60000000,
                                         .max_reply = 1 << 20};
    struct clime_http_result got = {0};
    struct clime_http_client *http = clime_http_client_new();
    if (clime_http_client_call(http, &call, &got, &e)) fail_msg("%s", e.msg);
    assert_int_equal(got.status, 200);
    for (const char *c = got.reply.data; *c && !id[0]; c++)
        if (strspn(c, "0123456789abcdef") == 32) snprintf(id, sizeof id, "%.32s", c);
    assert_int_equal(strlen(id), 32);
    for (int64_t us = first_us; us <= last_us; us++) {
        const uint64_t start[2] = {(uint64_t)us, (uint64_t)getpid()};
        const uint64_t guess[2] = {clime_hash64(start, 2), 0};
        char half[17];
        snprintf(half, sizeof half, "%016llx", (unsigned long long)clime_hash64(guess, 2));
        assert_string_not_equal(id + 16, half);
    }
    atomic_store(&leaving, true);
    pthread_join(thread, NULL);
    clime_http_client_free(http);
    clime_buf_free(&got.reply);
    clime_buf_free(&url);
    clime_environments_close(all.v);
    clime_dir_remove(dir, NULL);
    end(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_lease_id_is_no_function_of_the_clock),
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_reasons),
        cmocka_unit_test(test_a_template_raises),
        cmocka_unit_test(test_ids_that_the_tokenizer_lacks),
        cmocka_unit_test(test_calls_come_back),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_forms_agree),
        cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_readings_grow),
        cmocka_unit_test(test_streams_from_two_threads),
        cmocka_unit_test(test_memory_is_linear),
        cmocka_unit_test(test_experts_of_turns),
        cmocka_unit_test(test_what_is_kept),
        cmocka_unit_test(test_a_turn_wakes_no_other_session),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
