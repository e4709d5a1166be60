//! The processes of servers, found in /proc.

use std::{fs, path::Path};

use testkit::usage::peak_memory;

/// The largest resident memory of a process so far, in MiB.
pub(crate) fn peak_mib(pid: u32) -> f64 {
    let kib = peak_memory(pid).ok().and_then(|bytes| u32::try_from(bytes >> 10).ok());
    kib.map_or(0.0, f64::from) / 1024.0
}

/// The process on this machine that listens on a port, if this process may see it.
pub(crate) fn listening(port: u16) -> Option<u32> {
    let wanted = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    let inode = tables.iter().flat_map(|table| table.lines()).find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let listens = fields.get(3) == Some(&"0A") && fields.get(1)?.ends_with(&wanted);
        listens.then(|| fields.get(9).map(ToString::to_string)).flatten()
    })?;
    let socket = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let holds = |pid: &u32| {
        let files = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.filter_map(|file| fs::read_link(file.path()).ok()).any(|target| target == Path::new(&socket))
    };
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(holds)
}

/// The port at the end of an address, before a path or options.
pub(crate) fn port(address: &str) -> Option<u16> {
    let address = address.rsplit('@').next()?;
    let (_, rest) = address.split_once(':')?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
