// The largest elements, with values that are cast, or written in blocks. They are read from where they are, some at a
// time, and what is left of them is put back: nothing is taken but the memory for these.

#include "entry.h"
#include "levels.h"
#include "places.h"
#include "top_k.h"
#include "two_bit.h"

using namespace gw;

namespace {

// How values are written.
struct Coding {
    int64_t block;
    uint64_t seed;  // means nothing unless levels are rounded at random
    int32_t kind, number, at_random;  // number: a Dtype or a Grid

    enum Kind { CAST = 0, LEVELS = 1, TWO_BITS = 2 };
    int64_t block_of(int64_t k) const { return kind == CAST ? BATCH : std::min(block, k); }
};

// The values of the entries of a payload, as encoders of blocks see them (see Whole). Beyond the last one there are
// zeros.
template <class Offset>
class Gathered {
  public:
    Gathered(const Input& in, const Places<Offset>& places, int64_t entries)
        : form_(active()), in_(in), places_(places), entries_(entries) {}
    template <class Pass>
    void first(Span block, const Pass& pass) {
        each(block, nullptr, pass);
    }
    template <class Pass>
    void again(Span block, const Pass& pass) {
        each(block, nullptr, pass);
    }
    template <class Pass>
    void last(Span block, const Pass& pass) {
        each(block, in_.rest, pass);
        start_ = cursor_;
    }

  private:
    static constexpr int64_t MOST = 2048;

    template <class Pass>
    void each(Span block, float* rest, const Pass& pass) {
        if (block.count > MOST) cursor_ = start_;
        for (int64_t at = 0; at < block.count; at += MOST) {
            const int64_t begin = block.begin + at, count = std::min(MOST, block.count - at);
            load(begin, count);
            float* const from = values_ - begin;
            pass(Input{from, nullptr, rest ? from : nullptr, 1, F32, false}, begin, count);
            if (rest) put_back(rest);
        }
    }
    void load(int64_t begin, int64_t count) {
        if (begin == begin_) return;
        begin_ = begin;
        here_ = std::max<int64_t>(0, std::min(count, entries_ - begin));
        for (int64_t j = 0; j < here_; ++j) at_[j] = cursor_.place(places_, begin + j);
        form_.pick(in_, at_, here_, values_);
        std::fill(values_ + here_, values_ + count, 0.0f);
    }
    // As if these were added to zeros, and so never -0.
    void put_back(float* rest) {
        for (int64_t j = 0; j < here_; ++j) rest[at_[j]] = 0.0f + values_[j];
        begin_ = -1;
    }

    const Form& form_;
    const Input in_;
    const Places<Offset>& places_;
    const int64_t entries_;
    typename Places<Offset>::Cursor start_, cursor_;  // at the block's first entry, and at the one that is read next
    int64_t begin_ = -1, here_ = 0;                   // which entries are held, and how many
    int64_t at_[MOST];
    float values_[MOST];
};

// An encoder like the others, for blocks that are so short that they are held as a whole.
template <class Elements>
struct CastEncoder {
    const Form& form;
    Elements& elements;
    const int32_t dtype;
    uint8_t* const words;
    int64_t saturated = 0;

    bool encode(Span block, int64_t) {
        elements.last(block, [&](const Input& in, int64_t begin, int64_t count) {
            uint16_t here[BATCH];  // the payload may be at an odd address
            const bool rest = in.rest != nullptr;
            float* const from = static_cast<float*>(const_cast<void*>(in.x)) + begin;
            form.cast({from, nullptr, rest ? from : nullptr, 1, F32, false}, 0, count, 1, dtype, here, false, &saturated);
            memcpy(words + 2 * begin, here, size_t(2 * count));
        });
        return true;
    }
};

// Writes k values, the first of which are those of the payload's entries. Returns how many were beyond the range of
// what they were cast to.
template <class Offset>
int64_t write_values(const Input& in, const Places<Offset>& places, int64_t entries, const Coding& how, int threads,
                     uint8_t* to) {
    const int64_t k = places.k, block = how.block_of(k);
    std::atomic<int64_t> saturated(0);
    over_parts(blocks_in(k, block), 1, workers_for(8 * k, threads), [&](int64_t first, int64_t count) {
        Gathered<Offset> elements(in, places, entries);
        const auto run = [&](auto encoder) {  // never in vain: all values are finite
            for (int64_t b = first; b < first + count; ++b)
                encoder.encode({b * block, std::min(block, k - b * block)}, b);
            return encoder;
        };
        using Mine = Gathered<Offset>;
        if (how.kind == Coding::LEVELS)
            run(LevelsEncoder<Mine>(elements, k, block, Grid(how.number), how.at_random ? &how.seed : nullptr, to));
        else if (how.kind == Coding::TWO_BITS)
            run(TwoBitEncoder<Mine>(elements, k, block, to));
        else
            saturated += run(CastEncoder<Mine>{active(), elements, how.number, to}).saturated;
    });
    return saturated;
}

int64_t write_values(const Input& in, const Where& where, int64_t entries, const Coding& how, int threads, uint8_t* to) {
    const auto as = [&](auto offset) {
        const Places<decltype(offset)> places(where.payload, where.n, where.k, where.exact != 0);
        return write_values(in, places, entries, how, threads, to);
    };
    return where.width == 1 ? as(uint8_t()) : where.width == 2 ? as(uint16_t()) : as(uint32_t());
}

// out[0, count) += the values of a range of k entries; it begins with a byte.
void add_values(const uint8_t* from, int64_t k, const Coding& how, Span range, float* out) {
    if (how.kind == Coding::LEVELS) return add_levels(from, k, how.block_of(k), Grid(how.number), range, 1, out);
    if (how.kind == Coding::TWO_BITS) return add_two_bits(from, k, how.block_of(k), range, 1, out);
    uint16_t words[BATCH + 4];
    memcpy(words, from + 2 * range.begin, size_t(2 * range.count));
    active().cast_add(words, how.number, range.count, 1, out);
}

bool acceptable_values(const uint8_t* from, int64_t k, const Coding& how) {
    if (how.kind == Coding::CAST) return true;
    return acceptable(from, (how.kind == Coding::TWO_BITS ? 2 : 1) * blocks_in(k, how.block_of(k)));
}

}  // namespace

struct CodedEncode {
    Feed feed;
    Where where;
    uint8_t *values, *end;  // of the payload's section for values, at any address
    int32_t threads;
    Coding how;
};
// Returns how many values were beyond the range of what they were cast to.
GW_API int64_t gw_coded_encode(const CodedEncode& a) {
    const Where& where = a.where;
    uint8_t* const payload = const_cast<uint8_t*>(where.payload);
    Selection selection(active(), a.feed.input(), a.feed.n, where.k, a.threads, payload, a.end - payload);
    const SparsePayload to(payload, nullptr, a.feed.n, where.k, where.width);
    const int64_t entries = encode_top_k(selection, to, where.exact != 0);
    return entries < 0 ? entries : write_values(selection.in, where, entries, a.how, a.threads, a.values);
}

struct CodedDecodeAdd {
    Where where;
    const uint8_t* values;
    float* out;
    float weight;
    int32_t threads;
    Coding how;
};
GW_API int64_t gw_coded_decode_add(const CodedDecodeAdd& a) {
    float* const out = a.out;
    const int64_t k = a.where.k;
    if (overlap(a.where, out)) return OVERLAP;
    if (!acceptable_values(a.values, k, a.how)) return REFUSED;
    return read_places(
        a.where, a.threads, [=](int64_t place) { __builtin_prefetch(out + place, 1); },
        [=, &a](int64_t number, const int64_t* places, int count) {
            const int64_t before = number % 4;  // with the first of four there begins a byte
            float values[BATCH + 4] = {};
            add_values(a.values, k, a.how, {number - before, before + count}, values);
            for (int j = 0; j < count; ++j) out[places[j]] += a.weight * values[before + j];
        });
}
