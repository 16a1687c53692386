//! The plot: a panel for each subject and figure, a line for each store, logarithmic axes.

use std::fmt::Write;

use super::page::{series, stores, thousands};
use super::{Figure, Point, Subject};

const PANEL: (f64, f64) = (300.0, 220.0);
const MARGIN: (f64, f64) = (56.0, 44.0);
const COLUMNS: usize = 3;
const LEGEND: f64 = 40.0;
/// Told apart with and without colour vision: hue and dash both differ.
const LINES: [(&str, &str); 7] = [
    ("#0072b2", ""),
    ("#e69f00", "6 3"),
    ("#009e73", "2 2"),
    ("#d55e00", "8 3 2 3"),
    ("#cc79a7", "4 2"),
    ("#56b4e9", "1 3"),
    ("#7f7f7f", "10 4"),
];

pub(super) fn svg(points: &[Point]) -> String {
    let panels: Vec<(Subject, Figure)> =
        Subject::ALL.iter().flat_map(|s| s.figures().iter().map(|f| (*s, *f))).collect();
    let rows = panels.len().div_ceil(COLUMNS);
    #[allow(clippy::cast_precision_loss)]
    let (width, height) = (COLUMNS as f64 * PANEL.0, rows as f64 * PANEL.1 + LEGEND);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    let (low, high) = points.iter().fold((f64::MAX, f64::MIN), |(low, high), p| {
        (low.min(p.micros.max(0.1)), high.max(p.micros.max(0.1)))
    });
    let range = (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0));
    for (i, (subject, figure)) in panels.into_iter().enumerate() {
        #[allow(clippy::cast_precision_loss)]
        let corner = ((i % COLUMNS) as f64 * PANEL.0, (i / COLUMNS) as f64 * PANEL.1);
        panel(&mut svg, points, (subject, figure), corner, range);
    }
    for (i, (store, (colour, dash))) in stores(points).zip(LINES).enumerate() {
        #[allow(clippy::cast_precision_loss)]
        let (x, y) = (20.0 + i as f64 * 125.0, height - 18.0);
        let _ = writeln!(
            svg,
            "<path d=\"M{x} {y}h28\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"/><text x=\"{}\" y=\"{}\">{store}</text>",
            x + 34.0,
            y + 4.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn panel(
    svg: &mut String,
    points: &[Point],
    (subject, figure): (Subject, Figure),
    (left, top): (f64, f64),
    (low, high): (f64, f64),
) {
    let mut sizes: Vec<usize> =
        points.iter().filter(|p| p.subject == subject).map(|p| p.n).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let (Some(&first), Some(&last)) = (sizes.first(), sizes.last()) else { return };
    let (x0, y0) = (left + MARGIN.0, top + PANEL.1 - MARGIN.1);
    let (wide, tall) = (PANEL.0 - MARGIN.0 - 16.0, PANEL.1 - MARGIN.1 - 30.0);
    #[allow(clippy::cast_precision_loss)]
    let log = |n: usize| (n as f64).log10();
    let x = |n: usize| x0 + wide * (log(n) - log(first)) / (log(last) - log(first)).max(1.0);
    let y = |micros: f64| y0 - tall * (micros.max(0.1).log10() - low) / (high - low);
    let title = format!("{}: {figure:?}", subject.title()).to_lowercase();
    let _ =
        writeln!(svg, "<text x=\"{x0}\" y=\"{}\" font-weight=\"bold\">{title}</text>", top + 20.0);
    let mut decade = low;
    while decade <= high {
        let at = y(10f64.powf(decade));
        let _ = writeln!(
            svg,
            "<path d=\"M{x0} {at:.1}h{wide}\" stroke=\"#dddddd\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{} µs</text>",
            x0 - 5.0,
            at + 4.0,
            10f64.powf(decade)
        );
        decade += 1.0;
    }
    for &n in &sizes {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            x(n),
            y0 + 16.0,
            thousands(n)
        );
    }
    for (store, (colour, dash)) in stores(points).zip(LINES) {
        let line: Vec<String> = series(points, store, subject, figure)
            .into_iter()
            .map(|(n, micros)| format!("{:.1},{:.1}", x(n), y(micros)))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\" \
             stroke-dasharray=\"{dash}\"><title>{store}</title></polyline>",
            line.join(" ")
        );
    }
}
