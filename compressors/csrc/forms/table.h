// The loops of one form. Included inside its namespace, after its vec_*.h.

#include "source.h"

#include "dense.h"
#include "fp8.h"
#include "gather.h"
#include "largest.h"
#include "signs.h"

#include "levels.h"

constexpr Form make_table() {
    return {peak,      settle,  copy,       zero,   sum,         sign_pack, quantize,      sum_apart, two_bit_pack,
            cast,      gather,  places,     sample,      survey,    count,         histogram, emit,
            pick,      emit_settling,       sign_add,    levels_add, two_bit_add,  cast_add};
}
