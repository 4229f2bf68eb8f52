// Which form runs: the best that the processor has, or the one that a test asks for.

#include <atomic>

#include "entry.h"
#include "threads.h"

namespace gw {

std::atomic<int64_t> grain(1 << 20);

static bool has(int64_t isa) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c") &&
                      __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
                      __builtin_cpu_supports("popcnt");
    if (isa == AVX2) return avx2;
    if (isa == AVX512)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == PLAIN;
}

static const Form& form_of(int isa) {
#if defined(__x86_64__)
    if (isa == AVX512) return avx512_form;
    if (isa == AVX2) return avx2_form;
#else
    (void)isa;
#endif
    return plain_form;
}

static std::atomic<int> chosen(has(AVX512) ? AVX512 : has(AVX2) ? AVX2 : PLAIN);

const Form& active() { return form_of(chosen.load(std::memory_order_relaxed)); }

}  // namespace gw

// Changes with every change of the entry points: a library of another age is not called.
GW_API int64_t gw_interface() { return 4; }

GW_API int64_t gw_isa() { return gw::chosen; }

// False if the processor lacks it; nothing changed then.
GW_API int64_t gw_set_isa(int64_t isa) {
    if (!gw::has(isa)) return 0;
    gw::chosen = int(isa);
    return 1;
}

// How many elements a thread is started for.
GW_API int64_t gw_set_grain(int64_t elements) {
    gw::grain = elements;
    return 1;
}
