/* str.isdigit() and the like. Called through attribute access and by the tests lower and upper, on the run's thread. */
#include "text/template/builtin.h"
#include "text/unicode.h"

#define METHOD(name)                                                                                                   \
    static struct clime_tv name(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args)

/* True when s has a character and every one passes. */
static struct clime_tv every(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                             bool (*passes)(int32_t cp)) {
    clime_targs_bind(tr, "str test", args, "", 0, NULL);
    clime_tr_charge(tr, self.len / 4);
    for (const char *at = self.s, *end = self.s + self.len; at < end;)
        if (!passes(clime_unicode_next(&at, end))) return clime_tv_bool(false);
    return clime_tv_bool(self.len > 0);
}

/* Python's digits are the decimals and a few more: superscripts and circled digits have a digit value too. */
static bool is_digit(int32_t cp) {
    return clime_unicode_is_decimal(cp) || cp == 0xB2 || cp == 0xB3 || cp == 0xB9 || cp == 0x2070 ||
           (cp >= 0x2074 && cp <= 0x2079) || (cp >= 0x2080 && cp <= 0x2089) || (cp >= 0x2460 && cp <= 0x2468);
}

static bool is_alnum(int32_t cp) {
    return clime_unicode_is_alpha(cp) || clime_unicode_is_numeric(cp);
}
static bool is_ascii(int32_t cp) {
    return cp >= 0 && cp < 0x80;
}

METHOD(s_isdigit) {
    return every(tr, self, args, is_digit);
}
METHOD(s_isdecimal) {
    return every(tr, self, args, clime_unicode_is_decimal);
}
METHOD(s_isnumeric) {
    return every(tr, self, args, clime_unicode_is_numeric);
}
METHOD(s_isalpha) {
    return every(tr, self, args, clime_unicode_is_alpha);
}
METHOD(s_isalnum) {
    return every(tr, self, args, is_alnum);
}
METHOD(s_isspace) {
    return every(tr, self, args, clime_unicode_is_space);
}

METHOD(s_isascii) {
    return self.len == 0 ? clime_tv_bool(true) : every(tr, self, args, is_ascii);
}
METHOD(s_isprintable) {
    return self.len == 0 ? clime_tv_bool(true) : every(tr, self, args, clime_unicode_is_printable);
}

METHOD(s_isidentifier) {
    clime_targs_bind(tr, "isidentifier", args, "", 0, NULL);
    clime_tr_charge(tr, self.len / 4);
    for (const char *at = self.s, *end = self.s + self.len; at < end;) {
        bool first = at == self.s;
        int32_t cp = clime_unicode_next(&at, end);
        if (cp != '_' && !clime_unicode_is_alpha(cp) && (first || !clime_unicode_is_decimal(cp)))
            return clime_tv_bool(false);
    }
    return clime_tv_bool(self.len > 0);
}

/* Has a cased character, and none of the other case. */
static struct clime_tv one_case(struct clime_tr *tr, struct clime_tv self, const struct clime_targs *args,
                                bool (*wanted)(int32_t), bool (*other)(int32_t)) {
    bool found = false;
    clime_targs_bind(tr, "str test", args, "", 0, NULL);
    clime_tr_charge(tr, self.len / 4);
    for (const char *at = self.s, *end = self.s + self.len; at < end;) {
        int32_t cp = clime_unicode_next(&at, end);
        if (other(cp) || clime_unicode_is_title(cp)) return clime_tv_bool(false);
        found = found || wanted(cp);
    }
    return clime_tv_bool(found);
}

METHOD(s_isupper) {
    return one_case(tr, self, args, clime_unicode_is_upper, clime_unicode_is_lower);
}
METHOD(s_islower) {
    return one_case(tr, self, args, clime_unicode_is_lower, clime_unicode_is_upper);
}

METHOD(s_istitle) {
    bool found = false, after_cased = false;
    clime_targs_bind(tr, "istitle", args, "", 0, NULL);
    clime_tr_charge(tr, self.len / 4);
    for (const char *at = self.s, *end = self.s + self.len; at < end;) {
        int32_t cp = clime_unicode_next(&at, end);
        bool upper = clime_unicode_is_upper(cp) || clime_unicode_is_title(cp), lower = clime_unicode_is_lower(cp);
        if (upper ? after_cased : lower && !after_cased) return clime_tv_bool(false);
        after_cased = upper || lower;
        found = found || after_cased;
    }
    return clime_tv_bool(found);
}

const struct clime_tbuiltin clime_tmethods_str_is[] = {
    {"isdigit", s_isdigit}, {"isdecimal", s_isdecimal}, {"isnumeric", s_isnumeric}, {"isalpha", s_isalpha},
    {"isalnum", s_isalnum}, {"isspace", s_isspace},     {"isascii", s_isascii},     {"isprintable", s_isprintable},
    {"isupper", s_isupper}, {"islower", s_islower},     {"istitle", s_istitle},     {"isidentifier", s_isidentifier},
    {NULL, NULL},
};
