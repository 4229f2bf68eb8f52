// Which elements all ranks draw alike; docs/wire-format.md describes it.

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "entry.h"

using namespace gw;

namespace {

// The four words that numpy's Philox(key=seed) makes of a counter: Philox4x64-10. Its stream begins at 1.
void philox(uint64_t seed, uint64_t counter, uint64_t* words) {
    using Wide = unsigned __int128;
    uint64_t a = counter, b = 0, c = 0, d = 0, low = seed, high = 0;
    for (int round = 0; round < 10; ++round) {
        const Wide one = Wide(a) * 0xD2E7470EE14C6C93u, two = Wide(c) * 0xCA5A826395121157u;
        a = uint64_t(two >> 64) ^ b ^ low, b = uint64_t(two);
        c = uint64_t(one >> 64) ^ d ^ high, d = uint64_t(one);
        low += 0x9E3779B97F4A7C15u, high += 0xBB67AE8584CAA73Bu;
    }
    words[0] = a, words[1] = b, words[2] = c, words[3] = d;
}

// x % n, by a product: the quotient from the rounded reciprocal is right, or one too small.
class Modulo {
  public:
    explicit Modulo(uint64_t n) : n_(n), reciprocal_(~uint64_t(0) / n) {}
    uint64_t operator()(uint64_t x) const {
        const uint64_t rest = x - n_ * uint64_t((unsigned __int128)(x) * reciprocal_ >> 64);
        return rest >= n_ ? rest - n_ : rest;
    }

  private:
    uint64_t n_, reciprocal_;
};

struct Free {
    void operator()(void* memory) const { free(memory); }
};

// Marks so many different places.
void mark(uint64_t* drawn, uint64_t n, int64_t missing, uint64_t seed) {
    constexpr int64_t BATCH = 64;  // memory is fetched for so many at a time
    const Modulo below(n);
    uint64_t places[BATCH];
    for (uint64_t counter = 1; missing;) {
        const int64_t count = std::min(BATCH, (missing + 3) & ~int64_t(3));
        for (int64_t j = 0; j < count; j += 4) philox(seed, counter++, places + j);
        for (int64_t j = 0; j < count; ++j) {
            places[j] = below(places[j]);
            __builtin_prefetch(&drawn[places[j] / 64], 1);
        }
        for (int64_t j = 0; j < count && missing; ++j) {
            uint64_t& word = drawn[places[j] / 64];
            const uint64_t bit = uint64_t(1) << places[j] % 64;
            missing -= !(word & bit);
            word |= bit;
        }
    }
}

// Writes the places of a word's bits, the first of which is number `first`. Mostly there are less than three: their
// number cannot be foreseen, so two are written in any case.
int64_t* list(uint64_t word, int64_t first, int64_t* out, const int64_t* end) {
    constexpr uint64_t GUARD = uint64_t(1) << 63;  // there is no lowest bit of 0
    if (end - out >= 2) {
        const uint64_t second = word & (word - 1);
        out[0] = first + __builtin_ctzll(word | GUARD);
        out[1] = first + __builtin_ctzll(second | GUARD);
        out += (word != 0) + (second != 0);
        word = second & (second - 1);
    }
    for (; word; word &= word - 1) *out++ = first + __builtin_ctzll(word);
    return out;
}

}  // namespace

struct Draw {
    int64_t n, k;
    uint64_t seed;
    int64_t* out;
};
// Writes k of n places in ascending order. Takes n / 8 bytes of memory: a bit per place.
GW_API int64_t gw_draw(const Draw& a) {
    const int64_t words = a.n / 64 + 1;
    const std::unique_ptr<uint64_t, Free> bits(static_cast<uint64_t*>(calloc(size_t(words), 8)));
    if (!bits) return NO_MEMORY;
    const uint64_t* const drawn = bits.get();
    const bool keep = a.k <= a.n - a.k;  // else those are drawn that are left out
    mark(bits.get(), uint64_t(a.n), keep ? a.k : a.n - a.k, a.seed);
    int64_t *out = a.out, *const end = out + a.k;
    for (int64_t w = 0; w < words - 1; ++w) out = list(keep ? drawn[w] : ~drawn[w], 64 * w, out, end);
    const uint64_t last = (keep ? drawn[words - 1] : ~drawn[words - 1]) & ((uint64_t(1) << a.n % 64) - 1);
    list(last, 64 * (words - 1), out, end);
    return DONE;
}
