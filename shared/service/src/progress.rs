//! Progress bars: on a terminal only, on standard error, and never in the way of log lines.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::LazyLock;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use tracing_subscriber::fmt::MakeWriter;

/// All bars of the process; log lines are written between their frames.
static BARS: LazyLock<MultiProgress> = LazyLock::new(|| MultiProgress::with_draw_target(ProgressDrawTarget::hidden()));

/// A group of progress bars. Cheap to clone; on anything but a terminal every call does nothing.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Bars when standard error is a terminal and `quiet` is not asked for.
    pub fn new(quiet: bool) -> Self {
        let shown = !quiet && io::stderr().is_terminal();
        if shown {
            BARS.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
        }
        Self { shown }
    }

    /// No bars.
    pub fn hidden() -> Self {
        Self { shown: false }
    }

    /// Whether bars are seen.
    pub fn is_shown(&self) -> bool {
        self.shown
    }

    /// A bar of `length` steps.
    pub fn bar(&self, length: u64, message: impl Into<Cow<'static, str>>) -> Bar {
        self.add(ProgressBar::new(length), "{msg:30!} [{bar:30}] {human_pos}/{human_len} {eta}", message)
    }

    /// A bar of `length` bytes.
    pub fn bytes(&self, length: u64, message: impl Into<Cow<'static, str>>) -> Bar {
        let template = "{msg:30!} [{bar:30}] {binary_bytes}/{binary_total_bytes} {eta}";
        self.add(ProgressBar::new(length), template, message)
    }

    /// A sign of life where the length is not known.
    pub fn spinner(&self, message: impl Into<Cow<'static, str>>) -> Bar {
        let bar = self.add(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}", message);
        if let Some(inner) = &bar.0 {
            inner.enable_steady_tick(Duration::from_millis(120));
        }
        bar
    }

    fn add(&self, bar: ProgressBar, template: &str, message: impl Into<Cow<'static, str>>) -> Bar {
        if !self.shown {
            return Bar(None);
        }
        let bar = BARS.add(bar);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.set_message(message);
        Bar(Some(bar))
    }
}

/// One bar; it vanishes when dropped.
#[derive(Debug, Default)]
pub struct Bar(Option<ProgressBar>);

impl Bar {
    /// One step done.
    pub fn inc(&self, by: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(by);
        }
    }

    /// So many steps are done.
    pub fn set_position(&self, position: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(position);
        }
    }

    /// Says what is being done.
    pub fn message(&self, message: impl Into<Cow<'static, str>>) {
        if let Some(bar) = &self.0 {
            bar.set_message(message);
        }
    }

    /// Changes the length, as more becomes known.
    pub fn set_length(&self, length: u64) {
        if let Some(bar) = &self.0 {
            bar.set_length(length);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// Writes log lines to standard error, with the bars taken away meanwhile.
#[derive(Debug, Clone, Copy, Default)]
pub struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        BARS.suspend(|| io::stderr().lock().write_all(bytes))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

impl MakeWriter<'_> for LogWriter {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        *self
    }
}

/// Runs `f` with the bars taken away, for questions and output on a terminal.
pub fn suspended<T>(f: impl FnOnce() -> T) -> T {
    BARS.suspend(f)
}
