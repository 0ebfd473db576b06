#include "collectives/reduce/kernels_body.h"

namespace cenote::collectives::detail {

constinit const KernelTable baseline_kernels = all_kernels;

}  // namespace cenote::collectives::detail
