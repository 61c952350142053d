/* The table of routing policies, in the order of CLIME_POLICY_NAMES (a unit test compares them). Read-only. */
#include "router/policy.h"

const struct clime_policy *const clime_policies[] = {
    &clime_policy_least_tokens,
    &clime_policy_round_robin,
    &clime_policy_random,
};
