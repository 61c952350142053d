/* Parser for Prometheus' text format (sample.h). Called for workers' metrics. */
#include "router/sample.h"

#include <stdint.h>
#include <stdlib.h>

#include "common/err.h"
#include "common/utf8.h"

#define LONGEST_NUMBER 64
#define MOST_LABELS 64

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

/* The position after the closing quote of the value at `at`; NULL = not closed. */
static const char *value_end(const char *at, const char *end) {
    for (; at < end; at++) {
        if (*at == '"') return at + 1;
        if (*at == '\\' && (++at == end || !strchr("\\\"n", *at))) return NULL;
    }
    return NULL;
}

/* Reads the label at *at and moves past it and its comma. False = none, or malformed. */
static bool next_label(const char **at, const char *end, struct clime_str *name) {
    *name = name_at(*at = skip_blanks(*at, end), end);
    const char *value = skip_blanks(*at + name->len, end);
    if (!name->len || memchr(name->ptr, ':', name->len) || end - value < 2 || value[0] != '=' || value[1] != '"')
        return false;
    if (!(value = value_end(value + 2, end))) return false;
    *at = skip_blanks(value, end);
    if (*at == end || (**at != ',' && **at != '}')) return false;
    *at += **at == ',';
    return true;
}

/* The position after the brace that closes the labels at `at`; NULL = malformed or a duplicate. */
static const char *labels_end(const char *at, const char *end) {
    struct clime_str names[MOST_LABELS];
    int n = 0;
    for (; n < MOST_LABELS && next_label(&at, end, &names[n]); n++) {
        if (clime_str_is(names[n], "__name__")) return NULL; /* reserved for the metric's name */
        for (int i = 0; i < n; i++)
            if (clime_str_eq(names[i], names[n])) return NULL;
    }
    return at < end && *at == '}' ? at + 1 : NULL;
}

/* True when the word at *at is a number of these characters: strtod accepts more than Prometheus. */
static bool read_number(const char **at, const char *end, const char *of) {
    char text[LONGEST_NUMBER], *stop;
    size_t n = 0;
    while (*at + n < end && (*at)[n] != ' ' && (*at)[n] != '\t') n++;
    if (n == 0 || n >= sizeof text) return false;
    memcpy(text, *at, n);
    text[n] = '\0';
    strtod(text, &stop);
    *at = skip_blanks(*at + n, end);
    return stop == text + n && strspn(text, of) == n;
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
    if (!read_number(&at, end, "0123456789+-.eEINFTYinfaty")) return false;
    return at == end || (read_number(&at, end, "0123456789-") && at == end);
}

const char *clime_sample_label(struct clime_str line, const char *name) {
    const char *end = line.ptr + line.len, *at = line.ptr + name_at(line.ptr, end).len;
    struct clime_str found;
    if (at == end || *at++ != '{') return NULL;
    while (next_label(&at, end, &found))
        if (clime_str_is(found, name)) return found.ptr;
    return NULL;
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
