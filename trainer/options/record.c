/* Option tables as JSON. Called by the parsers of rl and sft; pure. */
#include "trainer/options/record.h"

#include "common/json/write.h"

static void write_value(struct clime_jw *w, const struct clime_opt *r) {
    switch (r->type) {
    case CLIME_OPT_BOOL:
        clime_jw_bool(w, *(bool *)r->value);
        break;
    case CLIME_OPT_INT:
    case CLIME_OPT_BYTES:
        clime_jw_int(w, *(int64_t *)r->value);
        break;
    case CLIME_OPT_DOUBLE:
        clime_jw_double(w, *(double *)r->value);
        break;
    case CLIME_OPT_STRING:
    case CLIME_OPT_KEY:
        clime_jw_strz(w, *(const char **)r->value);
        break;
    case CLIME_OPT_CHOICE:
        clime_jw_int(w, *(int *)r->value);
        break;
    case CLIME_OPT_LIST: {
        const struct clime_opt_list *l = r->value;
        clime_jw_array(w);
        for (int i = 0; i < l->n; i++) clime_jw_strz(w, l->items[i]);
        clime_jw_close(w);
        break;
    }
    case CLIME_OPT_SECTION:
        break;
    }
}

char *clime_options_record(const struct clime_opt *t, int n, bool (*decides)(const void *arg, const char *name),
                           const void *arg) {
    struct clime_buf b;
    struct clime_jw w;
    clime_buf_init(&b, 1 << 20);
    clime_jw_init(&w, &b);
    clime_jw_object(&w);
    for (int i = 0; i < n; i++) {
        if (t[i].type == CLIME_OPT_SECTION || (decides && !decides(arg, t[i].name))) continue;
        clime_jw_key(&w, t[i].name);
        write_value(&w, &t[i]);
    }
    clime_jw_close(&w);
    return clime_buf_take(&b);
}
