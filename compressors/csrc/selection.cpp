#include <cmath>
#include <cstring>
#include <new>

#include "top_k.h"

namespace gw {

// A thread's scratch memory holds a list, or histograms.
constexpr int64_t LISTED = SCRATCH / int64_t(sizeof(uint32_t));
constexpr int64_t HISTOGRAM = DIGITS * int64_t(sizeof(uint64_t));
static_assert(TURNS * HISTOGRAM <= SCRATCH, "histograms that take turns need all of it");

// Ranges are cut where chunks of either width are.
constexpr int64_t CHUNKS = 65535;
static_assert(CHUNKS % chunk_of(1) == 0 && CHUNKS % chunk_of(2) == 0, "");

// The magnitude next to zero. Zeros may be many, and are never listed.
constexpr uint32_t SMALLEST = 1;

constexpr int64_t MOST_SAMPLES = 65536, SAMPLE_BINS = 16384;
// A guess needs so many samples beyond the threshold; each costs about as much as a whole line of the vector. With few
// of them the bounds are wide, and a list of what lies between must hold more.
constexpr int64_t GUESS_RANK = 64, ROUGH_RANK = 24, ROUGH_ROOM = 3, FEWEST_SAMPLES = 2048;
static_assert(SAMPLE_BINS * int64_t(sizeof(uint32_t)) <= SCRATCH, "");

Selection::Selection(const Form& form, const Input& in, int64_t n, int64_t k, int threads, uint8_t* memory,
                     int64_t size)
    : form(form), in(in), n(n), k(k), workers(workers_for(n, threads)),
      scratch_(new (std::nothrow) uint8_t[size_t(workers * SCRATCH)]) {
    for (int worker = 0; worker < workers; ++worker) {
        const Span part = part_of(n, CHUNKS, workers, worker);
        ranges[worker] = {part.begin, part.count, scratch_.get() + worker * SCRATCH, {}, 0, 0, 0};
    }
    if (scratch_) give_lists(memory, size);
}

// A share of the memory, or that of the thread, whichever holds more.
void Selection::give_lists(uint8_t* memory, int64_t size) {
    uint8_t* const aligned = memory + (-reinterpret_cast<uintptr_t>(memory) & 3);
    const int64_t shared = (size / 4 - 1) / workers;
    for (int worker = 0; worker < workers; ++worker) {
        Survey& survey = ranges[worker].survey;
        const bool own = shared <= LISTED;
        survey.list = reinterpret_cast<uint32_t*>(own ? ranges[worker].scratch : aligned + 4 * worker * shared);
        survey.capacity = own ? LISTED : shared;
    }
}

Status Selection::find() {
    if (!scratch_) return NO_MEMORY;
    uint32_t low = SMALLEST, high = INFINITE;
    const bool all_listed = ranges[0].count + 15 <= LISTED;
    const bool guessed = all_listed || guess(low, high);
    if (!guessed) settle();
    if (guessed && surveyed(low, high)) return finite() ? DONE : NOT_FINITE;
    for (int worker = 0; worker < workers; ++worker) ranges[worker].above = 0;
    select(k);
    return finite() ? DONE : NOT_FINITE;
}

// The first pass, if no survey is.
void Selection::settle() {
    if (in.unsettled())
        over_parts(n, CHUNKS, workers, [&](int64_t begin, int64_t count) { form.settle(in, begin, count); });
    in = in.settled();
}

// Sampled magnitudes by their highest bits.
const uint32_t* Selection::count_samples(int64_t samples) {
    uint32_t* const bins = reinterpret_cast<uint32_t*>(ranges[0].scratch);
    memset(bins, 0, SAMPLE_BINS * sizeof *bins);
    form.sample(in, n / samples, samples, bins);
    return bins;
}

bool Selection::sample() {
    const int64_t samples = std::min(MOST_SAMPLES, n / 16);
    if (!scratch_ || 2 * k >= n || !samples) return false;
    const double rank = double(k) * double(samples) / double(n), enough = rank - (3 * std::sqrt(rank) + 4);
    if (enough < rank / 2) return false;
    const uint32_t* const bins = count_samples(samples);
    int64_t above = 0;
    for (int64_t bin = SAMPLE_BINS - 1; bin >= 0; --bin) {
        const int64_t reach = above + bins[bin];
        if (double(reach) >= enough && reach > 0) {
            threshold = (uint32_t(bin + 1) << 17) - 1;
            return bin + 1 < SAMPLE_BINS && double(above) >= rank / 2;
        }
        above = reach;
    }
    return false;
}

int64_t Selection::count_above() {
    const Input first = in.settling();
    const uint32_t limit = threshold + 1;
    parallel(workers, [&](int worker) {
        Range& range = ranges[worker];
        Survey survey = {limit, limit, reinterpret_cast<uint32_t*>(range.scratch), LISTED, 0, 0, 0};
        form.survey(first, range.begin, range.count, survey);
        range.above = survey.above;
        range.peak = survey.peak;
    });
    in = in.settled();
    int64_t above = 0;
    for (int worker = 0; worker < workers; ++worker) above += ranges[worker].above;
    return finite() ? above : int64_t(NOT_FINITE);
}

// Bounds between which the threshold very likely is, if it is not zero; false if guessing would not pay.
bool Selection::guess(uint32_t& low, uint32_t& high) {
    if (2 * k >= n) return false;
    const bool roomy = ranges[0].survey.capacity * workers >= ROUGH_ROOM * k;
    const int64_t rank_wanted = roomy ? ROUGH_RANK : GUESS_RANK;
    const int64_t wanted = std::min(std::max(rank_wanted * n / k, FEWEST_SAMPLES), MOST_SAMPLES);
    const int64_t samples = std::min(wanted, n / 16);
    const uint32_t* const bins = count_samples(samples);
    const double rank = double(k) * double(samples) / double(n), margin = 3 * std::sqrt(rank) + 4;
    int64_t above = 0;
    bool found = false;
    for (int64_t bin = SAMPLE_BINS - 1; bin >= 0; --bin) {
        above += bins[bin];
        if (!found && double(above) >= rank - margin && above) {
            high = std::min(uint32_t(bin + 1) << 17, INFINITE);
            found = true;
        }
        if (double(above) >= rank + margin) {
            low = std::max(uint32_t(bin) << 17, SMALLEST);
            return true;
        }
    }
    low = SMALLEST;
    return true;
}

// Whether the threshold was between the bounds, and is now known; or there is none, as p is not finite.
bool Selection::surveyed(uint32_t low, uint32_t high) {
    const Input first = in.settling();
    parallel(workers, [&](int worker) {
        Range& range = ranges[worker];
        range.survey.low = low;
        range.survey.high = high;
        form.survey(first, range.begin, range.count, range.survey);
        range.above = range.survey.above;
        range.peak = range.survey.peak;
    });
    in = in.settled();
    if (!finite()) return true;
    int64_t above = 0, listed = 0;
    bool complete = true;
    for (int worker = 0; worker < workers; ++worker) {
        above += ranges[worker].above;
        listed += ranges[worker].survey.size;
        complete &= ranges[worker].survey.size >= 0;
    }
    if (!complete || above >= k) return false;
    if (above + listed >= k)
        select_listed(k - above, low, high);
    else if (low == SMALLEST)
        select_all_listed(k - above - listed);
    else
        return false;
    return true;
}

// All that is not zero is chosen, and the first zeros.
void Selection::select_all_listed(int64_t zeros) {
    threshold = 0;
    ties = zeros;
    for (int worker = 0; worker < workers; ++worker) {
        Range& range = ranges[worker];
        range.above += range.survey.size;
        range.equal = range.count - range.above;
    }
}

bool Selection::finite() const {
    for (int worker = 0; worker < workers; ++worker)
        if (ranges[worker].peak >= INFINITE) return false;
    return true;
}

// How many listed elements reach a limit.
int64_t Selection::listed(uint32_t limit) const {
    int64_t sum = 0;
    for (int worker = 0; worker < workers; ++worker)
        sum += form.count(ranges[worker].survey.list, ranges[worker].survey.size, limit);
    return sum;
}

// Finds the element of that rank in the lists by halving the interval between the bounds. A limit that as many reach as
// are wanted will do, even if it is none of the elements.
void Selection::select_listed(int64_t rank, uint32_t low, uint32_t high) {
    int64_t above = 0, reach = -1;  // how many reach `high`, and `low`
    while (high - low > 1 && reach != rank) {
        const uint32_t middle = low + (high - low) / 2;
        const int64_t found = listed(middle);
        if (found >= rank)
            low = middle, reach = found;
        else
            high = middle, above = found;
    }
    const bool exact = reach == rank;
    threshold = exact ? low - 1 : low;
    ties = exact ? 0 : rank - above;
    for (int worker = 0; worker < workers; ++worker) {
        Range& range = ranges[worker];
        const int64_t beyond = form.count(range.survey.list, range.survey.size, threshold + 1);
        range.above += beyond;
        range.equal = exact ? 0 : form.count(range.survey.list, range.survey.size, threshold) - beyond;
    }
}

static uint64_t* digits_of(const Range& range) {
    return reinterpret_cast<uint64_t*>(range.scratch + SCRATCH - HISTOGRAM);
}

void Selection::count_digits(Level level) {
    parallel(workers, [&](int worker) {
        Range& range = ranges[worker];
        uint64_t* const all = reinterpret_cast<uint64_t*>(range.scratch);
        uint64_t* const digits = digits_of(range);
        memset(all, 0, TURNS * HISTOGRAM);
        range.peak = form.histogram(in, range.begin, range.count, level, all);
        for (int turn = 0; turn < TURNS - 1; ++turn)
            for (int digit = 0; digit < DIGITS; ++digit) digits[digit] += all[turn * DIGITS + digit];
    });
}

// The digit of the element of that rank; leaves its rank among those of the same digit.
int Selection::descend(int64_t& rank) {
    for (int digit = DIGITS - 1; digit > 0; --digit) {
        int64_t here = 0;
        for (int worker = 0; worker < workers; ++worker) here += int64_t(digits_of(ranges[worker])[digit]);
        if (here >= rank) return digit;
        if (!here) continue;
        rank -= here;
        for (int worker = 0; worker < workers; ++worker)
            ranges[worker].above += int64_t(digits_of(ranges[worker])[digit]);
    }
    return 0;
}

// The threshold's digits, the highest first: 11 bits, 10, and 10.
void Selection::select(int64_t rank) {
    uint32_t low = 0, high = INFINITE;
    int digit = 0;
    for (const int shift : {20, 10, 0}) {
        count_digits(Level{low, high, shift});
        if (!finite()) return;
        digit = descend(rank);
        low += uint32_t(digit) << shift;
        high = low + (1u << shift);
    }
    threshold = low;
    ties = rank;
    for (int worker = 0; worker < workers; ++worker)
        ranges[worker].equal = int64_t(digits_of(ranges[worker])[digit]);
}

}  // namespace gw
