/* A list of tools in another form to functions. Called by responses_input.c and messages_input.c. */
#include "common/json/lenient.h"
#include "text/chat/conversation.h"

enum clime_err clime_functions_read(struct clime_str raw, void (*read)(struct clime_json *j, struct clime_jw *w),
                                    struct clime_arena *a, struct clime_str *tools, struct clime_error *e) {
    struct clime_buf out;
    struct clime_jw w;
    struct clime_json j;
    if (raw.len == 0 || clime_lenient_nothing(raw)) return CLIME_OK;
    clime_buf_init(&out, raw.len * 4 + 4096);
    clime_jw_init(&w, &out);
    clime_jw_array(&w);
    clime_json_init(&j, raw.ptr, raw.len, a, e);
    for (clime_json_array(&j); clime_json_item(&j) && !j.failed;) read(&j, &w);
    enum clime_err err = clime_json_end(&j) ? CLIME_OK : clime_error_prefix(e, "tools");
    if (!err) {
        clime_jw_close(&w);
        const char *copy = out.full ? NULL : clime_arena_strdup(a, clime_buf_str(&out));
        *tools = (struct clime_str){copy, out.len};
        if (!copy) err = clime_fail(e, CLIME_ERR_LIMIT, "the tools take too much memory");
    }
    clime_buf_free(&out);
    return err;
}
