/* Command line as facts (see command_line.h). Called once by each rank of a launcher's group; main thread. */
#include "trainer/learn/command_line.h"

#include <stdlib.h>
#include <string.h>

#include "common/hash.h"

#define MOST_WORDS 4096
#define MOST_BYTES ((size_t)1 << 20)

static bool may_be_secret(const char *option) {
    return strstr(option, "key") || strstr(option, "token") || strstr(option, "url");
}

static void hide(struct clime_facts *f) {
    for (int i = 0; i < f->n; i++) {
        struct clime_checksum sum;
        if (!may_be_secret(f->items[i].key)) continue;
        clime_checksum_init(&sum);
        clime_checksum_add(&sum, f->items[i].value, strlen(f->items[i].value));
        clime_facts_put_checksum(f, f->items[i].key, clime_checksum_done(&sum));
    }
}

static void add_word(struct clime_facts *f, const char *key, const char *word) {
    const char *before = clime_facts_get(f, key);
    char *all =
        before && before[0] && word[0] ? xasprintf("%s %s", before, word) : xstrdup(word[0] || !before ? word : before);
    clime_facts_put(f, key, all);
    free(all);
}

void clime_command_words_facts(const char *const *words, int n, struct clime_facts *out) {
    const char *option = "command";
    char *owned = NULL;
    for (int i = 0; i < n; i++) {
        const char *word = words[i], *equals = strchr(word, '=');
        const bool is_option = !strncmp(word, "--", 2) && word[2];
        if (is_option) {
            free(owned);
            option = owned = xstrndup(word, equals ? (size_t)(equals - word) : strlen(word));
            word = equals ? equals + 1 : "";
        }
        add_word(out, option, word);
    }
    hide(out);
    free(owned);
}

void clime_command_line_facts(struct clime_facts *out) {
    struct clime_buf text;
    struct clime_error e;
    const char **words = xcalloc(MOST_WORDS, sizeof *words);
    int n = 0;
    clime_buf_init(&text, MOST_BYTES);
    if (!clime_buf_read_file(&text, "/proc/self/cmdline", &e))
        for (const char *at = text.data, *end = at + text.len; at && at < end && n < MOST_WORDS; at += strlen(at) + 1)
            words[n++] = at;
    if (n > 1) clime_command_words_facts(words + 1, n - 1, out);
    clime_buf_free(&text);
    free(words);
}
