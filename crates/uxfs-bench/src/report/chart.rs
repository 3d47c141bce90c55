//! Curves over thread counts, as SVG that stands in a page and needs nothing else.

use super::text::{escaped, figure};
use std::fmt::Write;

/// Of the drawing, in its own units.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;

/// From this ratio of the largest to the smallest value on, the axis is logarithmic.
const LOG_FROM: f64 = 25.0;

/// Colours that can be told apart, also by those who do not see red and green as others do.
const COLOURS: usize = 8;

/// One curve.
pub(super) struct Curve {
    pub(super) name: String,
    /// A value for each thread count.
    pub(super) values: Vec<Option<f64>>,
}

/// How values become heights.
enum Scale {
    Linear {
        max: f64,
        step: f64,
    },
    /// From one power of ten to another.
    Log {
        from: i32,
        to: i32,
    },
}

impl Scale {
    fn of(curves: &[Curve]) -> Self {
        let values: Vec<f64> = curves.iter().flat_map(|curve| &curve.values).flatten().copied().collect();
        let max = values.iter().copied().fold(0.0, f64::max);
        let min = values.iter().copied().filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
        if min.is_finite() && max / min >= LOG_FROM {
            return Self::Log { from: min.log10().floor() as i32, to: max.log10().ceil() as i32 };
        }
        let step = round_step(max / 4.0);
        Self::Linear { max: step * (max / step).ceil().max(1.0), step }
    }

    /// From 0 at the bottom to 1 at the top.
    fn height(&self, value: f64) -> f64 {
        let height = match *self {
            Self::Linear { max, .. } => value / max,
            Self::Log { from, to } => {
                (value.max(f64::MIN_POSITIVE).log10() - f64::from(from)) / f64::from((to - from).max(1))
            }
        };
        height.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        match *self {
            Self::Linear { max, step } => {
                (0..=(max / step).round() as u32).map(|nth| f64::from(nth) * step).collect()
            }
            Self::Log { from, to } => (from..=to.max(from + 1)).map(|power| 10_f64.powi(power)).collect(),
        }
    }
}

/// 1, 2 or 5 times a power of ten, not below `step`.
fn round_step(step: f64) -> f64 {
    if step <= 0.0 || !step.is_finite() {
        return 1.0;
    }
    let power = 10_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|times| times * power).find(|&round| round >= step).unwrap_or(step)
}

/// Curves over thread counts, with a legend; `unit` is what is counted.
pub(super) fn curves(title: &str, threads: &[usize], unit: &str, curves: &[Curve]) -> String {
    let scale = Scale::of(curves);
    let x = |nth: usize| {
        let steps = threads.len().saturating_sub(1).max(1) as f64;
        let part = if threads.len() == 1 { 0.5 } else { nth as f64 / steps };
        LEFT + part * (WIDTH - LEFT - RIGHT)
    };
    let y = |value: f64| HEIGHT - BOTTOM - scale.height(value) * (HEIGHT - TOP - BOTTOM);
    let logarithmic = if matches!(scale, Scale::Log { .. }) { ", logarithmic" } else { "" };
    let mut svg = format!(
        "<figure><figcaption>{} <small>({}{logarithmic})</small></figcaption>\
         <svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{}\">\n",
        escaped(title),
        escaped(unit),
        escaped(title)
    );
    for tick in scale.ticks() {
        let at = y(tick);
        let _ = writeln!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            figure(tick)
        );
    }
    for (nth, count) in threads.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{count}</text>",
            x(nth),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">threads</text>",
        (LEFT + WIDTH - RIGHT) / 2.0,
        HEIGHT - 8.0
    );
    let mut legend = String::from("<ul class=\"legend\">");
    for (nth, curve) in curves.iter().enumerate() {
        let points: Vec<(usize, f64, f64, f64)> = (0..threads.len())
            .filter_map(|at| {
                let value = curve.values.get(at).copied().flatten()?;
                Some((threads[at], x(at), y(value), value))
            })
            .collect();
        // Colours begin again after the last, with other dashes.
        let class = format!("c{}{}", nth % COLOURS, if nth < COLOURS { "" } else { " again" });
        let line: Vec<String> = points.iter().map(|(_, x, y, _)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(svg, "<g class=\"{class}\"><polyline points=\"{}\"/>", line.join(" "));
        for (threads, x, y, value) in points {
            let _ = writeln!(
                svg,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"><title>{}, {threads}: {}</title></circle>",
                escaped(&curve.name),
                figure(value)
            );
        }
        svg.push_str("</g>\n");
        let _ = write!(legend, "<li class=\"{class}\">{}</li>", escaped(&curve.name));
    }
    svg.push_str("</svg>");
    svg.push_str(&legend);
    svg.push_str("</ul></figure>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(values: &[f64]) -> Curve {
        Curve { name: "a & b".into(), values: values.iter().map(|&value| Some(value)).collect() }
    }

    #[test]
    fn axes_hold_all_values_and_are_logarithmic_where_these_lie_far_apart() {
        let linear = Scale::of(&[curve(&[3.0, 17.0])]);
        assert_eq!(linear.ticks(), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert!((linear.height(17.0) - 0.85).abs() < 1e-9);
        let log = Scale::of(&[curve(&[98.0, 5800.0])]);
        assert_eq!(log.ticks(), [10.0, 100.0, 1000.0, 10_000.0]);
        assert!(log.height(98.0) > 0.3 && log.height(5800.0) < 1.0);
        // An empty chart must not fail.
        assert!(Scale::of(&[]).height(0.0).abs() < 1e-9);
    }

    #[test]
    fn each_value_is_a_point_and_each_name_is_in_the_legend() {
        let svg = curves("t", &[1, 2, 4], "operations a second", &[curve(&[1.0, 2.0, 4.0]), curve(&[3.0])]);
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<li class=").count(), 2);
        assert!(svg.contains("a &amp; b, 4: 4"), "{svg}");
    }
}
