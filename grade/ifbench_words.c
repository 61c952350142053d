/* IFBench's checkers of counts and words (Pyatkin et al., 2025), with the semantics of its published code. Called by
 * instructions.c, any thread; no state.
 *
 * Missing: checkers of sentences, of NLTK's words, of parts of speech, syllables, emoji or Unicode decompositions,
 * whose verdicts depend on those packages' data. A word is one of Python's split(), punctuation is ASCII's.
 */
#include <stdlib.h>

#include "common/err.h"
#include "grade/instructions.h"
#include "grade/text.h"

static int by_text(const void *a, const void *b) {
    const struct clime_str *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int d = n ? memcmp(x->ptr, y->ptr, n) : 0;
    return d ? d : (x->len > y->len) - (x->len < y->len);
}

/* Sorts; returns the number of distinct words, and the count of the most frequent one in *most. */
static size_t distinct(struct clime_instruction_words *list, size_t *most) {
    size_t n = 0, run = 0;
    *most = 0;
    qsort(list->w, list->n, sizeof *list->w, by_text);
    for (size_t i = 0; i < list->n; i++) {
        bool again = i > 0 && clime_str_eq(list->w[i - 1], list->w[i]);
        run = again ? run + 1 : 1;
        n += !again;
        if (run > *most) *most = run;
    }
    return n;
}

static size_t characters(struct clime_str s) {
    size_t count = 0, n;
    for (size_t i = 0; i < s.len; i += n, count++) clime_rtext_char(s, i, &n);
    return count;
}

/* Calls test for each word of the response without punctuation, in lower case; false at the first that fails. */
static bool every_word(const struct clime_instruction *in, bool (*test)(struct clime_str word)) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->lower);
    struct clime_str rest = clime_buf_str(&plain), word;
    bool all = true;
    while (all && clime_instruction_word(&rest, &word)) all = test(word);
    clime_buf_free(&plain);
    return all;
}

/* ---- counts ---- */

static bool word_count_range(struct clime_instruction *in) {
    double n = (double)clime_instruction_count_words(in->response);
    double min = clime_instruction_number(in, "min_words"), max = clime_instruction_number(in, "max_words");
    return min <= n && n <= max;
}

static bool unique_word_count(struct clime_instruction *in) {
    struct clime_instruction_words list = clime_instruction_words_of(in->lower);
    size_t most;
    for (size_t i = 0; i < list.n; i++) list.w[i] = clime_instruction_strip(list.w[i], true, true);
    size_t n = distinct(&list, &most);
    free(list.w);
    return (double)n >= clime_instruction_number(in, "N");
}

/* Different spellings ("And", "and,") count separately, as in the original. */
static bool conjunctions(struct clime_instruction *in) {
    static const char *const names[] = {"and", "but", "for", "nor", "or", "so", "yet"};
    struct clime_instruction_words list = clime_instruction_words_of(in->response);
    size_t n = 0, most;
    for (size_t i = 0; i < list.n; i++) {
        bool is_one = false;
        for (size_t k = 0; k < CLIME_COUNT(names); k++)
            is_one = is_one || clime_instruction_same_lower(clime_instruction_strip(list.w[i], true, true),
                                                            clime_str_of(names[k]));
        if (is_one) list.w[n++] = list.w[i];
    }
    list.n = n;
    n = distinct(&list, &most);
    free(list.w);
    return (double)n >= clime_instruction_number(in, "small_n");
}

static bool person_names(struct clime_instruction *in) {
    static const char *const names[] = {
        "Emma",    "Liam",   "Sophia", "Jackson",     "Olivia",    "Noah",     "Ava",      "Lucas",  "Isabella",
        "Mason",   "Mia",    "Ethan",  "Charlotte",   "Alexander", "Amelia",   "Benjamin", "Harper", "Leo",
        "Zoe",     "Daniel", "Chloe",  "Samuel",      "Lily",      "Matthew",  "Grace",    "Owen",   "Abigail",
        "Gabriel", "Ella",   "Jacob",  "Scarlett",    "Nathan",    "Victoria", "Elijah",   "Layla",  "Nicholas",
        "Audrey",  "David",  "Hannah", "Christopher", "Penelope",  "Thomas",   "Nora",     "Andrew", "Aria",
        "Joseph",  "Claire", "Ryan",   "Stella",      "Jonathan"};
    double n = 0;
    for (size_t i = 0; i < CLIME_COUNT(names); i++)
        n += clime_instruction_count_whole(in->response, clime_str_of(names[i])) > 0;
    return n >= clime_instruction_number(in, "N");
}

static bool count_numbers(struct clime_instruction *in) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->response);
    size_t n = clime_instruction_numbers(clime_buf_str(&plain), NULL, 0);
    clime_buf_free(&plain);
    return (double)n == clime_instruction_number(in, "N");
}

/* All marks of .,!?;: and an interrobang. */
static bool punctuation(struct clime_instruction *in) {
    struct clime_str s = in->response;
    int64_t at = clime_rtext_find(s, "?!", 0);
    if (at < 0) at = clime_rtext_find(s, "!?", 0);
    if (at < 0 && clime_rtext_find(s, "\xe2\x80\xbd", 0) < 0) return false;
    for (const char *mark = ".,!?;:"; *mark; mark++) {
        bool there = false;
        for (size_t i = 0; i < s.len && !there; i++)
            there = s.ptr[i] == *mark && (at < 0 || i < (size_t)at || i >= (size_t)at + 2);
        if (!there) return false;
    }
    return true;
}

static bool words_japanese(struct clime_instruction *in) {
    struct clime_str rest = in->response, word;
    int64_t every = (int64_t)clime_instruction_number(in, "N"), i = 0;
    if (every < 1) in->missing = "N";
    while (!in->missing && clime_instruction_word(&rest, &word)) {
        if (++i % every) continue;
        word = clime_instruction_strip(word, true, true);
        bool digits = true, japanese = word.len == 0;
        size_t n;
        for (size_t k = 0; k < word.len; k += n) {
            uint32_t c = clime_rtext_char(word, k, &n);
            digits = digits && c >= '0' && c <= '9';
            japanese = japanese || (c >= 0x3040 && c <= 0x30ff) || (c >= 0x4e00 && c <= 0x9fff);
        }
        if (!japanese && !digits) return false;
    }
    return true;
}

static bool keywords_multiple(struct clime_instruction *in) {
    static const char *const names[] = {"keyword1", "keyword2", "keyword3", "keyword4", "keyword5"};
    static const size_t times[] = {1, 2, 3, 5, 7};
    bool all = true;
    for (size_t i = 0; i < CLIME_COUNT(names); i++) {
        struct clime_buf word;
        clime_rtext_init(&word, clime_rtext_strip(clime_instruction_text(in, names[i])));
        clime_rtext_lower(&word);
        all = all && clime_instruction_count_whole(in->lower, clime_buf_str(&word)) == times[i];
        clime_buf_free(&word);
    }
    return all;
}

/* ---- words ---- */

static bool alphabet(struct clime_instruction *in) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->lower);
    struct clime_str rest = clime_buf_str(&plain), word;
    char want = 0;
    bool ok = true;
    for (bool first = true; ok && clime_instruction_word(&rest, &word); first = false) {
        if (first) want = word.ptr[0];
        ok = want >= 'a' && want <= 'z' && word.ptr[0] == want;
        want = want == 'z' ? 'a' : (char)(want + 1);
    }
    ok = ok && want;
    clime_buf_free(&plain);
    return ok;
}

/* One paragraph with at most three of the five vowels. */
static bool vowel(struct clime_instruction *in) {
    struct clime_str s = clime_rtext_strip(in->lower);
    int kinds = 0;
    if (s.len && memchr(s.ptr, '\n', s.len)) return false;
    for (const char *v = "aeiou"; *v; v++) kinds += s.len && memchr(s.ptr, *v, s.len) != NULL;
    return kinds <= 3;
}

static bool is_consonant(char c) {
    return c >= 'a' && c <= 'z' && !strchr("aeiou", c);
}

static bool consonants(struct clime_instruction *in) {
    struct clime_str rest = in->lower, word;
    while (clime_instruction_word(&rest, &word)) {
        bool cluster = false;
        for (size_t i = 0; i + 1 < word.len; i++)
            cluster = cluster || (is_consonant(word.ptr[i]) && is_consonant(word.ptr[i + 1]));
        if (!cluster) return false;
    }
    return true;
}

static bool is_palindrome(struct clime_str s) {
    size_t n, end = s.len;
    if (characters(s) < 5) return false;
    for (size_t i = 0; i < end; i += n) {
        uint32_t c = clime_rtext_char(s, i, &n);
        if (c != clime_rtext_char_before(s, end)) return false;
        end -= n;
    }
    return true;
}

static bool palindrome(struct clime_instruction *in) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->lower);
    struct clime_str rest = clime_buf_str(&plain), word;
    int n = 0;
    while (clime_instruction_word(&rest, &word)) n += is_palindrome(word);
    clime_buf_free(&plain);
    return n >= 10;
}

static bool has_prime_length(struct clime_str word) {
    size_t n = characters(word);
    if (n < 2 || n > 97) return false;
    for (size_t d = 2; d * d <= n; d++)
        if (n % d == 0) return false;
    return true;
}

static bool prime_lengths(struct clime_instruction *in) {
    return every_word(in, has_prime_length);
}

static bool repeats(struct clime_instruction *in) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->lower);
    struct clime_instruction_words list = clime_instruction_words_of(clime_buf_str(&plain));
    size_t most;
    distinct(&list, &most);
    free(list.w);
    clime_buf_free(&plain);
    return (double)most <= clime_instruction_number(in, "small_n");
}

static bool paragraph_last_first(struct clime_instruction *in) {
    struct clime_str rest = in->lower, line;
    while (clime_instruction_piece(&rest, "\n", &line)) {
        struct clime_instruction_words list =
            clime_instruction_words_of(clime_instruction_strip(clime_rtext_strip(line), true, true));
        bool same = list.n == 0 || clime_str_eq(list.w[0], list.w[list.n - 1]);
        free(list.w);
        if (!same) return false;
    }
    return true;
}

static bool no_consecutive(struct clime_instruction *in) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->lower);
    struct clime_str rest = clime_buf_str(&plain), word;
    uint32_t before = 0;
    size_t n;
    bool ok = true;
    while (ok && clime_instruction_word(&rest, &word)) {
        uint32_t c = clime_rtext_char(word, 0, &n);
        ok = c != before;
        before = c;
    }
    clime_buf_free(&plain);
    return ok;
}

#define SENTENCES "it needs the original's sentence splitter"
#define NLTK "it needs NLTK's words"

const struct clime_instruction_checker clime_ifbench_word_checkers[] = {
    {"count:word_count_range", word_count_range, NULL},
    {"count:unique_word_count", unique_word_count, NULL},
    {"ratio:stop_words", NULL, "it needs NLTK's stop words"},
    {"ratio:sentence_type", NULL, SENTENCES},
    {"ratio:sentence_balance", NULL, SENTENCES},
    {"count:conjunctions", conjunctions, NULL},
    {"count:person_names", person_names, NULL},
    {"ratio:overlap", NULL, NLTK},
    {"count:numbers", count_numbers, NULL},
    {"words:alphabet", alphabet, NULL},
    {"words:vowel", vowel, NULL},
    {"words:consonants", consonants, NULL},
    {"sentence:alliteration_increment", NULL, SENTENCES},
    {"words:palindrome", palindrome, NULL},
    {"count:punctuation", punctuation, NULL},
    {"words:prime_lengths", prime_lengths, NULL},
    {"ratio:sentence_words", NULL, SENTENCES},
    {"count:words_japanese", words_japanese, NULL},
    {"words:start_verb", NULL, "it needs a tagger"},
    {"words:repeats", repeats, NULL},
    {"sentence:keyword", NULL, SENTENCES},
    {"count:pronouns", NULL, NLTK},
    {"words:odd_even_syllables", NULL, "it needs a list of syllables"},
    {"words:last_first", NULL, SENTENCES},
    {"words:paragraph_last_first", paragraph_last_first, NULL},
    {"sentence:increment", NULL, SENTENCES},
    {"words:no_consecutive", no_consecutive, NULL},
    {"count:keywords_multiple", keywords_multiple, NULL},
    {"words:keywords_specific_position", NULL, SENTENCES},
    {"words:words_position", NULL, NLTK},
    {NULL, NULL, NULL},
};
