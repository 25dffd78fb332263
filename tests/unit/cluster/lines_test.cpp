#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "cluster/line_output.hpp"
#include "cluster/line_reader.hpp"
#include "cluster/readiness.hpp"

namespace eldr::cluster {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

struct test_pipe {
  unique_fd read;
  unique_fd write;

  test_pipe() {
    std::array<int, 2> fds{};
    if (pipe(fds.data()) == 0) {
      read.reset(fds[0]);
      write.reset(fds[1]);
    }
  }
};

void put(int fd, const std::string& text) {
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

std::vector<std::string> lines_now(line_reader& reader) {
  std::vector<std::string> lines;
  reader.read_some(1 << 20, [&](std::string_view line) { lines.emplace_back(line); });
  return lines;
}

TEST(line_reader, gives_whole_lines_and_at_the_end_the_rest) {
  test_pipe p;
  line_reader reader(std::move(p.read));
  put(p.write.get(), "one\n\ntw");
  EXPECT_THAT(lines_now(reader), ElementsAre("one", ""));
  put(p.write.get(), "o\nthree");
  EXPECT_THAT(lines_now(reader), ElementsAre("two"));
  EXPECT_GE(reader.fd(), 0);
  p.write.reset();
  EXPECT_THAT(lines_now(reader), ElementsAre("three"));
  EXPECT_EQ(reader.fd(), -1);
  EXPECT_THAT(lines_now(reader), ElementsAre());
}

TEST(line_reader, cuts_endless_lines) {
  test_pipe p;
  line_reader reader(std::move(p.read));
  put(p.write.get(), std::string(2 * line_reader::line_bytes_max + 1, 'x') + "\n");
  EXPECT_THAT(lines_now(reader), ElementsAre(std::string(line_reader::line_bytes_max, 'x'),
                                             std::string(line_reader::line_bytes_max, 'x'), "x"));
}

TEST(line_reader, reads_no_more_than_it_was_asked_for) {
  test_pipe p;
  line_reader reader(std::move(p.read));
  put(p.write.get(), std::string(20'000, '\n'));
  std::size_t lines = 0;
  reader.read_some(4096, [&](std::string_view) { ++lines; });
  EXPECT_EQ(lines, 4096u);
}

TEST(line_reader, loses_nothing_however_the_bytes_arrive) {
  std::mt19937_64 random(5);
  test_pipe p;
  line_reader reader(std::move(p.read));
  std::string sent;
  std::string got;
  for (int round = 0; round < 300; ++round) {
    std::string piece(random() % 400, 'a');
    for (char& c : piece) {
      c = random() % 30 == 0 ? '\n' : static_cast<char>('a' + random() % 26);
    }
    put(p.write.get(), piece);
    sent += piece;
    for (const std::string& line : lines_now(reader)) {
      got += line + "\n";
    }
  }
  EXPECT_EQ(got, sent.substr(0, sent.rfind('\n') + 1));
}

std::string drain(const unique_fd& fd) {
  std::string text(1 << 20, '\0');
  const ssize_t length = ::read(fd.get(), text.data(), text.size());
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return text;
}

TEST(line_output, keeps_the_status_below_the_lines) {
  test_pipe p;
  line_output output(p.write.get(), true);
  output.set_status("half");
  output.add("line");
  output.set_status("");
  EXPECT_EQ(drain(p.read), "half\r\x1b[Kline\nhalf\r\x1b[K");
}

TEST(line_output, shows_no_status_where_nobody_sees_it) {
  test_pipe p;
  line_output output(p.write.get(), false);
  output.set_status("half");
  output.add("line");
  EXPECT_EQ(drain(p.read), "line\n");
}

TEST(line_output, drops_and_counts_what_nobody_reads) {
  test_pipe p;
  line_output output(p.write.get(), false);
  const std::string line(999, 'x');
  for (int i = 0; i < 2000; ++i) {
    output.add(line);
  }
  std::size_t read = 0;
  while (output.pending_fd() >= 0) {
    read += drain(p.read).size();
    output.write_some();
  }
  read += drain(p.read).size();
  EXPECT_LT(read, 2 * line_output::pending_bytes_max);
  EXPECT_EQ(read % 1000, 0u);
  output.add("back");
  EXPECT_EQ(drain(p.read), "(" + std::to_string(2000 - read / 1000) +
                               " lines were dropped because nobody read them)\nback\n");
}

TEST(line_output, survives_a_reader_that_has_gone) {
  signal(SIGPIPE, SIG_IGN);
  test_pipe p;
  line_output output(p.write.get(), false);
  p.read.reset();
  output.add("line");
  output.add("line");
  EXPECT_EQ(output.pending_fd(), -1);
  output.flush(std::chrono::hours(1));
}

TEST(readiness, is_one_line) {
  test_pipe p;
  report_ready(dup(p.write.get()));
  report_failure(dup(p.write.get()), "port 7400\nis in use");
  EXPECT_EQ(drain(p.read), "ready\nerror: port 7400 is in use\n");
  report_failure(dup(p.write.get()), std::string(100'000, 'x'));
  const std::string cut = drain(p.read);
  EXPECT_EQ(cut.size(), 4096u);
  EXPECT_THAT(cut, EndsWith("x\n"));
}

TEST(readiness, needs_no_supervisor) {
  signal(SIGPIPE, SIG_IGN);
  report_ready(-1);
  test_pipe p;
  p.read.reset();
  report_failure(dup(p.write.get()), "nobody hears this");
}

TEST(readiness, is_understood) {
  EXPECT_TRUE(parse_readiness("ready").ready);
  EXPECT_EQ(parse_readiness("error: no model").failure, "no model");
  EXPECT_FALSE(parse_readiness("error: no model").ready);
  EXPECT_FALSE(parse_readiness("ready?").ready);
  EXPECT_THAT(parse_readiness("ready?").failure, HasSubstr("'ready?'"));
}

}  // namespace
}  // namespace eldr::cluster
