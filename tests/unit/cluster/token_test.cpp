#include "cluster/token.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <thread>
#include <vector>

#include "tests/unit/cluster/scratch_folder.hpp"

namespace eldr::cluster {
namespace {

using testing::HasSubstr;

std::string fault_of_reading(const std::filesystem::path& path) {
  try {
    read_token(path);
    return {};
  } catch (const token_error& e) {
    return e.what();
  }
}

void write_private(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path) << text;
  std::filesystem::permissions(path, std::filesystem::perms{0600});
}

TEST(token, is_created_once_and_private) {
  const scratch_folder folder;
  const std::string token = ensure_token(folder / "token");
  EXPECT_EQ(token.size(), 64u);
  EXPECT_EQ(ensure_token(folder / "token"), token);
  EXPECT_EQ(read_token(folder / "token"), token);
  struct stat status {};
  ASSERT_EQ(stat((folder / "token").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_NE(ensure_token(folder / "other"), token);
}

TEST(token, creation_leaves_no_draft) {
  const scratch_folder folder;
  ensure_token(folder / "token");
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder.path())) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, testing::ElementsAre("token"));
}

TEST(token, all_who_create_at_once_agree) {
  const scratch_folder folder;
  std::vector<std::string> tokens(8);
  {
    std::vector<std::jthread> threads;
    for (std::string& token : tokens) {
      threads.emplace_back([&] { token = ensure_token(folder / "token"); });
    }
  }
  EXPECT_EQ(std::set<std::string>(tokens.begin(), tokens.end()).size(), 1u);
}

TEST(token, may_lack_the_newline) {
  const scratch_folder folder;
  write_private(folder / "token", std::string(64, 'a'));
  EXPECT_EQ(read_token(folder / "token"), std::string(64, 'a'));
}

TEST(token, files_that_others_can_use_are_refused) {
  const scratch_folder folder;
  write_private(folder / "token", std::string(64, 'a') + "\n");
  for (const unsigned mode : {0640u, 0604u, 0620u, 0601u}) {
    std::filesystem::permissions(folder / "token", std::filesystem::perms{mode});
    EXPECT_THAT(fault_of_reading(folder / "token"),
                HasSubstr("run: chmod 600 " + (folder / "token").string()));
    EXPECT_THROW(ensure_token(folder / "token"), token_error);
  }
}

TEST(token, files_without_a_token_are_refused_and_kept) {
  const scratch_folder folder;
  for (const std::string& text :
       {std::string(), std::string("secret\n"), std::string(63, 'a'), std::string(65, 'a'),
        std::string(63, 'a') + "g", std::string(64, 'a') + "\n\n", std::string(1'000'000, 'a')}) {
    write_private(folder / "token", text);
    EXPECT_THAT(fault_of_reading(folder / "token"), HasSubstr("does not hold a token"));
    EXPECT_THROW(ensure_token(folder / "token"), token_error);
    EXPECT_EQ(std::filesystem::file_size(folder / "token"), text.size());
  }
}

TEST(token, missing_files_folders_and_pipes_are_named) {
  const scratch_folder folder;
  EXPECT_THAT(fault_of_reading(folder / "none"), HasSubstr("no such file"));
  EXPECT_THROW(ensure_token(folder / "no-folder" / "token"), token_error);
  EXPECT_THAT(fault_of_reading(folder.path()), HasSubstr("not a regular file"));
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(fault_of_reading(folder / "pipe"), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace eldr::cluster
