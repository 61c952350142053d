/* Lines of Prometheus' text format. Pure; any thread. */
#ifndef CLIME_ROUTER_SAMPLE_H
#define CLIME_ROUTER_SAMPLE_H

#include "common/str.h"

/* Is the line, without its end, NAME{LABEL="VALUE",...} NUMBER [TIME], with 64 labels at most and none twice? Of a text
 * in which one is not Prometheus takes nothing. *name: of the line. */
bool clime_sample_is_sound(struct clime_str line, struct clime_str *name);
/* Where the label with this name begins in a line that is; NULL = it has none. */
const char *clime_sample_label(struct clime_str line, const char *name);
/* Or # HELP NAME TEXT, or # TYPE NAME KIND. */
bool clime_sample_is_comment(struct clime_str line, struct clime_str *name);

#endif
