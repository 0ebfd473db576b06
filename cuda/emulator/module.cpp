#include "cuda/emulator/module.h"

#include <charconv>
#include <cstring>
#include <span>
#include <utility>

#include "cuda/fatbin.h"

namespace cenote::cuda::emulator {
namespace {

constexpr std::uint32_t kElfMagic = 0x464C457F;
constexpr std::size_t kContainerHeader = 16;

using Container = std::span<const std::byte>;

// The text for the newest architecture that the card can still run.
Refusal choose(const std::vector<Container>& containers, int capability, std::string& text) {
  const FatbinPtx* best = nullptr;
  std::vector<FatbinPtx> all;
  unsigned units = 0;
  for (const auto& container : containers) {
    auto texts = fatbin_ptx(container);
    if (!texts) return {Status::invalid_image, texts.error().message()};
    if (!texts->empty()) ++units;
    for (auto& entry : *texts) all.push_back(std::move(entry));
  }
  if (all.empty()) {
    return {Status::no_binary_for_gpu,
            "the fat binary holds machine code only, no PTX; build with -gencode "
            "arch=compute_XX,code=compute_XX"};
  }
  if (units > 1) {
    return {Status::no_binary_for_gpu, "the fat binary holds " + std::to_string(units) +
                                           " relocatable translation units; build without -rdc=true"};
  }
  for (const auto& entry : all) {
    if (static_cast<int>(entry.architecture) > capability) continue;
    if (best == nullptr || entry.architecture > best->architecture) best = &entry;
  }
  if (best == nullptr) {
    return {Status::no_binary_for_gpu, "the oldest PTX in the fat binary is for compute_" +
                                           std::to_string(all.front().architecture) + ", the card is sm_" +
                                           std::to_string(capability)};
  }
  text = best->text;
  return {};
}

Refusal find_text(const void* image, std::size_t size, int capability, std::string& text) {
  const auto* bytes = static_cast<const std::byte*>(image);
  std::uint32_t magic = 0;
  if (size == 0) {
    // An unknown size: a text shorter than a magic number ends with its NUL before it.
    magic = strnlen(static_cast<const char*>(image), sizeof(magic)) == sizeof(magic) ? 1 : 0;
  } else {
    magic = size >= sizeof(magic) ? 1 : 0;
  }
  if (magic != 0) std::memcpy(&magic, image, sizeof(magic));

  if (magic == fatbin_wrapper_magic) {
    if (size != 0) {
      return {Status::invalid_image, "a fat binary wrapper holds pointers; it cannot be loaded by size"};
    }
    auto containers = fatbin_containers(image);
    if (!containers) return {Status::invalid_image, containers.error().message()};
    return choose(*containers, capability, text);
  }
  if (magic == fatbin_container_magic) {
    const auto known = size != 0 ? size : fatbin_size({bytes, kContainerHeader});
    return choose({Container{bytes, known}}, capability, text);
  }
  if (magic == kElfMagic) {
    return {Status::no_binary_for_gpu, "the image is machine code (a cubin); this card runs PTX only"};
  }
  const auto* chars = static_cast<const char*>(image);
  text.assign(chars, size != 0 ? strnlen(chars, size) : std::strlen(chars));
  return {};
}

}  // namespace

int architecture_of(std::string_view target) {
  const auto digits = target.find_first_of("0123456789");
  int number = 0;
  if (digits != std::string_view::npos) {
    std::from_chars(target.data() + digits, target.data() + target.size(), number);
  }
  return number;
}

Refusal load_program(const void* image, std::size_t size, int major, int minor,
                     std::shared_ptr<const ptx::Program>& program) {
  const int capability = major * 10 + minor;
  std::string text;
  if (auto refusal = find_text(image, size, capability, text); refusal.status != Status::success)
    return refusal;
  auto parsed = ptx::parse(text);
  if (!parsed) return {Status::invalid_ptx, parsed.error().message()};
  if (architecture_of((*parsed)->target) > capability) {
    return {Status::no_binary_for_gpu,
            "the PTX is for " + (*parsed)->target + ", the card is sm_" + std::to_string(capability)};
  }
  for (const auto& variable : (*parsed)->variables) {
    if (variable.external) {
      return {Status::not_found, "variable " + variable.name + " (PTX line " + std::to_string(variable.line) +
                                     ") is defined in another module"};
    }
  }
  program = std::move(*parsed);
  return {};
}

}  // namespace cenote::cuda::emulator
