// Eight or four bits per element and a scale per block: scales, then levels.

#include <cmath>

#include "blocks.h"
#include "entry.h"

using namespace gw;

// The largest level.
static float most_of(Grid grid) { return grid == INT8 ? 127.0f : grid == INT4 ? 7.0f : grid == E4M3 ? 448.0f : 57344.0f; }

// From the largest magnitude, as bits; so that the largest level times the scale stays finite.
static float scale_of(uint32_t peak, float most) {
    float magnitude;
    memcpy(&magnitude, &peak, sizeof magnitude);
    return guarded(std::min(magnitude / most, std::nextafter(FLT_MAX / most, 0.0f)));
}

// Where the levels of an element begin that is the first in its byte.
template <class Byte>
static Byte* levels_at(Byte* levels, Grid grid, int64_t element) {
    return levels + (grid == INT4 ? element / 2 : element);
}

namespace {

struct alignas(LINE) Encoder {
    const Form& form;
    const Input first, second;  // for the pass that measures a block, and for the one that writes it
    const Grid grid;
    const float most;
    const uint64_t* const seed;
    uint8_t *const scales, *const levels;

    Encoder(const Input& in, int64_t n, int64_t block, Grid grid, const uint64_t* seed, uint8_t* payload)
        : form(active()), first(in.first_of_two(block)), second(in.second_of_two(block)), grid(grid),
          most(most_of(grid)), seed(seed), scales(payload), levels(payload + 4 * blocks_in(n, block)) {}

    uint32_t measure(int64_t begin, int64_t count) const {
        return (first.rest ? form.settle : form.peak)(first, begin, count);
    }
    // False if p is not finite.
    bool put_scale(uint32_t peak, int64_t index) const {
        set(scales, index, scale_of(peak, most));
        return peak < INFINITE;
    }
    void write(int64_t begin, int64_t count, int64_t index) const {
        form.quantize(second, begin, count, get<float>(scales, index), grid, seed, levels_at(levels, grid, begin));
    }
    bool encode(Span block, int64_t index) const {
        if (!put_scale(measure(block.begin, block.count), index)) return false;
        write(block.begin, block.count, index);
        return true;
    }
    bool encode_together(Span block, int64_t index, int workers) const {
        const uint32_t peak = largest_of(block.count, PIECE, workers, [&](int64_t at, int64_t count) {
            return measure(block.begin + at, count);
        });
        if (!put_scale(peak, index)) return false;
        over_parts(block.count, PIECE, workers,
                   [&](int64_t at, int64_t count) { write(block.begin + at, count, index); });
        return true;
    }
};

}  // namespace

struct LevelsEncode {
    Feed feed;
    int64_t block;
    uint64_t seed;  // means nothing unless levels are rounded at random
    uint8_t* payload;
    int32_t grid, at_random, threads;
};
GW_API int64_t gw_levels_encode(const LevelsEncode& a) {
    const int64_t n = a.feed.n, block = std::min(a.block, n);
    Encoder encoder(a.feed.input(), n, block, Grid(a.grid), a.at_random ? &a.seed : nullptr, a.payload);
    return encode_blocks(n, block, a.threads, encoder) ? DONE : NOT_FINITE;
}

struct LevelsDecodeAdd {
    const uint8_t* payload;
    int64_t block;
    Target to;
    int32_t grid;
};
GW_API int64_t gw_levels_decode_add(const LevelsDecodeAdd& a) {
    const Form& form = active();
    const Grid grid = Grid(a.grid);
    const int64_t blocks = blocks_in(a.to.n, a.block);
    const uint8_t* const levels = a.payload + 4 * blocks;
    if (!acceptable(a.payload, blocks)) return REFUSED;
    decode_blocks(a.block, a.to, [&](int64_t begin, int64_t count, int64_t block) {
        const float weight = get<float>(a.payload, block) * a.to.weight;
        form.levels_add(levels_at(levels, grid, begin), grid, count, weight, a.to.out + begin);
    });
    return DONE;
}
