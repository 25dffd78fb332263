#include "fit/svg.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace eldr::fit {
namespace {

constexpr double width = 760, height = 300;
constexpr double left = 64, right = 16, top = 28, bottom = 44;

/// A vertical axis whose ends are round numbers.
struct value_axis {
  double low = 0;
  double high = 1;
  double step = 0.5;

  double y(double value) const {
    return height - bottom - (value - low) / (high - low) * (height - top - bottom);
  }
};

value_axis axis_for(const std::vector<plot_series>& series, bool from_zero) {
  double low = from_zero ? 0 : INFINITY;
  double high = from_zero ? 0 : -INFINITY;
  for (const plot_series& one : series) {
    for (const double value : one.values) {
      if (std::isfinite(value)) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
    }
  }
  if (!(high > low)) {
    high = std::isfinite(low) ? low + 1 : 1;
    low = high - 1;
  }
  const double rough = (high - low) / 5;
  const double magnitude = std::pow(10, std::floor(std::log10(rough)));
  const double step = magnitude * (rough <= magnitude * 2 ? 2 : rough <= magnitude * 5 ? 5 : 10);
  return {std::floor(low / step) * step, std::ceil(high / step) * step, step};
}

void add_axis(const value_axis& axis, std::string_view title, std::string& svg) {
  const auto out = std::back_inserter(svg);
  const int lines = static_cast<int>(std::lround((axis.high - axis.low) / axis.step));
  const int decimals = std::max(0, -static_cast<int>(std::floor(std::log10(axis.step))));
  for (int i = 0; i <= lines; ++i) {
    const double value = axis.low + i * axis.step;
    fmt::format_to(out, "<line class='grid' x1='{}' x2='{}' y1='{:.1f}' y2='{:.1f}'/>", left,
                   width - right, axis.y(value), axis.y(value));
    fmt::format_to(out, "<text class='axis' x='{}' y='{:.1f}' text-anchor='end'>{:.{}f}</text>\n",
                   left - 8, axis.y(value) + 4, value, decimals);
  }
  fmt::format_to(out, "<text class='axis' x='{}' y='16'>{}</text>\n", 8, escape_html(title));
}

void add_legend(const std::vector<plot_series>& series, std::string_view shape, std::string& svg) {
  double x = width / 2;
  for (std::size_t i = 0; i < series.size(); ++i) {
    fmt::format_to(std::back_inserter(svg),
                   "<rect class='{}-{} key' x='{:.0f}' y='8' width='12' height='8'/>"
                   "<text class='axis' x='{:.0f}' y='16'>{}</text>\n",
                   shape, i, x, x + 18, escape_html(series[i].name));
    x += 40 + 7.0 * static_cast<double>(series[i].name.size());
  }
}

std::string open_svg() {
  return fmt::format("<svg viewBox='0 0 {} {}' role='img'>\n", width, height);
}

void add_position_name(double x, std::string_view name, std::string& svg) {
  fmt::format_to(std::back_inserter(svg),
                 "<text class='axis' x='{:.1f}' y='{}' text-anchor='middle'>{}</text>\n", x,
                 height - bottom + 18, escape_html(name));
}

/// Every how many positions a name fits.
std::size_t name_stride(std::size_t positions) {
  return positions / 16 + 1;
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '&':
        escaped += "&amp;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string line_plot(const std::vector<plot_series>& series, std::string_view x_title,
                      std::string_view y_title) {
  const value_axis axis = axis_for(series, /*from_zero=*/false);
  std::string svg = open_svg();
  add_axis(axis, y_title, svg);
  add_legend(series, "line", svg);
  std::size_t positions = 1;
  for (const plot_series& one : series) {
    positions = std::max(positions, one.values.size());
  }
  const double spacing =
      (width - left - right) / static_cast<double>(std::max<std::size_t>(positions - 1, 1));
  const auto x = [spacing](std::size_t position) {
    return left + spacing * static_cast<double>(position);
  };
  for (std::size_t i = 0; i < series.size(); ++i) {
    std::string points;
    for (std::size_t p = 0; p < series[i].values.size(); ++p) {
      if (std::isfinite(series[i].values[p])) {
        fmt::format_to(std::back_inserter(points), "{:.1f},{:.1f} ", x(p),
                       axis.y(series[i].values[p]));
      }
    }
    fmt::format_to(std::back_inserter(svg), "<polyline class='line-{}' points='{}'/>\n", i, points);
  }
  for (std::size_t p = 0; p < positions; p += name_stride(positions)) {
    add_position_name(x(p), std::to_string(p + 1), svg);
  }
  fmt::format_to(std::back_inserter(svg),
                 "<text class='axis' x='{}' y='{}' text-anchor='end'>{}</text></svg>\n",
                 width - right, height - 6, escape_html(x_title));
  return svg;
}

std::string bar_plot(const std::vector<plot_series>& series, const std::vector<std::string>& names,
                     std::string_view y_title) {
  const value_axis axis = axis_for(series, /*from_zero=*/true);
  std::string svg = open_svg();
  add_axis(axis, y_title, svg);
  add_legend(series, "bar", svg);
  const double spacing =
      (width - left - right) / static_cast<double>(std::max<std::size_t>(names.size(), 1));
  const double bar = spacing * 0.8 / static_cast<double>(std::max<std::size_t>(series.size(), 1));
  for (std::size_t p = 0; p < names.size(); ++p) {
    const double first = left + spacing * (static_cast<double>(p) + 0.1);
    for (std::size_t i = 0; i < series.size(); ++i) {
      const double value = p < series[i].values.size() ? series[i].values[p] : NAN;
      if (!std::isfinite(value)) {
        continue;
      }
      fmt::format_to(std::back_inserter(svg),
                     "<rect class='bar-{}' x='{:.1f}' y='{:.1f}' width='{:.1f}' height='{:.1f}'>"
                     "<title>{}: {:.4g}</title></rect>\n",
                     i, first + bar * static_cast<double>(i), axis.y(value), bar,
                     axis.y(axis.low) - axis.y(value), escape_html(names[p]), value);
    }
    if (p % name_stride(names.size()) == 0) {
      add_position_name(first + spacing * 0.4, names[p], svg);
    }
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace eldr::fit
