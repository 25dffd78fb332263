#include "apps/bench_report.hpp"

#include <fmt/format.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "apps/version.hpp"

namespace eldr::apps {
namespace {

struct machine {
  std::string cpu = "unknown processor";
  unsigned cores = std::thread::hardware_concurrency();
  std::string system;
  double load = 0;  ///< Processes that wanted to run, over the last minute.
};

machine this_machine() {
  machine m;
  std::ifstream cpus("/proc/cpuinfo");
  for (std::string line; std::getline(cpus, line);) {
    if (line.starts_with("model name")) {
      m.cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  if (utsname names{}; uname(&names) == 0) {
    m.system = fmt::format("{} {}", names.sysname, names.release);
  }
  (void)getloadavg(&m.load, 1);
  return m;
}

/// First line of `eldr --version`.
std::string version_line() {
  const std::string text = version_text();
  return text.substr(0, text.find('\n'));
}

}  // namespace

void add_bench_options(CLI::App& app, bench_options& options) {
  app.add_flag("--quick", options.quick, "Short runs: shows that it works, measures little");
  app.add_flag("--json", options.json, "One JSON object instead of a table");
}

void show_progress(std::string_view text) {
  std::cerr << text << std::endl;
}

bench_report::bench_report(std::string bench, const bench_options& options,
                           std::vector<column> columns)
    : bench_(std::move(bench)), options_(options), columns_(std::move(columns)) {}

void bench_report::add(std::vector<cell> row) {
  if (row.size() != columns_.size()) {
    throw std::logic_error("a row has one cell per column");
  }
  rows_.push_back(std::move(row));
}

void bench_report::print() const {
  options_.json ? print_json() : print_table();
}

void bench_report::print_json() const {
  const machine m = this_machine();
  nlohmann::ordered_json out;
  out["bench"] = bench_;
  out["version"] = version_line();
  out["quick"] = options_.quick;
  out["machine"] = {{"cpu", m.cpu}, {"cores", m.cores}, {"system", m.system}, {"load", m.load}};
  out["rows"] = nlohmann::ordered_json::array();
  for (const auto& row : rows_) {
    nlohmann::ordered_json object;
    for (std::size_t i = 0; i < row.size(); ++i) {
      // nlohmann writes NaN as null.
      std::visit([&](const auto& value) { object[columns_[i].key] = value; }, row[i]);
    }
    out["rows"].push_back(std::move(object));
  }
  out["notes"] = notes_;
  std::cout << out.dump() << '\n';
}

std::string bench_report::text_of(const cell& value, const column& format) const {
  if (const auto* text = std::get_if<std::string>(&value)) {
    return *text;
  }
  const double number = std::get<double>(value);
  return std::isnan(number) ? "-" : fmt::format("{:.{}f}", number, format.digits);
}

void bench_report::print_table() const {
  const machine m = this_machine();
  std::cout << fmt::format("{} on {}, {} cores, {}, load {:.1f}{}\n\n", bench_, m.cpu, m.cores,
                           m.system, m.load, options_.quick ? " (quick: not a measurement)" : "");
  std::vector<std::size_t> widths;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    widths.push_back(columns_[i].heading.size());
    for (const auto& row : rows_) {
      widths[i] = std::max(widths[i], text_of(row[i], columns_[i]).size());
    }
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const bool words = !rows_.empty() && std::holds_alternative<std::string>(rows_.front()[i]);
    std::cout << fmt::format(fmt::runtime(words ? "{:<{}}  " : "{:>{}}  "), columns_[i].heading,
                             widths[i]);
  }
  std::cout << '\n';
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool words = std::holds_alternative<std::string>(row[i]);
      std::cout << fmt::format(fmt::runtime(words ? "{:<{}}  " : "{:>{}}  "),
                               text_of(row[i], columns_[i]), widths[i]);
    }
    std::cout << '\n';
  }
  for (const auto& line : notes_) {
    std::cout << '\n' << line << '\n';
  }
}

}  // namespace eldr::apps
