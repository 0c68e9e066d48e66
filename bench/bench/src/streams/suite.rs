//! The cases: the figures of the paper (Appl. Sci. 2024, 14, 7437, section 4).

use crate::measurement::Figure;
use crate::peer::{Discipline, Shape, Streams};
use crate::suite::{Series, VETH_1500};

/// Numbers of blocks of figures 10 and 11.
pub const CONTROLS: [u64; 4] = [3, 64, 1024, 4096];
/// Sizes of figure 12.
pub const LATENCIES: [u64; 6] = [64, 1024, 16_384, 262_144, 1 << 20, 8 << 20];
/// Sizes of figures 13 to 15.
pub const FLOWS: [u64; 6] = [256, 4096, 65_536, 262_144, 1 << 20, 8 << 20];
/// Numbers of blocks of figure 18.
pub const KEPT: [u64; 2] = [3, 16];
/// Numbers of cameras of figure 19, and more.
pub const CAMERAS: [u64; 3] = [12, 64, 256];

/// Name of the credits in cases.
pub const CREDITS: &str = "credits";
/// Name of the paper's discipline.
pub const PAPER: &str = "paper";
/// Name of the paper's baseline.
pub const WINDOW: &str = "window";

const SHARED: [(&str, &str, Discipline); 2] = [
    (CREDITS, "credits (airdma-stream)", "credits"),
    (PAPER, "status bytes (the paper)", "paper"),
];
const BASELINE: (&str, &str, Discipline) = (WINDOW, "sliding window", "window");
const VARIANTS: [(&str, &str, Discipline); 2] = [
    ("merged_window", "window, ACKs merged", "window-merged"),
    ("any_window", "window, ACKs in any order", "window-any"),
];

/// All series, or those that take a minute.
pub fn all(quick: bool) -> Vec<Series> {
    let pick = |xs: &[u64], few: &[u64]| if quick { few.to_vec() } else { xs.to_vec() };
    let mut all = Vec::new();
    let mut add =
        |figure, shape, xs: &[u64], disciplines: &[(&'static str, &'static str, Discipline)]| {
            for &(name, label, discipline) in disciplines {
                all.push(Series {
                    figure,
                    link: VETH_1500,
                    name,
                    label,
                    peer: !name.starts_with(CREDITS),
                    xs: xs.to_vec(),
                    program: Box::new(Streams { discipline, shape }),
                });
            }
        };
    let three = [SHARED[0], SHARED[1], BASELINE];
    let five = [SHARED[0], SHARED[1], BASELINE, VARIANTS[0], VARIANTS[1]];
    let variants = if quick { &three[..] } else { &five[..] };
    add(
        Figure::Control,
        Shape::Control,
        &pick(&CONTROLS, &[3]),
        &three,
    );
    add(
        Figure::OneWay,
        Shape::OneWay,
        &pick(&LATENCIES, &[64, 1 << 20]),
        &three,
    );
    add(
        Figure::Bandwidth,
        Shape::Flow,
        &pick(&FLOWS, &[256, 1 << 20]),
        variants,
    );
    add(Figure::Kept, Shape::Kept, &pick(&KEPT, &[3]), variants);
    let cameras = pick(&CAMERAS, &[12]);
    add(Figure::Cameras, Shape::CAMERAS, &cameras, &three);
    let fewer = ("credits_third", "credits, a third of the blocks", "credits");
    add(
        Figure::Cameras,
        Shape::Cameras { blocks: 1 },
        &cameras,
        &[fewer],
    );
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_and_packages() {
        crate::suite::tests::check_cases(all, "control/veth-1500/paper/3");
    }
}
