/* Table of routing policies, in the order of CLIME_POLICY_NAMES (checked by a unit test). Read-only. */
#include "router/policy/policy.h"

#define ROW(name) &clime_policy_##name,
const struct clime_policy *const clime_policies[] = {CLIME_POLICIES(ROW)};
