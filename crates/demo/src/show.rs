//! Shows the shop while it is open: a screen on a terminal, lines elsewhere.
#![expect(clippy::print_stdout, reason = "this is what the demo is for")]

use std::{
    io::{self, IsTerminal as _, Write as _},
    time::Duration,
};

use rustix::termios::tcgetwinsize;
use tokio::time::{MissedTickBehavior, interval};

use crate::{history::History, lines, screen, sight::Viewer, style::clip};

const EVERY: Duration = Duration::from_millis(250);
/// Looks between two lines.
const LINE: u32 = 4;

/// Leaves the terminal as it was, whatever ends the demo.
struct Terminal;

impl Terminal {
    /// The alternate screen, without cursor.
    fn enter() -> Self {
        print!("\x1b[?1049h\x1b[?25l\x1b[2J");
        Self
    }

    /// Overwrites the last frame in place: nothing flickers, and stray lines of a log do not last.
    fn draw(frame: &[String]) {
        let mut text = String::from("\x1b[H");
        for line in frame {
            text += line;
            text += "\x1b[K\r\n";
        }
        print!("{text}\x1b[J");
        io::stdout().flush().unwrap_or_default();
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        print!("\x1b[?25h\x1b[?1049l");
        io::stdout().flush().unwrap_or_default();
    }
}

/// Shows what there is to see until `done`, then leaves the last frame on the terminal.
pub(crate) async fn show<T>(viewer: &Viewer, total: Duration, done: impl Future<Output = T>) -> T {
    let mut show = Show { history: History::default(), notes: Vec::new(), frame: Vec::new(), looks: 0 };
    let terminal = io::stdout().is_terminal().then(Terminal::enter);
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tokio::pin!(done);
    let result = loop {
        tokio::select! {
            result = &mut done => break result,
            _ = ticks.tick() => show.update(viewer, total, terminal.is_some()).await,
        }
    };
    // With what happened since the last look.
    show.update(viewer, total, terminal.is_some()).await;
    drop(terminal);
    for line in &show.frame {
        println!("{line}");
    }
    result
}

struct Show {
    history: History,
    notes: Vec<(Duration, String)>,
    frame: Vec<String>,
    looks: u32,
}

impl Show {
    /// A look that fails leaves the last frame: the database is down for a moment, and the notes say so.
    async fn update(&mut self, viewer: &Viewer, total: Duration, terminal: bool) {
        let new = viewer.board.notes_after(self.notes.len());
        if !terminal {
            for (at, text) in &new {
                println!("{}", lines::note(*at, text));
            }
        }
        self.notes.extend(new);
        let Ok(sight) = viewer.look().await else { return };
        self.history.push(sight);
        self.looks += 1;
        if terminal {
            let (width, height) = size();
            self.frame = screen::frame(&self.history, &self.notes, total, width);
            self.frame.truncate(height);
            self.frame.iter_mut().for_each(|line| *line = clip(line, width));
            Terminal::draw(&self.frame);
        } else if self.looks.is_multiple_of(LINE) {
            println!("{}", lines::line(&self.history));
        }
    }
}

/// Columns and rows of the terminal that may be used. `COLUMNS` goes before what the terminal says.
fn size() -> (usize, usize) {
    let terminal = tcgetwinsize(io::stdout()).ok();
    let given = |size: Option<u16>| size.filter(|it| *it > 0).map(usize::from);
    let columns = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let width = given(columns.or(terminal.map(|it| it.ws_col))).unwrap_or(80);
    (width, given(terminal.map(|it| it.ws_row)).unwrap_or(24).saturating_sub(1))
}
