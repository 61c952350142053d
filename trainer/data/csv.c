/* CSV reader: records as JSON objects. Called while data is loaded. Invariant: a record with another number of fields
 * than the header refuses the file with its line: a missing quote would otherwise silently swallow rows. */
#include "trainer/data/csv.h"

#include <stdlib.h>

#include "common/json/write.h"
#include "common/utf8.h"

#define MAX_FIELDS 1024

struct reader {
    FILE *f;
    const char *path;
    char separator;
    int64_t line;          /* line of the next record, from 1 */
    struct clime_buf text; /* the fields, concatenated */
    size_t end[MAX_FIELDS];
    int n;
};

static enum clime_err bad(const struct reader *r, int64_t line, const char *why, struct clime_error *e) {
    return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: %s", r->path, (long long)line, why);
}

static bool is_utf8(struct clime_str s) {
    for (size_t at = 0; at < s.len;) {
        uint32_t cp;
        int n = clime_utf8_decode(s.ptr + at, s.len - at, &cp);
        if (n <= 0) return false;
        at += (size_t)n;
    }
    return true;
}

/* Reads a quoted field after its opening quote; *next: the character after it. */
static enum clime_err read_quoted(struct reader *r, int64_t began, int *next, struct clime_error *e) {
    for (int c; (c = getc_unlocked(r->f)) != EOF;) {
        if (c == '\n') r->line++;
        if (c == '"' && (c = getc_unlocked(r->f)) != '"') {
            *next = c;
            return CLIME_OK;
        }
        clime_buf_addc(&r->text, (char)c);
        if (r->text.full) break;
    }
    return bad(r, began, r->text.full ? "the record is too long: is a quote missing?" : "a quote is not closed", e);
}

/* Reads a record, skipping empty lines; *there = false at the end of the file. */
static enum clime_err read_record(struct reader *r, int64_t *began, bool *there, struct clime_error *e) {
    int c;
    while ((c = getc_unlocked(r->f)) == '\n' || c == '\r') r->line += c == '\n';
    clime_buf_clear(&r->text);
    r->n = 0;
    *began = r->line;
    *there = c != EOF;
    while (*there) {
        if (r->n == MAX_FIELDS) return bad(r, *began, "more than 1024 fields", e);
        if (c == '"' && read_quoted(r, *began, &c, e)) return e->code;
        for (; c != EOF && c != '\n' && c != r->separator; c = getc_unlocked(r->f))
            if (c != '\r') clime_buf_addc(&r->text, (char)c);
        if (r->text.full) return bad(r, *began, "the record is too long: is a quote missing?", e);
        r->end[r->n++] = r->text.len;
        if (c != r->separator) break;
        c = getc_unlocked(r->f);
    }
    r->line += c == '\n';
    return CLIME_OK;
}

static struct clime_str field(const struct reader *r, int i) {
    size_t from = i ? r->end[i - 1] : 0;
    return (struct clime_str){(r->text.data ? r->text.data : "") + from, r->end[i] - from};
}

/* Reads the names as concatenated JSON strings into *names; field i ends at end[i]. */
static enum clime_err read_header(struct reader *r, struct clime_buf *names, size_t *end, int *n,
                                  struct clime_error *e) {
    int64_t began;
    bool there;
    enum clime_err rc = read_record(r, &began, &there, e);
    if (rc) return rc;
    if (!there) return bad(r, 1, "no header that names the fields", e);
    *n = r->n;
    for (int i = 0; i < r->n; i++) {
        struct clime_str name = field(r, i);
        if (!name.len || !is_utf8(name)) return bad(r, 1, "a field of the header has no name", e);
        for (int k = 0; k < i; k++)
            if (clime_str_eq(name,
                             (struct clime_str){names->data + (k ? end[k - 1] : 0), end[k] - (k ? end[k - 1] : 0)}))
                return bad(r, 1, "two fields of the header have the same name", e);
        clime_buf_add(names, name.ptr, name.len);
        end[i] = names->len;
    }
    return CLIME_OK;
}

static enum clime_err write_row(const struct reader *r, int64_t began, const struct clime_buf *names,
                                const size_t *name_end, int n, struct clime_buf *out, struct clime_error *e) {
    struct clime_jw w;
    if (r->n != n)
        return clime_fail(e, CLIME_ERR_INPUT, "%s:%lld: %d fields where the header has %d", r->path, (long long)began,
                          r->n, n);
    clime_buf_clear(out);
    clime_jw_init(&w, out);
    clime_jw_object(&w);
    for (int i = 0; i < n; i++) {
        size_t from = i ? name_end[i - 1] : 0;
        if (!is_utf8(field(r, i))) return bad(r, began, "the text is not UTF-8", e);
        clime_jw_key_str(&w, (struct clime_str){names->data + from, name_end[i] - from});
        clime_jw_str(&w, field(r, i));
    }
    clime_jw_close(&w);
    return out->full ? bad(r, began, "the record is too long", e) : CLIME_OK;
}

enum clime_err clime_csv_rows(FILE *f, const char *path, char separator, int64_t first, int64_t last, clime_row_fn *fn,
                              void *arg, struct clime_error *e) {
    struct reader *r = xcalloc(1, sizeof *r);
    struct clime_buf names, row;
    size_t *name_end = xcalloc(MAX_FIELDS, sizeof *name_end);
    int n = 0;
    *r = (struct reader){.f = f, .path = path, .separator = separator, .line = 1};
    clime_buf_init(&r->text, CLIME_ROW_MAX);
    clime_buf_init(&names, CLIME_ROW_MAX);
    clime_buf_init(&row, 8 * CLIME_ROW_MAX);
    enum clime_err rc = read_header(r, &names, name_end, &n, e);
    for (int64_t i = 0; !rc && i < last; i++) {
        int64_t began;
        bool there;
        if ((rc = read_record(r, &began, &there, e)) || !there) break;
        if (i < first) continue;
        if (!(rc = write_row(r, began, &names, name_end, n, &row, e))) rc = fn(arg, began, clime_buf_str(&row), e);
    }
    if (!rc && ferror(f)) rc = clime_fail(e, CLIME_ERR_IO, "cannot read %s", path);
    clime_buf_free(&row);
    clime_buf_free(&names);
    clime_buf_free(&r->text);
    free(name_end);
    free(r);
    return rc;
}
