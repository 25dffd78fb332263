#include "fit/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fit/base64.hpp"
#include "fit/error.hpp"
#include "synthetic.hpp"

namespace eldr::fit {
namespace {

using testing::temporary_folder;

std::vector<std::byte> to_bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

/// A .npy file with the given dictionary and data.
std::vector<std::byte> file_with(const std::string& dictionary, std::string_view data,
                                 int version = 1) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  const std::size_t length = dictionary.size();
  for (int byte = 0; byte < (version == 1 ? 2 : 4); ++byte) {
    file += static_cast<char>(length >> (8 * byte) & 0xff);
  }
  file += dictionary;
  file += data;
  return to_bytes(file);
}

std::string error_of(std::vector<std::byte> file) {
  try {
    npy_array::from_bytes(std::move(file), "array");
  } catch (const fit_error& error) {
    return error.what();
  }
  return "";
}

const std::string bytes_2x3 = "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 3), }";

TEST(npy, reads_version_1_and_2_of_every_type) {
  for (const int version : {1, 2}) {
    const auto array = npy_array::from_bytes(file_with(bytes_2x3, "abcdef", version), "array");
    EXPECT_EQ(array.type(), npy_type::uint8);
    EXPECT_THAT(array.shape(), ::testing::ElementsAre(2, 3));
    EXPECT_EQ(array.at<std::uint8_t>(5), 'f');
  }
  const auto wide = npy_array::from_bytes(
      file_with("{'shape': (2,), 'descr': '<u2', 'fortran_order': False}\n", "\x01\x02\x03\x04"),
      "array");
  EXPECT_EQ(wide.at<std::uint16_t>(1), 0x0403);
  const auto whole = npy_array::from_bytes(
      file_with("{\"descr\": \"<i4\", \"fortran_order\": False, \"shape\": ()}",
                "\xff\xff\xff\xff"),
      "array");
  EXPECT_EQ(whole.elements(), 1u);
  EXPECT_EQ(whole.at<std::int32_t>(0), -1);
  const auto real =
      npy_array::from_bytes(file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}",
                                      std::string_view("\0\0\x80\x3f", 4)),
                            "array");
  EXPECT_EQ(real.at<float>(0), 1.0f);
  const auto none = npy_array::from_bytes(
      file_with("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 7)}", ""), "array");
  EXPECT_EQ(none.elements(), 0u);
}

TEST(npy, says_what_is_wrong) {
  using ::testing::HasSubstr;
  EXPECT_THAT(error_of({}), HasSubstr("magic"));
  EXPECT_THAT(error_of(to_bytes("PK\x03\x04 a zip file")), HasSubstr("magic"));
  EXPECT_THAT(error_of(to_bytes("\x93NUMPY")), HasSubstr("truncated"));
  EXPECT_THAT(error_of(file_with(bytes_2x3, "abcdef", 3)), HasSubstr("version 3"));
  EXPECT_THAT(error_of(file_with(bytes_2x3, "abcde")),
              HasSubstr("6 bytes of data and there are 5"));
  EXPECT_THAT(error_of(file_with(bytes_2x3, "abcdefg")), HasSubstr("there are 7"));
  EXPECT_THAT(error_of(file_with("{'descr': '>u2', 'fortran_order': False, 'shape': (1,)}", "ab")),
              HasSubstr("'>u2' is not supported"));
  EXPECT_THAT(error_of(file_with("{'descr': '<f8', 'fortran_order': False, 'shape': (0,)}", "")),
              HasSubstr("'<f8' is not supported"));
  EXPECT_THAT(
      error_of(file_with("{'descr': [('a', '<u2')], 'fortran_order': False, 'shape': ()}", "ab")),
      HasSubstr("record arrays"));
  EXPECT_THAT(error_of(file_with("{'descr': '|u1', 'fortran_order': True, 'shape': (1,)}", "a")),
              HasSubstr("C order"));
  EXPECT_THAT(error_of(file_with("{'descr': '|u1', 'shape': (1,)}", "a")), HasSubstr("lacks"));
  EXPECT_THAT(error_of(file_with("{'descr': '|u1', 'descr': '|u1'}", "a")), HasSubstr("repeated"));
  EXPECT_THAT(error_of(file_with("{'descr': '|u1', 'fortran_order': False, 'shape': (-1,)}", "a")),
              HasSubstr("shape"));
  EXPECT_THAT(error_of(file_with("{'descr': '|u1', 'fortran_order': False, 'shape': "
                                 "(4294967296, 4294967296, 4)}",
                                 "")),
              HasSubstr("too many"));
  EXPECT_THAT(error_of(file_with("{'descr': '|u1', 'fortran_order': False, 'shape': "
                                 "(1,1,1,1,1,1,1,1,1)}",
                                 "a")),
              HasSubstr("8 dimensions"));
}

TEST(npy, survives_every_truncation_and_many_mutations) {
  const auto good = file_with(bytes_2x3, "abcdef");
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_NE(error_of({good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}), "");
  }
  random_source random(1);
  for (int i = 0; i < 20'000; ++i) {
    auto file = good;
    for (std::uint64_t changes = 1 + random.below(3); changes > 0; --changes) {
      file[random.below(file.size())] = static_cast<std::byte>(random.next());
    }
    try {
      const auto array = npy_array::from_bytes(file, "array");
      // What is accepted must be readable to its last element.
      EXPECT_EQ(array.data().size(), array.elements() * item_bytes(array.type()));
    } catch (const fit_error&) {
    }
  }
}

TEST(npy, writer_and_reader_agree_and_an_unfinished_file_is_refused) {
  const temporary_folder folder;
  const auto path = folder.path() / "array.npy";
  npy_writer writer(path, npy_type::uint16, {2, 2});
  const std::vector<std::uint16_t> rows{1, 2, 3, 4, 500, 600, 700, 800};
  writer.append(std::as_bytes(std::span(rows)));
  EXPECT_THROW(writer.append(std::as_bytes(std::span(rows).first(3))), fit_error);
  EXPECT_THROW(npy_array::open(path), fit_error);
  writer.finish();
  const auto array = npy_array::open(path);
  EXPECT_THAT(array.shape(), ::testing::ElementsAre(2, 2, 2));
  EXPECT_EQ(array.at<std::uint16_t>(7), 800);
}

TEST(npy, missing_and_empty_files_are_refused) {
  const temporary_folder folder;
  EXPECT_THROW(npy_array::open(folder.path() / "none.npy"), fit_error);
  EXPECT_THROW(npy_array::open(folder.path()), fit_error);
  std::ofstream(folder.path() / "empty.npy");
  EXPECT_THROW(npy_array::open(folder.path() / "empty.npy"), fit_error);
}

TEST(base64, decodes_the_standard_vectors_and_refuses_others) {
  const auto decoded = [](std::string_view text) {
    const auto bytes = decode_base64(text);
    return bytes ? std::optional(
                       std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()))
                 : std::nullopt;
  };
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("Zg=="), "f");
  EXPECT_EQ(decoded("Zm8="), "fo");
  EXPECT_EQ(decoded("Zm8"), "fo");
  EXPECT_EQ(decoded("Zm9v"), "foo");
  EXPECT_EQ(decoded("Zm9vYmFy"), "foobar");
  EXPECT_EQ(decoded("Zm9vY"), std::nullopt);
  EXPECT_EQ(decoded("Zm9v!mFy"), std::nullopt);
  EXPECT_EQ(decoded("Zh=="), std::nullopt);
  EXPECT_EQ(decoded("===="), std::nullopt);
}

}  // namespace
}  // namespace eldr::fit
