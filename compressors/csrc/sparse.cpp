// Some elements: reading their places from payloads, adding them, and picking those that all ranks drew.

#include <cstring>

#include "blocks.h"
#include "entry.h"

using namespace gw;

namespace {

// Counts and offsets of a payload, from whomever. An offset type of 32 bits has one chunk, and no counts.
template <class Offset>
struct Places {
    static constexpr bool chunked = sizeof(Offset) < 4;
    static constexpr int64_t CHUNK = chunk_of(sizeof(Offset));
    const uint8_t *counts, *offsets;
    int64_t n, k, chunks;

    Places(const uint8_t* payload, int64_t n, int64_t k) : counts(payload), n(n), k(k) {
        chunks = chunked ? blocks_in(n, CHUNK) : 1;
        offsets = payload + (chunked ? chunks * int64_t(sizeof(Offset)) : 0);
    }
    int64_t count(int64_t chunk) const { return chunked ? int64_t(get<Offset>(counts, chunk)) : k; }
    int64_t entries(int64_t chunk, int64_t stop) const {
        int64_t sum = 0;
        for (; chunk < stop; ++chunk) sum += count(chunk);
        return sum;
    }
    int64_t offset(int64_t number) const { return int64_t(get<Offset>(offsets, number)); }

    // Calls entry(number, place) for the entries of some chunks, from number `first` on; shortly before, touch(place).
    template <class Touch, class Entry>
    void each(Span part, int64_t first, const Touch& touch, const Entry& entry) const {
        constexpr int BATCH = 64;
        int64_t places[BATCH], number = first;
        int held = 0;
        const auto flush = [&] {
            for (int j = 0; j < held; ++j) entry(number - held + j, places[j]);
            held = 0;
        };
        for (int64_t chunk = part.begin; chunk < part.begin + part.count; ++chunk) {
            const int64_t base = chunked ? chunk * CHUNK : 0;
            for (const int64_t stop = number + count(chunk); number < stop;) {
                touch(places[held++] = base + offset(number++));
                if (held == BATCH) flush();
            }
        }
        flush();
    }
    // Whether all offsets ascend in their chunks and stay within them and the tensor. Chunks are short, loops over
    // each would be slow: of all entries as many must not ascend as there are chunks that begin with such a one.
    bool ascend(Span part, int64_t first) const {
        int64_t expected = 0, number = first;
        bool fine = true;
        for (int64_t chunk = part.begin; chunk < part.begin + part.count; ++chunk) {
            const int64_t here = count(chunk), room = chunked ? std::min(CHUNK, n - chunk * CHUNK) : n;
            if (!here) continue;
            expected += number > first && offset(number) <= offset(number - 1);
            number += here;
            fine &= offset(number - 1) < room;
        }
        return fine && expected == descents(first, number);
    }
    int64_t descents(int64_t first, int64_t stop) const {
        int64_t sum = 0;
        for (int64_t begin = first + 1; begin < stop; begin += 128) {
            Offset here = 0;  // at most 128, which it can hold
            const int64_t end = std::min(begin + 128, stop);
            for (int64_t number = begin; number < end; ++number)
                here = Offset(here + (get<Offset>(offsets, number) <= get<Offset>(offsets, number - 1)));
            sum += here;
        }
        return sum;
    }
    // Checks everything, then calls entry(number, place) for all.
    template <class Touch, class Entry>
    bool read(int threads, const Touch& touch, const Entry& entry) const {
        if (chunked && entries(0, chunks) != k) return false;
        const int workers = workers_for(8 * k, threads);  // each costs as much as several elements in a row
        int64_t first[MOST_THREADS + 1] = {};
        const auto mine = [&](int worker) { return part_of(chunks, 1, workers, worker); };
        for (int worker = 0; worker < workers; ++worker)
            first[worker + 1] = first[worker] + entries(mine(worker).begin, mine(worker).begin + mine(worker).count);
        std::atomic<bool> fine(true);
        parallel(workers, [&](int worker) {
            if (!ascend(mine(worker), first[worker])) fine = false;
        });
        if (fine) parallel(workers, [&](int worker) { each(mine(worker), first[worker], touch, entry); });
        return fine;
    }
};

template <class Touch, class Entry>
int64_t read_places(const uint8_t* payload, int32_t width, int64_t n, int64_t k, int threads, const Touch& touch,
                    const Entry& entry) {
    const bool fine = width == 1   ? Places<uint8_t>(payload, n, k).read(threads, touch, entry)
                      : width == 2 ? Places<uint16_t>(payload, n, k).read(threads, touch, entry)
                                   : Places<uint32_t>(payload, n, k).read(threads, touch, entry);
    return fine ? DONE : REFUSED;
}

}  // namespace

struct SparseDecodeAdd {
    const uint8_t* payload;
    int64_t k;
    const uint8_t* values;  // k floats at any address
    Target to;
    int32_t width;
};
GW_API int64_t gw_sparse_decode_add(const SparseDecodeAdd& a) {
    float* const out = a.to.out;
    return read_places(
        a.payload, a.width, a.to.n, a.k, a.to.threads, [=](int64_t place) { __builtin_prefetch(out + place, 1); },
        [=, &a](int64_t number, int64_t place) { out[place] += a.to.weight * get<float>(a.values, number); });
}

struct SparseIndices {
    const uint8_t* payload;
    int64_t n, k;
    int64_t* indices;
    int32_t width;
};
GW_API int64_t gw_sparse_indices(const SparseIndices& a) {
    return read_places(
        a.payload, a.width, a.n, a.k, 1, [](int64_t) {},
        [&](int64_t number, int64_t place) { a.indices[number] = place; });
}

struct Put {
    const float* values;
    const uint8_t* payload;
    int64_t k;
    float* out;
    int64_t n;
    int32_t width;
};
GW_API int64_t gw_put(const Put& a) {
    return read_places(
        a.payload, a.width, a.n, a.k, 1, [&](int64_t place) { __builtin_prefetch(a.out + place, 1); },
        [&](int64_t number, int64_t place) { a.out[place] = a.values[number]; });
}

struct ScatterAdd {
    const float* values;
    const int64_t* indices;
    int64_t k;
    Target to;
};
GW_API int64_t gw_scatter_add(const ScatterAdd& a) {
    bool fine = true;
    for (int64_t j = 0; j < a.k; ++j) fine &= uint64_t(a.indices[j]) < uint64_t(a.to.n);
    if (!fine) return REFUSED;
    for (int64_t j = 0; j < a.k; ++j) a.to.out[a.indices[j]] += a.to.weight * a.values[j];
    return DONE;
}

struct GatherEncode {
    Feed feed;
    const int64_t* indices;
    int64_t k;
    float* out;
    int32_t threads;
};
GW_API int64_t gw_gather_encode(const GatherEncode& a) {
    const Form& form = active();
    const Input in = a.feed.input();
    std::atomic<int64_t> taken(0);
    const auto gather = [&](int64_t begin, int64_t count) {
        const int64_t first = std::lower_bound(a.indices, a.indices + a.k, begin) - a.indices;
        Picks picks = {a.indices + first, a.k - first, a.out + first, 0, 0};
        form.gather(in, begin, count, picks);
        taken += picks.taken;
        return picks.peak;
    };
    const Status status = judge(largest_of(a.feed.n, PIECE, workers_for(a.feed.n, a.threads), gather));
    return status == DONE && taken != a.k ? REFUSED : status;
}
