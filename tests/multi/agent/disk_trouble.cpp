// Loaded in front of the C library (LD_PRELOAD): the disk under any file called broker.db* is slow, full or
// read-only, as the file named by DISK_TROUBLE says at each call: "slow MILLISECONDS", "full", "read-only",
// "".
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

bool of_the_store(int descriptor) {
  char name[64], target[512];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
  const auto length = ::readlink(name, target, sizeof target - 1);
  if (length <= 0) return false;
  target[length] = '\0';
  return std::strstr(target, "/broker.db") != nullptr;
}

/// What the disk does now; `text` has room for 32.
void trouble(char* text) {
  text[0] = '\0';
  const char* const path = std::getenv("DISK_TROUBLE");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) return;
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return;
  const auto got = ::read(file, text, 31);
  text[got > 0 ? got : 0] = '\0';
  ::close(file);
}

/// True = refused, with errno.
bool refused(int descriptor) {
  if (!of_the_store(descriptor)) return false;
  char text[32];
  trouble(text);
  errno = std::strncmp(text, "full", 4) == 0 ? ENOSPC : std::strncmp(text, "read-only", 9) == 0 ? EROFS : 0;
  return errno != 0;
}

void wait_for_the_disk(int descriptor) {
  if (!of_the_store(descriptor)) return;
  char text[32];
  trouble(text);
  if (std::strncmp(text, "slow ", 5) == 0) ::usleep(static_cast<useconds_t>(std::atoi(text + 5)) * 1000);
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off64_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off64_t)>("pwrite64");
  return refused(descriptor) ? -1 : real(descriptor, bytes, size, offset);
}
EXPORTED ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t offset) {
  static const auto real = next<ssize_t (*)(int, const void*, size_t, off_t)>("pwrite");
  return refused(descriptor) ? -1 : real(descriptor, bytes, size, offset);
}
EXPORTED int fdatasync(int descriptor) {
  static const auto real = next<int (*)(int)>("fdatasync");
  wait_for_the_disk(descriptor);
  return real(descriptor);
}
EXPORTED int fsync(int descriptor) {
  static const auto real = next<int (*)(int)>("fsync");
  wait_for_the_disk(descriptor);
  return real(descriptor);
}
