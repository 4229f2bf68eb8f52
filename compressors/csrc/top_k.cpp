// The k largest magnitudes: a survey finds the threshold, then one pass writes what reaches it.

#include "top_k.h"

#include <cstring>

#include "blocks.h"
#include "entry.h"

namespace gw {

static int64_t chunks_of(int64_t n, int width) { return width == 4 ? 0 : blocks_in(n, chunk_of(width)); }

SparsePayload::SparsePayload(uint8_t* payload, uint8_t* values, int64_t n, int64_t k, int width)
    : counts(payload), offsets(payload + chunks_of(n, width) * width), values(values), k(k), width(width) {}

Emission SparsePayload::from(int64_t number, int64_t begin, uint32_t threshold, int64_t ties) const {
    return {threshold, ties, width, counts + begin / chunk_of(width) * width, offsets + number * width,
            values ? values + number * 4 : nullptr, k - number};
}

void SparsePayload::fill(int64_t entries) const {
    uint8_t* const end = offsets + entries * width;
    const int64_t spare = (k - entries) * width, written = offsets + k * width - counts;
    memset(end, 0, size_t(spare + (-written & 3)));
    if (values) memset(values + entries * 4, 0, size_t((k - entries) * 4));
}

// Writes what each range has, one behind the other; ties go to the first ranges. Returns how many entries there are.
static int64_t emit_all(Selection& s, const SparsePayload& to) {
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
    return number;
}

// Writes what is above a threshold that samples tell, in one pass if there is one thread; how many, or NOT_FINITE.
static int64_t emit_sampled(Selection& s, const SparsePayload& to) {
    if (s.workers > 1) {
        const int64_t above = s.count_above();
        return above > 0 ? emit_all(s, to) : above;
    }
    uint32_t peak;
    const int64_t entries = s.form.emit_settling(s.in, 0, s.n, to.from(0, 0, s.threshold, 0), &peak);
    if (peak >= INFINITE) return NOT_FINITE;
    s.in = s.in.settled();
    to.fill(entries);
    return entries;
}

int64_t encode_top_k(Selection& s, const SparsePayload& to, bool exact) {
    if (!exact && s.sample())
        if (const int64_t entries = emit_sampled(s, to)) return entries;
    if (const Status status = s.find()) return status;
    return emit_all(s, to);
}

}  // namespace gw

using namespace gw;

struct TopKEncode {
    Feed feed;
    int64_t k;
    uint8_t *payload, *values;  // values: k floats at any address, behind the places
    int32_t width;              // bytes of an offset
    int32_t exact;
    int32_t threads;
};
GW_API int64_t gw_top_k_encode(const TopKEncode& a) {
    // where results go there is memory until they do
    Selection selection(active(), a.feed.input(), a.feed.n, a.k, a.threads, a.payload, a.values + 4 * a.k - a.payload);
    const SparsePayload to(a.payload, a.values, a.feed.n, a.k, a.width);
    return std::min<int64_t>(encode_top_k(selection, to, a.exact != 0), DONE);
}
