// put_get.c in C++: ranks that are processes write into each other's memory.
//   put_get_cpp 0 3        prints an id; in two other terminals:
//   put_get_cpp 1 3 ID
//   put_get_cpp 2 3 ID
#include <array>
#include <cenote/cenote.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

namespace {

void trade(cenote::CommunicatorOptions options) {
  cenote::Context context;
  if (options.rank == 0) std::cout << (options.id = context.create_unique_id()) << std::endl;
  cenote::Communicator group(context, options);

  // Every rank gives 64 bytes that the others may write and read.
  std::array<char, 64> mine{}, back{};
  cenote::Window window(group, mine.size());
  const auto next = (group.rank() + 1) % group.ranks();
  const auto before = (group.rank() + group.ranks() - 1) % group.ranks();
  std::snprintf(mine.data(), mine.size(), "rank %u greets rank %u", group.rank(), next);
  window.put(next, 0, std::span(mine), 0).wait();

  // Counter 0 of the rank before us: what it put before has arrived.
  group.wait_signal(before, 0, 1);
  std::cout << "rank " << group.rank() << " was told: " << window.as<char>().data() << '\n';

  window.get(next, 0, std::span(back)).wait();
  if (back != mine) throw std::runtime_error("another text came back");
  std::cout << "rank " << group.rank() << " got back what it had put\n";
  group.barrier().wait();  // nobody ends its window before all have read
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::cerr << "usage: " << argv[0] << " RANK RANKS [ID]\n";
    return 2;
  }
  try {
    trade({.rank = static_cast<std::uint32_t>(std::atoi(argv[1])),
           .ranks = static_cast<std::uint32_t>(std::atoi(argv[2])),
           .id = argc > 3 ? argv[3] : ""});
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
