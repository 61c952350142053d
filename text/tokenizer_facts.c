/* A tokenizer's identity, as facts that two processes compare. Called at start by server and trainer; pure, except for
 * reading the folder's files again. Invariant: folders with equal facts encode text to the same ids, render the same
 * prompts, and end replies at the same tokens. The vocabulary has its own checksum, as loaded, because a teacher needs
 * only that to match.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"
#include "text/tokenizer_int.h"

#define MAX_FILE ((size_t)256 << 20)

uint64_t clime_text_checksum(struct clime_str text) {
    struct clime_checksum sum;
    clime_checksum_init(&sum);
    clime_checksum_add(&sum, text.ptr, text.len);
    return clime_checksum_done(&sum);
}

static void add_text(struct clime_checksum *sum, const char *text) {
    clime_checksum_add(sum, text, strlen(text) + 1);
}

static uint64_t texts_checksum(const struct clime_named_text *texts, size_t n) {
    struct clime_checksum sum;
    clime_checksum_init(&sum);
    for (size_t i = 0; i < n; i++) {
        add_text(&sum, texts[i].name);
        add_text(&sum, texts[i].text ? texts[i].text : "");
    }
    return clime_checksum_done(&sum);
}

/* Checksum of the rendered templates: the default, and tool_use if present. */
static uint64_t templates_checksum(const struct clime_tokenizer *t) {
    const char *plain = clime_tokenizer_chat_template(t, NULL), *tools = clime_tokenizer_chat_template(t, "tool_use");
    struct clime_checksum sum;
    clime_checksum_init(&sum);
    if (plain) clime_checksum_add(&sum, plain, strlen(plain));
    if (tools) clime_checksum_add(&sum, "", 1);
    if (tools) add_text(&sum, tools);
    return clime_checksum_done(&sum);
}

static uint64_t vocabulary_checksum(const struct clime_tokenizer *t) {
    struct clime_checksum sum;
    clime_checksum_init(&sum);
    for (int32_t id = 0; id < t->n_vocab; id++) {
        const struct clime_str token = clime_tokenizer_token(t, id), bytes = clime_tokenizer_bytes(t, id);
        const uint32_t head[3] = {(uint32_t)token.len, (uint32_t)bytes.len, clime_tokenizer_is_special(t, id)};
        clime_checksum_add(&sum, head, sizeof head);
        clime_checksum_add(&sum, token.ptr, token.len);
        clime_checksum_add(&sum, bytes.ptr, bytes.len);
    }
    return clime_checksum_done(&sum);
}

static enum clime_err add_file(const char *dir, const char *name, struct clime_checksum *sum, struct clime_error *e) {
    struct clime_buf text;
    char *path = xasprintf("%s/%s", dir, name);
    clime_buf_init(&text, MAX_FILE);
    enum clime_err rc = access(path, F_OK) ? CLIME_OK : clime_buf_read_file(&text, path, e);
    const uint64_t len = text.len;
    if (!rc) add_text(sum, name);
    if (!rc) clime_checksum_add(sum, &len, sizeof len);
    if (!rc) clime_checksum_add(sum, text.data, text.len);
    clime_buf_free(&text);
    free(path);
    return rc;
}

/* Checksum of the files that define encoding. */
static enum clime_err files_checksum(const char *dir, uint64_t *out, struct clime_error *e) {
    static const char *const kinds[][4] = {{"tokenizer.json"}, {"tiktoken.model"}, {"vocab.json", "merges.txt"}};
    static const char *const beside[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"};
    struct clime_checksum sum;
    enum clime_err rc = CLIME_OK;
    size_t kind = 0;
    clime_checksum_init(&sum);
    for (; kind + 1 < CLIME_COUNT(kinds); kind++) {
        char *path = xasprintf("%s/%s", dir, kinds[kind][0]);
        const bool there = !access(path, F_OK);
        free(path);
        if (there) break;
    }
    for (int i = 0; kinds[kind][i] && !rc; i++) rc = add_file(dir, kinds[kind][i], &sum, e);
    for (size_t i = 0; i < CLIME_COUNT(beside) && !rc; i++) rc = add_file(dir, beside[i], &sum, e);
    *out = clime_checksum_done(&sum);
    return rc;
}

enum clime_err clime_tokenizer_facts(const struct clime_tokenizer *t, const char *dir, struct clime_facts *out,
                                     struct clime_error *e) {
    uint64_t files = 0;
    enum clime_err rc = files_checksum(dir, &files, e);
    if (rc) return rc;
    clime_facts_put_checksum(out, "chat-template", templates_checksum(t));
    clime_facts_put_checksum(out, "special-tokens", texts_checksum(t->specials, t->n_specials));
    clime_facts_put_int(out, "bos-token-id", t->bos);
    clime_facts_put_checksum(out, "vocabulary", vocabulary_checksum(t));
    clime_facts_put_checksum(out, "tokenizer", files);
    return CLIME_OK;
}
