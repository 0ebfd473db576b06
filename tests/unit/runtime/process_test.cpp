#include "runtime/process.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "runtime/host_identity.h"
#include "runtime/tcp_socket.h"
#include "runtime/unique_fd.h"

namespace cenote {
namespace {

using testing::HasSubstr;

TEST(TemporaryFolder, IsPrivateAndLeavesNothingBehind) {
  std::string path;
  {
    const auto folder = TemporaryFolder::create("cenote-test");
    ASSERT_TRUE(folder) << folder.error().message();
    path = folder->path();
    std::filesystem::create_directories(folder->file("a/b"));
    std::ofstream(folder->file("a/b/c")) << "x";
    struct stat status {};
    ASSERT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777U, 0700U);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(TemporaryFolder, MovesAndDisowns) {
  auto outer = std::move(*TemporaryFolder::create("outer"));
  auto moved = std::move(outer);
  EXPECT_TRUE(std::filesystem::exists(moved.path()));
  std::string kept;
  {
    auto inner = std::move(*TemporaryFolder::create("inner", moved.path()));
    kept = inner.path();
    inner.disown();
  }
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_FALSE(TemporaryFolder::create("x", moved.file("not there")));
}

TEST(Process, RandomBytesDiffer) {
  Bytes one(32);
  Bytes other(32);
  ASSERT_TRUE(random_bytes(one));
  ASSERT_TRUE(random_bytes(other));
  EXPECT_NE(one, other);
}

TEST(Process, HexSurvivesARoundTripAndRefusesOthers) {
  const Bytes bytes{std::byte{0}, std::byte{0x7f}, std::byte{0xff}};
  EXPECT_EQ(to_hex(bytes), "007fff");
  EXPECT_EQ(*from_hex("007FfF"), bytes);
  EXPECT_TRUE(from_hex("")->empty());
  for (const auto* bad : {"0", "0g", "x0", " 00", "0 "}) EXPECT_FALSE(from_hex(bad)) << bad;
}

TEST(Process, ConstantTimeCompareIsACompare) {
  const std::uint8_t a[] = {1, 2, 3};
  const std::uint8_t b[] = {1, 2, 4};
  EXPECT_TRUE(equal_in_constant_time(a, a));
  EXPECT_FALSE(equal_in_constant_time(a, b));
  EXPECT_FALSE(equal_in_constant_time(a, std::span(a).first(2)));
}

TEST(Process, ReadsFilesUpToALimit) {
  const auto folder = TemporaryFolder::create("read");
  std::ofstream(folder->file("f")) << std::string(100'000, 'x');
  EXPECT_EQ(read_file(folder->file("f"), 100'000)->size(), 100'000U);
  EXPECT_THAT(read_file(folder->file("f"), 99'999).error().message(), HasSubstr("larger than 99999 bytes"));
  EXPECT_EQ(read_file(folder->file("g"), 1).error().code, ErrorCode::not_found);
  EXPECT_EQ(read_file(folder->path(), 1).error().code, ErrorCode::system_error);
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnceAndMoves) {
  int raw = -1;
  {
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    ASSERT_TRUE(fd);
    raw = fd.get();
    UniqueFd moved(std::move(fd));
    EXPECT_TRUE(is_open(raw));
    UniqueFd assigned;
    assigned = std::move(moved);
    EXPECT_EQ(assigned.get(), raw);
  }
  EXPECT_FALSE(is_open(raw));
}

TEST(HostIdentity, IsStableInAProcessAndSurvivesTheWire) {
  const auto here = HostIdentity::read();
  ASSERT_TRUE(here) << here.error().message();
  EXPECT_EQ(*HostIdentity::read(), *here);
  EXPECT_EQ(here->boot_id.size(), 36U);
  EXPECT_NE(here->network_space, 0U);
  Writer writer;
  here->pack(writer);
  Reader reader(writer.bytes());
  EXPECT_EQ(HostIdentity::unpack(reader), *here);
  EXPECT_TRUE(reader.finished());
  for (std::size_t cut = 0; cut < writer.bytes().size(); ++cut) {
    Reader broken(std::span(writer.bytes()).first(cut));
    EXPECT_NE(HostIdentity::unpack(broken), *here);
    EXPECT_TRUE(broken.bad());
  }
}

TEST(SocketAddress, ParsesWhatItPrints) {
  for (const auto* text : {"127.0.0.1:4700", "host.example:1", "[::1]:65535", "host:0"})
    EXPECT_EQ(SocketAddress::parse(text)->text(), text);
  for (const auto* bad :
       {"", ":", "host", "host:", ":1", "host:65536", "host:x", "::1:5", "[]:1", "[::1]", "a b:1", "a/b:1"})
    EXPECT_FALSE(SocketAddress::parse(bad)) << bad;
}

TEST(TcpSocket, APortInUseIsSaidSo) {
  const auto first = listen_on({"127.0.0.1", 0}, 1);
  ASSERT_TRUE(first) << first.error().message();
  const auto address = *local_address(first->get());
  const auto second = listen_on(address, 1);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, ErrorCode::already_exists);
  EXPECT_THAT(second.error().message(),
              HasSubstr("listen on " + address.text() + " failed: Address already in use"));
}

}  // namespace
}  // namespace cenote
