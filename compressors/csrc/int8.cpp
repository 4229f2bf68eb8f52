// Eight bits per element and a scale per block: scales, then levels.

#include <cmath>

#include "blocks.h"
#include "entry.h"

using namespace gw;

// From the largest magnitude, as bits; so that 127 times the scale stays finite.
static float scale_of(uint32_t peak) {
    static const float largest = std::nextafter(FLT_MAX / 127, 0.0f);
    float most;
    memcpy(&most, &peak, sizeof most);
    return guarded(std::min(most / 127, largest));
}

// Without `at_random` levels are rounded to the nearest, and the seed means nothing.
GW_API int64_t gw_int8_encode(GW_FEED, int64_t block, int32_t at_random, uint64_t number, uint8_t* payload,
                              int32_t threads) {
    const uint64_t* const seed = at_random ? &number : nullptr;
    const Form& form = active();
    const Input in = GW_INPUT;
    int8_t* const levels = reinterpret_cast<int8_t*>(payload + 4 * blocks_in(n, block));
    const auto encode = [&](int64_t begin, int64_t count, int64_t b) {
        const uint32_t peak = form.peak(in, begin, count);
        if (peak >= INFINITE) return false;
        const float scale = scale_of(peak);
        set(payload, b, scale);
        form.quantize(in, begin, count, scale, seed, levels + begin);
        return true;
    };
    const auto together = [&](int64_t begin, int64_t count, int64_t b, int workers) {
        const uint32_t peak = largest_of(count, PIECE, workers, [&](int64_t at, int64_t many) {
            return form.peak(in, begin + at, many);
        });
        if (peak >= INFINITE) return false;
        const float scale = scale_of(peak);
        set(payload, b, scale);
        over_parts(count, PIECE, workers, [&](int64_t at, int64_t many) {
            form.quantize(in, begin + at, many, scale, seed, levels + begin + at);
        });
        return true;
    };
    return encode_blocks(n, block, threads, encode, together) ? DONE : NOT_FINITE;
}

GW_API int64_t gw_int8_decode_add(const uint8_t* payload, int64_t n, int64_t block, float* out, float weight,
                                  int32_t threads) {
    const Form& form = active();
    const int8_t* const levels = reinterpret_cast<const int8_t*>(payload + 4 * blocks_in(n, block));
    if (!acceptable(payload, blocks_in(n, block))) return REFUSED;
    decode_blocks(payload, n, block, weight, threads, [&](int64_t begin, int64_t count, float w) {
        form.int8_add(levels + begin, count, w, out + begin);
    });
    return DONE;
}
