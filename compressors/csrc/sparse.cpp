// Some elements: reading their places from payloads, and adding them.

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

    // Calls entry(number, place) for the entries of some chunks, from number `first` on; shortly before, touch(place).
    template <class Touch, class Entry>
    void each(Span part, int64_t first, const Touch& touch, const Entry& entry) const {
        constexpr int BATCH = 128;
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
        if (fine) parallel(workers, [&](int worker) { each(mine(worker), first[worker], touch, entry); });
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
bool overlap(const Where& w, const float* out) {
    const int64_t chunks = w.width == 4 ? 0 : blocks_in(w.n, chunk_of(w.width));
    const uintptr_t places = reinterpret_cast<uintptr_t>(w.payload), to = reinterpret_cast<uintptr_t>(out);
    return places < to + uintptr_t(4 * w.n) && to < places + uintptr_t((chunks + w.k) * w.width);
}

template <class Offset, class Touch, class Entry>
bool read_as(const Where& w, int threads, const Touch& touch, const Entry& entry) {
    return Places<Offset>(w.payload, w.n, w.k, w.exact != 0).read(threads, touch, entry);
}
template <class Touch, class Entry>
int64_t read_places(const Where& w, int threads, const Touch& touch, const Entry& entry) {
    const bool fine = w.width == 1   ? read_as<uint8_t>(w, threads, touch, entry)
                      : w.width == 2 ? read_as<uint16_t>(w, threads, touch, entry)
                                     : read_as<uint32_t>(w, threads, touch, entry);
    return fine ? DONE : REFUSED;
}

}  // namespace

struct SparseAdd {
    Where where;
    const uint8_t* values;  // k floats at any address
    float* out;
    float weight;
    int32_t threads;
};
GW_API int64_t gw_sparse_add(const SparseAdd& a) {
    float* const out = a.out;
    if (overlap(a.where, out)) return OVERLAP;
    return read_places(
        a.where, a.threads, [=](int64_t place) { __builtin_prefetch(out + place, 1); },
        [=, &a](int64_t number, int64_t place) { out[place] += a.weight * get<float>(a.values, number); });
}

struct SparseIndices {
    Where where;
    int64_t* indices;
};
// Returns how many there are.
GW_API int64_t gw_sparse_indices(const SparseIndices& a) {
    int64_t found = 0;
    const int64_t status = read_places(
        a.where, 1, [](int64_t) {},
        [&](int64_t number, int64_t place) {
            a.indices[number] = place;
            found = number + 1;
        });
    return status == DONE ? found : status;
}

struct Put {
    Where where;
    const float* values;  // null: zeros
    float* out;
};
GW_API int64_t gw_put(const Put& a) {
    if (overlap(a.where, a.out)) return OVERLAP;
    return read_places(
        a.where, 1, [&](int64_t place) { __builtin_prefetch(a.out + place, 1); },
        [&](int64_t number, int64_t place) { a.out[place] = a.values ? a.values[number] : 0.0f; });
}

struct SparseMerge {
    const int64_t* indices;
    const float* values;
    int64_t k;
    const int64_t* more;
    const float* their_values;
    int64_t many;
    int64_t* merged;  // k + many, as are the sums
    float* sums;
};
static bool ascend(const int64_t* indices, int64_t k) {
    bool fine = k == 0 || indices[0] >= 0;
    for (int64_t j = 1; j < k; ++j) fine &= indices[j] > indices[j - 1];
    return fine;
}
// Returns how many places there are.
GW_API int64_t gw_sparse_merge(const SparseMerge& a) {
    if (!ascend(a.indices, a.k) || !ascend(a.more, a.many)) return REFUSED;
    int64_t i = 0, j = 0, size = 0;
    while (i < a.k && j < a.many) {
        const int64_t mine = a.indices[i], theirs = a.more[j];
        const float value = mine <= theirs ? a.values[i] : 0.0f, other = theirs <= mine ? a.their_values[j] : 0.0f;
        a.merged[size] = std::min(mine, theirs);
        a.sums[size++] = 0.0f + value + other;  // no place sums up to -0
        i += mine <= theirs;
        j += theirs <= mine;
    }
    for (; i < a.k; ++i, ++size) a.merged[size] = a.indices[i], a.sums[size] = 0.0f + a.values[i];
    for (; j < a.many; ++j, ++size) a.merged[size] = a.more[j], a.sums[size] = 0.0f + a.their_values[j];
    return size;
}
