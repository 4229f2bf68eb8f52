// Reading places from payloads.
#pragma once

#include <atomic>
#include <cstdint>

#include "blocks.h"

namespace gw {

// So many places are read before anything is done there: their memory was called for by then.
constexpr int BATCH = 256;

// Counts and offsets of a payload, from whomever. An offset type of 32 bits has one chunk, and no counts.
template <class Offset>
struct Places {
    static constexpr bool chunked = sizeof(Offset) < 4;
    static constexpr int64_t CHUNK = chunk_of(sizeof(Offset));
    const uint8_t *counts, *offsets;
    int64_t n, k, chunks;
    bool exact;  // there are k, not fewer

    Places(const uint8_t* payload, int64_t n, int64_t k, bool exact) : counts(payload), n(n), k(k), exact(exact) {
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
    int64_t base(int64_t chunk) const { return chunked ? chunk * CHUNK : 0; }

    // Looks places up in a payload of which all is known to be right, in ascending order.
    struct Cursor {
        int64_t chunk = -1, stop = 0;  // where the chunk's entries end
        int64_t place(const Places& of, int64_t number) {
            while (stop <= number) stop += of.count(++chunk);
            return of.base(chunk) + of.offset(number);
        }
    };

    // Calls touch(place) for the entries of some chunks, from number `first` on; and after every few of them
    // batch(number of the first of these, their places, how many).
    template <class Touch, class Batch>
    void each(Span part, int64_t first, const Touch& touch, const Batch& batch) const {
        int64_t places[BATCH], number = first;
        int held = 0;
        const auto flush = [&] {
            batch(number - held, static_cast<const int64_t*>(places), held);
            held = 0;
        };
        for (int64_t chunk = part.begin; chunk < part.begin + part.count; ++chunk) {
            for (const int64_t stop = number + count(chunk); number < stop;) {
                touch(places[held++] = base(chunk) + offset(number++));
                if (held == BATCH) flush();
            }
        }
        if (held) flush();
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
    // Checks everything, then goes through all in several threads; see `each`.
    template <class Touch, class Batch>
    bool read(int threads, const Touch& touch, const Batch& batch) const {
        const int64_t found = chunked ? entries(0, chunks) : k;
        if (found > k || (exact && found < k)) return false;
        const int workers = workers_for(8 * k, threads);  // each costs as much as several elements in a row
        int64_t first[MOST_THREADS + 1] = {};
        const auto mine = [&](int worker) { return part_of(chunks, 1, workers, worker); };
        for (int worker = 0; worker < workers; ++worker)
            first[worker + 1] = first[worker] + entries(mine(worker).begin, mine(worker).begin + mine(worker).count);
        std::atomic<bool> fine(true);
        parallel(workers, [&](int worker) {
            if (!ascend(mine(worker), first[worker])) fine = false;
        });
        if (fine) parallel(workers, [&](int worker) { each(mine(worker), first[worker], touch, batch); });
        return fine;
    }
};

// What records say about a payload's places.
struct Where {
    const uint8_t* payload;
    int64_t n, k;
    int32_t width;  // bytes of an offset
    int32_t exact;
};

// Where places were checked, and are read again, nothing may be written.
inline bool overlap(const Where& w, const float* out) {
    const int64_t chunks = w.width == 4 ? 0 : blocks_in(w.n, chunk_of(w.width));
    const uintptr_t places = reinterpret_cast<uintptr_t>(w.payload), to = reinterpret_cast<uintptr_t>(out);
    return places < to + uintptr_t(4 * w.n) && to < places + uintptr_t((chunks + w.k) * w.width);
}

template <class Offset, class Touch, class Batch>
bool read_as(const Where& w, int threads, const Touch& touch, const Batch& batch) {
    return Places<Offset>(w.payload, w.n, w.k, w.exact != 0).read(threads, touch, batch);
}
template <class Touch, class Batch>
Status read_places(const Where& w, int threads, const Touch& touch, const Batch& batch) {
    const bool fine = w.width == 1   ? read_as<uint8_t>(w, threads, touch, batch)
                      : w.width == 2 ? read_as<uint16_t>(w, threads, touch, batch)
                                     : read_as<uint32_t>(w, threads, touch, batch);
    return fine ? DONE : REFUSED;
}

}  // namespace gw
