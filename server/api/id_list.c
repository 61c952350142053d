/* Token id lists (see id_list.h). Called by the request parsers on HTTP workers; owns nothing. Counts commas first to
 * allocate once: bodies carry 10^5 ids. */
#include "server/api/id_list.h"

bool clime_id_list_read(struct clime_json *j, struct clime_ids *out) {
    size_t n = 1;
    struct clime_str raw;
    struct clime_json again = *j;
    if (!clime_json_skip(&again, &raw)) return clime_json_skip(j, NULL); /* fails with the error in the right place */
    for (size_t i = 0; i < raw.len; i++) n += raw.ptr[i] == ',';
    out->len = 0;
    out->size = n;
    out->data = clime_arena_alloc(j->arena, n * sizeof *out->data);
    if (!out->data) return clime_json_bad(j, "too many ids");
    int64_t id;
    for (clime_json_array(j); clime_json_item(j) && clime_json_int(j, INT32_MIN, INT32_MAX, &id);)
        out->data[out->len++] = (int32_t)id;
    return !j->failed;
}

bool clime_id_list_chosen(struct clime_json *j, struct clime_logp_options *logp) {
    struct clime_ids ids = {0};
    if (clime_json_peek(j) == CLIME_JSON_NULL) return clime_json_null(j);
    if (!clime_id_list_read(j, &ids)) return false;
    if (ids.len > CLIME_MAX_CHOSEN_LOGPROBS) return clime_json_bad(j, "more than %d ids", CLIME_MAX_CHOSEN_LOGPROBS);
    for (size_t k = 0; k < ids.len; k++)
        if (ids.data[k] < 0) return clime_json_bad(j, "id %d is negative", (int)ids.data[k]);
    logp->ids = ids.data;
    logp->n_ids = (int)ids.len;
    return true;
}
