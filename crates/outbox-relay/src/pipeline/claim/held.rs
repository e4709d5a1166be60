//! Finds the held-back keys among the candidates of a claim.

use std::{
    collections::{HashMap, HashSet},
    time::{Duration, Instant},
};

use outbox_core::{
    sqlx,
    store::claim::{Seen, held},
};

use super::{Claimer, Memory};
use crate::state::session::Session;

/// For this many candidate keys the server is asked which of them are held back: 4 µs each, in both tables. For more,
/// the held keys are read one after the other (0.2 ms each), and the candidates are asked for only if there are many of
/// those, too.
const FEW_KEYS: usize = 64;
const FEW_HELD: usize = 8;
/// The time after a walk through too many held keys in which no other walk is tried.
const MANY_HELD: Duration = Duration::from_secs(1);

impl Claimer {
    /// Returns the held-back keys of the seen rows, each with the smallest id that holds it back.
    pub(super) async fn held(
        &self,
        memory: &mut Memory,
        session: &mut Session,
        seen: &Seen,
    ) -> Result<HashMap<u64, u64>, sqlx::Error> {
        let Some(first) = seen.holds else { return Ok(HashMap::new()) };
        let rows = seen.below.iter().chain(&seen.fresh);
        let mut keys: HashSet<u64> = rows.map(|row| row.key_hash).filter(|key| *key != 0).collect();
        if keys.len() > FEW_KEYS && memory.many_held_until <= Instant::now() {
            match self.few_held(session, first).await? {
                Some(few) => keys.retain(|key| few.contains(key)),
                None => memory.many_held_until = Instant::now() + MANY_HELD,
            }
        }
        if keys.is_empty() {
            return Ok(HashMap::new());
        }
        let keys: Vec<u64> = keys.into_iter().collect();
        let held = session.run("held", async |db| held::among(db, self.lane, &keys).await).await?;
        Ok(held.into_iter().collect())
    }

    /// Returns all held-back keys of the lane, from the first one on; `None` if there are more than a few.
    async fn few_held(&self, session: &mut Session, first: u64) -> Result<Option<Vec<u64>>, sqlx::Error> {
        let mut held = vec![first];
        while let Some(&last) = held.last().filter(|_| held.len() <= FEW_HELD) {
            match session.run("held", async |db| held::next(db, self.lane, last).await).await? {
                Some(next) => held.push(next),
                None => return Ok(Some(held)),
            }
        }
        Ok(None)
    }
}
