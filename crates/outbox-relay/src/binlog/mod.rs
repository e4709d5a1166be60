//! Reads the tables of an outbox from the binary log of `MySQL` or `MariaDB`, in the order of the commits. Rows of
//! other tables are not decoded, but the driver unpacks each compressed transaction as a whole.
//!
//! The log shows a commit before its COMMIT returns, and some milliseconds before other sessions see its rows. What it
//! shows stays true after a crash of the server only under the conditions of [`Refused`].

mod conditions;
mod login;
mod rows;

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use futures_util::StreamExt as _;
use mysql_async::{
    BinlogStream, BinlogStreamRequest, Conn, Opts, OptsBuilder,
    binlog::{
        EventType,
        events::{Event, EventData, RowsEventData},
    },
    prelude::Queryable as _,
};
use tokio::time::Instant;

pub(crate) use self::conditions::judge;
use self::{
    conditions::{LogStart, look, of_login},
    rows::{LoggedRow, Table},
};
pub use self::{
    conditions::{Reason, Refused},
    rows::{Held, RowChange, What},
};
use crate::settings::Database;
use outbox_core::{Contents, store::claim::read::Stored};

/// The server sends a heartbeat when nothing was written for this time.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// A stream without an event and without a heartbeat for this time is broken.
const SILENCE: Duration = Duration::from_secs(5);
/// The time for all statements before a stream.
const OPENING: Duration = Duration::from_secs(10);
/// The largest event, also of other tables. The driver holds it as a whole.
const LARGEST: usize = 8 << 20;
/// Most changes of one transaction, of 100 bytes each.
const MOST: usize = 100_000;
/// Most bytes of the contents of one transaction that are kept. The others are read from the tables.
const MOST_CONTENTS: usize = 1 << 20;
/// The event with which a transaction of `MariaDB` begins.
const GTID: u8 = 162;
/// Most prepared transactions without a change of the outbox that are remembered.
const PREPARED: usize = 10_000;

/// A stream of the log.
pub struct Log {
    stream: BinlogStream,
    server: String,
    columns: rows::Columns,
    /// Bytes of rows of other tables.
    pub foreign: u64,
    /// When the server has sent something last.
    heard: Instant,
    tables: HashMap<u64, Table>,
    /// The changes of the present transaction so far.
    changes: Vec<RowChange>,
    /// Messages of the present transaction, and their bytes.
    messages: HashMap<u64, Box<Stored>>,
    bytes: usize,
    /// Whether a transaction has begun whose end was not shown.
    is_open: bool,
    /// Whether it may have several events.
    is_in_transaction: bool,
    /// The name of the XA transaction that is shown, and those that are prepared and have changed nothing here.
    xa: Vec<u8>,
    prepared: HashSet<Vec<u8>>,
}

/// The end of a transaction, with its changes of the outbox.
#[derive(Debug)]
pub enum End {
    /// It was committed.
    Committed(Vec<RowChange>),
    /// It was prepared (XA): it may be committed at any time, or rolled back.
    Prepared(Vec<RowChange>),
    /// A prepared transaction was committed. Its changes came with its preparation, which may be long ago.
    PreparedCommitted,
}

/// Why a stream has ended.
#[derive(Debug, thiserror::Error)]
pub enum StreamEnded {
    /// The connection or the server.
    #[error("the stream of the binary log has ended: {0}")]
    Lost(String),
    /// An event that is not understood, so that rows may be missing.
    #[error("the binary log has an event that cannot be read: {0}")]
    Unreadable(String),
}

impl Log {
    /// Opens a stream that begins with the next commit. `name` is shown by `SHOW REPLICAS`.
    ///
    /// # Errors
    ///
    /// If a condition is not met, or the server cannot be reached. The conditions are those of this moment: settings
    /// may change later.
    pub async fn open(database: &Database, name: &str) -> Result<Self, Refused> {
        let refused = |error: String| Refused::new(Reason::Unavailable, error);
        let database = database.clone();
        let logins = tokio::task::spawn_blocking(move || login::logins(&database)).await;
        let (logins, schema) =
            logins.map_err(|error| refused(error.to_string()))?.map_err(|error| refused(error.to_string()))?;
        let mut opened = Err(refused("no login".to_owned()));
        for login in logins {
            opened = Self::open_in_time(login, &schema, name).await;
            if !opened.as_ref().is_err_and(|refused| refused.reason == Reason::Unavailable) {
                break;
            }
        }
        opened
    }

    async fn open_in_time(login: Opts, schema: &str, name: &str) -> Result<Self, Refused> {
        // It must differ from those of the server, its replicas and other streams.
        let server_id = rand::random::<u32>() | 1 << 31;
        let opened = tokio::time::timeout(OPENING, Self::open_now(login, schema, server_id, name)).await;
        opened.unwrap_or_else(|_elapsed| {
            Err(Refused::new(Reason::Unavailable, format!("the server does not answer within {OPENING:?}")))
        })
    }

    async fn open_now(login: Opts, schema: &str, server_id: u32, name: &str) -> Result<Self, Refused> {
        let login = OptsBuilder::from_opts(login).max_allowed_packet(Some(LARGEST));
        let mut connection = Conn::new(login).await.map_err(of_login)?;
        let LogStart { server, file, position } = look(&mut connection, schema).await?;
        // After the position: a change of the tables that this does not see is in the log.
        let columns = rows::columns(&mut connection, schema).await?;
        let nanos = HEARTBEAT.as_nanos();
        connection
            .query_drop(format!("SET @master_heartbeat_period = {nanos}, @source_heartbeat_period = {nanos}"))
            .await?;
        // Without this, MariaDB writes its events anew for the client, and fails at those of XA.
        connection.query_drop("SET @mariadb_slave_capability = 4").await?;
        // With a name of its own, MySQL takes no other stream with this server id for an earlier one of the same
        // client.
        connection.query_drop("SET @slave_uuid = UUID()").await?;
        connection.query_drop("SET @replica_uuid = @slave_uuid").await?;
        let request = BinlogStreamRequest::new(server_id).with_filename(file.as_bytes()).with_pos(position);
        let stream = connection.get_binlog_stream(request.with_hostname(name.as_bytes())).await?;
        let mut log = Self {
            stream,
            server,
            columns,
            foreign: 0,
            heard: Instant::now(),
            tables: HashMap::new(),
            changes: Vec::new(),
            messages: HashMap::new(),
            bytes: 0,
            is_open: false,
            is_in_transaction: false,
            xa: Vec::new(),
            prepared: HashSet::new(),
        };
        // The server says only now whether it sends the log. Its first event is made up: it names the file.
        log.event().await.map_err(|error| Refused::new(Reason::Unavailable, error.to_string()))?;
        Ok(log)
    }

    /// The identity of the server: `server_uuid` of `MySQL`, `server_uid` of `MariaDB`, or its host and port.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Waits for the end of the next transaction. Transactions without a change of the outbox are left out. May be
    /// cancelled.
    ///
    /// # Errors
    ///
    /// If the stream has ended. It must be opened anew, and what was committed meanwhile be read from the tables.
    pub async fn next(&mut self) -> Result<End, StreamEnded> {
        loop {
            let event = self.event().await?;
            if let Some(end) = self.apply(&event)? {
                return Ok(end);
            }
        }
    }

    async fn event(&mut self) -> Result<Event, StreamEnded> {
        match tokio::time::timeout_at(self.heard + SILENCE, self.stream.next()).await {
            Ok(Some(Ok(event))) => {
                self.heard = Instant::now();
                Ok(event)
            }
            Ok(Some(Err(error))) => Err(StreamEnded::Lost(error.to_string())),
            Ok(None) => Err(StreamEnded::Lost("the server has closed it".to_owned())),
            Err(_elapsed) => Err(StreamEnded::Lost(format!("no heartbeat for {SILENCE:?}"))),
        }
    }

    fn apply(&mut self, event: &Event) -> Result<Option<End>, StreamEnded> {
        let number = event.header().event_type_raw();
        let Ok(kind) = event.header().event_type() else { return self.foreign(number, event.data()).map(|()| None) };
        match kind {
            EventType::TABLE_MAP_EVENT
            | EventType::WRITE_ROWS_EVENT
            | EventType::WRITE_ROWS_EVENT_V1
            | EventType::UPDATE_ROWS_EVENT
            | EventType::UPDATE_ROWS_EVENT_V1
            | EventType::DELETE_ROWS_EVENT
            | EventType::DELETE_ROWS_EVENT_V1
            | EventType::PARTIAL_UPDATE_ROWS_EVENT
            | EventType::QUERY_EVENT => {}
            // Its first byte says whether it is a commit in one phase.
            EventType::XA_PREPARE_LOG_EVENT if event.data().first() == Some(&0) => return Ok(self.prepared()),
            EventType::XID_EVENT | EventType::XA_PREPARE_LOG_EVENT => return Ok(self.committed()),
            EventType::INCIDENT_EVENT => return Err(StreamEnded::Unreadable("the server has lost events".to_owned())),
            EventType::EXECUTE_LOAD_QUERY_EVENT => return Err(statement()),
            EventType::GTID_EVENT | EventType::ANONYMOUS_GTID_EVENT | EventType::GTID_TAGGED_LOG_EVENT => {
                return self.begin().map(|()| None);
            }
            _ => return Ok(None),
        }
        let wrong = |error: std::io::Error| StreamEnded::Unreadable(error.to_string());
        match event.read_data().map_err(wrong)? {
            Some(EventData::TableMapEvent(map)) => {
                match self.columns.table(&map).transpose()? {
                    Some(table) => drop(self.tables.insert(map.table_id(), table)),
                    None => drop(self.tables.remove(&map.table_id())),
                }
                Ok(None)
            }
            Some(EventData::RowsEvent(rows)) if !self.tables.contains_key(&rows.table_id()) => {
                self.foreign += u64::from(event.header().event_size());
                Ok(None)
            }
            Some(EventData::RowsEvent(rows)) => self.rows(&rows).map(|()| None),
            Some(EventData::QueryEvent(query)) => self.query(query.schema_raw(), query.query_raw()),
            _ => Ok(None),
        }
    }

    /// A transaction begins. The driver leaves a compressed one out, without an error, if it cannot read it.
    fn begin(&mut self) -> Result<(), StreamEnded> {
        if self.is_open || !self.changes.is_empty() {
            return Err(StreamEnded::Unreadable("a transaction without its end".to_owned()));
        }
        self.is_open = true;
        Ok(())
    }

    fn end(&mut self) -> Vec<RowChange> {
        (self.is_open, self.is_in_transaction, self.bytes) = (false, false, 0);
        self.messages.clear();
        // The next transaction names its tables again.
        self.tables.clear();
        std::mem::take(&mut self.changes)
    }

    fn committed(&mut self) -> Option<End> {
        let changes = self.end();
        (!changes.is_empty()).then_some(End::Committed(changes))
    }

    fn prepared(&mut self) -> Option<End> {
        let changes = self.end();
        let name = std::mem::take(&mut self.xa);
        if changes.is_empty() && self.prepared.len() < PREPARED {
            self.prepared.insert(name);
        }
        (!changes.is_empty()).then_some(End::Prepared(changes))
    }

    fn rows(&mut self, rows: &RowsEventData<'_>) -> Result<(), StreamEnded> {
        let Some(table) = self.tables.get(&rows.table_id()) else { return Ok(()) };
        let map = self.stream.get_tme(rows.table_id());
        let map = map.ok_or_else(|| StreamEnded::Unreadable("rows of a table that was not named".to_owned()))?;
        for row in rows.rows(map) {
            let (before, after) = row.map_err(|error| StreamEnded::Unreadable(error.to_string()))?;
            for row in table.changed(before.as_ref(), after.as_ref())?.into_iter().flatten() {
                match row {
                    LoggedRow::Message(message) => {
                        self.bytes += size(&message);
                        if self.bytes <= MOST_CONTENTS {
                            self.messages.insert(message.id, message);
                        }
                    }
                    LoggedRow::Change(RowChange { lane, what: What::Pending(pending, _) }) => {
                        let message = self.messages.remove(&pending.id);
                        self.changes.push(RowChange { lane, what: What::Pending(pending, message) });
                    }
                    LoggedRow::Change(change) => self.changes.push(change),
                }
            }
            if self.changes.len() > MOST {
                return Err(StreamEnded::Unreadable(format!("a transaction with more than {MOST} changes")));
            }
        }
        Ok(())
    }

    fn query(&mut self, schema: &[u8], text: &[u8]) -> Result<Option<End>, StreamEnded> {
        let after = |words: &str| {
            let (start, rest) = text.split_at_checked(words.len())?;
            start.eq_ignore_ascii_case(words.as_bytes()).then(|| rest.trim_ascii())
        };
        if after("XA START").is_some() {
            self.is_in_transaction = true;
        } else if let Some(name) = after("XA END ") {
            self.xa = name.to_vec();
        } else if let Some(name) = after("XA COMMIT ") {
            self.end();
            return Ok((!self.prepared.remove(name)).then_some(End::PreparedCommitted));
        } else if let Some(name) = after("XA ROLLBACK ") {
            self.end();
            self.prepared.remove(name);
        } else if after("BEGIN").is_some() {
            // MySQL has begun the transaction with another event.
            if !self.is_open {
                self.begin()?;
            }
            self.is_in_transaction = true;
        } else if after("COMMIT").is_some() {
            return Ok(self.committed());
        } else if after("ROLLBACK TO").is_some() {
            // It is logged, in place of what it leaves, beside changes of tables that cannot roll back.
            if !self.changes.is_empty() {
                return Err(StreamEnded::Unreadable(
                    "a ROLLBACK TO SAVEPOINT beside tables without transactions".to_owned(),
                ));
            }
        } else if after("ROLLBACK").is_some() {
            self.end();
        } else if after("SAVEPOINT").is_none() {
            // In a transaction it stands for rows; otherwise it changes tables.
            let is_of = self.columns.is_of(schema);
            if is_of && self.is_in_transaction || self.columns.are_named(text, is_of) {
                return Err(statement());
            }
            self.is_open &= self.is_in_transaction;
        }
        Ok(None)
    }

    /// Events of `MariaDB` that the driver does not know.
    fn foreign(&mut self, number: u8, data: &[u8]) -> Result<(), StreamEnded> {
        match number {
            GTID => {
                self.begin()?;
                // After a number of 8 bytes and one of 4: whether it is a statement outside of transactions. Otherwise
                // there is no BEGIN.
                self.is_in_transaction = data.get(12).is_some_and(|flags| flags & 1 == 0);
                Ok(())
            }
            // Compressed statements and rows.
            165..=171 => Err(StreamEnded::Unreadable("it is compressed (log_bin_compress)".to_owned())),
            // Annotations, check points, lists of GTIDs, encryption, which the server undoes.
            160..=164 => Ok(()),
            _ => Err(StreamEnded::Unreadable(format!("its kind is {number}"))),
        }
    }
}

/// The bytes that a message takes.
fn size(message: &Stored) -> usize {
    let Contents { key, headers, payload, .. } = &message.contents;
    let headers: usize = headers.iter().map(|(name, value)| name.len() + value.len() + 48).sum();
    size_of::<Stored>() + headers + [key, payload].into_iter().flatten().map(Vec::len).sum::<usize>()
}

/// Only rows show what a statement has changed.
fn statement() -> StreamEnded {
    StreamEnded::Unreadable("a statement in place of rows (binlog_format), or one that changes tables".to_owned())
}
