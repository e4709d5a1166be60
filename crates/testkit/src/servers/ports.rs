//! Free ports on the loopback address.

use std::{
    collections::VecDeque,
    net::{Ipv4Addr, TcpListener, UdpSocket},
    ops::Range,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context as _, Result};

/// Below the range in which systems choose ports of outgoing connections. While a server is down between a kill and its
/// restart, no client can get its port by chance.
const RANGE: Range<u16> = 18_000..32_000;

const TRIES: usize = 1_000;

/// The number of ports that their datagram sockets keep taken: until their server listens on them, or a little longer.
const KEPT: usize = 256;

static TAKEN: Mutex<VecDeque<UdpSocket>> = Mutex::new(VecDeque::new());

/// A port on which no process listens, and which no other caller gets, in this process or another: the datagram port of
/// the same number marks it as taken.
///
/// # Errors
/// When no port of the range is free.
pub fn free_port() -> Result<u16> {
    let (port, mark) = (0..TRIES)
        .map(|_| rand::random_range(RANGE))
        .find_map(|port| mark(port).map(|mark| (port, mark)))
        .context("no free port on 127.0.0.1")?;
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    taken.push_back(mark);
    if taken.len() > KEPT {
        taken.pop_front();
    }
    Ok(port)
}

fn mark(port: u16) -> Option<UdpSocket> {
    let address = (Ipv4Addr::LOCALHOST, port);
    let mark = UdpSocket::bind(address).ok()?;
    TcpListener::bind(address).is_ok().then_some(mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_given_to_one_caller_although_nobody_listens_on_it_yet() {
        let port = free_port().unwrap();
        drop(TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap());
        assert!(mark(port).is_none());
    }
}
