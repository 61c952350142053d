/* Rewarder jobs (job.h). Called by the rewarder's submitting and taking threads and by its workers; owns nothing. */
#include "trainer/reward/job.h"

#include <stdlib.h>
#include <string.h>

struct clime_reward_job *clime_reward_job_new(int n, size_t bytes) {
    struct clime_reward_job *j = xcalloc(1, sizeof *j);
    j->n = n;
    j->tag = xcalloc((size_t)n, sizeof *j->tag);
    j->q = xcalloc((size_t)n, sizeof *j->q);
    j->reward = xcalloc((size_t)n, sizeof *j->reward);
    j->bytes = xmalloc(bytes + 1);
    return j;
}

void clime_reward_job_free(struct clime_reward_job *j) {
    for (int i = j->given; i < j->n; i++) clime_reward_free(&j->reward[i]);
    free(j->tag);
    free(j->q);
    free(j->reward);
    free(j->bytes);
    free(j);
}

static struct clime_str copy(char **at, struct clime_str s) {
    struct clime_str r = {*at, s.len};
    if (s.len) memcpy(*at, s.ptr, s.len);
    *at += s.len;
    return r;
}

struct clime_reward_job *clime_reward_job_copy(const struct clime_reward_request *q, void *const *tags, int n,
                                               const char *type) {
    size_t bytes = 0;
    for (int i = 0; i < n; i++) bytes += q[i].prompt.len + q[i].response.len + q[i].label.len + q[i].metadata.len;
    struct clime_reward_job *j = clime_reward_job_new(n, bytes);
    char *at = j->bytes;
    if (q[0].type) type = q[0].type;
    size_t len = type ? strlen(type) : 0;
    memcpy(j->type, type ? type : "", len < sizeof j->type ? len : sizeof j->type - 1);
    for (int i = 0; i < n; i++) {
        j->tag[i] = tags[i];
        j->q[i] = q[i];
        j->q[i].prompt = copy(&at, q[i].prompt);
        j->q[i].response = copy(&at, q[i].response);
        j->q[i].label = copy(&at, q[i].label);
        j->q[i].metadata = copy(&at, q[i].metadata);
        j->q[i].type = j->type;
    }
    return j;
}
