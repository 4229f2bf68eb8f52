// Checks, copies and casts of all elements.

#include "entry.h"
#include "threads.h"

using namespace gw;

GW_API int64_t gw_all_finite(const void* x, int32_t dtype, int64_t n, int32_t threads) {
    const Form& form = active();
    const Input in = {x, nullptr, nullptr, 1, dtype, false};
    const uint32_t peak =
        largest_of(n, PIECE, workers_for(n, threads), [&](int64_t begin, int64_t count) { return form.peak(in, begin, count); });
    return peak < INFINITE ? DONE : NOT_FINITE;
}

GW_API int64_t gw_copy(const void* x, int32_t dtype, int64_t n, void* out, int32_t threads) {
    const Form& form = active();
    const Input in = {x, nullptr, nullptr, 1, dtype, n >= LONG};
    const uint32_t peak =
        largest_of(n, PIECE, workers_for(n, threads), [&](int64_t begin, int64_t count) { return form.copy(in, begin, count, out); });
    return peak < INFINITE ? DONE : NOT_FINITE;
}

// rest = p.
GW_API int64_t gw_total(GW_FEED, int32_t threads) {
    const Form& form = active();
    const Input in = GW_INPUT;
    const uint32_t peak =
        largest_of(n, PIECE, workers_for(n, threads), [&](int64_t begin, int64_t count) { return form.settle(in, begin, count); });
    return peak < INFINITE ? DONE : NOT_FINITE;
}

// Returns how many magnitudes were beyond the range of out's dtype.
GW_API int64_t gw_cast_encode(GW_FEED, float divisor, int32_t out_dtype, void* out, int32_t threads) {
    const Form& form = active();
    const Input in = GW_INPUT;
    std::atomic<int64_t> saturated(0);
    const uint32_t peak = largest_of(n, PIECE, workers_for(n, threads), [&](int64_t begin, int64_t count) {
        int64_t mine = 0;
        const uint32_t most = form.cast(in, begin, count, divisor, out_dtype, out, &mine);
        saturated += mine;
        return most;
    });
    return peak < INFINITE ? int64_t(saturated) : int64_t(NOT_FINITE);
}

GW_API int64_t gw_cast_decode_add(const void* values, int32_t dtype, int64_t n, float* out, float weight,
                                  int32_t threads) {
    const Form& form = active();
    const int64_t size = dtype == F32 ? 4 : 2;
    over_parts(n, PIECE, workers_for(n, threads), [&](int64_t begin, int64_t count) {
        form.cast_add(static_cast<const uint8_t*>(values) + size * begin, dtype, count, weight, out + begin);
    });
    return DONE;
}
