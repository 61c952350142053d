/* A reward of one's own for clime-train rl and grade, as a shared library:
 *
 *   cc -shared -fPIC -O2 -I . -o custom_reward.so examples/custom_reward.c
 *   clime-train grade --custom-rm-path custom_reward.so
 *   clime-train rl --custom-rm-path custom_reward.so [--group-rm]
 *   clime-train rl --custom-rm-path custom_reward.so --rm-type math:0.9,custom:0.1
 *
 * One answer alone is worth 1 / (1 + its length in hundreds of bytes). A whole group (--group-rm) is ranked: the
 * shortest answer gets 1, the longest 0, equal lengths the same. */
#include "trainer/plugin/plugin.h"

#include <string.h>

static int reward(const struct clime_plugin_question *const *q, int32_t n, double *out, char *error,
                  size_t error_bytes) {
    (void)error, (void)error_bytes;
    for (int i = 0; i < n; i++) {
        size_t length = strlen(q[i]->response);
        int longer = 0;
        for (int k = 0; k < n; k++) longer += strlen(q[k]->response) > length;
        out[i] = n == 1 ? 1 / (1 + (double)length / 100) : (double)longer / (n - 1);
    }
    return 0;
}

const struct clime_plugin clime_plugin = {CLIME_PLUGIN_HEAD, .name = "custom_reward", .reward = reward};
