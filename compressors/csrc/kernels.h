// What the entry points (*.cpp here) and the forms (forms/*.cpp) share.
//
// A form is one set of inner loops, compiled for one instruction set: AVX-512, AVX2, or whatever the compiler assumes
// of every processor. The loops exist once, as templates in forms/*.h over a small vocabulary of operations on 16
// floats (forms/vec_*.h). All forms give the same bits. Entry points cut the work into ranges, spread these over
// threads, and call the form that `active()` returns for each.
#pragma once

#include <algorithm>
#include <cstdint>

namespace gw {

enum Dtype { F32 = 0, F16 = 1, BF16 = 2 };
enum Isa { PLAIN = 0, AVX2 = 1, AVX512 = 2 };
// What elements are rounded to, once they are divided by a scale: -127 to 127, -7 to 7, or floats of 8 bits.
enum Grid { INT8 = 0, INT4 = 1, E4M3 = 2, E5M2 = 3 };

// What the entry points return; encoders of the casts return a count instead of DONE.
enum Status { DONE = 0, NOT_FINITE = -1, REFUSED = -2, NO_MEMORY = -3, OVERLAP = -4 };

// |p| as a bit pattern orders like |p|; from here on it is infinite, or no number.
constexpr uint32_t INFINITE = 0x7f800000u;
// Sums are formed per piece of so many elements and then added in order, so that threads do not change them.
constexpr int64_t PIECE = 65536;
// Scratch memory that a thread may take, in bytes.
constexpr int64_t SCRATCH = 65536;

// So many elements are still in the cache after a pass over them.
constexpr int64_t CACHED = 1 << 17;
// From so many elements on, what is written is gone from the cache before anybody reads it.
constexpr int64_t LONG = 1 << 20;

// What is encoded: p = x + decay * residual, in fp32 (residual null: p = x), and where p minus what the payload says
// goes (rest null: nowhere). rest may be x, so each p is computed before its place in rest is written.
struct Input {
    const void* x;
    const float* residual;
    float* rest;
    float decay;
    int32_t dtype;
    bool stream;  // rest is long, and none of it is in the cache: write past the cache where that can be

    // The first of two passes may settle the input: rest = p. Then the second has less to read. `settling` is what
    // the first is fed with, `settled` the second.
    bool unsettled() const { return rest && (rest != x || residual); }
    Input settling() const { return unsettled() ? *this : Input{x, residual, nullptr, decay, dtype, false}; }
    Input settled() const { return unsettled() ? Input{rest, nullptr, rest, 1, F32, false} : *this; }
    // The same for two passes over blocks of so many elements; short ones are still in the cache.
    Input first_of_two(int64_t block) const {
        return block > CACHED ? settling() : Input{x, residual, nullptr, decay, dtype, false};
    }
    Input second_of_two(int64_t block) const { return block > CACHED ? settled() : *this; }
};

// Magnitudes (as bit patterns) from a range: how many reach `high`, and a list of those in [low, high).
struct Survey {
    uint32_t low, high;
    uint32_t* list;
    int64_t capacity, size;  // size is -1 after the list overflowed
    int64_t above;
    uint32_t peak;
};

// k runs that cover n elements, and one place in each, by counting; docs/wire-format.md describes it.
struct Strata {
    int64_t k;
    uint64_t seed;
    int64_t shortest, longer;  // the first `longer` runs have one element more than the shortest

    Strata(int64_t n, int64_t k, uint64_t seed) : k(k), seed(seed), shortest(n / k), longer(n % k) {}
    int64_t start(int64_t run) const { return run * shortest + std::min(run, longer); }
    int64_t length(int64_t run) const { return shortest + (run < longer); }
    // The run that an element is in.
    int64_t run_of(int64_t element) const {
        const int64_t head = longer * (shortest + 1);
        return element < head ? element / (shortest + 1) : longer + (element - head) / shortest;
    }
};

// A level of a radix selection: magnitudes in [low, high) are counted by (magnitude - low) >> shift.
struct Level {
    uint32_t low, high;
    int shift;
};
constexpr int DIGITS = 2048;
// Histograms that take turns: one counter that is bumped all the time would wait for itself.
constexpr int TURNS = 4;

// Where a range of a sparse payload goes: magnitudes above `threshold`, and the first `ties` of those equal to it.
struct Emission {
    uint32_t threshold;
    int64_t ties;
    int width;  // bytes of an offset; 4 has no chunks and no counts
    uint8_t *counts, *offsets, *values;  // values null: none are written, and rest keeps them
    int64_t room;                        // for so many entries
};

// Magnitudes below a limit and those that reach it: their sums, and how many reach it.
struct Apart {
    double low, high;
    int64_t reach;
};

// The two magnitudes of a block of 2-bit elements, and what parts them.
struct Pair {
    float low, high, mean;
};

// Elements per chunk: a count of the form's width can say "all of them".
constexpr int64_t chunk_of(int width) {
    return width == 1 ? 255 : width == 2 ? 65535 : INT64_MAX;
}

// A form's loops. Each works on `count` elements from `begin`, in one thread.
struct Form {
    // The largest |p|, as bits.
    uint32_t (*peak)(const Input&, int64_t begin, int64_t count);
    // The same, and rest = p.
    uint32_t (*settle)(const Input&, int64_t begin, int64_t count);
    // The same of x, which is copied to `out`.
    uint32_t (*copy)(const Input&, int64_t begin, int64_t count, void* out);
    // out = 0, written past the cache where that is wanted and can be.
    void (*zero)(float* out, int64_t begin, int64_t count, bool past_cache);
    // Sum of |p| (order 1) or p^2 (2) over at most PIECE elements, not finite if a p is not; and rest = p.
    double (*sum)(const Input&, int64_t begin, int64_t count, int order);
    void (*sign_pack)(const Input&, int64_t begin, int64_t count, float scale, uint8_t* bits);
    void (*quantize)(const Input&, int64_t begin, int64_t count, float scale, Grid, const uint64_t* seed,
                     uint8_t* levels);
    // Sums of the |p| below a limit and of the others, over at most PIECE elements.
    void (*sum_apart)(const Input&, int64_t begin, int64_t count, float limit, Apart&);
    void (*two_bit_pack)(const Input&, int64_t begin, int64_t count, Pair, uint8_t* codes);
    // Returns the largest |p|, as bits; adds to `saturated`. `out` is written past the cache where that can be.
    uint32_t (*cast)(const Input&, int64_t begin, int64_t count, float divisor, int dtype, void* out, bool past_cache,
                     int64_t* saturated);
    // rest = p, but 0 at the places of runs, whose p go to out[run]. Returns the largest |p|, as bits.
    uint32_t (*gather)(const Input&, int64_t begin, int64_t count, const Strata&, float* out);
    // The places of 16 runs, the first of which is a multiple of 16; those beyond the last mean nothing.
    void (*places)(const Strata&, int64_t first, int64_t* out);

    // One magnitude from each of `count` strata of `stride` elements, counted by its highest 14 bits.
    void (*sample)(const Input&, int64_t stride, int64_t count, uint32_t* histogram);
    // And rest = p.
    void (*survey)(const Input&, int64_t begin, int64_t count, Survey&);
    // How many entries of a list reach a limit.
    int64_t (*count)(const uint32_t* list, int64_t size, uint32_t limit);
    // Adds to TURNS histograms of DIGITS entries. Returns the largest |p|, as bits.
    uint32_t (*histogram)(const Input&, int64_t begin, int64_t count, Level, uint64_t* digits);
    // Where the input is in place; or has no rest. Returns how many entries it wrote.
    int64_t (*emit)(const Input&, int64_t begin, int64_t count, Emission);
    // The p at some places.
    void (*pick)(const Input&, const int64_t* places, int64_t count, float* out);
    // As `emit`, of any input, with no quota of ties; and rest = p, but 0 at what was chosen. `peak`: the largest |p|.
    int64_t (*emit_settling)(const Input&, int64_t begin, int64_t count, Emission, uint32_t* peak);

    void (*sign_add)(const uint8_t* bits, int64_t count, float weight, float* out);
    void (*levels_add)(const uint8_t* levels, Grid, int64_t count, float weight, float* out);
    void (*two_bit_add)(const uint8_t* codes, int64_t count, float low, float high, float* out);
    void (*cast_add)(const void* values, int dtype, int64_t count, float weight, float* out);
};

extern const Form plain_form;
#if defined(__x86_64__)
extern const Form avx2_form, avx512_form;
#endif

const Form& active();

}  // namespace gw
