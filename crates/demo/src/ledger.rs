//! The ledger at the end: what was committed against what arrived and what was done.

use std::{
    collections::{HashMap, HashSet},
    fmt,
};

use crate::{
    consumers::Role,
    tally::{IntakeCount, SalesCount},
};

/// The whole ledger.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    /// Orders in the database.
    pub(crate) committed: u64,
    /// What the order service saw.
    pub(crate) sales: SalesCount,
    /// One for each consumer.
    pub(crate) accounts: Vec<Account>,
}

/// One consumer's part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    /// Who.
    pub(crate) role: Role,
    /// What it saw.
    pub(crate) intake: IntakeCount,
    /// Committed orders of which no message came.
    pub(crate) lost: u64,
    /// Orders of which a message came and that are not in the database.
    pub(crate) phantom: u64,
    /// Effects in the database.
    pub(crate) effects: u64,
    /// Committed orders without just one effect of just their amount, and effects without order.
    pub(crate) wrong_effects: u64,
}

impl Account {
    /// Compares the orders of the database with the messages that came and with the effects in the database.
    pub(crate) fn new(
        role: Role,
        intake: IntakeCount,
        orders: &[(u64, u64)],
        delivered: &HashSet<u64>,
        effects: &[(u64, u64)],
    ) -> Self {
        let amounts: HashMap<u64, u64> = orders.iter().copied().collect();
        let mut applied: HashMap<u64, Vec<u64>> = HashMap::new();
        for (order, amount) in effects {
            applied.entry(*order).or_default().push(*amount);
        }
        let right = |(order, amount): &&(u64, u64)| applied.get(order).is_some_and(|them| *them == [*amount]);
        let strays = applied.keys().filter(|order| !amounts.contains_key(order)).count();
        Self {
            role,
            intake,
            lost: count(orders.iter().filter(|(order, _)| !delivered.contains(order)).count()),
            phantom: count(delivered.iter().filter(|order| !amounts.contains_key(order)).count()),
            effects: count(effects.len()),
            wrong_effects: count(orders.iter().filter(|order| !right(order)).count() + strays),
        }
    }

    fn adds_up(&self) -> bool {
        let IntakeCount { absorbed, failed, out_of_order, .. } = self.intake;
        let duplicates = self.intake.duplicates();
        let all_absorbed = absorbed <= duplicates && duplicates <= absorbed + failed;
        self.lost == 0 && self.phantom == 0 && self.wrong_effects == 0 && out_of_order == 0 && all_absorbed
    }
}

impl Ledger {
    /// Whether every committed order had its messages and its effects once, in order, and nothing else came. A ledger in which
    /// nothing happened proves nothing.
    pub(crate) fn adds_up(&self) -> bool {
        self.committed > 0 && !self.accounts.is_empty() && self.accounts.iter().all(Account::adds_up)
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> =
            self.accounts.iter().map(|it| format!("{} ({})", it.role.name(), it.role.broker())).collect();
        line(f, "", names)?;
        line(f, "orders committed", [self.committed.to_string()])?;
        line(f, "orders rolled back", [self.sales.rolled_back.to_string()])?;
        if self.sales.failed > 0 {
            line(f, "orders failed", [self.sales.failed.to_string()])?;
        }
        let mut row =
            |name, value: fn(&Account) -> u64| line(f, name, self.accounts.iter().map(|it| value(it).to_string()));
        row("messages delivered", |it| it.intake.orders)?;
        row("lost", |it| it.lost)?;
        row("phantom", |it| it.phantom)?;
        row("out of order", |it| it.intake.out_of_order)?;
        row("duplicates delivered", |it| it.intake.duplicates())?;
        row("  of these on purpose", |it| it.intake.forgotten.min(it.intake.duplicates()))?;
        row("duplicates absorbed", |it| it.intake.absorbed)?;
        row("effects applied", |it| it.effects)?;
        row("effects wrong", |it| it.wrong_effects)?;
        write!(f, "\n{}", if self.adds_up() { "The ledger adds up." } else { "The ledger does NOT add up." })
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, values: impl IntoIterator<Item = String>) -> fmt::Result {
    write!(f, "  {name:<24}")?;
    for value in values {
        write!(f, "{value:>20}")?;
    }
    writeln!(f)
}

fn count(number: usize) -> u64 {
    number as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: [(u64, u64); 2] = [(1, 100), (2, 250)];

    fn ledger(delivered: &[u64], effects: &[(u64, u64)], deliveries: u64, absorbed: u64) -> Ledger {
        let delivered: HashSet<u64> = delivered.iter().copied().collect();
        let intake = IntakeCount { deliveries, orders: count(delivered.len()), absorbed, ..IntakeCount::default() };
        let account = Account::new(Role::Billing, intake, &ORDERS, &delivered, effects);
        Ledger { committed: 2, sales: SalesCount::default(), accounts: vec![account] }
    }

    #[test]
    fn it_adds_up_when_all_came_and_each_had_one_effect() {
        assert!(ledger(&[1, 2], &ORDERS, 2, 0).adds_up());
        assert!(ledger(&[1, 2], &ORDERS, 5, 3).adds_up());
    }

    #[test]
    fn a_lost_message_does_not_add_up() {
        assert!(!ledger(&[1], &[(1, 100)], 1, 0).adds_up());
    }

    #[test]
    fn a_phantom_does_not_add_up() {
        assert!(!ledger(&[1, 2, 3], &ORDERS, 3, 0).adds_up());
        assert!(!ledger(&[1, 2], &[(1, 100), (2, 250), (3, 1)], 2, 0).adds_up());
    }

    #[test]
    fn an_effect_that_was_applied_twice_or_wrongly_does_not_add_up() {
        assert!(!ledger(&[1, 2], &[(1, 100), (2, 250), (2, 250)], 3, 0).adds_up());
        assert!(!ledger(&[1, 2], &[(1, 100), (2, 251)], 2, 0).adds_up());
    }

    #[test]
    fn a_duplicate_that_nobody_absorbed_does_not_add_up() {
        assert!(!ledger(&[1, 2], &ORDERS, 3, 0).adds_up());
    }

    #[test]
    fn a_run_in_which_nothing_happened_does_not_add_up() {
        let account = Account::new(Role::Mailer, IntakeCount::default(), &[], &HashSet::new(), &[]);
        assert!(!Ledger { committed: 0, sales: SalesCount::default(), accounts: vec![account] }.adds_up());
    }
}
