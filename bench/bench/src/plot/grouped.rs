//! Bars in groups, one panel below the other, with values and one legend: values that depend on no
//! size.

use std::path::{Path, PathBuf};

use anyhow::Result;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{Area, FONT, failed, load_font, with_endings};
use crate::units;

const WIDTH: u32 = 1200;
const PANEL_HEIGHT: u32 = 300;
const LEGEND_HEIGHT: i32 = 70;
const LEGEND_SQUARE: i32 = 12;
/// Height for the names of groups.
const NAMES_HEIGHT: i32 = 30;

/// One picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    pub title: String,
    /// Bars of each group, in this order, with the same colour everywhere.
    pub names: Vec<(String, RGBColor)>,
    pub panels: Vec<Panel>,
    /// Logarithmic axis, for values that differ by orders of magnitude.
    pub is_logarithmic: bool,
}

/// A row of the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    pub title: String,
    /// Name, and the value of each bar, if it has one.
    pub groups: Vec<(String, Vec<Option<f64>>)>,
}

/// Draws the picture as SVG and PNG.
pub fn grouped(stem: &Path, bars: &Bars) -> Result<Vec<PathBuf>> {
    load_font();
    let [svg, png] = with_endings(stem);
    let size = (
        WIDTH,
        LEGEND_HEIGHT as u32 + PANEL_HEIGHT * bars.panels.len() as u32,
    );
    draw(bars, &SVGBackend::new(&svg, size).into_drawing_area())?;
    draw(bars, &BitMapBackend::new(&png, size).into_drawing_area())?;
    Ok(vec![svg, png])
}

fn draw<B: DrawingBackend>(bars: &Bars, area: &Area<B>) -> Result<()> {
    area.fill(&WHITE).map_err(failed)?;
    let (above, below) = area.split_vertically(LEGEND_HEIGHT);
    legend(bars, &above)?;
    let panels = below.split_evenly((bars.panels.len().max(1), 1));
    for (panel, area) in bars.panels.iter().zip(&panels) {
        let values = panel.groups.iter().flat_map(|(_, values)| values);
        let values: Vec<f64> = values
            .flatten()
            .copied()
            .filter(|value| *value > 0.0)
            .collect();
        let high = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        if bars.is_logarithmic {
            let low = values.iter().copied().fold(high, f64::min) / 2.0;
            draw_panel(bars, panel, area, (low..high * 2.0).log_scale(), low)?;
        } else {
            draw_panel(bars, panel, area, 0.0..high * 1.12, 0.0)?;
        }
    }
    area.present().map_err(failed)
}

fn legend<B: DrawingBackend>(bars: &Bars, area: &Area<B>) -> Result<()> {
    let title = Text::new(bars.title.as_str(), (16, 8), (FONT, 20));
    area.draw(&title).map_err(failed)?;
    let apart = (WIDTH as i32 - 80) / bars.names.len().max(1) as i32;
    for (number, (name, colour)) in bars.names.iter().enumerate() {
        let (x, y) = (70 + apart * number as i32, 44);
        let corners = [(x, y), (x + LEGEND_SQUARE, y + LEGEND_SQUARE)];
        let square = Rectangle::new(corners, colour.filled());
        area.draw(&square).map_err(failed)?;
        let text = Text::new(name.as_str(), (x + LEGEND_SQUARE + 6, y - 2), (FONT, 14));
        area.draw(&text).map_err(failed)?;
    }
    Ok(())
}

fn draw_panel<B, Y>(bars: &Bars, panel: &Panel, area: &Area<B>, y: Y, floor: f64) -> Result<()>
where
    B: DrawingBackend,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: ValueFormatter<f64>,
{
    // One slot for each bar, and one between groups.
    let places = bars.names.len() + 1;
    let mut chart = ChartBuilder::on(area)
        .caption(&panel.title, (FONT, 15))
        .margin(8)
        .x_label_area_size(NAMES_HEIGHT)
        .y_label_area_size(54)
        .build_cartesian_2d(0.0..(places * panel.groups.len()) as f64, y)
        .map_err(failed)?;
    let mesh = &mut chart.configure_mesh();
    mesh.disable_x_mesh().disable_x_axis();
    mesh.light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12));
    // Formatted as the values on the bars: a tick at 0.7 is 0.7000000000000001 to the axis.
    let label = |value: &f64| shown(*value);
    mesh.y_label_formatter(&label);
    mesh.label_style((FONT, 13)).draw().map_err(failed)?;
    let centred = Pos::new(HPos::Center, VPos::Bottom);
    for (group, (_, values)) in panel.groups.iter().enumerate() {
        for (number, (value, (_, colour))) in values.iter().zip(&bars.names).enumerate() {
            let Some(value) = value.filter(|value| *value > 0.0) else {
                continue;
            };
            let at = (group * places + number) as f64 + 0.5;
            let corners = [(at + 0.06, floor), (at + 0.94, value)];
            let bar = Rectangle::new(corners, colour.filled());
            chart.draw_series([bar]).map_err(failed)?;
            let style = TextStyle::from((FONT, 11).into_font()).pos(centred);
            let text = Text::new(shown(value), (at + 0.5, value), style);
            chart.draw_series([text]).map_err(failed)?;
        }
    }
    let (across, down) = chart.plotting_area().get_pixel_range();
    let (left, top) = area.get_base_pixel();
    let width = f64::from(across.end - across.start) / panel.groups.len().max(1) as f64;
    for (group, (name, _)) in panel.groups.iter().enumerate() {
        let middle = f64::from(across.start - left) + width * (group as f64 + 0.5);
        let style = TextStyle::from((FONT, 14).into_font()).pos(Pos::new(HPos::Center, VPos::Top));
        let place = (middle as i32, down.end - top + 6);
        let text = Text::new(name.as_str(), place, style);
        area.draw(&text).map_err(failed)?;
    }
    Ok(())
}

/// At most four characters, the width of the bars in a full picture.
fn shown(value: f64) -> String {
    match value {
        value if value < 1.0 => format!("{value:.2}"),
        value => units::three_digits(value),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn every_group_and_every_bar_is_named() {
        let group = |name: &str, values: [f64; 2]| (name.to_owned(), values.map(Some).to_vec());
        let mut bars = Bars {
            title: "seconds".into(),
            names: vec![("tcp".into(), RED), ("quic".into(), BLUE)],
            panels: vec![Panel {
                title: "10 MB".into(),
                // A missing value, or one without a logarithm, is not a bar.
                groups: vec![group("good", [0.25, 0.5]), group("poor", [123.4, 0.0])],
            }],
            is_logarithmic: true,
        };
        bars.panels[0]
            .groups
            .push(("none".into(), vec![None, None]));
        let stem = std::env::temp_dir().join(format!("airdma-grouped-{}", std::process::id()));
        for is_logarithmic in [true, false] {
            bars.is_logarithmic = is_logarithmic;
            let files = grouped(&stem, &bars).unwrap();
            let svg = fs::read_to_string(&files[0]).unwrap();
            for text in [
                "seconds",
                "tcp",
                "quic",
                "10 MB",
                "good",
                "poor",
                ">\n0.25\n<",
                "123",
            ] {
                assert!(svg.contains(text), "{text} is not in it");
            }
            assert!(fs::read(&files[1]).unwrap().starts_with(b"\x89PNG"));
            for file in files {
                fs::remove_file(file).unwrap();
            }
        }
    }
}
