// allreduce.c in C++: sums four numbers over ranks that are processes.
//   allreduce_cpp 0 2        prints an id; in another terminal:
//   allreduce_cpp 1 2 ID
#include <array>
#include <cenote/cenote.hpp>
#include <cstdlib>
#include <exception>
#include <iostream>

namespace {

void sum(cenote::CommunicatorOptions options) {
  cenote::Context context;
  if (options.rank == 0) std::cout << (options.id = context.create_unique_id()) << std::endl;
  cenote::Communicator group(context, options);

  std::array<float, 4> values{1, 2, 3, static_cast<float>(group.rank())};
  auto request = group.allreduce(std::span<float>(values), CENOTE_SUM);
  request.wait();  // or: while (!request.ready()) compute();

  std::cout << "rank " << group.rank() << ":";
  for (const float value : values) std::cout << ' ' << value;
  std::cout << '\n';
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: " << argv[0] << " RANK RANKS [ID]\n";
    return 2;
  }
  try {
    sum({.rank = static_cast<std::uint32_t>(std::atoi(argv[1])),
         .ranks = static_cast<std::uint32_t>(std::atoi(argv[2])),
         .id = argc > 3 ? argv[3] : ""});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
