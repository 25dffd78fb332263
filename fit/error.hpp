#pragma once
/// What the fit library throws: one sentence for people that says what is wrong and what to do.

#include <stdexcept>

namespace eldr::fit {

class fit_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace eldr::fit
