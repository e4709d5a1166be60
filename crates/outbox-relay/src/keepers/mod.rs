//! Tasks beside the path of a message, one of each in every relay. They renew leases, take over those of dead relays,
//! promote delayed messages, raise the floor, read pauses, carry out jobs, purge, count, and send canaries.

pub mod canary;
pub mod floor;
pub mod gauges;
pub mod jobs;
pub mod pauses;
pub mod promote;
pub mod purge;
pub mod renew;
pub mod takeover;
