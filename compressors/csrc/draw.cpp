// Which elements all ranks draw alike; docs/wire-format.md describes it.

#include <cstdlib>
#include <memory>

#include "entry.h"

using namespace gw;

namespace {

// numpy's Philox(key=seed).random_raw: Philox4x64-10 of counters from 1 on.
class Words {
  public:
    explicit Words(uint64_t seed) : seed_(seed) {}
    uint64_t next() {
        if (used_ == 4) refill();
        return words_[used_++];
    }

  private:
    using Wide = unsigned __int128;

    void refill() {
        uint64_t a = ++counter_, b = 0, c = 0, d = 0, low = seed_, high = 0;
        for (int round = 0; round < 10; ++round) {
            const Wide one = Wide(a) * 0xD2E7470EE14C6C93u, two = Wide(c) * 0xCA5A826395121157u;
            a = uint64_t(two >> 64) ^ b ^ low, b = uint64_t(two);
            c = uint64_t(one >> 64) ^ d ^ high, d = uint64_t(one);
            low += 0x9E3779B97F4A7C15u, high += 0xBB67AE8584CAA73Bu;
        }
        words_[0] = a, words_[1] = b, words_[2] = c, words_[3] = d;
        used_ = 0;
    }

    uint64_t seed_, counter_ = 0, words_[4];
    int used_ = 4;
};

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

}  // namespace

// Writes k of n places in ascending order. Takes n / 8 bytes of memory: a bit per place.
GW_API int64_t gw_draw(int64_t n, int64_t k, uint64_t seed, int64_t* out) {
    const int64_t words = n / 64 + 1;
    const std::unique_ptr<uint64_t, Free> bits(static_cast<uint64_t*>(calloc(size_t(words), 8)));
    if (!bits) return NO_MEMORY;
    uint64_t* const drawn = bits.get();
    const bool keep = k <= n - k;  // else those are drawn that are left out
    Words stream(seed);
    const Modulo below(static_cast<uint64_t>(n));
    for (int64_t missing = keep ? k : n - k; missing;) {
        const uint64_t place = below(stream.next()), bit = uint64_t(1) << place % 64;
        uint64_t& word = drawn[place / 64];
        missing -= !(word & bit);
        word |= bit;
    }
    for (int64_t w = 0; w < words; ++w) {
        uint64_t left = keep ? drawn[w] : ~drawn[w];
        if (w == words - 1) left &= (uint64_t(1) << n % 64) - 1;
        for (; left; left &= left - 1) *out++ = 64 * w + __builtin_ctzll(left);
    }
    return DONE;
}
