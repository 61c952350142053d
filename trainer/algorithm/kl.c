/* KL terms and their derivatives (kl.h). Called by the loss and the estimate. Pure. */
#include "trainer/algorithm/kl.h"

#include <math.h>

#include "common/err.h"

#define CLAMP 10

static double clamp(double v, double *grad) {
    if (v > CLAMP || v < -CLAMP) *grad = 0;
    return v > CLAMP ? CLAMP : v < -CLAMP ? -CLAMP : v;
}

static double plain(enum clime_kl_type type, double d, double *grad) {
    switch (type) {
    case CLIME_KL_K1:
        *grad = 1;
        return d;
    case CLIME_KL_K2:
        *grad = d;
        return 0.5 * d * d;
    case CLIME_KL_K3:
    case CLIME_KL_LOW_VAR:
        *grad = 1 - exp(-d);
        return exp(-d) - 1 + d;
    }
    CHECK(!"kl type");
    return 0;
}

double clime_kl_value(enum clime_kl_type type, double logp, double ref, double *grad) {
    double v = plain(type, logp - ref, grad);
    return type == CLIME_KL_LOW_VAR ? clamp(v, grad) : v;
}

double clime_kl_unbiased(enum clime_kl_type type, double logp, double ref, double old, double *grad) {
    double g, v = plain(type, logp - ref, &g), r = exp(logp - old);
    *grad = r * (v + g);
    return type == CLIME_KL_LOW_VAR ? clamp(r * v, grad) : r * v;
}
