#pragma once
/// Step time of a decode worker, affine in distinct experts and batch: t = a + b u + c n. Pure.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

namespace eldr::actors {

/// Fitted online by ridge regression to the steps that decoders report; all coefficients >= 0.
/// While what was reported does not tell experts and sequences apart, the last good fit stays.
class step_time_model {
 public:
  struct coefficients {
    double a = 200;  ///< us
    double b = 2;    ///< us per distinct expert, summed over layers
    double c = 20;   ///< us per sequence
  };

  const coefficients& now() const noexcept { return now_; }
  /// Fits accepted so far.
  std::uint32_t fits() const noexcept { return fits_; }

  void observe(double batch, double experts, double step_us) {
    if (!(batch > 0) || !(experts > 0) || !(step_us > 0)) {
      return;
    }
    // Old steps fade: a window of about 4,096.
    if (weight_ >= window) {
      decay(0.5);
    }
    weight_ += 1;
    sum_ = {sum_[0] + experts, sum_[1] + batch, sum_[2] + step_us};
    uu_ += experts * experts;
    un_ += experts * batch;
    nn_ += batch * batch;
    ut_ += experts * step_us;
    nt_ += batch * step_us;
    if (++since_fit_ >= fit_interval && weight_ >= samples_min) {
      since_fit_ = 0;
      fit();
    }
  }

 private:
  static constexpr double window = 4096;
  static constexpr double samples_min = 256;
  static constexpr std::uint32_t fit_interval = 64;
  static constexpr double collinear =
      0.995;  ///< Squared correlation beyond which nothing is told apart.

  void decay(double factor) {
    weight_ *= factor;
    for (auto* m : {&sum_[0], &sum_[1], &sum_[2], &uu_, &un_, &nn_, &ut_, &nt_}) {
      *m *= factor;
    }
  }

  void fit() {
    const double mu = sum_[0] / weight_;
    const double mn = sum_[1] / weight_;
    const double mt = sum_[2] / weight_;
    const double vu = uu_ / weight_ - mu * mu;
    const double vn = nn_ / weight_ - mn * mn;
    const double cov = un_ / weight_ - mu * mn;
    const double cut = ut_ / weight_ - mu * mt;
    const double cnt = nt_ / weight_ - mn * mt;
    if (!(vu > 1e-3 * mu * mu) || !(vn > 1e-3 * mn * mn) || cov * cov > collinear * vu * vn) {
      return;  // Ill-conditioned: frozen.
    }
    constexpr double ridge = 1e-3;
    const double ru = vu * (1 + ridge);
    const double rn = vn * (1 + ridge);
    const double det = ru * rn - cov * cov;
    double b = (cut * rn - cnt * cov) / det;
    double c = (cnt * ru - cut * cov) / det;
    if (b < 0) {
      b = 0;
      c = std::max(cnt / rn, 0.0);
    } else if (c < 0) {
      c = 0;
      b = std::max(cut / ru, 0.0);
    }
    now_ = {std::max(mt - b * mu - c * mn, 0.0), b, c};
    ++fits_;
  }

  coefficients now_;
  std::uint32_t fits_ = 0;
  std::uint32_t since_fit_ = 0;
  double weight_ = 0;
  std::array<double, 3> sum_{};  ///< Experts, batch, time.
  double uu_ = 0;
  double un_ = 0;
  double nn_ = 0;
  double ut_ = 0;
  double nt_ = 0;
};

}  // namespace eldr::actors
