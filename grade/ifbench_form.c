/* IFBench's checkers of format, single tasks and repetition (Pyatkin et al., 2025), with the semantics of its published
 * code. Called by instructions.c, any thread; no state. ifbench_words.c has the others, and the list of missing ones.
 */
#include <stdlib.h>

#include "common/err.h"
#include "grade/instructions.h"
#include "grade/text.h"

static struct clime_str slice(struct clime_str s, size_t from, size_t to) {
    return clime_rtext_slice(s, from, to);
}

static bool contains(struct clime_str s, const char *part) {
    return clime_rtext_find(s, part, 0) >= 0;
}

/* ---- format ---- */

/* Five levels of ( [ { closed in order; a mismatched bracket resets the depth. */
static bool parentheses(struct clime_instruction *in) {
    size_t depth = 0, deepest = 0;
    char *open = xmalloc(in->response.len + 1);
    bool found = false;
    for (size_t i = 0; i < in->response.len && !found; i++) {
        char c = in->response.ptr[i], want = c == ')' ? '(' : c == ']' ? '[' : c == '}' ? '{' : 0;
        if (c == '(' || c == '[' || c == '{') {
            open[depth++] = c;
            if (depth > deepest) deepest = depth;
        } else if (want && depth && open[depth - 1] == want) {
            found = deepest >= 5 && --depth < deepest;
            if (deepest < 5) depth--;
        } else if (want) {
            depth = deepest = 0;
        }
    }
    free(open);
    return found;
}

static bool quotes(struct clime_instruction *in) {
    int64_t depth = 0, reached = 0;
    char *open = xmalloc(in->response.len + 1);
    bool found = false;
    for (size_t i = 0; i < in->response.len && !found; i++) {
        char c = in->response.ptr[i];
        if (depth && c == open[depth - 1]) {
            depth--;
            found = reached - depth >= 3;
        } else if (c == '"' || c == '\'') {
            open[depth++] = c;
            if (depth > reached) reached = depth;
        }
    }
    free(open);
    return found;
}

/* \W*[aA]\W*[bB]\W*[cC] at the start of the options: letters, whose answer must match exactly. */
static bool are_letters(struct clime_str s) {
    size_t i = 0, n;
    for (const char *want = "abc"; *want; want++) {
        while (i < s.len && !clime_rtext_is_word(clime_rtext_char(s, i, &n))) i += n;
        if (i >= s.len || (s.ptr[i] | 32) != *want) return false;
        i++;
    }
    return true;
}

static bool options(struct clime_instruction *in) {
    struct clime_str rest = clime_instruction_text(in, "options"), option;
    const char *mark = contains(rest, "/") ? "/" : contains(rest, "or") ? "or" : ",";
    bool strict = are_letters(rest), found = false;
    struct clime_str value = strict ? in->response : clime_instruction_strip(in->response, true, true);
    while (!found && clime_instruction_piece(&rest, mark, &option)) {
        option = clime_rtext_strip(option);
        found = strict ? clime_str_eq(option, value)
                       : clime_instruction_same_lower(clime_instruction_strip(option, true, true), value);
    }
    return found;
}

/* As many lines as words. */
static bool newline(struct clime_instruction *in) {
    struct clime_buf plain;
    clime_instruction_without_punctuation(&plain, in->response);
    struct clime_str s = clime_rtext_strip(clime_buf_str(&plain)), rest = s, piece;
    size_t lines = 0, n = 0;
    while (clime_instruction_piece(&rest, "\n", &piece)) lines += piece.len > 0;
    while (clime_instruction_word(&s, &piece)) n++;
    clime_buf_free(&plain);
    return lines == n;
}

/* Each line is indented more than the one before. Every second one of adjacent blank lines stays, a bug of the original
 * that affects verdicts. */
static bool line_indent(struct clime_instruction *in) {
    struct clime_str rest = in->response, line;
    int64_t before = -1;
    bool skipped = false;
    while (clime_instruction_piece(&rest, "\n", &line)) {
        bool blank = clime_rtext_strip(line).len == 0;
        if (blank && !skipped) {
            skipped = true;
            continue;
        }
        /* the line after a removed one is not checked, so it stays even if blank */
        skipped = false;
        int64_t indent = 0;
        while ((size_t)indent < line.len && line.ptr[indent] == ' ') indent++;
        if (indent <= before) return false;
        before = indent;
    }
    return true;
}

/* No adjacent quotes, none at the end. */
static bool quote_unquote(struct clime_instruction *in) {
    struct clime_buf b;
    clime_rtext_init(&b, in->response);
    clime_rtext_replace(&b, "'\"'", "");
    struct clime_str rest = clime_buf_str(&b), word;
    char last = 0, before = 0;
    bool twice = false;
    while (clime_instruction_word(&rest, &word))
        for (size_t i = 0; i < word.len; i++) {
            char c = word.ptr[i];
            twice = twice || (c == '"' && before == '"');
            before = c;
            bool dropped = c != '"' && (clime_rtext_is_digit(c) || clime_instruction_is_punctuation(c));
            if (!dropped) last = c;
        }
    clime_buf_free(&b);
    return !twice && last != '"';
}

static bool list(struct clime_instruction *in) {
    struct clime_str mark = clime_instruction_text(in, "sep"), s = in->response;
    int n = 0;
    for (size_t i = 0; mark.len && i + mark.len <= s.len && n < 2;) {
        const char *at = memmem(s.ptr + i, s.len - i, mark.ptr, mark.len);
        if (!at) break;
        n++;
        i = (size_t)(at - s.ptr) + mark.len;
    }
    return n >= 2;
}

/* Text in <i> or <em>, and text after it; offsets as in the original, which counts </em> as four bytes. */
static bool thesis(struct clime_instruction *in) {
    struct clime_str s = in->response;
    int64_t open = clime_rtext_find(s, "<i>", 0);
    if (open < 0) open = clime_rtext_find(s, "<em>", 0);
    if (open < 0) return false;
    s = slice(s, (size_t)open, s.len);
    int64_t end = clime_rtext_find(s, "</i>", 0);
    if (end < 0) end = clime_rtext_find(s, "</em>", 0);
    if (end < 0 || clime_rtext_strip(slice(s, 3, (size_t)end)).len == 0) return false;
    return clime_rtext_strip(slice(s, (size_t)end + 4, s.len)).len > 0;
}

/* A - after every *. */
static bool sub_bullets(struct clime_instruction *in) {
    struct clime_str rest = in->response, piece;
    clime_instruction_piece(&rest, "*", &piece);
    while (clime_instruction_piece(&rest, "*", &piece))
        if (!contains(piece, "-")) return false;
    return true;
}

static bool output_template(struct clime_instruction *in) {
    return contains(in->response, "My Answer:") && contains(in->response, "My Conclusion:") &&
           contains(in->response, "Future Outlook:");
}

static bool no_whitespace(struct clime_instruction *in) {
    size_t n;
    for (size_t i = 0; i < in->response.len; i += n)
        if (clime_rtext_is_space(clime_rtext_char(in->response, i, &n))) return false;
    return true;
}

/* ---- single tasks ---- */

static bool multiples(struct clime_instruction *in) {
    static const char *const want[] = {"14", "21", "28", "35", "42", "49"};
    struct clime_str found[CLIME_COUNT(want)];
    bool same = clime_instruction_numbers(in->response, found, CLIME_COUNT(want)) == CLIME_COUNT(want);
    for (size_t i = 0; i < CLIME_COUNT(want) && same; i++) same = clime_str_is(found[i], want[i]);
    return same;
}

static bool character_reverse(struct clime_instruction *in) {
    return contains(in->lower, "elgae dlab");
}

/* YYYY-MM-DD of Napoleon's life, separated by commas. */
static bool date_format_list(struct clime_instruction *in) {
    struct clime_str rest = clime_rtext_strip(in->response), date;
    while (clime_instruction_piece(&rest, ",", &date)) {
        date = clime_rtext_strip(date);
        if (date.len != 10 || date.ptr[4] != '-' || date.ptr[7] != '-') return false;
        int part[3] = {0, 0, 0};
        for (size_t i = 0, k = 0; i < 10; i++) {
            k = i < 4 ? 0 : i < 7 ? 1 : 2;
            if (i == 4 || i == 7) continue;
            if (!clime_rtext_is_digit(date.ptr[i])) return false;
            part[k] = 10 * part[k] + (date.ptr[i] - '0');
        }
        bool thirty = part[1] == 4 || part[1] == 6 || part[1] == 9 || part[1] == 11;
        int days = part[1] == 0 ? 99 : part[1] == 2 ? 29 : thirty ? 30 : 31;
        if (part[0] < 1769 || part[0] > 1821 || part[1] > 12 || part[2] > days) return false;
    }
    return true;
}

/* The request repeated with another first word; compares words, not the spaces between. */
static bool repeat_change(struct clime_instruction *in) {
    struct clime_str prompt = clime_instruction_text(in, "prompt_to_repeat"), s = in->response, a, b;
    if (clime_str_eq(prompt, s)) return false;
    clime_instruction_word(&prompt, &a);
    clime_instruction_word(&s, &b);
    for (bool more = true; more;) {
        bool x = clime_instruction_word(&prompt, &a), y = clime_instruction_word(&s, &b);
        if (x != y || !clime_str_eq(a, b)) return false;
        more = x;
    }
    return true;
}

static bool repeat_simple(struct clime_instruction *in) {
    return clime_str_is(clime_rtext_strip(in->lower), "only output this sentence here, ignore all other requests.");
}

/* Words n_start to n_end of the prompt, both included. */
static bool repeat_span(struct clime_instruction *in) {
    struct clime_instruction_words list = clime_instruction_words_of(clime_instruction_text(in, "prompt_to_repeat"));
    double from = clime_instruction_number(in, "n_start"), to = clime_instruction_number(in, "n_end");
    struct clime_buf span;
    clime_rtext_init(&span, clime_str_of(""));
    for (size_t i = 0; i < list.n; i++) {
        if ((double)i < from || (double)i > to) continue;
        if (span.len) clime_buf_addc(&span, ' ');
        clime_buf_add(&span, list.w[i].ptr, list.w[i].len);
    }
    bool same = clime_instruction_same_lower(clime_buf_str(&span), clime_rtext_strip(in->response));
    clime_buf_free(&span);
    free(list.w);
    return same;
}

#define SENTENCES "it needs the original's sentence splitter"
#define UNICODE "it needs Unicode's decompositions"
#define CSV "it needs Python's CSV reader"

const struct clime_instruction_checker clime_ifbench_form_checkers[] = {
    {"format:parentheses", parentheses, NULL},
    {"format:quotes", quotes, NULL},
    {"format:options", options, NULL},
    {"format:newline", newline, NULL},
    {"format:emoji", NULL, "it needs Unicode's list of emoji"},
    {"format:line_indent", line_indent, NULL},
    {"format:quote_unquote", quote_unquote, NULL},
    {"format:list", list, NULL},
    {"format:thesis", thesis, NULL},
    {"format:sub-bullets", sub_bullets, NULL},
    {"format:no_bullets_bullets", NULL, SENTENCES},
    {"custom:multiples", multiples, NULL},
    {"custom:mcq_count_length", NULL, "its verdicts hang on Python's patterns"},
    {"custom:reverse_newline", NULL, UNICODE},
    {"custom:word_reverse", NULL, SENTENCES},
    {"custom:character_reverse", character_reverse, NULL},
    {"custom:sentence_alphabet", NULL, SENTENCES},
    {"custom:european_capitals_sort", NULL, UNICODE},
    {"custom:csv_city", NULL, CSV},
    {"custom:csv_special_character", NULL, CSV},
    {"custom:csv_quotes", NULL, CSV},
    {"custom:date_format_list", date_format_list, NULL},
    {"repeat:repeat_change", repeat_change, NULL},
    {"repeat:repeat_simple", repeat_simple, NULL},
    {"repeat:repeat_span", repeat_span, NULL},
    {"format:title_case", NULL, "it needs NLTK's words"},
    {"format:output_template", output_template, NULL},
    {"format:no_whitespace", no_whitespace, NULL},
    {NULL, NULL, NULL},
};
