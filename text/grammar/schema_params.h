/* A tool's parameters, for call forms that write them as tags. See readers.h. */
#ifndef CLIME_TEXT_GRAMMAR_SCHEMA_PARAMS_H
#define CLIME_TEXT_GRAMMAR_SCHEMA_PARAMS_H

#include "text/grammar/readers.h"

struct clime_schema_param {
    struct clime_str name; /* malloc'd */
    bool required;
    bool any_text; /* any string: written verbatim */
    bool doubtful; /* one of its strings looks like JSON */
    int node;      /* unless any_text: JSON, or an enum's strings verbatim */
};

struct clime_schema_params {
    struct clime_schema_param *at;
    int n;
};

enum clime_err clime_schema_params_read(struct clime_exprs *x, struct clime_str json, struct clime_schema_params *out,
                                        struct clime_error *e);
void clime_schema_params_free(struct clime_schema_params *p);

#endif
