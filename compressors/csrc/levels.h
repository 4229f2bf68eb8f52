// Eight or four bits per element and a scale per block: scales, then levels.
#pragma once

#include <cmath>

#include "blocks.h"

namespace gw {

// The largest level.
inline float most_of(Grid grid) {
    return grid == INT8 ? 127.0f : grid == INT4 ? 7.0f : grid == E4M3 ? 448.0f : 57344.0f;
}

// From the largest magnitude, as bits; so that the largest level times the scale stays finite.
inline float scale_of(uint32_t peak, float most) {
    float magnitude;
    memcpy(&magnitude, &peak, sizeof magnitude);
    return guarded(std::min(magnitude / most, std::nextafter(FLT_MAX / most, 0.0f)));
}

// Where the levels of an element begin that is the first in its byte.
template <class Byte>
Byte* levels_at(Byte* levels, Grid grid, int64_t element) {
    return levels + (grid == INT4 ? element / 2 : element);
}

template <class Elements>
struct alignas(LINE) LevelsEncoder {
    const Form& form;
    Elements& elements;
    const Grid grid;
    const float most;
    const uint64_t* const seed;
    uint8_t *const scales, *const levels;

    LevelsEncoder(Elements& elements, int64_t n, int64_t block, Grid grid, const uint64_t* seed, uint8_t* payload)
        : form(active()), elements(elements), grid(grid), most(most_of(grid)), seed(seed), scales(payload),
          levels(payload + 4 * blocks_in(n, block)) {}

    uint32_t measure(const Input& in, int64_t begin, int64_t count) const {
        return (in.rest ? form.settle : form.peak)(in, begin, count);
    }
    // False if p is not finite.
    bool put_scale(uint32_t peak, int64_t index) const {
        set(scales, index, scale_of(peak, most));
        return peak < INFINITE;
    }
    void write(const Input& in, int64_t begin, int64_t count, int64_t index) const {
        form.quantize(in, begin, count, get<float>(scales, index), grid, seed, levels_at(levels, grid, begin));
    }
    bool encode(Span block, int64_t index) const {
        uint32_t peak = 0;
        elements.first(block, [&](const Input& in, int64_t begin, int64_t count) {
            peak = std::max(peak, measure(in, begin, count));
        });
        if (!put_scale(peak, index)) return false;
        elements.last(block,
                      [&](const Input& in, int64_t begin, int64_t count) { write(in, begin, count, index); });
        return true;
    }
    bool encode_together(Span block, int64_t index, int workers) const {
        const uint32_t peak = largest_of(block.count, PIECE, workers, [&](int64_t at, int64_t count) {
            return measure(elements.before, block.begin + at, count);
        });
        if (!put_scale(peak, index)) return false;
        over_parts(block.count, PIECE, workers,
                   [&](int64_t at, int64_t count) { write(elements.after, block.begin + at, count, index); });
        return true;
    }
};

// out[0, count) += weight * the elements of a range that begins with a byte.
inline void add_levels(const uint8_t* payload, int64_t n, int64_t block, Grid grid, Span range, float weight,
                       float* out) {
    const Form& form = active();
    const uint8_t* const levels = payload + 4 * blocks_in(n, block);
    each_block(range, block, [&](int64_t begin, int64_t count, int64_t index) {
        form.levels_add(levels_at(levels, grid, begin), grid, count, get<float>(payload, index) * weight,
                        out + (begin - range.begin));
    });
}

}  // namespace gw
