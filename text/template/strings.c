/* Text work that filters and str methods share: strip, case, replace, lines, find, pad. Called on the run's thread;
 * results are slices of the argument where possible, else in the arena.
 *
 * Positions and lengths that a template sees count code points; inside, everything is byte offsets into UTF-8. All
 * searching is memmem, which is linear, and every walk is charged to the run's steps.
 */
#include "text/template/builtin.h"
#include "text/unicode.h"

struct clime_tv clime_ttext_like(struct clime_tr *tr, struct clime_tv model, struct clime_str s) {
    struct clime_tv v = clime_tv_str(tr, s);
    v.flag = clime_tv_is_markup(model);
    return v;
}

static bool strips(const struct clime_str *chars, int32_t cp) {
    if (!chars) return clime_unicode_is_space(cp);
    for (const char *at = chars->ptr, *end = at + chars->len; at < end;)
        if (clime_unicode_next(&at, end) == cp) return true;
    return false;
}

struct clime_str clime_ttext_strip(struct clime_tr *tr, struct clime_str s, const struct clime_str *chars,
                                   enum clime_tsides sides) {
    const char *from = s.ptr, *to = s.ptr + s.len;
    size_t each = chars ? 1 + chars->len / 8 : 1;
    while ((sides & CLIME_STRIP_LEFT) && from < to) {
        const char *next = from;
        if (!strips(chars, clime_unicode_next(&next, to))) break;
        clime_tr_charge(tr, each);
        from = next;
    }
    while ((sides & CLIME_STRIP_RIGHT) && to > from) {
        const char *last = to - 1;
        while (last > from && ((unsigned char)*last & 0xC0) == 0x80) last--;
        const char *at = last;
        if (!strips(chars, clime_unicode_next(&at, to))) break;
        clime_tr_charge(tr, each);
        to = last;
    }
    return (struct clime_str){from, (size_t)(to - from)};
}

/* ---- case ---- */

static bool is_cased(int32_t cp) {
    return clime_unicode_is_upper(cp) || clime_unicode_is_lower(cp) || clime_unicode_is_title(cp);
}

/* Greek capital sigma in lower case: final form after a letter at the end of a word (Unicode's Final_Sigma, which
 * Python follows; case-ignorable marks are taken as word ends here). */
static bool final_sigma(int32_t before, const char *next, const char *end) {
    return is_cased(before) && (next == end || !is_cased(clime_unicode_next(&next, end)));
}

struct clime_str clime_ttext_case(struct clime_tr *tr, struct clime_str s, const char *how) {
    bool upper = !strcmp(how, "upper"), swap = !strcmp(how, "swapcase"), title = !strcmp(how, "title");
    bool capitalize = !strcmp(how, "capitalize"), fold = !strcmp(how, "casefold");
    char bytes[CLIME_UNICODE_CASE_MAX];
    struct clime_tout o = {0};
    clime_tr_charge(tr, s.len / 4);
    int32_t before = 0;
    for (const char *at = s.ptr, *end = s.ptr + s.len; at < end;) {
        bool first = at == s.ptr;
        int32_t cp = clime_unicode_next(&at, end);
        enum clime_unicode_case to = fold ? CLIME_FOLD : upper ? CLIME_UPPER : CLIME_LOWER;
        if (swap)
            to = clime_unicode_is_upper(cp) ? CLIME_LOWER : clime_unicode_is_lower(cp) ? CLIME_UPPER : CLIME_LOWER;
        if ((title && !is_cased(before)) || (capitalize && first)) to = CLIME_TITLE;
        if (cp >= 0 && cp < 0x80) {
            bool is_lower = cp >= 'a' && cp <= 'z', is_upper = cp >= 'A' && cp <= 'Z';
            if (is_lower && (to == CLIME_UPPER || to == CLIME_TITLE)) cp -= 32;
            if (is_upper && (to == CLIME_LOWER || to == CLIME_FOLD)) cp += 32;
            clime_tout_addc(tr, &o, (char)cp);
        } else if (cp == 0x3A3 && to == CLIME_LOWER) {
            clime_tout_put(tr, &o, final_sigma(before, at, end) ? 0x3C2 : 0x3C3);
        } else {
            int n = clime_unicode_case(cp, to, bytes);
            clime_tout_add(tr, &o, bytes, (size_t)n);
        }
        before = cp;
    }
    return (struct clime_str){o.data ? o.data : "", o.len};
}

/* ---- searching ---- */

size_t clime_ttext_find(struct clime_tr *tr, struct clime_str s, struct clime_str what, size_t from) {
    if (from > s.len) return SIZE_MAX;
    if (what.len == 0) return from;
    const char *at = memmem(s.ptr + from, s.len - from, what.ptr, what.len);
    size_t found = at ? (size_t)(at - s.ptr) : SIZE_MAX;
    clime_tr_charge(tr, ((at ? found : s.len) - from) / 16 + 1);
    return found;
}

size_t clime_ttext_rfind(struct clime_tr *tr, struct clime_str s, struct clime_str what) {
    if (what.len == 0) return s.len;
    if (what.len > s.len) return SIZE_MAX;
    for (size_t at = s.len - what.len + 1; at-- > 0;) {
        if (s.ptr[at] != what.ptr[0]) continue;
        clime_tr_charge(tr, what.len / 16 + 1);
        if (memcmp(s.ptr + at, what.ptr, what.len) == 0) {
            clime_tr_charge(tr, (s.len - at) / 16);
            return at;
        }
    }
    clime_tr_charge(tr, s.len / 16);
    return SIZE_MAX;
}

size_t clime_ttext_offset(struct clime_tr *tr, struct clime_str s, int64_t n_chars) {
    size_t at = 0;
    while (n_chars > 0 && at < s.len) {
        at++;
        while (at < s.len && ((unsigned char)s.ptr[at] & 0xC0) == 0x80) at++;
        n_chars--;
    }
    clime_tr_charge(tr, at / 16);
    return at;
}

struct clime_str clime_ttext_replace(struct clime_tr *tr, struct clime_str s, struct clime_str old,
                                     struct clime_str new_text, int64_t count) {
    struct clime_tout o = {0};
    size_t at = 0;
    if (count < 0) count = INT64_MAX;
    if (old.len == 0) { /* before every character and at the end */
        for (; count > 0; count--) {
            clime_tout_str(tr, &o, new_text);
            clime_tr_charge(tr, 1);
            if (at == s.len) break;
            size_t n = clime_ttext_offset(tr, (struct clime_str){s.ptr + at, s.len - at}, 1);
            clime_tout_add(tr, &o, s.ptr + at, n);
            at += n;
        }
    } else {
        size_t found;
        for (; count > 0 && (found = clime_ttext_find(tr, s, old, at)) != SIZE_MAX; count--) {
            clime_tout_add(tr, &o, s.ptr + at, found - at);
            clime_tout_str(tr, &o, new_text);
            at = found + old.len;
        }
        if (at == 0) return s;
    }
    clime_tout_add(tr, &o, s.ptr + at, s.len - at);
    return (struct clime_str){o.data ? o.data : "", o.len};
}

/* Line boundaries of str.splitlines(). */
static bool is_line_end(int32_t cp) {
    return (cp >= 0x0A && cp <= 0x0D) || (cp >= 0x1C && cp <= 0x1E) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
}

struct clime_tlist *clime_ttext_lines(struct clime_tr *tr, struct clime_str s, bool keep_ends) {
    struct clime_tlist *l = clime_tlist_new(tr, 0);
    const char *end = s.ptr + s.len, *line = s.ptr;
    clime_tr_charge(tr, s.len / 8);
    for (const char *at = s.ptr; at < end;) {
        const char *from = at;
        int32_t cp = clime_unicode_next(&at, end);
        if (!is_line_end(cp)) continue;
        if (cp == '\r' && at < end && *at == '\n') at++;
        clime_tlist_push(tr, l, clime_tv_str(tr, (struct clime_str){line, (size_t)((keep_ends ? at : from) - line)}));
        line = at;
    }
    if (line < end) clime_tlist_push(tr, l, clime_tv_str(tr, (struct clime_str){line, (size_t)(end - line)}));
    return l;
}

struct clime_str clime_ttext_pad(struct clime_tr *tr, struct clime_str s, int64_t left, int64_t right,
                                 struct clime_str fill) {
    struct clime_tout o = {0};
    clime_tr_charge(tr, (size_t)(left > 0 ? left : 0) + (size_t)(right > 0 ? right : 0));
    for (; left > 0; left--) clime_tout_str(tr, &o, fill);
    clime_tout_str(tr, &o, s);
    for (; right > 0; right--) clime_tout_str(tr, &o, fill);
    return (struct clime_str){o.data ? o.data : "", o.len};
}
