/* A tool's parameters one by one, for forms of calls that write them as tags. See readers.h. */
#ifndef CLIME_TEXT_GRAMMAR_SCHEMA_PARAMS_H
#define CLIME_TEXT_GRAMMAR_SCHEMA_PARAMS_H

#include "text/grammar/readers.h"

struct clime_schema_param {
    struct clime_str name; /* malloc'd */
    bool required;
    bool any_text; /* a string that may be any: written as it is */
    bool doubtful; /* one of its texts looks like JSON */
    int node;      /* unless any_text: JSON, or the texts of an enum as they are */
};

struct clime_schema_params {
    struct clime_schema_param *at;
    int n;
};

enum clime_err clime_schema_params_read(struct clime_exprs *x, struct clime_str json, struct clime_schema_params *out,
                                        struct clime_error *e);
void clime_schema_params_free(struct clime_schema_params *p);

#endif
