//! The running relays and workers.

use std::collections::{BTreeMap, BTreeSet};

use outbox_core::{
    sqlx::{self, MySqlConnection},
    store::{
        claim::lanes,
        operate::{
            controls::{self, ControlRow},
            instances::{self, InstanceRow},
        },
    },
    words,
};
use serde::Serialize;

use super::{shown::counted, unsent::time};
use crate::state::role::ProcessKind;

/// In microseconds: a process without a heartbeat for this time counts as gone. Three heartbeats.
const GONE: i64 = 30_000_000;
/// In microseconds: a process follows a pause within this time.
const FOLLOWS: i64 = 1_000_000;

/// The roles of a process, see [`Instance::role`].
pub const ROLES: [&str; 2] = ["relay", "worker"];

words! {
    /// The state of a process. An operator has paused one that drains. A drained one has nothing in flight since. One
    /// without a heartbeat for 30 s is gone.
    #[derive(Default, Serialize)]
    #[serde(rename_all = "snake_case")]
    pub enum InstanceState {
        #[default]
        Live = "live",
        Draining = "draining",
        Drained = "drained",
        Gone = "gone",
    }
}

/// A relay or worker. Its names are stable; times are RFC 3339, by the database's clock.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Instance {
    /// The name under which it holds claims.
    pub instance: String,
    /// `relay` or `worker`.
    pub role: String,
    /// Its state.
    pub state: InstanceState,
    /// The release of its program.
    pub version: String,
    /// Its lanes; empty: all.
    pub lanes: Vec<u16>,
    /// Its sinks, each with the reason why it takes nothing.
    pub sinks: BTreeMap<String, Option<String>>,
    /// Messages that were claimed and not settled, at its last heartbeat.
    pub in_flight: u32,
    /// The lanes that it reads from the binary log, or the reason why it reads none: a word, a colon and a sentence.
    pub tail: Option<String>,
    /// The time of its first heartbeat.
    pub started_at: String,
    /// The time of its last heartbeat.
    pub seen_at: String,
}

/// Lists the processes, those first that were seen last.
///
/// # Errors
///
/// If the database fails.
pub async fn list(db: &mut MySqlConnection) -> Result<Vec<Instance>, sqlx::Error> {
    let rows = instances::list(db).await?;
    shown(db, &rows).await
}

/// Returns the processes of these rows, with the state that pauses give them.
///
/// # Errors
///
/// If the database fails.
pub async fn shown(db: &mut MySqlConnection, rows: &[InstanceRow]) -> Result<Vec<Instance>, sqlx::Error> {
    let controls = controls::paused(db).await?;
    Ok(rows.iter().map(|row| instance(row, &controls)).collect())
}

/// Returns the sinks that take nothing from live relays: for each their number, and the reason of one.
#[must_use]
pub fn sinks_down(instances: &[Instance]) -> BTreeMap<String, String> {
    let live = instances.iter().filter(|it| it.state != InstanceState::Gone).flat_map(|it| &it.sinks);
    refusals(live).map(|(sink, refusal)| (sink.to_owned(), refusal)).collect()
}

fn refusals<'a>(
    sinks: impl Iterator<Item = (&'a String, &'a Option<String>)>,
) -> impl Iterator<Item = (&'a str, String)> {
    let mut refused = BTreeMap::<&str, (usize, &str)>::new();
    for (sink, reason) in sinks {
        if let Some(reason) = reason {
            refused.entry(sink).or_insert((0, reason)).0 += 1;
        }
    }
    refused.into_iter().map(|(sink, (relays, reason))| {
        (sink, format!("takes nothing from {}: {reason}", counted(relays, "relay", "relays")))
    })
}

fn instance(row: &InstanceRow, controls: &[ControlRow]) -> Instance {
    let pause = controls.iter().find(|it| it.kind == "instance" && it.name == row.instance);
    // An earlier heartbeat says nothing about claims after it.
    let has_followed = |pause: &ControlRow| row.seen_at >= pause.paused_at + FOLLOWS;
    Instance {
        instance: row.instance.clone(),
        role: row.role.clone(),
        state: match pause {
            _ if !is_live(row) => InstanceState::Gone,
            None => InstanceState::Live,
            Some(pause) if row.in_flight == 0 && has_followed(pause) => InstanceState::Drained,
            Some(_) => InstanceState::Draining,
        },
        version: row.version.clone(),
        lanes: lanes(row),
        sinks: sinks(row),
        in_flight: row.in_flight,
        tail: row.tail.clone(),
        started_at: time(row.started_at),
        seen_at: time(row.seen_at),
    }
}

fn is_live(row: &InstanceRow) -> bool {
    row.quiet < GONE
}

fn lanes(row: &InstanceRow) -> Vec<u16> {
    serde_json::from_str(&row.lanes).unwrap_or_default()
}

fn sinks(row: &InstanceRow) -> BTreeMap<String, Option<String>> {
    serde_json::from_str(&row.sinks).unwrap_or_default()
}

/// The processes, and the lanes that belong to workers: relays of all lanes leave those alone.
#[derive(Debug, Default)]
pub(super) struct Live {
    pub(super) instances: Vec<Instance>,
    pub(super) of_workers: BTreeSet<u16>,
}

impl Live {
    pub(super) async fn read(db: &mut MySqlConnection) -> Result<Self, sqlx::Error> {
        let of_workers = lanes::of_kind(db, ProcessKind::WORKER).await?.into_iter().collect();
        Ok(Self { instances: list(db).await?, of_workers })
    }

    /// The kind of processes that a lane belongs to.
    pub(super) fn role(&self, lane: u16) -> &'static str {
        if self.of_workers.contains(&lane) { ProcessKind::WORKER } else { ProcessKind::Relay.name() }
    }

    fn of(&self, lane: u16) -> impl Iterator<Item = &Instance> {
        let role = self.role(lane);
        let is_here = move |it: &&Instance| it.state != InstanceState::Gone && it.role == role;
        self.instances.iter().filter(is_here).filter(move |it| it.lanes.is_empty() || it.lanes.contains(&lane))
    }

    /// Those that an operator drains claim nothing.
    fn serving(&self, lane: u16) -> impl Iterator<Item = &Instance> {
        self.of(lane).filter(|it| it.state == InstanceState::Live)
    }

    /// Returns the number of those that serve a lane.
    pub(super) fn serve(&self, lane: u16) -> usize {
        self.serving(lane).count()
    }

    /// Returns those that would serve a lane if no operator drained them.
    pub(super) fn drained(&self, lane: u16) -> Vec<&Instance> {
        self.of(lane).filter(|it| it.state != InstanceState::Live).collect()
    }

    /// Whether no sink takes anything from those that serve a lane. Workers have none.
    pub(super) fn has_no_sink(&self, lane: u16) -> bool {
        let mut sinks = self.serving(lane).flat_map(|it| it.sinks.values()).peekable();
        sinks.peek().is_some() && sinks.all(Option::is_some)
    }

    /// Returns a sentence about each sink that takes nothing from those that serve a lane.
    pub(super) fn refused(&self, lane: u16) -> Vec<String> {
        let sinks = self.serving(lane).flat_map(|it| &it.sinks);
        refusals(sinks).map(|(sink, refusal)| format!("Sink {sink} {refusal}.")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, in_flight: u32, quiet: i64) -> InstanceRow {
        InstanceRow {
            instance: name.to_owned(),
            role: "relay".to_owned(),
            version: "1.2.3".to_owned(),
            lanes: "[3,4]".to_owned(),
            sinks: r#"{"kafka":null,"mail":"down\n"}"#.to_owned(),
            in_flight,
            started_at: 0,
            seen_at: 0,
            quiet,
            counted: None,
            counting: None,
            tail: None,
        }
    }

    #[test]
    fn a_sink_is_down_for_the_live_relays_that_do_not_reach_it() {
        let with = |sinks: &str, quiet| InstanceRow { sinks: sinks.to_owned(), ..row("a", 0, quiet) };
        let rows = [
            with(r#"{"kafka":null,"mail":"down"}"#, 0),
            with(r#"{"kafka":null,"mail":null}"#, 0),
            with(r#"{"kafka":"away"}"#, GONE),
        ];
        let found = sinks_down(&rows.each_ref().map(|row| instance(row, &[])));
        let expected = ("mail".to_owned(), "takes nothing from 1 relay: down".to_owned());
        assert_eq!(found, [expected].into());
    }

    #[test]
    fn a_process_is_live_draining_drained_or_gone() {
        let pause = |name: &str| ControlRow {
            kind: "instance".to_owned(),
            name: name.to_owned(),
            paused_at: 0,
            ends_at: None,
            actor: "alice".to_owned(),
            reason: "a test".to_owned(),
        };
        let state = |row: &InstanceRow| instance(row, &[pause("b")]).state.word();
        let seen = |seen_at| InstanceRow { seen_at, ..row("b", 0, 0) };
        let rows = [row("a", 9, GONE - 1), row("b", 9, 0), seen(FOLLOWS - 1), seen(FOLLOWS), row("a", 9, GONE)];
        assert_eq!(rows.each_ref().map(state), ["live", "draining", "draining", "drained", "gone"]);
        let [first, ..] = rows;
        let shown = instance(&first, &[]);
        assert_eq!(
            shown.sinks.into_iter().collect::<Vec<_>>(),
            [("kafka".to_owned(), None), ("mail".to_owned(), Some("down\n".to_owned()))]
        );
    }

    #[test]
    fn processes_serve_their_lanes_and_say_which_sinks_refuse() {
        let process = instance(&row("a", 0, 0), &[]);
        let drained = Instance { instance: "c".to_owned(), state: InstanceState::Drained, ..process.clone() };
        let of_all = Instance { lanes: Vec::new(), ..process.clone() };
        let instances = vec![process.clone(), process, Instance { sinks: BTreeMap::new(), ..of_all }, drained];
        let live = Live { instances, ..Live::default() };
        assert_eq!([3, 5].map(|lane| live.serve(lane)), [3, 1]);
        let drained = [3, 5].map(|lane| live.drained(lane).iter().map(|it| it.instance.as_str()).collect::<Vec<_>>());
        assert_eq!(drained, [vec!["c"], vec![]]);
        assert_eq!(live.refused(3), ["Sink mail takes nothing from 2 relays: down\n."]);
        assert!(live.refused(5).is_empty());
    }

    #[test]
    fn relays_of_all_lanes_do_not_serve_those_of_workers() {
        let relay = Instance { role: "relay".to_owned(), ..Instance::default() };
        let worker = Instance { role: "worker".to_owned(), lanes: vec![7], ..relay.clone() };
        let live = Live { instances: vec![relay.clone(), relay, worker], of_workers: [7, 8].into() };
        assert_eq!([7, 8, 9].map(|lane| live.serve(lane)), [1, 0, 2]);
    }
}
