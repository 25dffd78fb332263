/// Every benchmark runs briefly and reports in the form that it promises. Times are not looked at:
/// the machine may be busy.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/quantile.hpp"

namespace eldr::apps {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using ::testing::StartsWith;

struct command_output {
  int code = -1;
  std::string text;
};

/// Runs `eldr ARGUMENTS`, its standard error thrown away.
command_output run_eldr(const std::string& arguments) {
  FILE* pipe = popen((ELDR_BINARY " " + arguments + " 2> /dev/null").c_str(), "r");
  if (pipe == nullptr) {
    throw std::runtime_error("cannot start " ELDR_BINARY);
  }
  command_output result;
  std::array<char, 4096> buffer;
  for (std::size_t n = 0; (n = fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.text.append(buffer.data(), n);
  }
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

/// The report of `eldr bench ARGUMENTS --quick --json`; checks what all of them have in common.
json report_of(const std::string& name, const std::string& arguments = "") {
  const auto output = run_eldr("bench " + name + " " + arguments + " --quick --json");
  EXPECT_EQ(output.code, 0);
  const json report = json::parse(output.text);
  EXPECT_EQ(report.at("bench"), name);
  EXPECT_EQ(report.at("quick"), true);
  EXPECT_THAT(report.at("version").get<std::string>(), StartsWith("eldr "));
  EXPECT_GE(report.at("machine").at("cores"), 1);
  EXPECT_FALSE(report.at("rows").empty());
  EXPECT_TRUE(report.at("notes").is_array());
  return report;
}

void expect_positive(const json& rows, const std::vector<std::string>& keys) {
  for (const auto& row : rows) {
    for (const auto& key : keys) {
      EXPECT_GT(row.at(key).get<double>(), 0) << key << " in " << row;
    }
  }
}

std::set<std::string> values_of(const json& rows, const std::string& key) {
  std::set<std::string> values;
  for (const auto& row : rows) {
    values.insert(row.at(key).get<std::string>());
  }
  return values;
}

TEST(quantile_test, IsTheNearestMeasuredValue) {
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0), 1);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 0.5), 3);
  EXPECT_EQ(quantile({5, 1, 4, 2, 3}, 1), 5);
  EXPECT_EQ(median({7}), 7);
  EXPECT_TRUE(std::isnan(median({})));
}

TEST(bench_test, Actors) {
  const auto rows = report_of("actors").at("rows");
  EXPECT_EQ(rows.size(), 12);  // Two networks, two sizes, three paths.
  EXPECT_EQ(values_of(rows, "network"), (std::set<std::string>{"shared memory", "tcp"}));
  EXPECT_EQ(values_of(rows, "path"),
            (std::set<std::string>{"actor, inline", "actor, scheduler", "raw UCX"}));
  expect_positive(rows, {"p50_us", "p99_us", "ratio"});
  for (const auto& row : rows) {
    if (row.at("path") == "raw UCX") {
      EXPECT_EQ(row.at("ratio"), 1);
    }
  }
}

TEST(bench_test, Pull) {
  const auto rows = report_of("pull").at("rows");
  EXPECT_EQ(rows.size(), 12);  // Two networks, two layouts, three paths.
  EXPECT_EQ(values_of(rows, "path"),
            (std::set<std::string>{"memcpy", "raw ucp_get", "transport.get"}));
  expect_positive(rows, {"mib", "time_ms", "gb_per_s", "of_memcpy", "of_raw"});
}

TEST(bench_test, Moe) {
  const auto rows = report_of("moe").at("rows");
  EXPECT_EQ(values_of(rows, "dtype"), (std::set<std::string>{"bf16", "f32"}));
  expect_positive(rows, {"union_mib", "step_ms", "read_ms", "of_read_bandwidth"});
}

TEST(bench_test, Router) {
  const auto rows = report_of("router").at("rows");
  EXPECT_THAT(values_of(rows, "policy"), IsSupersetOf({"rr", "random", "jsq", "p2c"}));
  expect_positive(rows, {"choose_ns", "submit_us", "handoff_us", "decisions_per_s"});
  const auto one = report_of("router", "--policy jsq --workers 3").at("rows");
  ASSERT_EQ(one.size(), 1);
  EXPECT_EQ(one.at(0).at("workers"), 3);
}

TEST(bench_test, ServeOnAClusterOfItsOwn) {
  const auto rows = report_of("serve", "--demo").at("rows");
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(rows.at(0).at("where"), "one process");
  EXPECT_EQ(rows.at(1).at("where"), "cluster");
  EXPECT_EQ(rows.at(1).at("failed"), 0);
  expect_positive(rows, {"answers", "ttft_p50_ms", "tpot_p50_ms", "tokens_per_s", "ttft_ratio"});
}

TEST(bench_test, Idle) {
  const auto rows = report_of("idle").at("rows");
  EXPECT_EQ(rows.size(), 8);
  EXPECT_THAT(values_of(rows, "node"), IsSupersetOf({"gateway", "router", "decode-4"}));
  for (const auto& row : rows) {
    EXPECT_GE(row.at("cpu_percent").get<double>(), 0);
  }
}

TEST(bench_test, TableForPeople) {
  const auto output = run_eldr("bench router --quick --policy rr --workers 2");
  EXPECT_EQ(output.code, 0);
  EXPECT_THAT(output.text, HasSubstr("quick: not a measurement"));
  EXPECT_THAT(output.text, HasSubstr("decisions/s"));
  EXPECT_THAT(output.text, HasSubstr("\nrr "));
}

TEST(bench_test, BadInput) {
  EXPECT_EQ(run_eldr("bench").code, 2);
  EXPECT_EQ(run_eldr("bench mou").code, 2);
  EXPECT_EQ(run_eldr("bench actors --rounds 0").code, 2);
  EXPECT_EQ(run_eldr("bench serve --demo --up x.yaml").code, 2);
  EXPECT_EQ(run_eldr("bench moe --shape 8,8").code, 2);
  EXPECT_EQ(run_eldr("bench router --policy best").code, 1);
  EXPECT_EQ(run_eldr("bench moe --batch 4 --experts 1000").code, 1);
  EXPECT_EQ(run_eldr("bench idle --up /nonexistent.yaml").code, 1);
  // The peer of a benchmark is not for people.
  EXPECT_THAT(run_eldr("bench --help").text, Not(HasSubstr("peer")));
}

}  // namespace
}  // namespace eldr::apps
