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
    // Calls entry(number, place) for those of the chunks; `number` is that of the first.
    template <class Entry>
    void each(Span chunks_of, int64_t number, const Entry& entry) const {
        for (int64_t chunk = chunks_of.begin; chunk < chunks_of.begin + chunks_of.count; ++chunk) {
            const int64_t base = chunked ? chunk * CHUNK : 0;
            for (const int64_t stop = number + count(chunk); number < stop; ++number)
                entry(number, base + int64_t(get<Offset>(offsets, number)));
        }
    }
    // Whether all offsets ascend in their chunks and stay within them and the tensor.
    bool ascend(Span chunks_of, int64_t number) const {
        bool fine = true;
        for (int64_t chunk = chunks_of.begin; chunk < chunks_of.begin + chunks_of.count; ++chunk) {
            const int64_t room = chunked ? std::min(CHUNK, n - chunk * CHUNK) : n;
            int64_t last = -1;
            for (const int64_t stop = number + count(chunk); number < stop; ++number) {
                const int64_t offset = int64_t(get<Offset>(offsets, number));
                fine &= offset > last && offset < room;
                last = offset;
            }
        }
        return fine;
    }
    // Checks everything, then calls entry(number, place) for all.
    template <class Entry>
    bool read(int threads, const Entry& entry) const {
        if (chunked && entries(0, chunks) != k) return false;
        const int workers = workers_for(k, threads);
        int64_t first[MOST_THREADS + 1] = {};
        std::atomic<bool> fine(true);
        const auto mine = [&](int worker) { return part_of(chunks, 1, workers, worker); };
        for (int worker = 0; worker < workers; ++worker)
            first[worker + 1] = first[worker] + entries(mine(worker).begin, mine(worker).begin + mine(worker).count);
        parallel(workers, [&](int worker) {
            if (!ascend(mine(worker), first[worker])) fine = false;
        });
        if (fine) parallel(workers, [&](int worker) { each(mine(worker), first[worker], entry); });
        return fine;
    }
};

template <class Entry>
int64_t read_places(const uint8_t* payload, int32_t width, int64_t n, int64_t k, int threads, const Entry& entry) {
    const bool fine = width == 1   ? Places<uint8_t>(payload, n, k).read(threads, entry)
                      : width == 2 ? Places<uint16_t>(payload, n, k).read(threads, entry)
                                   : Places<uint32_t>(payload, n, k).read(threads, entry);
    return fine ? DONE : REFUSED;
}

}  // namespace

// `values` are k floats at any address.
GW_API int64_t gw_sparse_decode_add(const uint8_t* payload, int32_t width, int64_t k, const uint8_t* values,
                                    float* out, int64_t n, float weight, int32_t threads) {
    return read_places(payload, width, n, k, threads, [=](int64_t number, int64_t place) {
        out[place] += weight * get<float>(values, number);
    });
}

GW_API int64_t gw_sparse_indices(const uint8_t* payload, int32_t width, int64_t n, int64_t k, int64_t* indices) {
    return read_places(payload, width, n, k, 1, [=](int64_t number, int64_t place) { indices[number] = place; });
}

GW_API int64_t gw_put(const float* values, const uint8_t* payload, int32_t width, int64_t k, float* out, int64_t n) {
    return read_places(payload, width, n, k, 1, [=](int64_t number, int64_t place) { out[place] = values[number]; });
}

GW_API int64_t gw_scatter_add(const float* values, const int64_t* indices, int64_t k, float* out, int64_t n,
                              float weight) {
    bool fine = true;
    for (int64_t j = 0; j < k; ++j) fine &= uint64_t(indices[j]) < uint64_t(n);
    if (!fine) return REFUSED;
    for (int64_t j = 0; j < k; ++j) out[indices[j]] += weight * values[j];
    return DONE;
}

// Elements that are settled, and picked from, while they are in the cache.
constexpr int64_t NEARBY = 16384;

// Takes those of the ascending `indices` that lie in the span; returns how many, -1 if they do not ascend.
static int64_t pick(const Form& form, const Input& in, Span span, const int64_t* indices, int64_t left, float* out) {
    const int64_t end = span.begin + span.count;
    int64_t count = 0;
    for (int64_t last = span.begin - 1; count < left && indices[count] < end; last = indices[count++])
        if (indices[count] <= last) return -1;
    if (!in.rest) {
        form.take(in, indices, count, out);
        return count;
    }
    for (int64_t j = 0; j < count; ++j) {
        out[j] = in.rest[indices[j]];
        in.rest[indices[j]] = 0;
    }
    return count;
}

GW_API int64_t gw_gather_encode(GW_FEED, const int64_t* indices, int64_t k, float* out, int32_t threads) {
    const Form& form = active();
    const Input in = GW_INPUT;
    std::atomic<int64_t> picked(0);
    const uint32_t peak = largest_of(n, NEARBY, threads, [&](int64_t begin, int64_t count) {
        int64_t j = std::lower_bound(indices, indices + k, begin) - indices;
        uint32_t most = 0;
        for (int64_t at = begin; at < begin + count; at += NEARBY) {
            const Span span = {at, std::min(NEARBY, begin + count - at)};
            most = std::max(most, (in.rest ? form.settle : form.peak)(in, span.begin, span.count));
            const int64_t found = pick(form, in, span, indices + j, k - j, out + j);
            if (found < 0) break;
            j += found;
            picked += found;
        }
        return most;
    });
    if (peak >= INFINITE) return NOT_FINITE;
    return picked == k ? DONE : REFUSED;
}
