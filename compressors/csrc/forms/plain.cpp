// The loops for every processor.
#include "prelude.h"

namespace gw {
namespace plain {
#include "lanes.h"
#include "vec_plain.h"

#include "table.h"
}  // namespace plain
extern const Form plain_form = plain::make_table();
}  // namespace gw
