//! The plot: a panel for each scene, a bar for each contender, one logarithmic axis.

use std::fmt::Write;

use super::contender::{OURS, RAW};
use super::page::{present, thousands, title};
use super::record::Record;
use super::scene::Scene;

const WIDTH: f64 = 860.0;
const LABELS: f64 = 190.0;
const VALUES: f64 = 80.0;
const BAR: f64 = 18.0;
const HEAD: f64 = 34.0;

pub(super) fn svg(record: &Record) -> String {
    let contenders = present(record);
    let rates = record.rows.iter().map(|row| row.rate().max(1.0).log10());
    let (low, high) = rates.fold((f64::MAX, 0.0_f64), |(l, h), rate| (l.min(rate), h.max(rate)));
    // A decade below the lowest, so that its bar has a length.
    let (low, high) = ((low - 0.5).floor().max(0.0), high.ceil());
    let scale = (WIDTH - LABELS - VALUES) / (high - low).max(1.0);
    let mut bars = String::new();
    let mut y = 0.0;
    for scene in Scene::ALL {
        let _ = writeln!(
            bars,
            "<text x=\"8\" y=\"{}\" font-weight=\"bold\">{}: cycles a second</text>",
            y + 22.0,
            scene.title()
        );
        y += HEAD;
        for contender in &contenders {
            let Some(row) = record.row(scene, contender) else { continue };
            let width = ((row.rate().max(1.0).log10() - low) * scale).max(1.0);
            let colour = match contender.peer {
                OURS => "#0072b2",
                RAW => "#bbbbbb",
                _ => "#e69f00",
            };
            let name = title(record, contender).replace("**", "");
            let _ = writeln!(
                bars,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{name}</text>\
                 <rect x=\"{LABELS}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\" fill=\"{colour}\"/>\
                 <text x=\"{:.1}\" y=\"{}\">{}</text>",
                LABELS - 6.0,
                y + 12.0,
                y + 1.0,
                BAR - 4.0,
                LABELS + width + 5.0,
                y + 12.0,
                thousands(row.rate())
            );
            y += BAR;
        }
    }
    y += 10.0;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n\
         <rect width=\"{WIDTH}\" height=\"{y}\" fill=\"#ffffff\"/>\n{bars}</svg>\n"
    )
}
