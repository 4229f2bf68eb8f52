// The k largest magnitudes: a survey finds the threshold, then one pass writes what reaches it.

#include "top_k.h"

#include <cstring>

#include "blocks.h"
#include "entry.h"

using namespace gw;

namespace {

// Where everything goes.
struct Payload {
    uint8_t *counts, *offsets, *values;
    int64_t k;
    int width;  // bytes of an offset
    bool keep;

    Payload(uint8_t* payload, uint8_t* values, int64_t n, int64_t k, int width, bool keep)
        : counts(payload), offsets(payload + chunks(n, width) * width), values(values), k(k), width(width), keep(keep) {}

    static int64_t chunks(int64_t n, int width) { return width == 4 ? 0 : blocks_in(n, chunk_of(width)); }

    // For entries from that number on, whose elements begin there.
    Emission from(int64_t number, int64_t begin, uint32_t threshold, int64_t ties) const {
        return {threshold, ties, width, counts + begin / chunk_of(width) * width, offsets + number * width,
                values + number * 4, keep, k - number};
    }
    // Zeros behind so many entries.
    void fill(int64_t entries) const {
        uint8_t* const end = offsets + entries * width;
        const int64_t spare = (k - entries) * width, written = offsets + k * width - counts;
        memset(end, 0, size_t(spare + (-written & 3)));
        memset(values + entries * 4, 0, size_t((k - entries) * 4));
    }
};

// Writes what each range has, one behind the other; ties go to the first ranges.
void emit_all(Selection& s, const Payload& to) {
    Emission jobs[MOST_THREADS];
    int64_t number = 0, ties = s.ties;
    for (int worker = 0; worker < s.workers; ++worker) {
        const Range& range = s.ranges[worker];
        const int64_t equal = std::min(ties, range.equal);
        jobs[worker] = to.from(number, range.begin, s.threshold, equal);
        number = std::min(s.k, number + range.above + equal);
        ties -= equal;
    }
    parallel(s.workers, [&](int worker) {
        const Range& range = s.ranges[worker];
        if (range.count) s.form.emit(s.in, range.begin, range.count, jobs[worker]);
    });
    to.fill(number);
}

// Writes what is above a threshold that samples tell, in one pass if there is one thread; how many, or NOT_FINITE.
int64_t emit_sampled(Selection& s, const Payload& to) {
    int64_t entries;
    if (s.workers == 1) {
        uint32_t peak;
        entries = s.form.emit_settling(s.in, 0, s.n, to.from(0, 0, s.threshold, 0), &peak);
        if (peak >= INFINITE) return NOT_FINITE;
        s.in = s.in.settled();
        to.fill(entries);
    } else {
        entries = s.count_above();
        if (entries > 0) emit_all(s, to);
    }
    return entries;
}

Status encode(Selection& s, const Payload& to, bool exact) {
    if (!exact && s.sample()) {
        const int64_t entries = emit_sampled(s, to);
        if (entries) return entries < 0 ? NOT_FINITE : DONE;
    }
    const Status status = s.find();
    if (status == DONE) emit_all(s, to);
    return status;
}

}  // namespace

struct TopKEncode {
    Feed feed;
    int64_t k;
    uint8_t *payload, *values;  // values: k floats at any address
    int32_t width;              // bytes of an offset
    int32_t keep;               // values are elsewhere than behind the offsets, and rest has them too, not zeros
    int32_t exact;
    int32_t threads;
};
GW_API int64_t gw_top_k_encode(const TopKEncode& a) {
    // where results go there is memory until they do
    uint8_t* const memory = a.keep ? a.values : a.payload;
    Selection selection(active(), a.feed.input(), a.feed.n, a.k, a.threads, memory, a.values + 4 * a.k - memory);
    return encode(selection, Payload(a.payload, a.values, a.feed.n, a.k, a.width, a.keep != 0), a.exact != 0);
}
