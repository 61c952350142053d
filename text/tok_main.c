/* clime-tok: tokenizer, chat template and reply parsers as a filter: one JSON object per line from standard input to
 * standard output.
 *
 * Single-threaded. Each subcommand is a row of COMMANDS: it gets the words after its name and processes lines one by
 * one. A bad line yields {"error"}; only a folder that does not load or a broken output ends the program, with status 1
 * (2 for wrong usage).
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "common/json/scan.h"
#include "common/json/write.h"
#include "common/version.h"
#include "text/chat/chat_template.h"
#include "text/chat/prepare.h"
#include "text/output/output_parser.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

#define MAX_LINE_BYTES (256u << 20)

struct session {
    struct clime_tokenizer *t;         /* NULL: render --template */
    struct clime_tok_scratch *scratch; /* NULL: render */
    struct clime_chat_template chat;   /* render, parse */
    struct clime_template_input input; /* the folder's settings and render's date; vars are the line */
    struct clime_output_format format; /* parse: the template's */
    bool prepare;                      /* render: normalize messages as the server does */
    struct clime_ids ids;
    struct clime_buf text;
};

/* Processes one line: appends the reply's members to w, or returns the error. */
typedef enum clime_err (*line_fn)(struct session *s, struct clime_json *j, struct clime_jw *w, struct clime_error *e);

static enum clime_err encode_line(struct session *s, struct clime_json *j, struct clime_jw *w, struct clime_error *e) {
    struct clime_str key, text = {NULL, 0};
    bool add_special = false;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "text"))
            clime_json_string(j, &text);
        else if (clime_str_is(key, "add_special_tokens"))
            clime_json_bool(j, &add_special);
        else
            clime_json_bad(j, "unknown member \"" CLIME_STR_FMT "\"", CLIME_STR_ARG(key));
    }
    if (!clime_json_end(j)) return e->code;
    if (!text.ptr) return clime_fail(e, CLIME_ERR_INPUT, "\"text\" is missing");
    s->ids.len = 0;
    unsigned flags = add_special ? CLIME_ENCODE_SPECIAL : 0;
    enum clime_err rc = clime_tokenizer_encode(s->t, s->scratch, text, flags, MAX_LINE_BYTES, &s->ids, e);
    if (rc) return rc;
    clime_jw_key(w, "ids");
    clime_jw_array(w);
    for (size_t i = 0; i < s->ids.len; i++) clime_jw_int(w, s->ids.data[i]);
    clime_jw_close(w);
    return CLIME_OK;
}

static enum clime_err decode_line(struct session *s, struct clime_json *j, struct clime_jw *w, struct clime_error *e) {
    struct clime_str key;
    bool skip_special = false, have_ids = false;
    s->ids.len = 0;
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "ids")) {
            have_ids = true;
            for (clime_json_array(j); clime_json_item(j);) {
                int64_t id;
                if (clime_json_int(j, 0, INT32_MAX, &id)) clime_ids_push(&s->ids, (int32_t)id);
            }
        } else if (clime_str_is(key, "skip_special_tokens")) {
            clime_json_bool(j, &skip_special);
        } else {
            clime_json_bad(j, "unknown member \"" CLIME_STR_FMT "\"", CLIME_STR_ARG(key));
        }
    }
    if (!clime_json_end(j)) return e->code;
    if (!have_ids) return clime_fail(e, CLIME_ERR_INPUT, "\"ids\" is missing");
    clime_buf_clear(&s->text);
    clime_tokenizer_decode(s->t, s->ids.data, s->ids.len, skip_special, &s->text);
    if (s->text.full) return clime_fail(e, CLIME_ERR_LIMIT, "the text is longer than %u bytes", MAX_LINE_BYTES);
    clime_jw_put_str(w, "text", clime_buf_str(&s->text));
    return CLIME_OK;
}

/* {"messages": ...}: the line's messages, prepared as for a chat request; nothing without --prepare. *form: the
 * template for the line's tools. */
static enum clime_err prepare_messages(const struct session *s, struct clime_str line, struct clime_arena *a,
                                       const struct clime_chat_form **form, struct clime_buf *out,
                                       struct clime_error *e) {
    struct clime_str key;
    struct clime_chat_prompt p = {.messages = {NULL, 0}};
    struct clime_json j;
    clime_json_init(&j, line.ptr, line.len, a, e);
    for (clime_json_object(&j); clime_json_key(&j, &key);)
        clime_json_skip(&j, clime_str_is(key, "messages") ? &p.messages : clime_str_is(key, "tools") ? &p.tools : NULL);
    if (!clime_json_end(&j)) return e->code;
    *form = clime_chat_form_for(&s->chat, p.tools);
    if (!s->prepare) return CLIME_OK;
    if (!p.messages.ptr) return clime_fail(e, CLIME_ERR_INPUT, "\"messages\" is missing");
    clime_buf_adds(out, "{\"messages\":");
    struct clime_buf list;
    clime_buf_init(&list, MAX_LINE_BYTES);
    enum clime_err rc = clime_chat_prepared(&s->chat, &p, &list, e);
    clime_buf_add(out, list.data, list.len);
    clime_buf_free(&list);
    clime_buf_addc(out, '}');
    return rc;
}

static enum clime_err render_line(struct session *s, struct clime_json *j, struct clime_jw *w, struct clime_error *e) {
    struct clime_str vars[2] = {{NULL, 0}};
    struct clime_buf messages;
    const struct clime_chat_form *form = NULL;
    clime_buf_init(&messages, MAX_LINE_BYTES);
    if (!clime_json_skip(j, &vars[0]) || !clime_json_end(j)) return e->code;
    enum clime_err rc = prepare_messages(s, vars[0], j->arena, &form, &messages, e);
    vars[1] = clime_buf_str(&messages);
    s->input.vars = vars;
    s->input.n_vars = s->prepare ? 2 : 1;
    clime_buf_clear(&s->text);
    if (!rc && !form->compiled) rc = clime_fail(e, CLIME_ERR_NOT_FOUND, "there is no chat template without tools");
    if (!rc) rc = clime_template_render(form->compiled, &s->input, &s->text, NULL, e);
    clime_buf_free(&messages);
    if (rc) return rc;
    clime_jw_put_str(w, "text", clime_buf_str(&s->text));
    return CLIME_OK;
}

struct parse_request {
    struct clime_str text, prompt_end, tools;
    int64_t chunk;
};

static void read_parse(struct session *s, struct clime_json *j, struct parse_request *r, struct clime_error *e) {
    struct clime_str key;
    const char *name;
    *r = (struct parse_request){.chunk = INT64_MAX};
    for (clime_json_object(j); clime_json_key(j, &key);) {
        if (clime_str_is(key, "text")) {
            clime_json_string(j, &r->text);
        } else if (clime_str_is(key, "prompt_end")) {
            clime_json_string(j, &r->prompt_end);
        } else if (clime_str_is(key, "tools")) {
            clime_json_skip(j, &r->tools);
        } else if (clime_str_is(key, "chunk")) {
            clime_json_int(j, 1, INT32_MAX, &r->chunk);
        } else if (clime_str_is(key, "tool_call_parser") && clime_json_string_z(j, &name)) {
            if (!(s->format.calls = clime_call_format_find(name))) clime_json_bad(j, "there is no %s", name);
        } else if (clime_str_is(key, "reasoning_parser") && clime_json_string_z(j, &name)) {
            if (!(s->format.reasoning = clime_output_parser_find(name))) clime_json_bad(j, "there is no %s", name);
        } else if (!j->failed) {
            clime_json_bad(j, "unknown member \"" CLIME_STR_FMT "\"", CLIME_STR_ARG(key));
        }
    }
    if (clime_json_end(j) && !r->text.ptr) clime_fail(e, CLIME_ERR_INPUT, "\"text\" is missing");
}

static void write_parse(const struct clime_parse *p, struct clime_str text, struct clime_buf *scratch,
                        struct clime_jw *w) {
    static const char *const names[] = {[CLIME_SEGMENT_CONTENT] = "content", [CLIME_SEGMENT_REASONING] = "reasoning"};
    for (int kind = 0; kind < 2; kind++) {
        clime_buf_clear(scratch);
        clime_segments_text(&p->segments, text, (enum clime_segment_kind)kind, scratch);
        clime_jw_put_str(w, names[kind], clime_buf_str(scratch));
    }
    clime_jw_key(w, "tool_calls");
    clime_jw_array(w);
    for (int i = 0; i < p->calls.n; i++) {
        const struct clime_call *c = &p->calls.at[i];
        if (c->void_) continue;
        clime_jw_object(w);
        clime_jw_put_str(w, "id", clime_buf_str(&c->id));
        clime_jw_put_str(w, "name", clime_buf_str(&c->name));
        clime_jw_put_str(w, "arguments", clime_buf_str(&c->args));
        clime_jw_close(w);
    }
    clime_jw_close(w);
}

static enum clime_err parse_line(struct session *s, struct clime_json *j, struct clime_jw *w, struct clime_error *e) {
    struct clime_output_format given = s->format;
    struct parse_request r;
    struct clime_tools tools = {NULL, 0};
    struct clime_parse p;
    read_parse(s, j, &r, e);
    struct clime_output_format how = s->format;
    s->format = given; /* a line's own parsers apply to that line */
    if (e->code || (r.tools.len > 0 && clime_tools_read(r.tools, j->arena, &tools, e))) return e->code;
    how.tools = &tools;
    clime_parse_begin(&p, &how, r.prompt_end);
    for (size_t n = 0; n < r.text.len;) {
        n += (size_t)r.chunk < r.text.len - n ? (size_t)r.chunk : r.text.len - n;
        clime_parse_feed(&p, (struct clime_str){r.text.ptr, n}, false);
    }
    clime_parse_feed(&p, r.text, true);
    write_parse(&p, r.text, &s->text, w);
    clime_parse_free(&p);
    return CLIME_OK;
}

/* Processes one line into out, including errors. */
static void answer(struct session *s, line_fn fn, struct clime_str line, struct clime_buf *out) {
    struct clime_error err = {0};
    struct clime_arena arena;
    struct clime_json j;
    struct clime_jw w;
    clime_arena_init(&arena, MAX_LINE_BYTES);
    clime_json_init(&j, line.ptr, line.len, &arena, &err);
    clime_buf_clear(out);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    enum clime_err rc = fn(s, &j, &w, &err);
    if (!rc && out->full) rc = clime_fail(&err, CLIME_ERR_LIMIT, "the answer is longer than %zu bytes", out->cap);
    if (rc) {
        clime_buf_clear(out);
        clime_jw_init(&w, out);
        clime_jw_object(&w);
        clime_jw_put_strz(&w, "error", err.msg);
    }
    clime_jw_close(&w);
    clime_buf_addc(out, '\n');
    clime_arena_free(&arena);
}

/* Processes standard input line by line with an open session; returns the exit status. */
static int run_lines(struct session *s, line_fn fn) {
    struct clime_buf out;
    char *line = NULL;
    size_t size = 0;
    int status = 1;
    clime_buf_init(&out, (size_t)4 * MAX_LINE_BYTES);
    for (ssize_t len; (len = getline(&line, &size, stdin)) >= 0;) {
        while (len && (line[len - 1] == '\n' || line[len - 1] == '\r')) len--;
        if (!len) continue;
        struct clime_str text = {line, (size_t)len};
        answer(s, fn, text, &out);
        if (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout)) goto done;
    }
    status = ferror(stdin) ? 1 : 0;
done:
    if (ferror(stdin) || ferror(stdout)) perror("clime-tok");
    free(line);
    clime_buf_free(&out);
    return status;
}

static int complain(const struct clime_error *e) {
    fprintf(stderr, "clime-tok: %s\n", e->msg);
    return 1;
}

static void close_session(struct session *s) {
    clime_buf_free(&s->text);
    clime_ids_free(&s->ids);
    clime_chat_template_close(&s->chat);
    clime_tok_scratch_free(s->scratch);
    clime_tokenizer_free(s->t);
}

/* encode and decode: the argument is the folder. */
static int tokenizer_main(int n_args, char **args, line_fn fn) {
    struct session s = {0};
    struct clime_error err = {0};
    int status;
    if (n_args != 1) return 2;
    clime_buf_init(&s.text, MAX_LINE_BYTES);
    if (clime_tokenizer_load(args[0], &s.t, &err)) {
        status = complain(&err);
    } else {
        s.scratch = clime_tok_scratch_new(s.t);
        status = run_lines(&s, fn);
    }
    close_session(&s);
    return status;
}

static int encode_main(int n_args, char **args) {
    return tokenizer_main(n_args, args, encode_line);
}

static int decode_main(int n_args, char **args) {
    return tokenizer_main(n_args, args, decode_line);
}

/* "2026-01-31": local noon of that day, so that strftime in every time zone gives that date; 0 = not a date. */
static int64_t parse_date(const char *text) {
    struct tm day = {.tm_hour = 12, .tm_isdst = -1};
    const char *end = strptime(text, "%Y-%m-%d", &day);
    return end && !*end ? (int64_t)mktime(&day) : 0;
}

/* Compiles the folder's template, or the file's. */
static enum clime_err open_template(struct session *s, const char *dir, const char *file, struct clime_error *e) {
    enum clime_err rc = dir ? clime_tokenizer_load(dir, &s->t, e) : CLIME_OK;
    if (!rc) rc = clime_chat_template_open(&s->chat, s->t, file, e);
    if (rc) return rc;
    if (!s->chat.plain.compiled && !s->chat.with_tools.compiled)
        return clime_fail(e, CLIME_ERR_NOT_FOUND, "%s has no chat template", dir);
    s->input.bos_token = s->chat.bos;
    s->input.eos_token = s->chat.eos;
    s->input.sort_tools = s->chat.sorts_tools;
    s->format.reasoning = clime_chat_reasoning(&s->chat);
    s->format.calls = clime_chat_calls(&s->chat);
    return CLIME_OK;
}

/* render and parse: a folder, or a template file. */
static int template_main(int n_args, char **args, line_fn fn) {
    struct session s = {0};
    struct clime_error err = {0};
    const char *dir = NULL, *file = NULL;
    for (int i = 0; i < n_args; i++) {
        bool last = i + 1 == n_args;
        if (strcmp(args[i], "--template") == 0 && !last)
            file = args[++i];
        else if (strcmp(args[i], "--date") == 0 && !last && !s.input.now && (s.input.now = parse_date(args[i + 1])))
            i++;
        else if (strcmp(args[i], "--chat") == 0)
            s.prepare = true;
        else if (*args[i] == '-' || dir)
            return 2;
        else
            dir = args[i];
    }
    if (!dir == !file) return 2;
    clime_buf_init(&s.text, MAX_LINE_BYTES);
    int status = open_template(&s, dir, file, &err) ? complain(&err) : run_lines(&s, fn);
    close_session(&s);
    return status;
}

static int render_main(int n_args, char **args) {
    return template_main(n_args, args, render_line);
}

static int parse_main(int n_args, char **args) {
    return template_main(n_args, args, parse_line);
}

static const struct {
    const char *name;
    int (*main)(int n_args, char **args); /* the words after the name; returns the exit status, 2 = show usage */
    const char *usage;
} COMMANDS[] = {
    {"encode", encode_main, "encode DIR    {\"text\", \"add_special_tokens\"?: false} -> {\"ids\"}"},
    {"decode", decode_main, "decode DIR    {\"ids\", \"skip_special_tokens\"?: false} -> {\"text\"}"},
    {"render", render_main,
     "render DIR | --template FILE  [--date YYYY-MM-DD] [--chat]    the template's variables -> {\"text\"}\n"
     "      --date is the day that strftime_now tells (default: today); --chat prepares messages as the server does"},
    {"parse", parse_main,
     "parse DIR | --template FILE    {\"text\", \"prompt_end\"?, \"tools\"?, \"reasoning_parser\"?, "
     "\"tool_call_parser\"?,\n"
     "      \"chunk\"? (bytes at a time)} -> {\"content\", \"reasoning\", \"tool_calls\"}; parsers are the template's"},
};

static void usage(FILE *to) {
    fprintf(to, "usage: clime-tok COMMAND ..., one JSON object a line; DIR is a Hugging Face folder\n");
    for (size_t i = 0; i < CLIME_COUNT(COMMANDS); i++) fprintf(to, "  clime-tok %s\n", COMMANDS[i].usage);
    fprintf(to, "A line that cannot be answered gives {\"error\"}; the next line is read.\n");
}

int main(int argc, char **argv) {
    int status = 2;
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        usage(stdout);
        return 0;
    }
    if (argc > 1 && strcmp(argv[1], "--version") == 0) {
        puts("clime-tok " CLIME_VERSION);
        return 0;
    }
    for (size_t i = 0; argc > 1 && i < CLIME_COUNT(COMMANDS); i++)
        if (strcmp(COMMANDS[i].name, argv[1]) == 0) status = COMMANDS[i].main(argc - 2, argv + 2);
    if (status == 2) usage(stderr);
    return status;
}
