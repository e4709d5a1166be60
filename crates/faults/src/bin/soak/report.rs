//! The report: a table with a small picture of each series, and the same data for programs.

use faults::{counts::Counts, report};
use serde_json::{Value, json};

use crate::{
    sample::Series,
    trend::{Course, NOISE, SMALL, TOO_MUCH, Trend, picture},
};

/// Characters of a picture.
const WIDTH: usize = 40;
const COLUMNS: [&str; 9] =
    ["series", "from zero to the highest", "min", "median", "max", "last", "rise an hour", "bound", ""];

/// The results of a run.
pub(crate) struct Report<'a> {
    /// A description of the run, in a sentence.
    pub(crate) what: &'a str,
    pub(crate) series: &'a [Series],
    /// The judge's verdict: an error describes the failure.
    pub(crate) delivery: &'a anyhow::Result<Counts>,
}

impl Report<'_> {
    /// Whether nothing is wrong.
    pub(crate) fn is_good(&self) -> bool {
        let beyond = |series: &Series| series.trend().is_some_and(|trend| trend.course == Course::Beyond);
        self.delivery.is_ok() && !self.series.iter().any(beyond)
    }

    /// The report in Markdown, which is readable on a terminal too.
    pub(crate) fn markdown(&self) -> String {
        let mut lines = vec![COLUMNS.map(str::to_owned)];
        lines.extend(self.series.iter().map(line));
        let [noise, too_much] = [NOISE, TOO_MUCH].map(|share| share * 100.0);
        format!(
            "# Soak\n\n{}\n\n{}\n\n{}\nThe rise is that of a line through the last three quarters. Growing: over that \
             time it rises by more than {noise:.0} % of the median, and by more than {SMALL} of the bound. Beyond its \
             bound: by more than {too_much:.0} % of the median, and by more than the bound.\n",
            self.what,
            self.verdict(),
            report::table(&lines),
        )
    }

    fn verdict(&self) -> String {
        match self.delivery {
            Ok(counts) => format!(
                "Delivery: {} messages, 0 lost, 0 phantom, 0 out of order; {} duplicates ({} announced), {} \
                 take-overs.",
                counts.messages,
                counts.duplicates,
                counts.announced.values().sum::<u64>(),
                counts.takeovers,
            ),
            Err(error) => format!("Delivery: FAILED\n\n```text\n{error:#}\n```"),
        }
    }

    /// The report for programs, with every sample.
    pub(crate) fn json(&self) -> Value {
        let series = |series: &Series| {
            json!({
                "name": series.name, "bound": series.bound, "trend": series.trend(), "hours_and_values": series.points,
            })
        };
        json!({
            "what": self.what,
            "good": self.is_good(),
            "counts": self.delivery.as_ref().ok(),
            "error": self.delivery.as_ref().err().map(|error| format!("{error:#}")),
            "series": self.series.iter().map(series).collect::<Vec<_>>(),
        })
    }
}

fn line(series: &Series) -> [String; 9] {
    let figures = series.trend().map(|trend| {
        let Trend { min, median, max, last, per_hour, course, .. } = trend;
        ([min, median, max, last, per_hour].map(number), course.name().to_owned())
    });
    let ([min, median, max, last, per_hour], course) = figures.unwrap_or_default();
    let bound = number(series.bound);
    [series.name.clone(), picture(&series.points, WIDTH), min, median, max, last, per_hour, bound, course]
}

/// Shows no fraction where it means nothing.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;
    use faults::counts::Counts;

    use super::Report;
    use crate::sample::Series;

    fn series(last: f64) -> Series {
        let points = vec![(0.0, 20.0), (0.25, 20.0), (0.5, 20.0), (0.75, f64::midpoint(20.0, last)), (1.0, last)];
        Series { name: "memory".to_owned(), bound: 16.0, points }
    }

    #[test]
    fn a_run_is_good_if_nothing_is_wrong_and_nothing_is_beyond_its_bound() {
        let fine = Ok(Counts::default());
        let wrong = Err(anyhow!("lost (1)"));
        let is_good = |series: &[Series], delivery| Report { what: "", series, delivery }.is_good();
        assert!(is_good(&[series(20.0)], &fine));
        assert!(!is_good(&[series(90.0)], &fine));
        assert!(!is_good(&[], &wrong));
    }

    #[test]
    fn the_report_says_what_is_wrong() {
        let delivery = Err(anyhow!("lost (1)"));
        let text = Report { what: "An hour.", series: &[series(90.0)], delivery: &delivery }.markdown();
        for part in ["An hour.", "lost (1)", "▂", "BEYOND ITS BOUND"] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }
}
