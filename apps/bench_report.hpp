#pragma once
/// How benchmarks tell what they measured: a table for people, or one JSON object.

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "apps/quantile.hpp"  // For those who report.

namespace eldr::apps {

/// What all benchmarks take.
struct bench_options {
  bool quick = false;  ///< Short runs: shows that it works, measures little.
  bool json = false;
};
void add_bench_options(CLI::App& app, bench_options& options);

/// One line on standard error: what a long run is doing now.
void show_progress(std::string_view text);

class bench_report {
 public:
  struct column {
    std::string key;      ///< In JSON; ends with its unit.
    std::string heading;  ///< In the table.
    int digits = 2;       ///< After the point, for numbers.
  };
  /// NaN stands for "not measured": "-" in the table, null in JSON.
  using cell = std::variant<std::string, double>;

  bench_report(std::string bench, const bench_options& options, std::vector<column> columns);
  /// One cell per column.
  void add(std::vector<cell> row);
  /// A line below the table.
  void note(std::string text) { notes_.push_back(std::move(text)); }
  /// To standard output.
  void print() const;

 private:
  void print_json() const;
  void print_table() const;
  std::string text_of(const cell& value, const column& format) const;

  std::string bench_;
  bench_options options_;
  std::vector<column> columns_;
  std::vector<std::vector<cell>> rows_;
  std::vector<std::string> notes_;
};

}  // namespace eldr::apps
