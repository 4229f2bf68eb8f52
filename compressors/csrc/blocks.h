// Blocks of elements that share a scale.
#pragma once

#include <cfloat>
#include <cstdint>
#include <cstring>

#include "entry.h"

namespace gw {

inline int64_t blocks_in(int64_t n, int64_t block) { return n / block + (n % block != 0); }

// Payloads are bytes at any address.
template <class T>
T get(const uint8_t* from, int64_t index) {
    T value;
    memcpy(&value, from + index * int64_t(sizeof value), sizeof value);
    return value;
}
template <class T>
void set(uint8_t* to, int64_t index, T value) {
    memcpy(to + index * int64_t(sizeof value), &value, sizeof value);
}

// The reciprocal of a denormal scale would be infinite.
inline float guarded(float scale) { return scale > FLT_MIN ? scale : 0.0f; }

// Calls piece(begin, count, index) for pieces of a block; their sums are added in this order.
template <class Piece>
void each_piece(Span block, const Piece& piece) {
    for (int64_t at = 0; at < block.count; at += PIECE)
        piece(block.begin + at, std::min(PIECE, block.count - at), at / PIECE);
}

// What all threads read while one of them writes to its stack must not lie in a line of the cache with that stack.
constexpr size_t LINE = 64;

// A tensor as encoders of blocks see it. They take each block in up to three passes: in the first p may not be in place
// yet, the last one writes what is left of it. Each calls pass(input, begin, count) for pieces.
struct Whole {
    const Input before, after;

    Whole(const Input& in, int64_t block) : before(in.first_of_two(block)), after(in.second_of_two(block)) {}
    template <class Pass>
    void first(Span block, const Pass& pass) const {
        each_piece(block, [&](int64_t begin, int64_t count, int64_t) { pass(before, begin, count); });
    }
    template <class Pass>
    void again(Span block, const Pass& pass) const {
        each_piece(block, [&](int64_t begin, int64_t count, int64_t) { pass(after, begin, count); });
    }
    template <class Pass>
    void last(Span block, const Pass& pass) const {
        again(block, pass);
    }
};

// Encodes block after block, several at a time; where blocks are too few for that, with all threads within a block.
// False as soon as one is not finite.
template <class Encoder>
bool encode_blocks(int64_t n, int64_t block, int threads, Encoder& encoder) {
    const int64_t blocks = blocks_in(n, block);
    const int workers = workers_for(n, threads);
    const auto span = [=](int64_t b) { return Span{b * block, std::min(block, n - b * block)}; };
    if (workers > 1 && blocks < 4 * workers) {
        for (int64_t b = 0; b < blocks; ++b)
            if (!encoder.encode_together(span(b), b, workers)) return false;
        return true;
    }
    struct alignas(LINE) Shared {
        std::atomic<bool> fine{true};
    } shared;
    over_parts(blocks, 1, workers, [&, span](int64_t first, int64_t count) {
        for (int64_t b = first; b < first + count && shared.fine; ++b)
            if (!encoder.encode(span(b), b)) shared.fine = false;
    });
    return shared.fine;
}

inline bool acceptable(const uint8_t* scales, int64_t count) {
    bool fine = true;
    for (int64_t b = 0; b < count; ++b) {
        const float scale = get<float>(scales, b);
        fine &= scale >= 0 && scale <= FLT_MAX;
    }
    return fine;
}

// Calls add(begin, count, index) for the parts of a range that lie within a block.
template <class Add>
void each_block(Span range, int64_t block, const Add& add) {
    for (int64_t i = range.begin, stop; i < range.begin + range.count; i = stop) {
        const int64_t b = i / block;
        stop = std::min(range.begin + range.count, (b + 1) * block);
        add(i, stop - i, b);
    }
}

// Calls add(range) for parts of what a decoder adds to, in several threads. They begin with a byte of any payload.
// Fresh elements become zeros just before: so they are still in the cache.
template <class Add>
void over_target(const Target& to, const Add& add) {
    constexpr int64_t unit = 4096;
    over_parts(to.n, unit, workers_for(to.n, to.threads), [&](int64_t begin, int64_t count) {
        if (!to.fresh) return add(Span{begin, count});
        for (int64_t i = begin, end = begin + count; i < end; i += unit) {
            const Span part = {i, std::min(unit, end - i)};
            memset(to.out + part.begin, 0, size_t(part.count) * sizeof(float));
            add(part);
        }
    });
}

}  // namespace gw
