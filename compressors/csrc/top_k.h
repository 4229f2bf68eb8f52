// The threshold of the k largest magnitudes, exactly, in linear time.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels.h"
#include "threads.h"

namespace gw {

// What one thread works on.
struct Range {
    int64_t begin, count;
    uint8_t* scratch;
    Survey survey;
    int64_t above, equal;  // how many elements are above the threshold, or equal to it
    uint32_t peak;
};

// A sample tells between which two magnitudes the threshold very likely is. One pass over the elements counts what is
// above both and lists what is between; the threshold is found in the list. If the sample misled, or the list would
// be too long, three passes over the elements find the threshold digit by digit.
struct Selection {
    // `memory`, of so many bytes at any address, is for the lists.
    Selection(const Form& form, const Input& in, int64_t n, int64_t k, int threads, uint8_t* memory, int64_t size);
    Status find();
    // A threshold that samples tell: mostly somewhat fewer than k magnitudes are above it. False if they do not tell.
    bool sample();
    // How many are above that threshold, in all; settles the input. NOT_FINITE if it is not.
    int64_t count_above();

    const Form& form;
    Input in;
    const int64_t n, k;
    const int workers;
    Range ranges[MOST_THREADS];
    uint32_t threshold = 0;
    int64_t ties = 0;  // how many of those equal to the threshold are wanted

  private:
    void give_lists(uint8_t* memory, int64_t size);
    void settle();
    const uint32_t* count_samples(int64_t samples);
    bool guess(uint32_t& low, uint32_t& high);
    bool surveyed(uint32_t low, uint32_t high);
    bool finite() const;
    int64_t listed(uint32_t limit) const;
    void select_listed(int64_t rank, uint32_t low, uint32_t high);
    void select_all_listed(int64_t zeros);
    void select(int64_t rank);
    void count_digits(Level level);
    int descend(int64_t& rank);

    std::unique_ptr<uint8_t[]> scratch_;
};

// Where places go, and values, if any are written.
struct SparsePayload {
    uint8_t *counts, *offsets, *values;
    int64_t k;
    int width;  // bytes of an offset

    SparsePayload(uint8_t* payload, uint8_t* values, int64_t n, int64_t k, int width);
    // For entries from that number on, whose elements begin there.
    Emission from(int64_t number, int64_t begin, uint32_t threshold, int64_t ties) const;
    // Zeros behind so many entries.
    void fill(int64_t entries) const;
};

// Writes the k largest, or as many as samples tell of. Returns how many there are, or what was wrong. The selection's
// input is what is to be read afterwards.
int64_t encode_top_k(Selection& selection, const SparsePayload& to, bool exact);

}  // namespace gw
