// The PTX kept beside the kernels, inside the program: nothing has to be found at run time.
#pragma once

#include <string_view>

namespace cenote::cuda::kernels {

std::string_view mlp_ptx();
std::string_view reduce_ptx();
std::string_view basic_ptx();

}  // namespace cenote::cuda::kernels
