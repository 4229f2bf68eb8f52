// Some elements whose places a payload has: what is added there, or cleared; and sums of sparse vectors.

#include "places.h"

using namespace gw;

struct SparseDecodeAdd {
    Where where;
    const uint8_t* values;  // k floats at any address
    float* out;
    float weight;
    int32_t threads;
};
GW_API int64_t gw_sparse_decode_add(const SparseDecodeAdd& a) {
    float* const out = a.out;
    if (overlap(a.where, out)) return OVERLAP;
    return read_places(
        a.where, a.threads, [=](int64_t place) { __builtin_prefetch(out + place, 1); },
        [=, &a](int64_t number, const int64_t* places, int count) {
            for (int j = 0; j < count; ++j) out[places[j]] += a.weight * get<float>(a.values, number + j);
        });
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
        [&](int64_t number, const int64_t* places, int count) {
            std::copy(places, places + count, a.indices + number);
            found = number + count;
        });
    return status == DONE ? found : status;
}

struct Clear {
    Where where;
    float* out;
};
GW_API int64_t gw_clear(const Clear& a) {
    if (overlap(a.where, a.out)) return OVERLAP;
    return read_places(
        a.where, 1, [&](int64_t place) { __builtin_prefetch(a.out + place, 1); },
        [&](int64_t, const int64_t* places, int count) {
            for (int j = 0; j < count; ++j) a.out[places[j]] = 0;
        });
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
