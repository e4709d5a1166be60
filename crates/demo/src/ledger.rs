//! The ledger at the end: what the judge of the tests finds in what was enqueued, what arrived and what was done.

use std::{collections::HashSet, fmt};

use anyhow::{Result, ensure};
use outbox_core::sqlx::MySqlPool;
use testkit::{
    database::Tables,
    judge::{Consumed, Expectations, Report, judge},
    ledger::Entry,
};

use crate::{
    consumers::Role,
    tables,
    tally::{Intake, Sales, SalesCount},
};

/// The whole ledger.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    /// Orders in the database.
    committed: usize,
    /// The outcomes that the order service saw.
    sales: SalesCount,
    /// One for each consumer.
    accounts: Vec<Account>,
}

/// One consumer's part.
#[derive(Debug, Clone)]
struct Account {
    role: Role,
    report: Report,
    consumed: Consumed,
    effects: u64,
}

impl Ledger {
    /// Makes it up.
    pub(crate) async fn new<'a>(
        pool: &MySqlPool,
        sales: &Sales,
        intakes: impl IntoIterator<Item = &'a Intake>,
    ) -> Result<Self> {
        let orders = tables::orders(pool).await?;
        let entries = sales.ledger().entries();
        let messages = sales.messages().into_iter().filter(|(_, order)| orders.contains(order));
        let business: HashSet<_> = messages.map(|(id, _)| id).collect();
        let mut accounts = Vec::new();
        for intake in intakes {
            let is_own = |entry: &&Entry| entry.contents.topic == intake.role.topic();
            let own: Vec<Entry> = entries.iter().filter(is_own).cloned().collect();
            let (effects, processed) =
                (tables::effects(pool, intake.role).await?, tables::processed(pool, intake.role.name()).await?);
            let tables = Tables { business: business.clone(), effects, processed, ..Tables::default() };
            accounts.push(Account::new(intake.role, &own, intake, &tables));
        }
        Ok(Self { committed: orders.len(), sales: sales.count(), accounts })
    }

    /// Whether every committed order had its messages and its effects once, in order, and nothing else came.
    ///
    /// # Errors
    /// With all that is wrong. A ledger in which nothing happened proves nothing.
    pub(crate) fn adds_up(&self) -> Result<()> {
        ensure!(!self.accounts.is_empty(), "nobody consumed");
        for Account { role, report, .. } in &self.accounts {
            report.assert_ok(&Expectations::default())?;
            let name = role.name();
            let messages = report.committed;
            let orders = self.committed;
            ensure!(messages == orders, "{orders} orders, and {messages} messages for {name}");
        }
        Ok(())
    }
}

impl Account {
    fn new(role: Role, entries: &[Entry], intake: &Intake, tables: &Tables) -> Self {
        let consumed = intake.count();
        let effects = tables.effects.values().sum();
        let report = judge(entries, &intake.arrivals(), tables);
        let arrived = report.arrived as u64;
        let report = report.with_consumed(&consumed, usize::try_from(effects).unwrap_or(usize::MAX), arrived);
        Self { role, report, consumed, effects }
    }
}

/// No line is wider than 40 columns.
impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "", self.accounts.iter().map(|it| it.role.name()))?;
        line(f, "", self.accounts.iter().map(|it| it.role.broker()))?;
        line(f, "orders committed", [self.committed])?;
        line(f, "orders rolled back", [self.sales.rolled_back])?;
        if self.sales.failed > 0 {
            line(f, "orders failed", [self.sales.failed])?;
        }
        let mut row = |name, value: fn(&Account) -> usize| line(f, name, self.accounts.iter().map(value));
        row("messages delivered", |it| it.report.arrived)?;
        row("lost", |it| it.report.lost.len())?;
        row("phantom", |it| it.report.phantoms.len())?;
        row("out of order", |it| it.report.order_violations.len())?;
        line(f, "duplicates absorbed", self.accounts.iter().map(|it| it.consumed.duplicate))?;
        line(f, "effects applied", self.accounts.iter().map(|it| it.effects))?;
        line(f, "effects wrong", self.accounts.iter().map(|it| it.report.effects.len()))?;
        match self.adds_up() {
            Ok(()) => write!(f, "\nThe ledger adds up."),
            Err(error) => write!(f, "\n{error:#}\n\nThe ledger does NOT add up."),
        }
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, values: impl IntoIterator<Item = impl fmt::Display>) -> fmt::Result {
    write!(f, "{name:<22}")?;
    values.into_iter().try_for_each(|value| write!(f, "{value:>9}"))?;
    writeln!(f)
}

#[cfg(test)]
mod tests {
    use outbox_core::Uuid;

    use super::*;
    use crate::{
        events::{Order, OrderPlaced},
        tally::draft,
    };

    /// Of one order, whose message never came.
    fn ledger() -> Ledger {
        let sales = Sales::default();
        let intake = Intake::new(Role::Billing).unwrap();
        let event = OrderPlaced(Order { id: 1, customer: 1, number: 1, amount_cents: 100, placed_at: 0 });
        sales.open(1, &[draft(Uuid::nil(), &event, 1).unwrap()]).committed();
        let account = Account::new(Role::Billing, &sales.ledger().entries(), &intake, &Tables::default());
        Ledger { committed: 1, sales: sales.count(), accounts: vec![account; 2] }
    }

    #[test]
    fn it_says_what_is_wrong_in_lines_that_a_narrow_terminal_has_room_for() {
        assert!(ledger().adds_up().unwrap_err().to_string().contains("lost (1)"));
        let text = ledger().to_string();
        let (table, verdict) = text.split_once("\n\n").unwrap();
        assert!(table.lines().all(|line| line.chars().count() <= 40), "{table}");
        assert!(verdict.ends_with("The ledger does NOT add up."), "{verdict}");
    }

    #[test]
    fn a_run_in_which_nothing_happened_does_not_add_up() {
        assert!(Ledger { accounts: Vec::new(), ..ledger() }.adds_up().is_err());
    }
}
