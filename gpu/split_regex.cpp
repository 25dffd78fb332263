#include "gpu/split_regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "gpu/utf8.hpp"

namespace eldr::gpu {

namespace {

// Backtracking steps per match, and its memory. A sane pattern stays far below on any text.
constexpr std::uint32_t match_limit = 10'000'000;
constexpr std::uint32_t heap_limit_kib = 65'536;

template <auto free_function>
struct deleter {
  template <typename T>
  void operator()(T* p) const {
    free_function(p);
  }
};
using code_ptr = std::unique_ptr<pcre2_code, deleter<pcre2_code_free>>;
using context_ptr = std::unique_ptr<pcre2_match_context, deleter<pcre2_match_context_free>>;
using match_ptr = std::unique_ptr<pcre2_match_data, deleter<pcre2_match_data_free>>;

PCRE2_SPTR units(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

/// Rewrites \uHHHH, which Oniguruma (the engine that these patterns are made for) knows, as
/// \x{HHHH}.
std::string translate(std::string_view pattern) {
  std::string result;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const bool escape = pattern[i] == '\\' && i + 1 < pattern.size();
    const auto digits = pattern.substr(std::min(i + 2, pattern.size()), 4);
    if (escape && pattern[i + 1] == 'u' && digits.size() == 4 &&
        digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos) {
      result.append("\\x{").append(digits).append("}");
      i += 5;
      continue;
    }
    result += pattern[i];
    if (escape) {
      result += pattern[++i];
    }
  }
  return result;
}

std::string describe(int error) {
  PCRE2_UCHAR text[256] = {};
  pcre2_get_error_message(error, text, sizeof text);
  return reinterpret_cast<const char*>(text);
}

}  // namespace

struct split_regex::impl {
  code_ptr code;
  context_ptr context;

  match_ptr make_match() const {
    match_ptr match(pcre2_match_data_create_from_pattern(code.get(), nullptr));
    if (match == nullptr) {
      throw std::bad_alloc();
    }
    return match;
  }

  /// Looks for the first match from `start`.
  bool search(std::string_view text, std::size_t start, pcre2_match_data* match) const {
    // The text was checked once; another check per match would make this quadratic.
    constexpr std::uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc =
        pcre2_match(code.get(), units(text), text.size(), start, options, match, context.get());
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(code.get(), units(text), text.size(), start, options | PCRE2_NO_JIT, match,
                       context.get());
    }
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) {
      throw std::runtime_error(
          fmt::format("The text cannot be split into tokens: {}.", describe(rc)));
    }
    return rc >= 0;
  }
};

split_regex::split_regex(const std::string& pattern, syntax kind)
    : impl_(std::make_unique<impl>()) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  const bool literal = kind == syntax::literal;
  const std::string text = literal ? pattern : translate(pattern);
  impl_->code.reset(pcre2_compile(units(text), text.size(),
                                  PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP), &error,
                                  &offset, nullptr));
  if (impl_->code == nullptr) {
    throw std::runtime_error(fmt::format("The pattern {} is not supported: {} (at byte {}).", text,
                                         describe(error), offset));
  }
  // Without a compiler for this machine, PCRE2 interprets.
  pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE);
  impl_->context.reset(pcre2_match_context_create(nullptr));
  if (impl_->context == nullptr) {
    throw std::bad_alloc();
  }
  pcre2_set_match_limit(impl_->context.get(), match_limit);
  pcre2_set_heap_limit(impl_->context.get(), heap_limit_kib);
}

split_regex::~split_regex() = default;
split_regex::split_regex(split_regex&&) noexcept = default;
split_regex& split_regex::operator=(split_regex&&) noexcept = default;

void split_regex::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  const match_ptr match = impl_->make_match();
  const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
  std::size_t begin = 0;  // Of what is not yet in a piece.
  const auto cut = [&](std::size_t end) {
    if (end > begin) {
      pieces.push_back(text.substr(begin, end - begin));
      begin = end;
    }
  };
  std::size_t start = 0;
  while (start < text.size() && impl_->search(text, start, match.get())) {
    cut(ends[0]);
    cut(ends[1]);
    start = ends[1];
    if (ends[0] == ends[1] && start < text.size()) {
      start += utf8_next(text.substr(start)).bytes;
    }
  }
  cut(text.size());
}

bool split_regex::found_in(std::string_view text) const {
  return impl_->search(text, 0, impl_->make_match().get());
}

}  // namespace eldr::gpu
