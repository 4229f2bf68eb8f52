// Elements that all ranks draw alike: one from each of k runs.

#include "entry.h"

using namespace gw;

// Calls entry(run, place) for all runs; shortly before that, touch(place).
template <class Touch, class Entry>
static void each_place(const Strata& strata, int threads, const Touch& touch, const Entry& entry) {
    constexpr int64_t BATCH = 128;
    const Form& form = active();
    // each costs as much as several elements in a row
    over_parts(strata.k, BATCH, workers_for(8 * strata.k, threads), [&](int64_t first, int64_t count) {
        int64_t places[BATCH];
        for (int64_t begin = first; begin < first + count; begin += BATCH) {
            const int64_t size = std::min(BATCH, first + count - begin);
            for (int64_t j = 0; j < size; j += 16) form.places(strata, begin + j, places + j);
            for (int64_t j = 0; j < size; ++j) touch(places[j]);
            for (int64_t j = 0; j < size; ++j) entry(begin + j, places[j]);
        }
    });
}

struct Draw {
    int64_t n, k;
    uint64_t seed;
    int64_t* out;
};
GW_API int64_t gw_draw(const Draw& a) {
    each_place(Strata(a.n, a.k, a.seed), 1, [](int64_t) {}, [&](int64_t run, int64_t place) { a.out[run] = place; });
    return DONE;
}

struct DrawEncode {
    Feed feed;
    int64_t k;
    uint64_t seed;
    float* out;
    int32_t threads;
};
GW_API int64_t gw_draw_encode(const DrawEncode& a) {
    const Form& form = active();
    const Input in = a.feed.input();
    const Strata strata(a.feed.n, a.k, a.seed);
    return judge(largest_of(a.feed.n, PIECE, workers_for(a.feed.n, a.threads), [&](int64_t begin, int64_t count) {
        return form.gather(in, begin, count, strata, a.out);
    }));
}

struct DrawDecodeAdd {
    const float* values;
    int64_t k;
    uint64_t seed;
    Target to;
    int32_t scaled;
};
GW_API int64_t gw_draw_decode_add(const DrawDecodeAdd& a) {
    const Strata strata(a.to.n, a.k, a.seed);
    float* const out = a.to.out;
    const auto touch = [=](int64_t place) { __builtin_prefetch(out + place, 1); };
    if (a.scaled)
        each_place(strata, a.to.threads, touch, [&](int64_t run, int64_t place) {
            out[place] += a.values[run] * a.to.weight * float(strata.length(run));
        });
    else
        each_place(strata, a.to.threads, touch,
                   [&](int64_t run, int64_t place) { out[place] += a.values[run] * a.to.weight; });
    return DONE;
}
