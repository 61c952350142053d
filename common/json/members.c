/* Reading members by table. Called by request parsers; owns nothing. */
#include "common/json/members.h"

static void read_row(const struct clime_member *m, struct clime_json *j, void *object) {
    void *at = (char *)object + m->at;
    switch (m->kind) {
    case CLIME_MEMBER_BOOL:
        clime_lenient_bool(j, at);
        break;
    case CLIME_MEMBER_INT:
        clime_lenient_int(j, (int64_t)m->min, (int64_t)m->max, at);
        break;
    case CLIME_MEMBER_DOUBLE:
        clime_lenient_double(j, m->min, m->max, at);
        break;
    case CLIME_MEMBER_STRING:
        clime_lenient_string(j, at);
        break;
    case CLIME_MEMBER_RAW:
        clime_lenient_raw(j, at);
        break;
    case CLIME_MEMBER_CALL:
        m->read(j, (char *)object + m->at);
        break;
    }
}

bool clime_members_read(const struct clime_members *m, struct clime_json *j, struct clime_str key, void *object) {
    for (size_t i = 0; i < m->n; i++) {
        if (!clime_str_is(key, m->rows[i].name)) continue;
        if (j->failed) return true;
        read_row(&m->rows[i], j, object);
        if (j->failed) clime_error_prefix(j->err, "%s", m->rows[i].name);
        return true;
    }
    return false;
}

void clime_members_nearest(const struct clime_members *m, struct clime_nearest *n) {
    for (size_t i = 0; i < m->n; i++) clime_nearest_try(n, m->rows[i].name);
}
