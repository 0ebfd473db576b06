// launched.c in C++: sums four numbers over the ranks that a launcher starts.
//   mpirun -n 4 launched_cpp
#include <array>
#include <cenote/cenote.hpp>
#include <exception>
#include <iostream>
#include <sstream>

namespace {

void sum() {
  cenote::Context context;
  const auto launch = cenote::find_launch(context);
  auto group = cenote::Communicator::launched(context);

  std::array<float, 4> values{1, 2, 3, static_cast<float>(group.rank())};
  group.allreduce(std::span<float>(values), CENOTE_SUM).wait();

  std::ostringstream line;  // one write: the ranks share an output
  line << "rank " << launch.rank << " of " << launch.ranks << ", " << launch.local_rank << " of "
       << launch.local_ranks << " here, by " << launch.launcher << ":";
  for (const float value : values) line << ' ' << value;
  std::cout << line.str() + '\n' << std::flush;
}

}  // namespace

int main() {
  try {
    sum();
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
