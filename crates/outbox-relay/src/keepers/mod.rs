//! Tasks beside the path of a message, one of each in every relay. They renew leases, take over those of dead relays,
//! promote delayed messages, raise the floor, read pauses, carry out jobs, purge, count, and send canaries.

pub(crate) mod canary;
pub(crate) mod floor;
pub(crate) mod gauges;
pub(crate) mod jobs;
pub(crate) mod pauses;
pub(crate) mod promote;
pub(crate) mod purge;
pub(crate) mod renew;
pub(crate) mod takeover;
