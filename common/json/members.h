/* Reads members of a JSON object into a struct, by a table of one row per name. Values are read leniently (lenient.h):
 * null leaves the struct's value. The table also yields the nearest name to a mistyped one.
 *
 *   static const struct clime_member members[] = {
 *       {"n", CLIME_MEMBER_INT, offsetof(struct x, n), .min = 1, .max = 512}, ...};
 */
#ifndef CLIME_COMMON_JSON_MEMBERS_H
#define CLIME_COMMON_JSON_MEMBERS_H

#include <stddef.h>

#include "common/json/lenient.h"
#include "common/nearest.h"

enum clime_member_kind {
    CLIME_MEMBER_BOOL,   /* bool */
    CLIME_MEMBER_INT,    /* int64_t in min..max */
    CLIME_MEMBER_DOUBLE, /* double in min..max */
    CLIME_MEMBER_STRING, /* struct clime_str */
    CLIME_MEMBER_RAW,    /* struct clime_str: any value, as its text */
    CLIME_MEMBER_CALL    /* read() gets the address of the field */
};

struct clime_member {
    const char *name;
    enum clime_member_kind kind;
    size_t at; /* offset in the struct */
    double min, max;
    bool (*read)(struct clime_json *j, void *at);
};

struct clime_members {
    const struct clime_member *rows;
    size_t n;
};

/* Reads the value of key into object when a row has the name, and returns true; false consumes nothing. A wrong value
 * sets the scanner's error, which names the member. */
bool clime_members_read(const struct clime_members *m, struct clime_json *j, struct clime_str key, void *object);
void clime_members_nearest(const struct clime_members *m, struct clime_nearest *n);

#endif
