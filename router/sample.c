/* See sample.h. Called for what workers say of their metrics. */
#include "router/sample.h"

#include <stdint.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/utf8.h"

#define LONGEST_NUMBER 64

static bool is_name_byte(char c, bool first) {
    bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
    return letter || (!first && c >= '0' && c <= '9');
}

static struct clime_str name_at(const char *at, const char *end) {
    struct clime_str name = {at, 0};
    while (at < end && is_name_byte(*at, name.len == 0)) at++, name.len++;
    return name;
}

static const char *skip_blanks(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t')) at++;
    return at;
}

/* Behind the quotation mark that ends the value, which begins at `at`; NULL = nothing ends it. */
static const char *value_end(const char *at, const char *end) {
    for (; at < end; at++) {
        if (*at == '"') return at + 1;
        if (*at == '\\' && (++at == end || !strchr("\\\"n", *at))) return NULL;
    }
    return NULL;
}

/* Behind the brace that ends the labels, which begin at `at`; NULL = they are none. */
static const char *labels_end(const char *at, const char *end) {
    for (;;) {
        at = skip_blanks(at, end);
        if (at < end && *at == '}') return at + 1;
        struct clime_str name = name_at(at, end);
        at = skip_blanks(at + name.len, end);
        if (!name.len || end - at < 2 || at[0] != '=' || at[1] != '"') return NULL;
        if (!(at = value_end(at + 2, end))) return NULL;
        at = skip_blanks(at, end);
        if (at == end || (*at != ',' && *at != '}')) return NULL;
        at += *at == ',';
    }
}

/* The word at `at`, read as a number; false = it is none. */
static bool read_number(const char **at, const char *end) {
    char text[LONGEST_NUMBER], *stop;
    size_t n = 0;
    while (*at + n < end && (*at)[n] != ' ' && (*at)[n] != '\t') n++;
    if (n == 0 || n >= sizeof text) return false;
    memcpy(text, *at, n);
    text[n] = '\0';
    strtod(text, &stop);
    *at = skip_blanks(*at + n, end);
    return stop == text + n;
}

static bool is_utf8(struct clime_str s) {
    uint32_t cp;
    for (size_t at = 0; at < s.len;) {
        int n = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

bool clime_sample_is_sound(struct clime_str line, struct clime_str *name) {
    const char *end = line.ptr + line.len, *at;
    *name = name_at(line.ptr, end);
    if (!name->len || !is_utf8(line)) return false;
    at = line.ptr + name->len;
    if (at < end && *at == '{' && !(at = labels_end(at + 1, end))) return false;
    at = skip_blanks(at, end);
    return read_number(&at, end) && (at == end || (read_number(&at, end) && at == end));
}

bool clime_sample_is_comment(struct clime_str line, struct clime_str *name) {
    static const char *const kinds[] = {"counter", "gauge", "histogram", "summary", "untyped"};
    bool help = clime_str_starts(line, "# HELP ");
    if (!help && !clime_str_starts(line, "# TYPE ")) return false;
    const char *end = line.ptr + line.len;
    *name = name_at(line.ptr + 7, end);
    const char *at = name->ptr + name->len;
    if (!name->len || at == end || *at != ' ' || !is_utf8(line)) return false;
    if (help) return true;
    for (size_t i = 0; i < CLIME_COUNT(kinds); i++)
        if (clime_str_is((struct clime_str){at + 1, (size_t)(end - at - 1)}, kinds[i])) return true;
    return false;
}
