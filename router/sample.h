/* Parser for lines of Prometheus' text format. Pure; any thread. */
#ifndef CLIME_ROUTER_SAMPLE_H
#define CLIME_ROUTER_SAMPLE_H

#include "common/str.h"

/* True when the line, without its end, is NAME{LABEL="VALUE",...} NUMBER [TIME] with at most 64 labels and no
 * duplicates. Prometheus rejects a whole text for one bad line. *name: part of the line. */
bool clime_sample_is_sound(struct clime_str line, struct clime_str *name);
/* The start of the label in a sound line; NULL = absent. */
const char *clime_sample_label(struct clime_str line, const char *name);
/* True when the line is # HELP NAME TEXT or # TYPE NAME KIND. */
bool clime_sample_is_comment(struct clime_str line, struct clime_str *name);

#endif
