#include "perf/tools/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

namespace cenote::perf {
namespace {

constexpr double width = 900, height = 520, left = 90, right = 30, top = 70, bottom = 70;

struct Curve {
  std::string name, colour;
  std::vector<std::pair<double, double>> points;  ///< size, value; values above 0
};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return out;
}

std::string size_text(double bytes) {
  constexpr const char* units[] = {"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return fmt::format("{:g} {}", bytes, units[unit]);
}

/// A position for each value between two ends, and where the ticks are.
struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;
  std::vector<double> ticks;

  [[nodiscard]] double part(double value) const {
    if (!logarithmic) return (value - low) / (high - low);
    return std::log(value / low) / std::log(high / low);
  }
};

/// From 0, in steps of 1, 2 or 5 times a power of ten.
Axis linear(double most) {
  Axis axis;
  const double rough = std::max(most, 1e-9) / 6;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough / power <= 1 ? 1 : rough / power <= 2 ? 2 : rough / power <= 5 ? 5 : 10);
  const auto steps = static_cast<int>(std::ceil(most / step));
  for (int i = 0; i <= std::max(steps, 1); ++i) axis.ticks.push_back(i * step);
  axis.high = axis.ticks.back();
  return axis;
}

/// Whole powers of `base` around all values.
Axis logarithmic(double least, double most, double base) {
  Axis axis;
  axis.logarithmic = true;
  axis.low = std::pow(base, std::floor(std::log(least) / std::log(base) + 1e-9));
  axis.high = std::pow(base, std::ceil(std::log(most) / std::log(base) - 1e-9));
  if (axis.high <= axis.low) axis.high = axis.low * base;
  const auto powers = std::lround(std::log(axis.high / axis.low) / std::log(base));
  for (long power = 0; power <= powers; ++power)
    axis.ticks.push_back(axis.low * std::pow(base, static_cast<double>(power)));
  return axis;
}

double x_of(const Axis& axis, double value) { return left + axis.part(value) * (width - left - right); }
double y_of(const Axis& axis, double value) {
  return height - bottom - axis.part(value) * (height - top - bottom);
}

std::vector<Curve> curves_of(const Tool& tool, const Show& show, const std::vector<Measurement>& measured) {
  std::vector<Curve> curves;
  const auto add = [&](const char* name, const char* colour,
                       const std::function<double(const Figures&)>& value) {
    Curve curve{name, colour, {}};
    for (const auto& one : measured) {
      const double v = value(one.figures);
      if (v > 0) curve.points.emplace_back(static_cast<double>(one.plan.size), v);
    }
    if (!curve.points.empty()) curves.push_back(std::move(curve));
  };
  if (tool.latency) {
    const auto of = [](double LatencyFigures::*member) {
      return [member](const Figures& f) { return f.latency ? (*f.latency).*member : 0; };
    };
    add("typical", "#1f77b4", of(&LatencyFigures::typical));
    add("99 %", "#ff7f0e", of(&LatencyFigures::p99));
    add("99.9 %", "#d62728", of(&LatencyFigures::p999));
    return curves;
  }
  const double unit = show.gbits ? 8 / 1e9 : 1.0 / (1 << 20);
  add("average", "#1f77b4", [&](const Figures& f) { return f.bandwidth ? f.bandwidth->average * unit : 0; });
  add("peak", "#ff7f0e",
      [&](const Figures& f) { return f.bandwidth ? f.bandwidth->peak.value_or(0) * unit : 0; });
  return curves;
}

std::string text_at(double x, double y, const char* anchor, int size, std::string_view text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" font-size=\"{}\">{}</text>\n", x, y,
                     anchor, size, escaped(text));
}

std::string grid(const Axis& x, const Axis& y) {
  std::string out;
  const std::size_t every = x.ticks.size() / 12 + 1;
  for (std::size_t i = 0; i < x.ticks.size(); i += every) {
    const double at = x_of(x, x.ticks[i]);
    out += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\" stroke=\"#ddd\"/>\n", at,
                       top, height - bottom);
    out += text_at(at, height - bottom + 20, "middle", 12, size_text(x.ticks[i]));
  }
  for (const double tick : y.ticks) {
    const double at = y_of(y, tick);
    out += fmt::format("<line x1=\"{1}\" y1=\"{0:.1f}\" x2=\"{2}\" y2=\"{0:.1f}\" stroke=\"#ddd\"/>\n", at,
                       left, width - right);
    out += text_at(left - 8, at + 4, "end", 12, fmt::format("{:g}", tick));
  }
  return out;
}

std::string draw(const Curve& curve, std::size_t place, const Axis& x, const Axis& y) {
  std::string path, dots;
  for (const auto& [size, value] : curve.points) {
    path += fmt::format("{}{:.1f},{:.1f}", path.empty() ? "" : " ", x_of(x, size), y_of(y, value));
    dots += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3\" fill=\"{}\"><title>{}: {:.4g}</title></circle>\n",
        x_of(x, size), y_of(y, value), curve.colour, size_text(size), value);
  }
  const double at = left + 10 + static_cast<double>(place) * 110;
  return fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path,
                     curve.colour) +
         dots +
         fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"14\" height=\"4\" fill=\"{}\"/>\n", at, top - 14,
                     curve.colour) +
         text_at(at + 20, top - 8, "start", 12, curve.name);
}

}  // namespace

std::string plot(const Tool& tool, const Show& show, const Joined& joined,
                 const std::vector<Measurement>& measured) {
  const auto curves = curves_of(tool, show, measured);
  double least_x = 2, most_x = 4, least = 1, most = 1;
  bool first = true;
  for (const auto& curve : curves) {
    for (const auto& [size, value] : curve.points) {
      least_x = first ? size : std::min(least_x, size);
      most_x = first ? size : std::max(most_x, size);
      least = first ? value : std::min(least, value);
      most = first ? value : std::max(most, value);
      first = false;
    }
  }
  const Axis x = logarithmic(least_x, most_x, 2);
  const Axis y = tool.latency ? logarithmic(least, most, 10) : linear(most);
  std::string out = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
      "font-family=\"sans-serif\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n",
      width, height);
  out += text_at(left, 28, "start", 18, fmt::format("cenote perf {} over {}", tool.name, joined.transport));
  out += grid(x, y);
  out += text_at((left + width - right) / 2, height - 22, "middle", 13, "bytes of a message");
  const char* what = tool.latency ? "microseconds" : show.gbits ? "Gb/sec (10^9 bits)" : "MiB/sec";
  out += fmt::format(
             "<text transform=\"translate(22 {:.1f}) rotate(-90)\" text-anchor=\"middle\" font-size=\"13\">",
             (top + height - bottom) / 2) +
         std::string(what) + "</text>\n";
  for (std::size_t i = 0; i < curves.size(); ++i) out += draw(curves[i], i, x, y);
  return out + "</svg>\n";
}

}  // namespace cenote::perf
