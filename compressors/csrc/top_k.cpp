// The k largest magnitudes: a survey finds the threshold, then one pass writes what reaches it.

#include "top_k.h"

#include <cstring>

#include "blocks.h"
#include "entry.h"

using namespace gw;

// Writes what each range has, one behind the other; ties go to the first ranges.
static void emit_all(Selection& s, int width, uint8_t* payload, uint8_t* values, bool keep) {
    const int64_t chunk = chunk_of(width), chunks = width == 4 ? 0 : blocks_in(s.n, chunk);
    uint8_t* const offsets = payload + chunks * width;
    Emission jobs[MOST_THREADS];
    int64_t number = 0, ties = s.ties;
    for (int worker = 0; worker < s.workers; ++worker) {
        const Range& range = s.ranges[worker];
        const int64_t equal = std::min(ties, range.equal);
        jobs[worker] = {s.threshold, equal, width, payload + range.begin / chunk * width,
                        offsets + number * width, values + number * 4, keep};
        number += range.above + equal;
        ties -= equal;
    }
    parallel(s.workers, [&](int worker) {
        const Range& range = s.ranges[worker];
        if (range.count) s.form.emit(s.in, range.begin, range.count, jobs[worker]);
    });
    uint8_t* const end = offsets + s.k * width;
    memset(end, 0, size_t(-(chunks + s.k) * width & 3));
}

struct TopKEncode {
    Feed feed;
    int64_t k;
    uint8_t *payload, *values;  // values: k floats at any address
    int32_t width;              // bytes of an offset
    int32_t keep;               // values are elsewhere than behind the offsets, and rest has them too, not zeros
    int32_t threads;
};
GW_API int64_t gw_top_k_encode(const TopKEncode& a) {
    // where results go there is memory until they do
    uint8_t* const memory = a.keep ? a.values : a.payload;
    Selection selection(active(), a.feed.input(), a.feed.n, a.k, a.threads, memory, a.values + 4 * a.k - memory);
    const Status status = selection.find();
    if (status == DONE) emit_all(selection, a.width, a.payload, a.values, a.keep != 0);
    return status;
}
