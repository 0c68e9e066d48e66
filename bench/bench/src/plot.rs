//! The measurement as pictures.
//!
//! For each link: bandwidth and latency by message size with their ratios to TCP, CPU, and
//! bandwidth by number of queue pairs.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Once;

use anyhow::{Result, anyhow};
use plotters::coord::{CoordTranslate, Shift};
use plotters::prelude::*;
use plotters::style::register_font;

use crate::measurement::{Curve, Figure, LinkFacts, Measurement, Point};

mod grouped;

pub use grouped::{Bars, Panel, grouped};

const SIZE: (u32, u32) = (1200, 760);
const FONT: &str = "sans-serif";
const OURS: [(&str, RGBColor); 5] = [
    ("credits", RGBColor(209, 73, 91)),
    ("send_events", RGBColor(150, 90, 180)),
    ("write", RGBColor(209, 73, 91)),
    ("send", RGBColor(27, 108, 168)),
    ("read", RGBColor(46, 139, 87)),
];
const PEERS: [RGBColor; 6] = [
    RGBColor(70, 70, 70),
    RGBColor(150, 150, 150),
    RGBColor(200, 170, 60),
    RGBColor(120, 160, 170),
    RGBColor(190, 130, 100),
    RGBColor(110, 140, 90),
];

/// Figures drawn by message size, each with what it is compared with: the first that was measured.
const DRAWN: [(Figure, &str); 7] = [
    (Figure::Bandwidth, "window"),
    (Figure::OneWay, "window"),
    (Figure::Control, "window"),
    (Figure::Bandwidth, "rc_write"),
    (Figure::Bandwidth, "tcp_cubic"),
    (Figure::Latency, "rc_write"),
    (Figure::Latency, "sockperf_tcp"),
];

/// One picture of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Bandwidth and latency, and their ratios to TCP.
    BySize,
    /// CPU, and bandwidth by number of queue pairs.
    Cost,
    /// Latency and control delay of a stream.
    Stream,
    /// Streams of many cameras.
    Cameras,
}

impl Kind {
    fn figures(self) -> &'static [Figure] {
        match self {
            Kind::BySize => &[Figure::Bandwidth, Figure::Latency, Figure::Valid],
            Kind::Cost => &[Figure::Cpu, Figure::QueuePairs, Figure::Sources],
            Kind::Stream => &[Figure::OneWay, Figure::Control, Figure::Kept],
            Kind::Cameras => &[Figure::Cameras, Figure::CamerasCpu, Figure::CameraMemory],
        }
    }
}

/// The pictures: part of each file's name after the stem, and its caption.
pub fn pictures(taken: &Measurement) -> Vec<(String, String)> {
    let all = all(taken).into_iter().map(|(link, kind)| match kind {
        Kind::BySize => (
            link.name.clone(),
            format!(
                "bandwidth, latency and their ratios to TCP by message size; {}",
                link.label
            ),
        ),
        Kind::Cost => (
            format!("{}-cost", link.name),
            format!(
                "CPU for a gigabyte, and bandwidth by number of queue pairs; {}",
                link.label
            ),
        ),
        Kind::Stream => (
            format!("{}-stream", link.name),
            format!(
                "latency by size, control delay and loss by a kept block by number of blocks; {}",
                link.label
            ),
        ),
        Kind::Cameras => (
            format!("{}-cameras", link.name),
            format!(
                "latency, CPU and memory by number of cameras; {}",
                link.label
            ),
        ),
    });
    all.collect()
}

fn all(taken: &Measurement) -> Vec<(&LinkFacts, Kind)> {
    let kinds = [Kind::BySize, Kind::Cost, Kind::Stream, Kind::Cameras];
    let all = taken
        .links
        .iter()
        .flat_map(|link| kinds.map(|kind| (link, kind)));
    let has = |(link, kind): &(&LinkFacts, Kind)| {
        let mut figures = kind.figures().iter();
        figures.any(|figure| !panels(taken, *figure, link).is_empty())
    };
    all.filter(has).collect()
}

/// Name of a picture's file.
pub fn file(stem: &str, picture: &str, ending: &str) -> String {
    format!("{stem}-{picture}.{ending}")
}

/// Writes each picture as SVG and PNG.
pub fn save(taken: &Measurement, stem: &Path) -> Result<Vec<PathBuf>> {
    load_font();
    let stem = stem.display().to_string();
    let mut files = Vec::new();
    for ((link, kind), (name, _)) in all(taken).into_iter().zip(pictures(taken)) {
        let [svg, png] = ["svg", "png"].map(|ending| PathBuf::from(file(&stem, &name, ending)));
        draw(
            taken,
            link,
            kind,
            &SVGBackend::new(&svg, SIZE).into_drawing_area(),
        )?;
        draw(
            taken,
            link,
            kind,
            &BitMapBackend::new(&png, SIZE).into_drawing_area(),
        )?;
        files.extend([svg, png]);
    }
    Ok(files)
}

/// A name, a colour, and points by time.
pub type Line = (String, RGBColor, Vec<(f64, f64)>);

/// Draws values over time, in seconds, as SVG and PNG.
///
/// The others are compared with the first curve.
pub fn over_time(stem: &Path, title: &str, curves: &[Line]) -> Result<Vec<PathBuf>> {
    load_font();
    let [svg, png] = with_endings(stem);
    draw_over_time(
        title,
        curves,
        &SVGBackend::new(&svg, SIZE).into_drawing_area(),
    )?;
    draw_over_time(
        title,
        curves,
        &BitMapBackend::new(&png, SIZE).into_drawing_area(),
    )?;
    Ok(vec![svg, png])
}

/// The two files of a picture.
fn with_endings(stem: &Path) -> [PathBuf; 2] {
    ["svg", "png"].map(|ending| PathBuf::from(format!("{}.{ending}", stem.display())))
}

fn draw_over_time<B: DrawingBackend>(title: &str, curves: &[Line], area: &Area<B>) -> Result<()> {
    let points = || curves.iter().flat_map(|(_, _, points)| points);
    let last = points().fold(1.0f64, |last, (x, _)| last.max(*x));
    let most = points().fold(1.0f64, |most, (_, y)| most.max(*y));
    area.fill(&WHITE).map_err(failed)?;
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 24))
        .margin(16)
        .x_label_area_size(40)
        .y_label_area_size(70)
        .build_cartesian_2d(0.0..last, 0.0..most * 1.05)
        .map_err(failed)?;
    let mesh = &mut chart.configure_mesh();
    mesh.x_desc("seconds")
        .y_desc("Mb/s")
        .label_style((FONT, 16));
    mesh.draw().map_err(failed)?;
    for (name, colour, points) in curves {
        let colour = *colour;
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(3));
        let drawn = chart.draw_series(line).map_err(failed)?;
        drawn
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], colour.stroke_width(3)));
    }
    let labels = &mut chart.configure_series_labels();
    labels
        .label_font((FONT, 18))
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK);
    // The legend goes where the curves are low.
    let mut ends = curves
        .iter()
        .filter_map(|(_, _, points)| points.first().zip(points.last()));
    let corner = match ends.next() {
        Some((first, last)) if last.1 > first.1 => SeriesLabelPosition::UpperLeft,
        _ => SeriesLabelPosition::UpperRight,
    };
    labels.position(corner).draw().map_err(failed)?;
    area.present().map_err(failed)
}

/// Loads the font of the binary: a server often has none.
fn load_font() {
    static LOADED: Once = Once::new();
    LOADED.call_once(|| {
        // Registration fails only for bytes that are not a font.
        let _ = register_font(FONT, FontStyle::Normal, dejavu::sans::regular());
    });
}

/// Curves with values, airdma's before the peers', which is the order of the legend.
fn panels<'a>(taken: &'a Measurement, figure: Figure, link: &LinkFacts) -> Vec<&'a Curve> {
    let mut curves = taken.curves_of(figure, &link.name);
    // The axis is logarithmic: without a value above 0 there is nothing to draw.
    curves.retain(|curve| !medians_of(curve).is_empty());
    curves.sort_by_key(|curve| curve.peer);
    curves
}

type Area<B> = DrawingArea<B, Shift>;

fn draw<B: DrawingBackend>(
    taken: &Measurement,
    link: &LinkFacts,
    kind: Kind,
    area: &Area<B>,
) -> Result<()> {
    area.fill(&WHITE).map_err(failed)?;
    let figures = kind.figures().iter().copied();
    let figures: Vec<Figure> = figures
        .filter(|figure| !panels(taken, *figure, link).is_empty())
        .collect();
    let columns = area.split_evenly((1, figures.len()));
    for (figure, column) in figures.into_iter().zip(columns) {
        let curves = panels(taken, figure, link);
        if figure == Figure::Cpu {
            bars(figure, link, &curves, &column)?;
            continue;
        }
        let peers = DRAWN.iter().filter(|(drawn, _)| *drawn == figure);
        let mut peers =
            peers.filter_map(|(_, name)| curves.iter().find(|curve| curve.name == *name));
        let peer = peers.next();
        let Some(peer) = peer else {
            values(figure, link, &curves, &column)?;
            continue;
        };
        let (above, below) = column.split_vertically((60).percent_height());
        values(figure, link, &curves, &above)?;
        ratios(figure, &curves, peer, &below)?;
    }
    area.present().map_err(failed)
}

/// A bar for each curve at each size.
fn bars<B: DrawingBackend>(
    figure: Figure,
    link: &LinkFacts,
    curves: &[&Curve],
    area: &Area<B>,
) -> Result<()> {
    let mut sizes: Vec<u64> = curves
        .iter()
        .flat_map(|curve| curve.points.keys().copied())
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    // One slot for each bar, and one between sizes.
    let places = curves.len() + 1;
    let high = curves.iter().flat_map(|curve| medians_of(curve));
    let high = high.map(|(_, value)| value).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}; {}", figure.title(), link.label), (FONT, 15))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(46)
        // Room for the legend above the bars.
        .build_cartesian_2d(0.0..(places * sizes.len()) as f64, 0.0..high * 1.6)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .disable_x_axis()
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    for (number, (curve, colour)) in coloured(curves).into_iter().enumerate() {
        let rectangle = |(x, point): (&u64, &Point)| {
            let at = sizes.iter().position(|size| size == x)? * places + number;
            let corners = [(at as f64 + 0.1, 0.0), (at as f64 + 0.9, point.median()?)];
            Some(Rectangle::new(corners, colour.filled()))
        };
        let rectangles: Vec<_> = curve.points.iter().filter_map(rectangle).collect();
        chart
            .draw_series(rectangles)
            .map_err(failed)?
            .label(curve.label.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 4), (x + 12, y + 4)], colour.filled()));
    }
    let names = sizes.iter().enumerate().map(|(at, size)| {
        let of_size = curves
            .iter()
            .filter_map(|curve| curve.points.get(size)?.median());
        let highest = of_size.fold(0.0, f64::max);
        let place = ((at * places) as f64 + 0.1, highest + high * 0.05);
        Text::new(figure.x_text(*size), place, (FONT, 13))
    });
    chart.draw_series(names).map_err(failed)?;
    legend(&mut chart, SeriesLabelPosition::UpperRight)
}

fn values<B: DrawingBackend>(
    figure: Figure,
    link: &LinkFacts,
    curves: &[&Curve],
    area: &Area<B>,
) -> Result<()> {
    let all: Vec<(f64, f64)> = curves.iter().flat_map(|curve| medians_of(curve)).collect();
    let low = all.iter().map(|(_, value)| *value).fold(f64::MAX, f64::min);
    let high = all.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    // The axis is wide enough that nearly flat looks flat.
    let low = if figure == Figure::QueuePairs {
        low.min(high / 20.0)
    } else {
        low
    };
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}; {}", figure.title(), link.label), (FONT, 15))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(46)
        .build_cartesian_2d(
            spread(all.iter().map(|(x, _)| *x as u64))
                .log_scale()
                .base(2.0),
            (low * 0.7..high * 1.6).log_scale(),
        )
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| figure.x_text(*x as u64))
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    for (curve, colour) in coloured(curves) {
        let points: Vec<(f64, f64)> = medians_of(curve);
        let style = colour.stroke_width(if curve.peer { 1 } else { 2 });
        let line = LineSeries::new(points, style).point_size(3);
        chart
            .draw_series(line)
            .map_err(failed)?
            .label(curve.label.as_str())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 16, y)], style));
        let bars = curve.points.iter().filter_map(|(x, point)| {
            let (low, high) = point.spread()?;
            let ends = vec![(*x as f64, low), (*x as f64, high)];
            Some(PathElement::new(ends, colour.mix(0.5)))
        });
        chart.draw_series(bars).map_err(failed)?;
    }
    let corner = if figure.more_is_better() {
        SeriesLabelPosition::LowerRight
    } else {
        SeriesLabelPosition::UpperLeft
    };
    legend(&mut chart, corner)
}

fn legend<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
    at: SeriesLabelPosition,
) -> Result<()> {
    chart
        .configure_series_labels()
        .position(at)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font((FONT, 11))
        .draw()
        .map_err(failed)
}

fn ratios<B: DrawingBackend>(
    figure: Figure,
    curves: &[&Curve],
    peer: &Curve,
    area: &Area<B>,
) -> Result<()> {
    let mut lines = Vec::new();
    for (curve, colour) in coloured(curves) {
        // READ's latency is a whole round trip, not half of one.
        if curve.peer || curve.name == "read_lat" {
            continue;
        }
        let ratio = |(x, point): (&u64, &Point)| {
            let theirs = peer.points.get(x)?.median()?;
            Some((*x as f64, point.median()? / theirs))
        };
        let points: Vec<(f64, f64)> = curve.points.iter().filter_map(ratio).collect();
        lines.push((points, colour));
    }
    let all = lines.iter().flat_map(|(points, _)| points);
    let high = all.map(|(_, ratio)| *ratio).fold(1.0, f64::max);
    let better = if figure.more_is_better() {
        "more"
    } else {
        "less"
    };
    let xs = peer.points.keys().copied();
    let xs = xs.chain(curves.iter().flat_map(|curve| curve.points.keys().copied()));
    let range = spread(xs);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("x {} ({better} is better)", peer.label), (FONT, 15))
        .margin(8)
        .x_label_area_size(28)
        .y_label_area_size(46)
        .build_cartesian_2d(range.clone().log_scale().base(2.0), 0.0..high * 1.15)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|x| figure.x_text(*x as u64))
        .light_line_style(WHITE)
        .bold_line_style(BLACK.mix(0.12))
        .label_style((FONT, 12))
        .draw()
        .map_err(failed)?;
    let one = vec![(range.start, 1.0), (range.end, 1.0)];
    chart
        .draw_series([PathElement::new(one, BLACK)])
        .map_err(failed)?;
    for (points, colour) in lines {
        let line = LineSeries::new(points, colour.stroke_width(2)).point_size(3);
        chart.draw_series(line).map_err(failed)?;
    }
    Ok(())
}

/// Range of the sizes, with a margin: one size alone is a range, too.
fn spread(xs: impl Iterator<Item = u64> + Clone) -> Range<f64> {
    let low = xs.clone().min().unwrap_or(1).max(1) as f64;
    let high = xs.max().unwrap_or(1).max(1) as f64;
    low / 1.5..high * 1.5
}

/// Medians that a logarithmic axis can show.
fn medians_of(curve: &Curve) -> Vec<(f64, f64)> {
    let points = curve.points.iter();
    let medians = points.filter_map(|(x, point)| Some((*x as f64, point.median()?)));
    medians
        .filter(|(_, value)| *value > 0.0 && value.is_finite())
        .collect()
}

/// The same colour for an operation in every panel; peers in their order.
fn coloured<'a>(curves: &[&'a Curve]) -> Vec<(&'a Curve, RGBColor)> {
    let mut peers = PEERS.iter().copied().cycle();
    let colour = |curve: &&'a Curve| {
        let ours = OURS.iter().find(|(name, _)| curve.name.starts_with(name));
        let ours = ours.map(|(_, colour)| *colour).filter(|_| !curve.peer);
        (*curve, ours.or_else(|| peers.next()).unwrap_or(BLACK))
    };
    curves.iter().map(colour).collect()
}

fn failed(error: impl std::fmt::Display) -> anyhow::Error {
    anyhow!("drawing: {error}")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::measurement::made_up::measurement;

    #[test]
    fn every_picture_of_the_page_is_drawn() {
        let taken = measurement(&[
            (Figure::Bandwidth, "write_bw", false, 64, &[1.0, 2.0]),
            (Figure::Bandwidth, "write_bw", false, 1024, &[5.0]),
            (Figure::Bandwidth, "tcp_cubic", true, 64, &[2.0]),
            // All its runs failed.
            (Figure::Bandwidth, "tcp_bbr", true, 64, &[]),
            (Figure::Latency, "send_lat", false, 64, &[5.0]),
            (Figure::Cpu, "write_bw", false, 30_000, &[0.5]),
            // No payload arrived.
            (Figure::QueuePairs, "write_pairs", false, 1, &[0.0]),
            (
                Figure::QueuePairs,
                "write_pairs",
                false,
                16,
                &[f64::INFINITY],
            ),
        ]);
        let folder = std::env::temp_dir().join(format!("airdma-plot-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let files = save(&taken, &folder.join("run")).unwrap();
        let names: Vec<String> = pictures(&taken).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["veth-1500", "veth-1500-cost"]);
        assert_eq!(files.len(), 4);
        let svg = fs::read_to_string(folder.join(file("run", "veth-1500", "svg"))).unwrap();
        assert!(svg.contains("label of tcp_cubic") && !svg.contains("label of tcp_bbr"));
        let png = fs::read(folder.join(file("run", "veth-1500-cost", "png"))).unwrap();
        assert!(png.starts_with(b"\x89PNG"));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(pictures(&measurement(&[])), []);
    }
}
