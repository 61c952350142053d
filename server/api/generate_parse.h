/* Parses the body of /generate (SGLang's GenerateReqInput) into a generation. */
#ifndef CLIME_SERVER_API_GENERATE_PARSE_H
#define CLIME_SERVER_API_GENERATE_PARSE_H

#include "server/api/generation.h"

struct clime_generate_options { /* options of the reply only */
    bool return_prompt_ids, return_routing;
};

/* Fills gen's prompts and the job's flags. CLIME_ERR_INPUT names the field; CLIME_ERR_LIMIT. */
enum clime_err clime_generate_parse(struct clime_generation *gen, struct clime_generate_options *o,
                                    struct clime_error *e);

#endif
