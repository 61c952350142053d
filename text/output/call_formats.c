/* The table of tool call formats, and detection by template. Pure data; any thread.
 *
 * Markers are spelt as in the models' templates and tokenizers. To add a format: a row, and a reader if none fits.
 */
#include "text/output/call_formats.h"

#include "text/output/call_readers.h"

#define BAR "\xEF\xBD\x9C"   /* DeepSeek's | */
#define BLOCK "\xE2\x96\x81" /* and its _ */
#define DS(a, b, c) "<" BAR a BLOCK b BLOCK c BAR ">"
#define DS_SEP "<" BAR "tool" BLOCK "sep" BAR ">"

const struct clime_call_format clime_call_formats[] = {
    {.name = "hermes",
     .aliases = "qwen|qwen25|qwen3",
     .forms = {{.begin = "<tool_call>", .read = clime_call_read_object, .end = "</tool_call>"}}},
    {.name = "qwen3_coder",
     .aliases = "qwen3_xml|qwen_xml|qwen35",
     .forms = {{.begin = "<tool_call>",
                .read = clime_call_read_tags,
                .end = "</tool_call>",
                .name_open = "<function=",
                .name_close = ">",
                .key_open = "<parameter=",
                .key_close = ">",
                .value_close = "</parameter>",
                .close = "</function>",
                .trim_newline = true},
               {.begin = "<function=",
                .read = clime_call_read_tags,
                .end = "</tool_call>",
                .name_close = ">",
                .key_open = "<parameter=",
                .key_close = ">",
                .value_close = "</parameter>",
                .close = "</function>",
                .trim_newline = true}}},
    {.name = "glm4",
     .aliases = "glm4_0414",
     .forms = {{.begin = NULL, .read = clime_call_read_header, .separator = "\n", .bare = true}}},
    {.name = "glm45",
     .aliases = "glm|glm4_moe|glm46|glm47|glm47_moe|glm5",
     .forms = {{.begin = "<tool_call>",
                .read = clime_call_read_tags,
                .key_open = "<arg_key>",
                .key_close = "</arg_key>",
                .value_open = "<arg_value>",
                .value_close = "</arg_value>",
                .close = "</tool_call>",
                .untyped_json = true}}},
    {.name = "llama3",
     .aliases = "llama3_json|llama4_json",
     .between = ";",
     .forms = {{.begin = "<|python_tag|>", .read = clime_call_read_object},
               {.begin = "{", .read = clime_call_read_object, .keep_begin = true, .bare = true}}},
    {.name = "deepseekv3",
     .aliases = "deepseek_v3",
     .section_open = DS("tool", "calls", "begin"),
     .section_close = DS("tool", "calls", "end"),
     .keeps_space = true,
     .forms = {{.begin = DS("tool", "call", "begin") "function" DS_SEP,
                .read = clime_call_read_header,
                .separator = "\n```json\n",
                .end = "```" DS("tool", "call", "end")}}},
    {.name = "deepseekv31",
     .aliases = "deepseek_v31",
     .section_open = DS("tool", "calls", "begin"),
     .section_close = DS("tool", "calls", "end"),
     .keeps_space = true,
     .forms = {{.begin = DS("tool", "call", "begin"),
                .read = clime_call_read_header,
                .separator = DS_SEP,
                .end = DS("tool", "call", "end")}}},
    {.name = "kimi_k2",
     .aliases = "kimi",
     .section_open = "<|tool_calls_section_begin|>",
     .section_close = "<|tool_calls_section_end|>",
     .keeps_space = true,
     .forms = {{.begin = "<|tool_call_begin|>",
                .read = clime_call_read_header,
                .separator = "<|tool_call_argument_begin|>",
                .end = "<|tool_call_end|>",
                .function_id = true}}},
    {.name = "pythonic",
     .aliases = "llama4_pythonic|llama4",
     .section_open = "[",
     .section_close = "]",
     .between = ",",
     .goes_on = true,
     .forms = {{.begin = "", .read = clime_call_read_python, .repeats = true, .bare = true}}},
    {.name = "mistral",
     .section_open = "[TOOL_CALLS]",
     .section_close = "]",
     .between = "[,",
     .forms = {{.begin = "{", .read = clime_call_read_object, .keep_begin = true},
               {.begin = "", .read = clime_call_read_header, .separator = "[ARGS]"}}},
    {.name = NULL},
};

static bool in_list(const char *list, const char *name) {
    size_t n = strlen(name);
    for (const char *at = list; at && *at;) {
        size_t len = strcspn(at, "|");
        if (len == n && memcmp(at, name, n) == 0) return true;
        at += len + (at[len] == '|');
    }
    return false;
}

const struct clime_call_format *clime_call_format_find(const char *name) {
    for (const struct clime_call_format *f = clime_call_formats; f->name; f++)
        if (strcmp(f->name, name) == 0 || in_list(f->aliases, name)) return f;
    return NULL;
}

void clime_call_format_names(struct clime_buf *out) {
    for (const struct clime_call_format *f = clime_call_formats; f->name; f++)
        clime_buf_printf(out, "%s%s", f > clime_call_formats ? "|" : "", f->name);
}

static bool has(struct clime_str source, const char *text) {
    return memmem(source.ptr, source.len, text, strlen(text)) != NULL;
}

/* The first row whose texts are in the template; specific rows precede general ones. */
const struct clime_call_format *clime_call_format_of_template(struct clime_str source) {
    static const struct {
        const char *text, *and_text, *format;
    } rows[] = {
        {"<arg_key>", "", "glm45"},
        {"<function=", "", "qwen3_coder"},
        {"<tool_call>", "", "hermes"},
        {DS("tool", "calls", "begin"), "```json", "deepseekv3"},
        {DS("tool", "calls", "begin"), "", "deepseekv31"},
        {"<|tool_calls_section_begin|>", "", "kimi_k2"},
        {"[TOOL_CALLS]", "", "mistral"},
        {"<|observation|>", "", "glm4"},
        {"<|python_tag|>", "", "llama3"},
        {"\"parameters\": ", "<|eot_id|>", "llama3"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (has(source, rows[i].text) && has(source, rows[i].and_text)) return clime_call_format_find(rows[i].format);
    return NULL;
}

bool clime_call_format_is_marked(const struct clime_call_format *f) {
    for (int i = 0; f && i < CLIME_MAX_CALL_FORMS && f->forms[i].read; i++)
        if (f->forms[i].bare) return false;
    return f != NULL;
}

bool clime_call_format_can_be_grammar(const struct clime_call_format *f) {
    return f && f->forms[0].read != clime_call_read_python;
}

static bool holds(const char *marker, struct clime_str token) {
    return marker && token.len > 0 && memmem(marker, strlen(marker), token.ptr, token.len);
}

bool clime_call_format_has_marker(const struct clime_call_format *f, struct clime_str token) {
    if (holds(f->section_open, token) || holds(f->section_close, token)) return true;
    for (int i = 0; i < CLIME_MAX_CALL_FORMS && f->forms[i].read; i++) {
        const struct clime_call_form *form = &f->forms[i];
        const char *const markers[] = {form->begin,      form->separator,   form->end,
                                       form->name_open,  form->key_open,    form->key_close,
                                       form->value_open, form->value_close, form->close};
        for (size_t k = 0; k < sizeof markers / sizeof *markers; k++)
            if (holds(markers[k], token)) return true;
    }
    return false;
}

void clime_call_format_markers(const struct clime_call_format *f, const struct clime_tokenizer *t,
                               struct clime_ids *out) {
    for (int32_t id = 0; f && id < clime_tokenizer_n_vocab(t); id++)
        if (clime_tokenizer_is_special(t, id) && clime_call_format_has_marker(f, clime_tokenizer_token(t, id)))
            clime_ids_push(out, id);
}
