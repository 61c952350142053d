/* Rows as JSON. Called by the files of this folder, on a reading connection. */
#include "trainer/ledger/browse/rows.h"

#include <string.h>

#include "common/json/scan.h"

#define MARK ":json"

static void write_text(struct clime_jw *w, struct clime_str text, bool is_json) {
    struct clime_error unused;
    if (!is_json)
        clime_jw_str(w, text);
    else if (clime_json_check(text.ptr, text.len, &unused))
        clime_jw_raw(w, text);
    else
        clime_jw_null(w);
}

void clime_row_members(struct clime_stmt *q, struct clime_jw *w) {
    enum clime_db_kind kind;
    for (const char *name; (name = clime_db_next(q, &kind));) {
        struct clime_str key = clime_str_of(name);
        bool is_json = key.len > strlen(MARK) && !strcmp(name + key.len - strlen(MARK), MARK);
        if (is_json) key.len -= strlen(MARK);
        size_t bytes;
        const char *data;
        if (kind == CLIME_DB_BLOB) {
            clime_db_get_blob(q, &bytes);
            continue;
        }
        clime_jw_key_str(w, key);
        switch (kind) {
        case CLIME_DB_INT:
            clime_jw_int(w, clime_db_get_int(q));
            break;
        case CLIME_DB_REAL:
            clime_jw_double(w, clime_db_get_real(q));
            break;
        case CLIME_DB_TEXT:
            data = clime_db_get_blob(q, &bytes); /* with length: it may contain a NUL */
            write_text(w, (struct clime_str){data, bytes}, is_json);
            break;
        default:
            clime_db_get_int(q); /* consumes it */
            clime_jw_null(w);
        }
    }
}

enum clime_err clime_rows_array(struct clime_stmt *q, struct clime_jw *w, struct clime_error *e) {
    clime_jw_array(w);
    while (clime_db_row(q)) {
        clime_jw_object(w);
        clime_row_members(q, w);
        clime_jw_close(w);
    }
    clime_jw_close(w);
    return clime_db_done(q, e);
}

enum clime_err clime_rows_first(struct clime_stmt *q, struct clime_jw *w, struct clime_error *e) {
    if (clime_db_row(q)) {
        clime_jw_object(w);
        clime_row_members(q, w);
        clime_jw_close(w);
    } else {
        clime_jw_null(w);
    }
    return clime_db_done(q, e);
}
