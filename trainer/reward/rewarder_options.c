/* Reward options (rewarder_options.h). Pure; any thread. */
#include "trainer/reward/rewarder_options.h"

#include <string.h>

#include "common/os/shell.h"
#include "trainer/reward/mixture.h"
#include "trainer/reward/types.h"

const char *clime_rewarder_type(const struct clime_rewarder_options *o) {
    return o->type ? o->type : o->library ? "custom" : o->command ? "command" : o->url ? "url" : NULL;
}

enum clime_err clime_rewarder_check(const struct clime_rewarder_options *o, bool *is_url, struct clime_error *e) {
    const char *name = clime_rewarder_type(o);
    struct clime_mixture_part parts[CLIME_MIXTURE_PARTS];
    bool boxed, url = false;
    int n = name ? clime_mixture_read(name, parts, e) : 0;
    if (n < 0 || (o->command && clime_shell_check("--rm-command", o->command, e))) return e->code;
    for (int i = 0; name && i < (n ? n : 1); i++) {
        const char *part = n ? parts[i].type : name;
        const struct clime_reward_type *type = clime_reward_find(part, &boxed, e);
        if (!type) return e->code;
        bool is_command = strcmp(type->name, "command") == 0, is_custom = strcmp(type->name, "custom") == 0;
        url |= !type->grade && !is_command && !is_custom;
        if (is_custom && !o->library)
            return clime_fail(e, CLIME_ERR_INPUT, "--rm-type %s needs --custom-rm-path", name);
        if (is_command && !o->command) return clime_fail(e, CLIME_ERR_INPUT, "--rm-type %s needs --rm-command", name);
        if (url && !o->url) return clime_fail(e, CLIME_ERR_INPUT, "--rm-type %s needs --rm-url", name);
    }
    if (is_url) *is_url = url;
    return CLIME_OK;
}
