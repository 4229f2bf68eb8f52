// The loops for processors with AVX2.
#include "prelude.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,f16c,bmi,bmi2,popcnt"))), apply_to = function)
#else
#pragma GCC target("avx2,f16c,bmi,bmi2,popcnt")
#endif
namespace gw {
namespace avx2 {
#include "lanes.h"
#include "vec_avx2.h"

#include "table.h"
}  // namespace avx2
extern const Form avx2_form = avx2::make_table();
}  // namespace gw
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
