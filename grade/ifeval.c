/* IFEval's checkers (Zhou et al., 2023), with the semantics of its published code. Called by instructions.c, any
 * thread; no state.
 *
 * Keywords are literal text, where the original has patterns. The two checkers of letter case ignore the language.
 * Missing: checkers that need a trained model (language, sentences, NLTK's words).
 */
#include "common/err.h"
#include "common/json/scan.h"
#include "grade/instructions.h"
#include "grade/text.h"

static struct clime_str slice(struct clime_str s, size_t from, size_t to) {
    return clime_rtext_slice(s, from, to);
}

static bool contains(struct clime_str s, struct clime_str part) {
    return part.len == 0 || memmem(s.ptr, s.len, part.ptr, part.len);
}

/* A lower-case copy; the caller frees it. */
static void lowered(struct clime_buf *b, struct clime_str s) {
    clime_rtext_init(b, s);
    clime_rtext_lower(b);
}

static size_t count(struct clime_str s, struct clime_str part) {
    size_t n = 0;
    for (size_t i = 0; part.len && i + part.len <= s.len; n++) {
        const char *at = memmem(s.ptr + i, s.len - i, part.ptr, part.len);
        if (!at) break;
        i = (size_t)(at - s.ptr) + part.len;
    }
    return n;
}

/* Compares by the relation "less than" or "at least". */
static bool compare(struct clime_instruction *in, const char *relation, double have, double want) {
    struct clime_str r = clime_instruction_text(in, relation);
    if (clime_str_is(r, "less than")) return have < want;
    if (!clime_str_is(r, "at least")) in->missing = relation;
    return have >= want;
}

static bool keywords_existence(struct clime_instruction *in) {
    bool all = true;
    for (const struct cJSON *k = clime_instruction_list(in, "keywords"); k; k = clime_tree_next(k)) {
        struct clime_buf word;
        lowered(&word, clime_str_of(clime_tree_str(k, "")));
        all = all && contains(in->lower, clime_buf_str(&word));
        clime_buf_free(&word);
    }
    return all;
}

static bool keywords_frequency(struct clime_instruction *in) {
    struct clime_buf word;
    lowered(&word, clime_rtext_strip(clime_instruction_text(in, "keyword")));
    size_t n = count(in->lower, clime_buf_str(&word));
    clime_buf_free(&word);
    return compare(in, "relation", (double)n, clime_instruction_number(in, "frequency"));
}

static bool forbidden_words(struct clime_instruction *in) {
    bool none = true;
    for (const struct cJSON *k = clime_instruction_list(in, "forbidden_words"); k; k = clime_tree_next(k)) {
        struct clime_buf word;
        lowered(&word, clime_str_of(clime_tree_str(k, "")));
        none = none && clime_instruction_count_whole(in->lower, clime_buf_str(&word)) == 0;
        clime_buf_free(&word);
    }
    return none;
}

static bool letter_frequency(struct clime_instruction *in) {
    struct clime_str letter = clime_rtext_strip(clime_instruction_text(in, "letter"));
    struct clime_buf low;
    size_t n = 0;
    if (letter.len) clime_rtext_char(letter, 0, &n);
    if (letter.len == 0 || n != letter.len) in->missing = "letter";
    lowered(&low, letter);
    n = count(in->lower, clime_buf_str(&low));
    clime_buf_free(&low);
    return compare(in, "let_relation", (double)n, clime_instruction_number(in, "let_frequency"));
}

static bool number_words(struct clime_instruction *in) {
    double n = (double)clime_instruction_count_words(in->response);
    return compare(in, "relation", n, clime_instruction_number(in, "num_words"));
}

/* Paragraphs between "***"; only the first and last may be empty. */
static bool number_paragraphs(struct clime_instruction *in) {
    struct clime_str rest = in->response, piece;
    double n = 0, want = clime_instruction_number(in, "num_paragraphs");
    for (bool first = true; clime_instruction_piece(&rest, "***", &piece); first = false) {
        bool empty = clime_rtext_strip(piece).len == 0;
        if (empty && !first && rest.ptr) return false;
        n += !empty;
    }
    return n == want;
}

static bool nth_paragraph_first_word(struct clime_instruction *in) {
    struct clime_str rest = in->response, piece, nth = {"", 0}, word;
    double want = clime_instruction_number(in, "num_paragraphs"), at = clime_instruction_number(in, "nth_paragraph");
    struct clime_str first = clime_instruction_text(in, "first_word");
    double n = 0;
    for (int i = 1; clime_instruction_piece(&rest, "\n\n", &piece); i++) {
        n += clime_rtext_strip(piece).len > 0;
        if (i == (int)at) nth = piece;
    }
    if (at > n || !clime_instruction_word(&nth, &word)) return false;
    while (word.len && word.ptr[0] == '\'') word = slice(word, 1, word.len);
    while (word.len && word.ptr[0] == '"') word = slice(word, 1, word.len);
    size_t end = 0;
    while (end < word.len && !strchr(".,?!'\"", word.ptr[end])) end++;
    struct clime_buf a, b;
    lowered(&a, slice(word, 0, end));
    lowered(&b, first);
    bool same = clime_str_eq(clime_buf_str(&a), clime_buf_str(&b));
    clime_buf_free(&a);
    clime_buf_free(&b);
    return same && n == want;
}

/* Counts [...] on one line. */
static bool number_placeholders(struct clime_instruction *in) {
    struct clime_str s = in->response;
    double n = 0, want = clime_instruction_number(in, "num_placeholders");
    for (size_t i = 0; i < s.len; i++) {
        if (s.ptr[i] != '[') continue;
        size_t k = i + 1;
        while (k < s.len && s.ptr[k] != ']' && s.ptr[k] != '\n') k++;
        n += k < s.len && s.ptr[k] == ']';
        i = k; /* without a ] the line's other [ have none either */
    }
    return n >= want;
}

/* Matches text at i, where '_' is an optional white space. */
static bool spaced_at(struct clime_str s, size_t i, const char *text) {
    size_t n;
    for (; *text; text++) {
        if (*text == '_') {
            if (i < s.len && clime_rtext_is_space(clime_rtext_char(s, i, &n))) i += n;
        } else if (i >= s.len || s.ptr[i++] != *text) {
            return false;
        }
    }
    return true;
}

static bool postscript(struct clime_instruction *in) {
    struct clime_str marker = clime_rtext_strip(clime_instruction_text(in, "postscript_marker"));
    const char *form = clime_str_is(marker, "P.P.S") ? "p._p._s" : clime_str_is(marker, "P.S.") ? "p._s." : NULL;
    struct clime_buf low;
    if (!form) {
        lowered(&low, marker);
        bool there = contains(in->lower, clime_buf_str(&low));
        clime_buf_free(&low);
        return there;
    }
    for (size_t i = 0; i < in->lower.len; i++)
        if (spaced_at(in->lower, i, form)) return true;
    return false;
}

/* Counts matches of ^\s*MARK: the white space may span lines, and no second * may follow a *. */
static size_t count_bullets(struct clime_str s, char mark) {
    size_t n = 0, bytes;
    for (size_t i = 0; i < s.len;) {
        size_t k = i;
        while (k < s.len && clime_rtext_is_space(clime_rtext_char(s, k, &bytes))) k += bytes;
        bool match = k < s.len && s.ptr[k] == mark;
        if (match && mark == '*') match = k + 1 < s.len && s.ptr[k + 1] != '*';
        if (match) k += mark == '*' ? 2 : 1;
        n += match;
        const char *end = k < s.len ? memchr(s.ptr + k, '\n', s.len - k) : NULL;
        if (!end) break;
        i = (size_t)(end - s.ptr) + 1;
    }
    return n;
}

static bool number_bullet_lists(struct clime_instruction *in) {
    size_t n = count_bullets(in->response, '*') + count_bullets(in->response, '-');
    return (double)n == clime_instruction_number(in, "num_bullets");
}

static bool constrained_response(struct clime_instruction *in) {
    return contains(in->response, clime_str_of("My answer is yes.")) ||
           contains(in->response, clime_str_of("My answer is no.")) ||
           contains(in->response, clime_str_of("My answer is maybe."));
}

/* Counts non-empty spans between `stars` asterisks on one line. */
static size_t count_highlights(struct clime_str s, size_t stars) {
    size_t n = 0;
    for (size_t i = 0; i + 2 * stars <= s.len;) {
        size_t from = i + stars, k = from;
        bool open = s.ptr[i] == '*' && s.ptr[i + stars - 1] == '*';
        while (open && k < s.len && s.ptr[k] != '*' && s.ptr[k] != '\n') k++;
        bool closed = open && k + stars <= s.len && s.ptr[k] == '*' && s.ptr[k + stars - 1] == '*';
        if (closed) n += clime_rtext_strip(slice(s, from, k)).len > 0;
        i = closed ? k + stars : i + 1;
    }
    return n;
}

static bool number_highlighted_sections(struct clime_instruction *in) {
    size_t n = count_highlights(in->response, 1) + count_highlights(in->response, 2);
    return (double)n >= clime_instruction_number(in, "num_highlights");
}

/* "Section 1": the splitter, an optional white space, digits. */
static bool multiple_sections(struct clime_instruction *in) {
    struct clime_str splitter = clime_rtext_strip(clime_instruction_text(in, "section_spliter")), s = in->response;
    double n = 0, want = clime_instruction_number(in, "num_sections");
    size_t bytes;
    for (size_t i = 0; splitter.len && i + splitter.len < s.len;) {
        const char *at = memmem(s.ptr + i, s.len - i, splitter.ptr, splitter.len);
        if (!at) break;
        size_t k = (size_t)(at - s.ptr) + splitter.len;
        if (k < s.len && clime_rtext_is_space(clime_rtext_char(s, k, &bytes))) k += bytes;
        bool digit = k < s.len && clime_rtext_is_digit(s.ptr[k]);
        n += digit;
        while (k < s.len && clime_rtext_is_digit(s.ptr[k])) k++;
        i = digit ? k : (size_t)(at - s.ptr) + 1;
    }
    return n >= want;
}

static bool json_format(struct clime_instruction *in) {
    static const char *const fences[] = {"```json", "```Json", "```JSON", "```"};
    struct clime_str s = clime_rtext_strip(in->response);
    struct clime_error e = {0};
    for (size_t i = 0; i < CLIME_COUNT(fences); i++)
        if (clime_str_starts(s, fences[i])) s = slice(s, strlen(fences[i]), s.len);
    if (s.len >= 3 && memcmp(s.ptr + s.len - 3, "```", 3) == 0) s.len -= 3;
    s = clime_rtext_strip(s);
    return clime_json_check(s.ptr, s.len, &e);
}

static bool title(struct clime_instruction *in) {
    struct clime_str rest = in->response, line;
    while (clime_instruction_piece(&rest, "\n", &line)) {
        int64_t open = clime_rtext_find(line, "<<", 0), close = clime_rtext_rfind(line, ">>");
        if (open < 0 || close < open + 3) continue;
        struct clime_str t = slice(line, (size_t)open, (size_t)close);
        while (t.len && t.ptr[0] == '<') t = slice(t, 1, t.len);
        while (t.len && t.ptr[t.len - 1] == '>') t.len--;
        if (clime_rtext_strip(t).len) return true;
    }
    return false;
}

static bool two_responses(struct clime_instruction *in) {
    struct clime_str rest = in->response, piece, found[2] = {{"", 0}, {"", 0}};
    int n = 0;
    for (bool first = true; clime_instruction_piece(&rest, "******", &piece); first = false) {
        piece = clime_rtext_strip(piece);
        if (piece.len == 0 && !first && rest.ptr) return false;
        if (piece.len && n < 2) found[n] = piece;
        n += piece.len > 0;
    }
    return n == 2 && !clime_str_eq(found[0], found[1]);
}

static bool repeat_prompt(struct clime_instruction *in) {
    struct clime_buf prompt;
    lowered(&prompt, clime_rtext_strip(clime_instruction_text(in, "prompt_to_repeat")));
    struct clime_str value = clime_rtext_strip(in->lower), p = clime_buf_str(&prompt);
    bool repeats = value.len >= p.len && clime_str_eq(slice(value, 0, p.len), p);
    clime_buf_free(&prompt);
    return repeats;
}

static bool end_checker(struct clime_instruction *in) {
    struct clime_buf phrase;
    struct clime_str s = clime_rtext_strip(in->lower);
    lowered(&phrase, clime_rtext_strip(clime_instruction_text(in, "end_phrase")));
    while (s.len && s.ptr[0] == '"') s = slice(s, 1, s.len);
    while (s.len && s.ptr[s.len - 1] == '"') s.len--;
    struct clime_str p = clime_buf_str(&phrase);
    bool ends = s.len >= p.len && clime_str_eq(slice(s, s.len - p.len, s.len), p);
    clime_buf_free(&phrase);
    return ends;
}

static bool quotation(struct clime_instruction *in) {
    struct clime_str s = clime_rtext_strip(in->response);
    return s.len > 1 && s.ptr[0] == '"' && s.ptr[s.len - 1] == '"';
}

static bool no_comma(struct clime_instruction *in) {
    return !memchr(in->response.ptr, ',', in->response.len);
}

static bool has_lower(struct clime_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] >= 'a' && s.ptr[i] <= 'z') return true;
    return false;
}

/* A capital is a letter with a distinct lower case. */
static bool english_capital(struct clime_instruction *in) {
    return !has_lower(in->response) && !clime_str_eq(in->response, in->lower);
}

static bool english_lowercase(struct clime_instruction *in) {
    return has_lower(in->response) && clime_str_eq(in->response, in->lower);
}

const struct clime_instruction_checker clime_ifeval_checkers[] = {
    {"keywords:existence", keywords_existence, NULL},
    {"keywords:frequency", keywords_frequency, NULL},
    {"keywords:forbidden_words", forbidden_words, NULL},
    {"keywords:letter_frequency", letter_frequency, NULL},
    {"language:response_language", NULL, "it needs a language detector"},
    {"length_constraints:number_sentences", NULL, "it needs NLTK's trained sentence splitter"},
    {"length_constraints:number_paragraphs", number_paragraphs, NULL},
    {"length_constraints:number_words", number_words, NULL},
    {"length_constraints:nth_paragraph_first_word", nth_paragraph_first_word, NULL},
    {"detectable_content:number_placeholders", number_placeholders, NULL},
    {"detectable_content:postscript", postscript, NULL},
    {"detectable_format:number_bullet_lists", number_bullet_lists, NULL},
    {"detectable_format:constrained_response", constrained_response, NULL},
    {"detectable_format:number_highlighted_sections", number_highlighted_sections, NULL},
    {"detectable_format:multiple_sections", multiple_sections, NULL},
    {"detectable_format:json_format", json_format, NULL},
    {"detectable_format:title", title, NULL},
    {"combination:two_responses", two_responses, NULL},
    {"combination:repeat_prompt", repeat_prompt, NULL},
    {"startend:end_checker", end_checker, NULL},
    {"startend:quotation", quotation, NULL},
    {"change_case:capital_word_frequency", NULL, "it needs NLTK's words"},
    {"change_case:english_capital", english_capital, NULL},
    {"change_case:english_lowercase", english_lowercase, NULL},
    {"punctuation:no_comma", no_comma, NULL},
    {NULL, NULL, NULL},
};
