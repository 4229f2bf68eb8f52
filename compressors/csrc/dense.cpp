// Checks, copies and casts of all elements.

#include "blocks.h"
#include "entry.h"

using namespace gw;

struct AllFinite {
    const void* x;
    int64_t n;
    int32_t dtype, threads;
};
GW_API int64_t gw_all_finite(const AllFinite& a) {
    const Form& form = active();
    const Input in = {a.x, nullptr, nullptr, 1, a.dtype, false};
    return judge(largest_of(a.n, PIECE, workers_for(a.n, a.threads),
                            [&](int64_t begin, int64_t count) { return form.peak(in, begin, count); }));
}

struct Copy {
    const void* x;
    void* out;
    int64_t n;
    int32_t dtype, threads;
};
GW_API int64_t gw_copy(const Copy& a) {
    const Form& form = active();
    const Input in = {a.x, nullptr, nullptr, 1, a.dtype, a.n >= LONG};
    return judge(largest_of(a.n, PIECE, workers_for(a.n, a.threads),
                            [&](int64_t begin, int64_t count) { return form.copy(in, begin, count, a.out); }));
}

struct Total {
    Feed feed;
    int32_t threads;
};
// rest = p.
GW_API int64_t gw_total(const Total& a) {
    const Form& form = active();
    const Input in = a.feed.input();
    return judge(largest_of(a.feed.n, PIECE, workers_for(a.feed.n, a.threads),
                            [&](int64_t begin, int64_t count) { return form.settle(in, begin, count); }));
}

struct CastEncode {
    Feed feed;
    void* out;
    float divisor;
    int32_t dtype, threads;  // dtype: that of out
};
// Returns how many magnitudes were beyond the range of out's dtype.
GW_API int64_t gw_cast_encode(const CastEncode& a) {
    const Form& form = active();
    const Input in = a.feed.input();
    std::atomic<int64_t> saturated(0);
    const auto cast = [&](int64_t begin, int64_t count) {
        int64_t mine = 0;
        const uint32_t peak = form.cast(in, begin, count, a.divisor, a.dtype, a.out, a.feed.n >= LONG, &mine);
        saturated += mine;
        return peak;
    };
    const Status status = judge(largest_of(a.feed.n, PIECE, workers_for(a.feed.n, a.threads), cast));
    return status == DONE ? int64_t(saturated) : int64_t(status);
}

struct CastDecodeAdd {
    const uint8_t* values;
    Target to;
    int32_t dtype;
};
GW_API int64_t gw_cast_decode_add(const CastDecodeAdd& a) {
    const Form& form = active();
    const int64_t size = a.dtype == F32 ? 4 : 2;
    over_target(a.to, [&](Span range) {
        form.cast_add(a.values + size * range.begin, a.dtype, range.count, a.to.weight, a.to.out + range.begin);
    });
    return DONE;
}

struct Zero {
    float* out;
    int64_t n;
    int32_t threads;
};
GW_API int64_t gw_zero(const Zero& a) {
    const Form& form = active();
    over_parts(a.n, PIECE, workers_for(a.n, a.threads), [&](int64_t begin, int64_t count) {
        form.zero(a.out, begin, count, a.n > CACHED);
    });
    return DONE;
}
