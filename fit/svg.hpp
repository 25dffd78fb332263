#pragma once
/// The two kinds of plots that reports need, as SVG for an HTML page. Colours come from the page's
/// style sheet through the classes line-0, line-1, bar-0, bar-1, grid and axis.

#include <string>
#include <string_view>
#include <vector>

namespace eldr::fit {

/// Text with the characters that HTML gives a meaning to replaced.
std::string escape_html(std::string_view text);

struct plot_series {
  std::string name;
  std::vector<double> values;  ///< Values that are not finite are left out.
};

/// Lines over the positions 1, 2, ...
std::string line_plot(const std::vector<plot_series>& series, std::string_view x_title,
                      std::string_view y_title);

/// Groups of bars, one bar of each series per position; `names` are those of the positions.
std::string bar_plot(const std::vector<plot_series>& series, const std::vector<std::string>& names,
                     std::string_view y_title);

}  // namespace eldr::fit
