//! Plots: lines over a few named places, one line for each subject.

use std::{error::Error, path::Path};

use plotters::prelude::*;

const SIZE: (u32, u32) = (760, 400);
const COLOURS: [RGBColor; 7] = [
    RGBColor(200, 30, 50),
    RGBColor(235, 140, 60),
    RGBColor(120, 120, 120),
    RGBColor(30, 100, 190),
    RGBColor(40, 150, 90),
    RGBColor(130, 80, 170),
    RGBColor(90, 60, 40),
];

pub struct Plot {
    pub title: &'static str,
    pub unit: &'static str,
    /// The places on the horizontal axis.
    pub places: Vec<String>,
    /// A name, and a number for each place that has one.
    pub lines: Vec<(String, Vec<Option<f64>>)>,
}

impl Plot {
    /// Writes it as SVG. The vertical axis is logarithmic: what is compared differs by factors.
    pub fn write(&self, file: &Path) -> Result<(), Box<dyn Error>> {
        let numbers = || self.lines.iter().flat_map(|(_, line)| line.iter().flatten().copied());
        let positive = || numbers().filter(|number| *number > 0.0);
        let least = positive().fold(f64::INFINITY, f64::min);
        let most = positive().fold(0.0, f64::max);
        if most == 0.0 {
            return Ok(());
        }
        // Room for the names of the lines above them.
        let top = most * (most / least).powf(0.4).max(1.5);
        let right = self.places.len().saturating_sub(1) as f64;
        let root = SVGBackend::new(file, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 17))
            .margin(12)
            .margin_right(48)
            .x_label_area_size(36)
            .y_label_area_size(64)
            .build_cartesian_2d(-0.25..right + 0.25, (least * 0.8..top).log_scale())?;
        let place = |at: &f64| {
            let whole = (at - at.round()).abs() < 0.01;
            let place =
                self.places.get(at.round().max(0.0) as usize).filter(|_| whole && *at > -0.1);
            place.cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(WHITE)
            .x_labels(self.places.len() * 4)
            .x_label_formatter(&place)
            .y_desc(self.unit)
            .draw()?;
        for ((name, line), colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let points = line.iter().enumerate().filter_map(|(at, y)| Some((at as f64, (*y)?)));
            let points: Vec<_> = points.filter(|(_, y)| *y > 0.0).collect();
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(points.clone(), style).point_size(4))?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], style));
            chart
                .draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(200, 200, 200))
            .draw()?;
        root.present()?;
        Ok(())
    }
}
