#include "apps/prompt_file.hpp"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace eldr::apps {

namespace {
prompt_line read_line(const nlohmann::json& in) {
  prompt_line p;
  for (const auto& [key, value] : in.items()) {
    if (key == "prompt") {
      p.text = value.get<std::string>();
    } else if (key == "label") {
      p.label = value.get<std::string>();
    } else if (key == "max_tokens") {
      p.tokens_max = value.get<std::uint32_t>();
    } else if (key == "split") {
      p.split = value.get<std::string>();
    } else if (key == "seed") {
      p.seed = value.get<std::uint64_t>();
    } else if (key == "temperature") {
      p.temperature = value.get<float>();
    } else {
      throw std::runtime_error("'" + key + "' is not a field of a prompt");
    }
  }
  if (p.text.empty()) {
    throw std::runtime_error("'prompt' is missing or empty");
  }
  return p;
}
}  // namespace

std::vector<prompt_line> read_prompts(const std::filesystem::path& file) {
  std::ifstream in(file);
  if (!in) {
    throw std::runtime_error(fmt::format("cannot read the prompts in {}", file.string()));
  }
  std::vector<prompt_line> prompts;
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) {
      continue;
    }
    try {
      prompts.push_back(read_line(nlohmann::json::parse(line)));
    } catch (const std::exception& e) {
      throw std::runtime_error(fmt::format("{}:{}: {}", file.string(), number, e.what()));
    }
  }
  if (prompts.empty()) {
    throw std::runtime_error(fmt::format("{} has no prompts", file.string()));
  }
  return prompts;
}

}  // namespace eldr::apps
