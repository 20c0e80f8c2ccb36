//! Charts as SVG: stacked bars or lines. The script shows the figures of the time slice under the pointer, and steps
//! through the slices with the arrow keys. Without script there are the axis and the sums in tables.

use maud::{Markup, html};

/// In units of the view box; the chart is stretched to the width of the page.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 200.0;

pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) slices: Vec<TimeSlot>,
    pub(crate) slice_millis: u64,
    pub(crate) series: Vec<Series<'a>>,
    pub(crate) kind: ChartKind,
    pub(crate) write: fn(f64) -> String,
    /// Writes a figure of the axis in the unit that suits its top, the second argument.
    pub(crate) axis: fn(f64, f64) -> String,
}

pub(crate) struct TimeSlot {
    pub(crate) start: u64,
    pub(crate) name: String,
}

pub(crate) struct Series<'a> {
    pub(crate) name: &'a str,
    /// CSS class, which sets the colour.
    pub(crate) class: &'static str,
    pub(crate) values: Vec<Option<f64>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChartKind {
    /// Stacked.
    Bars,
    Lines,
}

impl Chart<'_> {
    pub(crate) fn render(&self) -> Markup {
        let top = round_up(self.max_value());
        let figures = (0..self.slices.len()).map(|at| self.figures(at)).collect::<Vec<_>>().join("|");
        html! {
            figure.chart tabindex="0" aria-label={ (self.title) ". Arrow keys step through the figures." }
                data-start=(self.slices.first().map_or(0, |first| first.start)) data-step=(self.slice_millis) data-figures=(figures) {
                figcaption {
                    strong { (self.title) }
                    ul.legend { @for series in &self.series { li class=(series.class) { (series.name) } } }
                    output.readout aria-live="polite" {}
                }
                div.plot {
                    div.axis aria-hidden="true" {
                        @for part in [1.0, 0.5, 0.0] { span { ((self.axis)(top * part, top)) } }
                    }
                    svg viewBox={ "0 0 " (WIDTH) " " (HEIGHT) } preserveAspectRatio="none" role="img"
                        aria-label=(self.summary()) {
                        rect.cursor width=(round(self.slice_width())) height=(HEIGHT) {}
                        @for part in [0.0, 0.5, 1.0] {
                            line.grid x1="0" x2=(WIDTH) y1=(HEIGHT * part) y2=(HEIGHT * part) {}
                        }
                        @match self.kind {
                            ChartKind::Bars => (self.bars(top)),
                            ChartKind::Lines => (self.lines(top)),
                        }
                    }
                }
                div.ends aria-hidden="true" {
                    @if let (Some(first), Some(last)) = (self.slices.first(), self.slices.last()) {
                        span data-slice=(first.start) { (first.name) }
                        span data-slice=(last.start) { (last.name) }
                    }
                }
            }
        }
    }

    fn slice_width(&self) -> f64 {
        WIDTH / self.slices.len().max(1) as f64
    }

    /// The largest value, or the largest sum of a stack.
    fn max_value(&self) -> f64 {
        let slice_max = |at: usize| {
            let values = self.series.iter().filter_map(|series| series.values[at]);
            match self.kind {
                ChartKind::Bars => values.sum::<f64>(),
                ChartKind::Lines => values.fold(0.0, f64::max),
            }
        };
        (0..self.slices.len()).map(slice_max).fold(0.0, f64::max)
    }

    fn summary(&self) -> String {
        format!("{}, {} time slices, at most {}", self.title, self.slices.len(), (self.write)(self.max_value()))
    }

    /// One path for each series, so that pages with hundreds of slices stay small.
    fn bars(&self, top: f64) -> Markup {
        let (width, mut bases) = (self.slice_width(), vec![HEIGHT; self.slices.len()]);
        let mut shape = |series: &Series<'_>| {
            let values = series.values.iter().enumerate();
            let bar = |(at, value): (usize, f64)| {
                // One request among thousands stays visible.
                let height = (value / top * HEIGHT).max(1.5);
                bases[at] -= height;
                let (left, wide) = (width * (at as f64 + 0.12), width * 0.76);
                format!("M{left:.1} {:.1}h{wide:.1}v{height:.1}h-{wide:.1}z", bases[at])
            };
            let shown = values.filter_map(|(at, value)| Some((at, (*value)?))).filter(|(_, value)| *value > 0.0);
            shown.map(bar).collect::<String>()
        };
        html! { @for series in &self.series { path class={ "bars " (series.class) } d=(shape(series)) {} } }
    }

    fn lines(&self, top: f64) -> Markup {
        let width = self.slice_width();
        let point = |at: usize, value: f64| (round(width * (at as f64 + 0.5)), round(HEIGHT - value / top * HEIGHT));
        html! {
            @for series in &self.series {
                @let points = series.values.iter().enumerate().collect::<Vec<_>>();
                @for stretch in points.split(|(_, value)| value.is_none()).filter(|stretch| !stretch.is_empty()) {
                    @let (at, value) = stretch[0];
                    @let (x, y) = point(at, value.unwrap_or(0.0));
                    // A very short line with round ends stays round in a stretched picture; a circle would not.
                    @if stretch.len() == 1 { path class={ "dot " (series.class) } d={ "M" (x) " " (y) "h0.01" } {} }
                    @else {
                        @let points = stretch.iter().map(|(at, value)| {
                            let (x, y) = point(*at, value.unwrap_or(0.0));
                            format!("{x},{y}")
                        }).collect::<Vec<_>>().join(" ");
                        polyline class=(series.class) points=(points) {}
                    }
                }
            }
        }
    }

    fn figures(&self, at: usize) -> String {
        let figure = |series: &Series<'_>| {
            let value = series.values[at].map_or_else(|| "–".into(), self.write);
            format!("{} {}", value, series.name)
        };
        self.series.iter().map(figure).collect::<Vec<_>>().join(", ")
    }
}

/// The next round number, for the top of the axis.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    let rounded = [1.0, 2.0, 4.0, 5.0, 8.0, 10.0].into_iter().find(|step| *step * power >= value);
    rounded.unwrap_or(10.0) * power
}

fn round(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_axis_ends_at_or_above_the_highest_value(value in 0.0f64..1e12) {
            let top = round_up(value);
            prop_assert!(top >= value * 0.999_999 && (value < 1e-9 || top <= value * 2.1), "{value} {top}");
        }
    }

    #[test]
    fn a_chart_has_every_figure_and_escapes_names() {
        let slices = (0..3).map(|at| TimeSlot { start: at, name: format!("<{at}>") }).collect();
        let values = vec![Some(3.0), None, Some(9.0)];
        let series = vec![Series { name: "requests", class: "good", values }];
        let write = |value: f64| value.to_string();
        let chart = Chart {
            title: "T",
            slices,
            slice_millis: 1,
            series,
            kind: ChartKind::Bars,
            write,
            axis: |value, _| value.to_string(),
        };
        let html = chart.render().into_string();
        assert!(html.contains("&lt;0&gt;") && html.contains("3 requests|– requests|9 requests"), "{html}");
        assert!(!html.contains("style="), "the content security policy forbids inline styles");
    }
}
