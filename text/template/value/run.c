/* Memory, steps, depth and failure of one template run. Called by every text/template/, on the run's thread.
 *
 * Invariant: all memory comes from the arena, so a longjmp from any depth leaks nothing.
 */
#include "text/template/value/run.h"

#include <stdio.h>

#include "text/unicode.h"

void clime_tr_fail(struct clime_tr *tr, enum clime_err code, const char *fmt, ...) {
    char msg[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(msg, sizeof msg, fmt, ap);
    va_end(ap);
    /* A message cut in the middle of a character would not be UTF-8. */
    const char *end = msg + strlen(msg);
    for (const char *at = msg; at < end;) {
        const char *from = at;
        if (clime_unicode_next(&at, end) < 0) {
            msg[from - msg] = '\0';
            break;
        }
    }
    if (tr->line > 0)
        clime_fail(tr->err, code, "template line %d: %s", tr->line, msg);
    else
        clime_fail(tr->err, code, "%s", msg);
    longjmp(tr->trap, 1);
}

void *clime_tr_alloc(struct clime_tr *tr, size_t bytes) {
    void *p = clime_arena_alloc(&tr->arena, bytes ? bytes : 1);
    if (!p) clime_tr_fail(tr, CLIME_ERR_LIMIT, "the template needs more than %zu bytes of memory", tr->arena.cap);
    return p;
}

void *clime_tr_zalloc(struct clime_tr *tr, size_t bytes) {
    return memset(clime_tr_alloc(tr, bytes), 0, bytes);
}

void clime_tr_charge(struct clime_tr *tr, size_t units) {
    if (units > tr->steps_left) clime_tr_fail(tr, CLIME_ERR_LIMIT, "the template takes too many steps");
    tr->steps_left -= units;
}

void clime_tr_enter(struct clime_tr *tr) {
    clime_tr_charge(tr, 1);
    if (++tr->depth > tr->max_depth) clime_tr_fail(tr, CLIME_ERR_LIMIT, "maximum recursion depth exceeded");
}

void clime_tout_add(struct clime_tr *tr, struct clime_tout *o, const char *p, size_t n) {
    if (n == 0) return;
    clime_tr_charge(tr, n / 16);
    if (o->sink) {
        clime_buf_add(o->sink, p, n);
        if (o->sink->full)
            clime_tr_fail(tr, CLIME_ERR_LIMIT, "the rendered text is longer than %zu bytes", o->sink->cap);
        return;
    }
    if (n > o->size - o->len) {
        size_t size = o->size ? o->size * 2 : 64;
        while (size - o->len < n) size *= 2;
        char *data = clime_tr_alloc(tr, size);
        if (o->len) memcpy(data, o->data, o->len);
        o->data = data;
        o->size = size;
    }
    memcpy(o->data + o->len, p, n);
    o->len += n;
}

void clime_tout_str(struct clime_tr *tr, struct clime_tout *o, struct clime_str s) {
    clime_tout_add(tr, o, s.ptr, s.len);
}

void clime_tout_adds(struct clime_tr *tr, struct clime_tout *o, const char *z) {
    clime_tout_add(tr, o, z, strlen(z));
}

void clime_tout_addc(struct clime_tr *tr, struct clime_tout *o, char c) {
    clime_tout_add(tr, o, &c, 1);
}

void clime_tout_put(struct clime_tr *tr, struct clime_tout *o, int32_t cp) {
    char bytes[4];
    clime_tout_add(tr, o, bytes, (size_t)clime_unicode_put(cp, bytes));
}

void clime_tout_printf(struct clime_tr *tr, struct clime_tout *o, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    CHECK(n >= 0 && (size_t)n < sizeof text);
    clime_tout_add(tr, o, text, (size_t)n);
}

struct clime_str clime_tr_concat(struct clime_tr *tr, struct clime_str a, struct clime_str b) {
    if (b.len == 0) return a;
    if (a.len == 0) return b;
    clime_tr_charge(tr, b.len / 16);
    if (a.ptr + a.len != tr->tail || (size_t)(tr->tail_end - tr->tail) < b.len) {
        clime_tr_charge(tr, a.len / 16);
        size_t size = (a.len + b.len) * 2;
        char *data = clime_tr_alloc(tr, size);
        memcpy(data, a.ptr, a.len);
        a.ptr = data;
        tr->tail = data + a.len;
        tr->tail_end = data + size;
    }
    memcpy(tr->tail, b.ptr, b.len);
    tr->tail += b.len;
    return (struct clime_str){a.ptr, a.len + b.len};
}
