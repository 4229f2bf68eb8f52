// For the files with entry points.
#pragma once

#include <cstdint>

#include "kernels.h"

#define GW_API extern "C" __attribute__((visibility("default")))

// The arguments that say what is encoded; see Input.
#define GW_FEED \
    const void *x, int32_t dtype, int64_t n, const float *residual, float decay, float *rest
#define GW_INPUT gw::Input{x, residual, rest, decay, dtype, gw::streams(x, n, rest)}

namespace gw {

// Places beside x are in the cache where x was read.
inline bool streams(const void* x, int64_t n, const float* rest) { return rest && rest != x && n >= LONG; }

}  // namespace gw
