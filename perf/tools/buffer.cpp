#include "perf/tools/buffer.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstring>

#include "cuda/device_memory.h"
#include "cuda/emulator/emulated_driver.h"
#include "cuda/real_driver.h"

namespace cenote::perf {
namespace {

struct Kind {
  std::string driver;  ///< "host", "cuda", "emulated"
  int ordinal = 0;
  std::string model = "H200";
};

tl::unexpected<Error> wrong(const std::string& kind, const std::string& why) {
  return fail(Error{ErrorCode::invalid_argument, "choose memory", fmt::format("'{}' {}", kind, why)}.fix(
      "host, cuda, cuda:N, emulated or emulated:MODEL"));
}

Result<Kind> parse(const std::string& text) {
  Kind kind;
  const auto colon = text.find(':');
  kind.driver = text.substr(0, colon);
  const bool more = colon != std::string::npos;
  const auto rest = more ? text.substr(colon + 1) : std::string();
  if (kind.driver == "host" && !more) return kind;
  if (kind.driver == "cuda") {
    if (!more) return kind;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), kind.ordinal);
    if (error != std::errc() || end != rest.data() + rest.size() || kind.ordinal < 0)
      return wrong(text, "names no card by its number");
    return kind;
  }
  if (kind.driver == "emulated") {
    if (more && rest.empty()) return wrong(text, "names no model");
    if (more) kind.model = rest;
    return kind;
  }
  return wrong(text, "is no kind of memory");
}

Result<void> checked(cuda::Driver& driver, const char* stage, cuda::Status status) {
  if (status == cuda::Status::success) return {};
  auto cause = fmt::format("{} ({})", cuda::status_text(status), cuda::status_name(status));
  if (auto detail = driver.last_error_detail(); !detail.empty()) cause += ": " + detail;
  Error error{ErrorCode::driver_error, stage, std::move(cause)};
  error.native = static_cast<int>(status);
  return fail(std::move(error));
}

}  // namespace

MemorySource::MemorySource() = default;
MemorySource::~MemorySource() = default;

Result<void> MemorySource::check(const std::string& kind) {
  CENOTE_TRY(parse(kind));
  return {};
}

Result<std::unique_ptr<MemorySource>> MemorySource::open(const std::string& kind) {
  CENOTE_ASSIGN(const Kind wanted, parse(kind));
  auto source = std::unique_ptr<MemorySource>(new MemorySource());
  if (wanted.driver == "host") return source;
  if (wanted.driver == "cuda") {
    CENOTE_ASSIGN(source->driver_, cuda::load_real_driver());
  } else {
    cuda::EmulatorOptions options;
    options.devices = {{.model = wanted.model}};
    source->driver_ = cuda::make_emulated_driver(std::move(options));
  }
  cuda::Driver& driver = *source->driver_;
  CENOTE_TRY(checked(driver, "initialise the driver", driver.init(0)));
  cuda::DeviceId device = 0;
  CENOTE_TRY(checked(driver, "choose the card", driver.device_get(&device, wanted.ordinal)));
  std::array<char, 256> name{};
  CENOTE_TRY(checked(driver, "choose the card",
                     driver.device_get_name(name.data(), static_cast<int>(name.size()), device)));
  cuda::Context context = nullptr;
  CENOTE_TRY(checked(driver, "make a context", driver.primary_ctx_retain(&context, device)));
  CENOTE_TRY(checked(driver, "make a context", driver.ctx_set_current(context)));
  source->name_ = fmt::format("{}:{} ({})", wanted.driver, wanted.ordinal, name.data());
  return source;
}

Result<std::unique_ptr<Buffer>> Buffer::create(transport::Transport& transport, const MemorySource& source,
                                               std::size_t bytes) {
  auto buffer = std::unique_ptr<Buffer>(new Buffer());
  buffer->size_ = bytes;
  if (source.is_host()) {
    CENOTE_ASSIGN(buffer->region_, transport.allocate(bytes));
    buffer->base_ = buffer->region_->bytes().data();
    return buffer;
  }
  cuda::Driver& driver = *source.driver();
  CENOTE_TRY(checked(driver, "allocate memory of the card", driver.mem_alloc(&buffer->device_, bytes)));
  buffer->driver_ = &driver;
  CENOTE_TRY(checked(driver, "clear memory of the card", driver.memset_d8(buffer->device_, 0, bytes)));
  CENOTE_TRY(checked(driver, "clear memory of the card", driver.ctx_synchronize()));
  CENOTE_ASSIGN(buffer->description_, cuda::describe(driver, buffer->device_, bytes));
  auto region = transport.register_memory(buffer->description_);
  if (!region) {
    auto error = std::move(region).error();
    error.cause =
        fmt::format("{} does not reach memory of {}: {}", transport.name(), source.name(), error.cause);
    return fail(std::move(error).fix("measure with --memory host, or over another --transport"));
  }
  buffer->region_ = std::move(*region);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the card, that only the transport looks behind.
  buffer->base_ = reinterpret_cast<std::byte*>(buffer->device_);
  return buffer;
}

Buffer::~Buffer() {
  region_.reset();
  if (device_ != 0) driver_->mem_free(device_);
}

Result<void> Buffer::read(std::uint64_t offset, std::span<std::byte> out) const {
  if (!is_host()) return description_.device->read(out.data(), device_ + offset, out.size());
  std::memcpy(out.data(), base_ + offset, out.size());
  return {};
}

Result<void> Buffer::write(std::uint64_t offset, std::span<const std::byte> in) const {
  if (!is_host()) return description_.device->write(device_ + offset, in.data(), in.size());
  std::memcpy(base_ + offset, in.data(), in.size());
  return {};
}

}  // namespace cenote::perf
