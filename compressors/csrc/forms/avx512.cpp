// The loops for processors with AVX-512.
#include "prelude.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,bmi,bmi2,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC diagnostic ignored "-Wuninitialized"  // within GCC's own headers
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,f16c,bmi,bmi2,popcnt")
#endif
namespace gw {
namespace avx512 {
#include "lanes.h"
#include "vec_avx512.h"

#include "table.h"
}  // namespace avx512
extern const Form avx512_form = avx512::make_table();
}  // namespace gw
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
