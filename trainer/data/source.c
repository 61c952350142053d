/* Data sources: parsing their names, and reading their rows. Called by all data loaders; owns a file while it is read.
 *
 * Broken rows are refused, not skipped: skipping would shift all later groups. */
#include "trainer/data/source.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/json/scan.h"
#include "trainer/data/csv.h"

#define MAX_ARRAY ((size_t)4 << 30) /* bytes of a file that is one JSON array */

/* ---- names ---- */

static bool read_weight(const char *text, double *out) {
    char *end;
    if (!text[0] || text[strspn(text, "0123456789.eE+-")]) return false;
    *out = strtod(text, &end);
    return !*end && *out > 0 && *out <= 1e9;
}

/* The text after the last @ is a weight if it looks like a number; any other @ belongs to the path. */
enum clime_err clime_source_parse(const char *text, struct clime_source *out, struct clime_error *e) {
    *out = (struct clime_source){.path = xstrdup(text)};
    char *at = strrchr(out->path, '@');
    enum clime_err rc = CLIME_OK;
    if (at && at[1] && !at[1 + strspn(at + 1, "0123456789.eE+-")]) {
        if (!read_weight(at + 1, &out->weight)) {
            rc = clime_fail(e, CLIME_ERR_INPUT, "\"%s\": a weight is written path@0.3, above 0", text);
            goto done;
        }
        *at = 0;
    }
    if (!(at = strstr(out->path, "@["))) return CLIME_OK;
    size_t len = strlen(at + 2);
    if (len < 2 || len > sizeof out->slice || at[len + 1] != ']' || at[2 + strspn(at + 2, "-:0123456789")] != ']') {
        rc = clime_fail(e, CLIME_ERR_INPUT, "\"%s\": the slice is written path@[first:last]", text);
        goto done;
    }
    memcpy(out->slice, at + 2, len - 1);
    *at = 0;
done:
    if (rc) clime_source_free(out);
    return rc;
}

void clime_source_free(struct clime_source *s) {
    free(s->path);
    s->path = NULL;
}

char *clime_source_name(const char *source) {
    struct clime_source s;
    struct clime_error e;
    if (clime_source_parse(source, &s, &e)) return xstrdup(source);
    const char *slash = strrchr(s.path, '/'), *name = slash ? slash + 1 : s.path;
    char *out = xstrndup(name, strcspn(name, "."));
    clime_source_free(&s);
    return out;
}

/* One end of a Python slice: empty = fallback, negative counts from n; clamped to 0..n. */
static bool slice_end(const char *text, size_t len, int64_t n, int64_t fallback, int64_t *out) {
    if (len == 0) {
        *out = fallback;
        return true;
    }
    char word[24], *end;
    if (len >= sizeof word - 1) return false;
    memcpy(word, text, len);
    word[len] = 0;
    long long v = strtoll(word, &end, 10);
    if (*end) return false;
    if (v < 0) v += n;
    *out = v < 0 ? 0 : v > n ? n : v;
    return true;
}

enum clime_err clime_source_slice(const char *slice, int64_t n, int64_t *first, int64_t *last, struct clime_error *e) {
    *first = 0;
    *last = n;
    if (!slice[0]) return CLIME_OK;
    const char *colon = strchr(slice, ':');
    if (!colon || strchr(colon + 1, ':') || !slice_end(slice, (size_t)(colon - slice), n, 0, first) ||
        !slice_end(colon + 1, strlen(colon + 1), n, n, last))
        return clime_fail(e, CLIME_ERR_INPUT, "[%s] is no slice: [first:last] with whole numbers", slice);
    return CLIME_OK;
}

/* ---- rows ---- */

/* Reads the next line without its end; it may hold any bytes. False: there is none. full: over the limit, where reading
 * stopped, so a file without line ends is not read whole. */
static bool read_line(FILE *f, struct clime_buf *line) {
    char piece[4096];
    size_t n = 0;
    int c;
    clime_buf_clear(line);
    while ((c = getc_unlocked(f)) != EOF && c != '\n' && !line->full) {
        piece[n++] = (char)c;
        if (n < sizeof piece) continue;
        clime_buf_add(line, piece, n);
        n = 0;
    }
    clime_buf_add(line, piece, n);
    return c != EOF || line->len > 0;
}

static bool is_blank(const struct clime_buf *line) {
    size_t i = 0;
    while (i < line->len && strchr(" \t\r", line->data[i]) && line->data[i]) i++;
    return i == line->len && !line->full;
}

static enum clime_err line_rows(FILE *f, const char *path, int64_t first, int64_t last, clime_row_fn *fn, void *arg,
                                struct clime_error *e) {
    enum clime_err rc = CLIME_OK;
    int64_t row = 0, number = 0;
    struct clime_buf line;
    clime_buf_init(&line, CLIME_ROW_MAX);
    while (!rc && row < last && read_line(f, &line)) {
        number++;
        if (is_blank(&line)) continue;
        if (line.full)
            rc = clime_fail(e, CLIME_ERR_LIMIT, "%s:%lld: the line is over %zu MiB", path, (long long)number,
                            CLIME_ROW_MAX >> 20);
        else if (row++ >= first)
            rc = fn(arg, number, clime_buf_str(&line), e);
    }
    clime_buf_free(&line);
    if (!rc && ferror(f)) rc = clime_fail(e, CLIME_ERR_IO, "cannot read %s", path);
    return rc;
}

static enum clime_err array_rows(const char *path, long begin, int64_t first, int64_t last, clime_row_fn *fn, void *arg,
                                 struct clime_error *e) {
    struct clime_buf text;
    struct clime_arena arena;
    struct clime_json j;
    struct clime_error je = {0};
    clime_buf_init(&text, MAX_ARRAY);
    clime_arena_init(&arena, CLIME_ROW_MAX);
    enum clime_err rc = clime_buf_read_file(&text, path, e);
    if (rc) goto done;
    clime_json_init(&j, text.data + begin, text.len - (size_t)begin, &arena, &je);
    int64_t i = 0;
    for (clime_json_array(&j); !rc && clime_json_item(&j); i++) {
        struct clime_str item;
        if (clime_json_skip(&j, &item) && i >= first && i < last) rc = fn(arg, i + 1, item, e);
    }
    if (!rc && !clime_json_end(&j))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: item %lld: %s", path, (long long)i, je.msg);
done:
    clime_arena_free(&arena);
    clime_buf_free(&text);
    return rc;
}

static bool ends_with(const char *path, const char *end) {
    size_t n = strlen(path), k = strlen(end);
    return n >= k && !strcasecmp(path + n - k, end);
}

/* Recognises unsupported formats by their first bytes. Signatures that could begin a CSV column's name include a byte
 * that no text has there. */
static const char *foreign_form(const char *head, size_t n) {
    static const struct {
        const char *head, *what;
        bool is_word;
    } forms[] = {{"\x1f\x8b", "gzip"},      {"\x28\xb5\x2f\xfd", "zstd"}, {"\xfd\x37zXZ", "xz"},
                 {"PK\3\4", "zip or xlsx"}, {"\xff\xfe", "UTF-16"},       {"\xfe\xff", "UTF-16"},
                 {"PAR1", "Parquet", true}, {"ARROW1", "Arrow", true}};
    for (size_t i = 0; i < CLIME_COUNT(forms); i++) {
        size_t k = strlen(forms[i].head);
        if (n < k || memcmp(head, forms[i].head, k)) continue;
        if (!forms[i].is_word || (n > k && iscntrl((unsigned char)head[k]) && !isspace((unsigned char)head[k])))
            return forms[i].what;
    }
    return n >= 10 && !memcmp(head, "BZh", 3) && !memcmp(head + 4, "1AY&SY", 6) ? "bzip2" : NULL;
}

/* Finds where the rows begin, after a UTF-8 byte order mark, and positions the file there. */
static enum clime_err find_begin(FILE *f, const char *path, long *begin, struct clime_error *e) {
    char head[16];
    size_t n = fread(head, 1, sizeof head, f);
    const char *what = foreign_form(head, n);
    if (what)
        return clime_fail(e, CLIME_ERR_INPUT, "%s is %s, which is not read: JSON lines, a JSON array, CSV and TSV are",
                          path, what);
    *begin = n >= 3 && !memcmp(head, "\xef\xbb\xbf", 3) ? 3 : 0;
    if (ferror(f) || fseek(f, *begin, SEEK_SET)) return clime_fail(e, CLIME_ERR_IO, "cannot read %s", path);
    return CLIME_OK;
}

/* Refuses pipes: reading one may block for ever, and works only once. */
static enum clime_err check_file(const char *path, struct clime_error *e) {
    struct stat st;
    if (stat(path, &st))
        return clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot open the prompt data %s: %s", path, strerror(errno));
    if (S_ISREG(st.st_mode)) return CLIME_OK;
    return clime_fail(e, CLIME_ERR_INPUT, "cannot read %s: it is %s", path,
                      S_ISDIR(st.st_mode) ? "a folder" : "no plain file");
}

/* True when the first character other than white space begins an array. */
static bool begins_array(FILE *f, long begin) {
    int c;
    do c = getc_unlocked(f);
    while (c != EOF && isspace(c));
    fseek(f, begin, SEEK_SET);
    return c == '[';
}

static enum clime_err read_rows(const char *path, int64_t first, int64_t last, clime_row_fn *fn, void *arg,
                                struct clime_error *e) {
    if (check_file(path, e)) return e->code;
    FILE *f = fopen(path, "r");
    long begin = 0;
    if (!f) return clime_fail(e, CLIME_ERR_NOT_FOUND, "cannot open the prompt data %s: %s", path, strerror(errno));
    enum clime_err rc = find_begin(f, path, &begin, e);
    if (rc) {
        fclose(f);
        return rc;
    }
    if (ends_with(path, ".csv") || ends_with(path, ".tsv"))
        rc = clime_csv_rows(f, path, ends_with(path, ".tsv") ? '\t' : ',', first, last, fn, arg, e);
    else if (begins_array(f, begin))
        rc = array_rows(path, begin, first, last, fn, arg, e);
    else
        rc = line_rows(f, path, first, last, fn, arg, e);
    fclose(f);
    return rc;
}

static enum clime_err count_row(void *arg, int64_t number, struct clime_str json, struct clime_error *e) {
    (void)number, (void)json, (void)e;
    ++*(int64_t *)arg;
    return CLIME_OK;
}

enum clime_err clime_source_rows(const char *source, clime_row_fn *fn, void *arg, struct clime_error *e) {
    struct clime_source s;
    int64_t n = 0, first = 0, last = INT64_MAX;
    enum clime_err rc = clime_source_parse(source, &s, e);
    if (rc) return rc;
    if (ends_with(s.path, ".parquet"))
        rc = clime_fail(e, CLIME_ERR_INPUT, "%s: Parquet is not read; scripts/parquet_to_jsonl makes JSON lines of it",
                        s.path);
    if (!rc && s.slice[0]) rc = read_rows(s.path, 0, INT64_MAX, count_row, &n, e);
    if (!rc && s.slice[0]) rc = clime_source_slice(s.slice, n, &first, &last, e);
    if (!rc) rc = read_rows(s.path, first, last, fn, arg, e);
    clime_source_free(&s);
    return rc;
}

enum clime_err clime_source_is_kept(const char *source, const char *option, const char *output, struct clime_error *e) {
    struct clime_source s;
    enum clime_err rc = clime_source_parse(source, &s, e);
    if (rc) return rc;
    char *in = realpath(s.path, NULL), *to = realpath(output, NULL);
    if (in && to && !strcmp(in, to)) rc = clime_fail(e, CLIME_ERR_INPUT, "--%s %s is read too", option, output);
    free(in);
    free(to);
    clime_source_free(&s);
    return rc;
}
