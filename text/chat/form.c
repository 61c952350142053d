/* Probes a chat template's capabilities. Called at a template's opening, on a text thread or the trainer's main thread.
 *
 * A template is a program, so renderings decide, not its source: each probe is a conversation with a unique word, and
 * the result is whether the word is in the text. An error raised by the template counts as shown: clients with such
 * messages will get it.
 */
#include "text/chat/form.h"

#include <stdlib.h>
#include <string.h>

#include "text/output/call_formats.h"

#define PROBE "clime-probe"
#define MAX_PROBE_TEXT ((size_t)1 << 20)

const char *const clime_chat_thoughts[] = {"reasoning_content", "reasoning", "thinking", NULL};

enum answer { ABSENT, SHOWN, RAISED };

#define USER "{\"role\":\"user\",\"content\":\"x\"}"
#define SAID "{\"role\":\"assistant\",\"content\":\"y\"}"
#define OF(role) "{\"role\":\"" role "\",\"content\":\"" PROBE "\"}"
#define OTHER "{\"role\":\"system\",\"content\":\"z\"}"
#define CALL_OF(arguments)                                                                                             \
    "[" USER ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"functions.probe:0\",\"type\":"       \
    "\"function\",\"function\":{\"name\":\"probe\",\"arguments\":" arguments "}}]}]"

/* Renders the messages, with tools if any. SHOWN: the text contains `want` and not not_this (text that only a whole
 * printed value contains; may be NULL). */
static enum answer ask(const struct clime_chat_form *f, const char *messages, const char *tools, const char *want,
                       const char *not_this) {
    struct clime_buf vars, out;
    clime_buf_init(&vars, 4096);
    clime_buf_printf(&vars,
                     "{\"messages\":%s,\"tools\":%s,\"documents\":null,\"add_generation_prompt\":true,"
                     "\"bos_token\":\"\",\"eos_token\":\"\"}",
                     messages, tools ? tools : "null");
    struct clime_str all = clime_buf_str(&vars);
    struct clime_template_input in = {.vars = &all, .n_vars = 1};
    clime_buf_init(&out, MAX_PROBE_TEXT);
    enum answer answer = RAISED;
    if (!clime_template_render(f->compiled, &in, &out, NULL, NULL))
        answer = out.data && strstr(out.data, want) && (!not_this || !strstr(out.data, not_this)) ? SHOWN : ABSENT;
    clime_buf_free(&out);
    clime_buf_free(&vars);
    return answer;
}

static bool shows(const struct clime_chat_form *f, const char *messages, const char *want, const char *not_this) {
    return ask(f, messages, NULL, want, not_this) == SHOWN;
}

/* True if a rendering of one of the lists contains the probe, or all raise errors. */
static bool shows_one(const struct clime_chat_form *f, const char *const *lists) {
    bool raises = true;
    for (; *lists; lists++) {
        enum answer answer = ask(f, *lists, NULL, PROBE, NULL);
        if (answer == SHOWN) return true;
        raises = raises && answer == RAISED;
    }
    return raises;
}

static unsigned roles_of(const struct clime_chat_form *f) {
    static const char *const any[] = {"[" USER "," OF("clime-role") "," USER "]", "[" USER "," OF("clime-role") "]",
                                      "[" OF("clime-role") "," USER "]",
                                      "[" USER "," SAID "," OF("clime-role") "," USER "]", NULL};
    static const char *const first[] = {"[" OF("system") "," USER "]", NULL};
    static const char *const late[] = {"[" USER "," SAID "," OF("system") "," USER "]", "[" USER "," OF("system") "]",
                                       NULL};
    /* a template may show only the last of several */
    static const char *const both[][2] = {{"[" OTHER "," OF("system") "," USER "]", NULL},
                                          {"[" OF("system") "," OTHER "," USER "]", NULL}};
    static const char *const apart[][2] = {{"[" OTHER "," USER "," SAID "," OF("system") "," USER "]", NULL},
                                           {"[" OF("system") "," USER "," SAID "," OTHER "," USER "]", NULL}};
    return (shows_one(f, any) ? CLIME_CHAT_ANY_ROLE : 0u) | (shows_one(f, first) ? CLIME_CHAT_SYSTEM : 0u) |
           (shows_one(f, both[0]) && shows_one(f, both[1]) ? CLIME_CHAT_SYSTEMS : 0u) |
           (shows_one(f, late) ? CLIME_CHAT_LATE_SYSTEM : 0u) |
           (shows_one(f, apart[0]) && shows_one(f, apart[1]) ? CLIME_CHAT_SYSTEMS_APART : 0u);
}

static unsigned calls_of(const struct clime_chat_form *f) {
    enum answer text = ask(f, CALL_OF("\"{\\\"key\\\":\\\"<probe>\\\"}\""), NULL, "{\"key\":\"<probe>\"}", "\\\"");
    /* a tool's arguments written out by the template, not by str() */
    enum answer object = ask(f, CALL_OF("{\"key\":\"<probe>\"}"), NULL, "<probe>", "{'key'");
    const bool none = text != SHOWN && object != SHOWN;
    return (text == SHOWN ? CLIME_CHAT_TEXT_ARGS : 0u) | (object == SHOWN || none ? CLIME_CHAT_OBJECT_ARGS : 0u) |
           (!none || object == RAISED ? CLIME_CHAT_CALLS : 0u);
}

/* Some show tools only with a system message. */
static bool shows_tools(const struct clime_chat_form *f) {
    static const char tools[] = "[{\"type\":\"function\",\"function\":{\"name\":\"clime_probe\",\"description\":\"d\","
                                "\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
    return ask(f, "[" USER "]", tools, "clime_probe", NULL) == SHOWN ||
           ask(f, "[" OTHER "," USER "]", tools, "clime_probe", NULL) == SHOWN;
}

/* The member from which it reads reasoning; NULL: none. Some show it only with a call. */
static const char *thought_of(const struct clime_chat_form *f) {
    for (const char *const *name = clime_chat_thoughts; *name; name++) {
        static const char call[] = ",\"tool_calls\":[{\"id\":\"functions.f:0\",\"type\":\"function\",\"function\":"
                                   "{\"name\":\"f\",\"arguments\":{}}}]";
        for (int with_call = 0; with_call < 2; with_call++) {
            struct clime_buf list;
            clime_buf_init(&list, 4096);
            clime_buf_printf(&list, "[" USER ",{\"role\":\"assistant\",\"content\":\"%s\",\"%s\":\"" PROBE "\"%s}]",
                             with_call ? "" : "y", *name, with_call ? call : "");
            bool found = shows(f, clime_buf_str(&list).ptr, PROBE, NULL);
            clime_buf_free(&list);
            if (found) return *name;
        }
    }
    return NULL;
}

/* GLM-4.6 renders parts of a user, but prints those of a tool as a Python list. */
static unsigned parts_of(const struct clime_chat_form *f) {
#define PARTS_OF(role) "{\"role\":\"" role "\",\"content\":[{\"type\":\"text\",\"text\":\"<probe>\"}]}"
    static const struct {
        const char *messages;
        unsigned takes;
    } rows[] = {
        {"[" PARTS_OF("user") "]", CLIME_CHAT_PARTS},
        {"[" USER
         ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"functions.f:0\",\"type\":\"function\","
         "\"function\":{\"name\":\"f\",\"arguments\":{}}}]}," PARTS_OF("tool") "]",
         CLIME_CHAT_TOOL_PARTS},
        {"[" PARTS_OF("system") "," USER "]", CLIME_CHAT_OTHER_PARTS},
        {"[" USER "," PARTS_OF("assistant") "," USER "]", CLIME_CHAT_OTHER_PARTS},
    };
    unsigned takes = 0, lacks = 0;
    for (size_t i = 0; i < CLIME_COUNT(rows); i++) {
        bool all = shows(f, rows[i].messages, "<probe>", "'type'") && shows(f, rows[i].messages, "<probe>", "\"type\"");
        *(all ? &takes : &lacks) |= rows[i].takes;
    }
    return takes & ~lacks;
}

static unsigned look(struct clime_chat_form *f) {
    const char *thought = thought_of(f);
    f->thought = thought ? thought : clime_chat_thoughts[0];
    return calls_of(f) | roles_of(f) | parts_of(f) | (shows_tools(f) ? CLIME_CHAT_TOOLS : 0u) |
           (thought ? CLIME_CHAT_REASONING : 0u);
}

enum clime_err clime_chat_form_open(struct clime_chat_form *f, struct clime_str source, struct clime_error *e) {
    *f = (struct clime_chat_form){.reasoning = &clime_output_parsers[0], .thought = clime_chat_thoughts[0]};
    enum clime_err err = clime_template_compile(source, &f->compiled, e);
    if (err) return err;
    f->source = xstrndup(source.ptr, source.len);
    f->shows = look(f);
    f->reasoning = clime_output_parser_of_template(source);
    f->calls = clime_call_format_of_template(source);
    return CLIME_OK;
}

void clime_chat_form_close(struct clime_chat_form *f) {
    clime_template_free(f->compiled);
    free(f->source);
    *f = (struct clime_chat_form){.compiled = NULL};
}

bool clime_chat_form_names(const struct clime_chat_form *f, struct clime_str role) {
    for (const char *at = f->source; at && role.len && (at = memmem(at, strlen(at), role.ptr, role.len)); at++) {
        char before = at > f->source ? at[-1] : ' ', after = at[role.len];
        if ((before == '\'' || before == '"') && before == after) return true;
    }
    return false;
}
