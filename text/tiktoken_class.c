/* The class TikTokenTokenizer: its constants, and the check that a folder's Python file has the same.
 *
 * Called by text/tokenizer_tiktoken.c at load (one thread). Owns nothing.
 * Invariant: a different file is rejected with the difference, never read as the known one. Choice: lines are compared
 * verbatim, except white space between them. All published files agree in them, and parsing Python is not worth it. A
 * folder without the file is identified by its class name.
 */
#include "text/tiktoken_class.h"

#include <stdlib.h>
#include <unistd.h>

#include "common/json/tree.h"

#define MAX_FILE_BYTES (1u << 20)
#define CLASS "TikTokenTokenizer"
#define SUFFIX "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"

static const char *const ALTERNATIVES[] = {
    "[\\p{Han}]+",
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" SUFFIX,
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" SUFFIX,
    "\\p{N}{1,3}",
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*",
    "\\s*[\\r\\n]+",
    "\\s+(?!\\S)",
    "\\s+",
};

static const char *const MODULES[] = {"tokenization_moonshot", "tokenization_kimi"};

/* text/long_text.c splits by the last two. */
static const char *const CONSTANTS[] = {
    "num_reserved_special_tokens = 256",
    "TIKTOKEN_MAX_ENCODE_CHARS = 400_000",
    "MAX_NO_WHITESPACES_CHARS = 25_000",
};

/* The method that sorts tools, from its first statement, and the function it calls. Kimi K2.5's also renders tools to
 * text, K3's needs no template; neither is supported. */
static const char *const SORTS_TOOLS[] = {
    "tools = deep_sort_dict(tools)",
    "return super().apply_chat_template(",
    "conversation",
    "tools=tools",
    "tokenize=tokenize",
    "add_generation_prompt=add_generation_prompt",
    "**kwargs",
    ")",
    "def deep_sort_dict(obj: Any) -> Any:",
    "if isinstance(obj, dict):",
    "return {k: deep_sort_dict(v) for k, v in sorted(obj.items())}",
    "if isinstance(obj, list):",
    "return [deep_sort_dict(item) for item in obj]",
    "return obj",
};
#define N_SPECIAL 256
#define N_SPECIAL_OLDER 258 /* Moonlight's and the first of Kimi K2's */

void clime_tiktoken_pattern(struct clime_buf *out) {
    for (size_t i = 0; i < CLIME_COUNT(ALTERNATIVES); i++) {
        if (i) clime_buf_addc(out, '|');
        clime_buf_adds(out, ALTERNATIVES[i]);
    }
}

/* Advances s past the next occurrence of word; false when there is none. */
static bool find(struct clime_str *s, const char *word) {
    const char *at = memmem(s->ptr, s->len, word, strlen(word));
    if (!at) return false;
    at += strlen(word);
    s->len -= (size_t)(at - s->ptr);
    s->ptr = at;
    return true;
}

/* Advances s past word if s begins with it. */
static bool take(struct clime_str *s, const char *word) {
    if (!clime_str_starts(*s, word)) return false;
    s->ptr += strlen(word);
    s->len -= strlen(word);
    return true;
}

static bool take_spaced(struct clime_str *s, const char *word) {
    while (s->len && memchr(" \t\r\n,", s->ptr[0], 5)) {
        s->ptr++;
        s->len--;
    }
    return take(s, word);
}

static bool has_pattern(struct clime_str python) {
    if (!find(&python, "pat_str") || !take_spaced(&python, "=") || !take_spaced(&python, "\"|\".join(") ||
        !take_spaced(&python, "["))
        return false;
    for (size_t i = 0; i < CLIME_COUNT(ALTERNATIVES); i++)
        if (!take_spaced(&python, "r\"\"\"") || !take(&python, ALTERNATIVES[i]) || !take(&python, "\"\"\""))
            return false;
    return take_spaced(&python, "]") && take_spaced(&python, ")");
}

/* The end of range(n, n + self.num_reserved_special_tokens), or the older class's with "+ 2". */
static bool find_n_special(struct clime_str python, int *n) {
    if (!find(&python, "self.num_reserved_special_tokens")) return false;
    bool older = take_spaced(&python, "+");
    *n = older ? N_SPECIAL_OLDER : N_SPECIAL;
    return (!older || take_spaced(&python, "2")) && take_spaced(&python, ")");
}

/* True if the class's chat template handling is known: transformers' own, or sorting tools. */
static bool read_rendering(struct clime_str python, bool *sorts_tools) {
    *sorts_tools = find(&python, "def apply_chat_template(");
    if (!*sorts_tools) return true;
    bool same = find(&python, "):");
    for (size_t i = 0; i < CLIME_COUNT(SORTS_TOOLS) && same; i++) same = take_spaced(&python, SORTS_TOOLS[i]);
    return same;
}

static enum clime_err read_python(const char *path, struct clime_tiktoken_class *c, struct clime_error *e) {
    struct clime_buf text;
    clime_buf_init(&text, MAX_FILE_BYTES);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    struct clime_str python = clime_buf_str(&text);
    if (!rc && !has_pattern(python))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: pat_str is not the pattern that is known of " CLASS, path);
    if (!rc && !find_n_special(python, &c->n_special))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: the number of special tokens is not that of " CLASS, path);
    for (size_t i = 0; i < CLIME_COUNT(CONSTANTS) && !rc; i++) {
        struct clime_str rest = python;
        if (!find(&rest, CONSTANTS[i]))
            rc = clime_fail(e, CLIME_ERR_INPUT, "%s: no \"%s\", as " CLASS " is known to have it", path, CONSTANTS[i]);
    }
    if (!rc && !read_rendering(python, &c->sorts_tools))
        rc = clime_fail(e, CLIME_ERR_INPUT,
                        "%s: apply_chat_template does something else than to sort the keys of tools, which is all that "
                        "is known of " CLASS,
                        path);
    clime_buf_free(&text);
    return rc;
}

/* "module.Class", of another repository "org/name--module.Class". */
static bool is_known(const char *name) {
    for (const char *at; (at = strstr(name, "--"));) name = at + 2;
    for (size_t i = 0; i < CLIME_COUNT(MODULES); i++) {
        size_t len = strlen(MODULES[i]);
        if (strncmp(name, MODULES[i], len) == 0 && strcmp(name + len, "." CLASS) == 0) return true;
    }
    return strcmp(name, CLASS) == 0;
}

enum clime_err clime_tiktoken_read_class(const char *dir, const struct cJSON *config, struct clime_tiktoken_class *c,
                                         struct clime_error *e) {
    const struct cJSON *node = clime_tree_get(clime_tree_get(config, "auto_map"), "AutoTokenizer");
    if (clime_tree_kind(node) == CLIME_JSON_ARRAY) node = clime_tree_first(node); /* [slow class, null] */
    const char *name = clime_tree_str(node, NULL);
    if (!name) name = clime_tree_str(clime_tree_get(config, "tokenizer_class"), "");
    if (!is_known(name))
        return clime_fail(e, CLIME_ERR_INPUT,
                          "%s/tokenizer_config.json: the class \"%s\" is not known for tiktoken.model "
                          "(tokenization_moonshot." CLASS " and tokenization_kimi." CLASS " are)",
                          dir, name);
    *c = (struct clime_tiktoken_class){.n_special = N_SPECIAL_OLDER};
    enum clime_err rc = CLIME_OK;
    for (size_t i = 0; i < CLIME_COUNT(MODULES) && !rc; i++) {
        char *path = xasprintf("%s/%s.py", dir, MODULES[i]);
        if (access(path, F_OK) == 0) rc = read_python(path, c, e);
        free(path);
    }
    return rc;
}
