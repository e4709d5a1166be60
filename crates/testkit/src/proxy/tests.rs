use std::time::Duration;

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    time::{Instant, timeout},
};

use super::{Counts, Cut, Direction, Proxy, authority};
use crate::servers::{PATIENCE, until};

/// Long enough for a byte to arrive on the loopback interface if no fault holds it.
const SOON: Duration = Duration::from_millis(200);

/// A server that echoes each byte, and reports the bytes that it received.
async fn echo() -> Result<(String, tokio::sync::mpsc::UnboundedReceiver<Option<u8>>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let (got, seen) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let got = got.clone();
            tokio::spawn(async move {
                while let Ok(byte) = stream.read_u8().await {
                    got.send(Some(byte)).ok();
                    // A closed client leaves bytes to be read.
                    stream.write_u8(byte).await.ok();
                }
                got.send(None).ok();
            });
        }
    });
    Ok((address, seen))
}

async fn asked(stream: &mut TcpStream, byte: u8) -> Result<u8> {
    stream.write_u8(byte).await?;
    Ok(timeout(PATIENCE, stream.read_u8()).await??)
}

async fn counted(proxy: &Proxy, what: &str, wanted: impl Fn(Counts) -> bool) -> Result<()> {
    until(PATIENCE, what, || async {
        ensure!(wanted(proxy.counts()), "{:?}", proxy.counts());
        Ok(())
    })
    .await
}

fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

#[tokio::test]
async fn everything_gets_through_while_no_fault_is_on() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    for byte in 0..=255 {
        assert_eq!(asked(&mut client, byte).await?, byte);
        assert_eq!(seen.recv().await.flatten(), Some(byte));
    }
    drop(client);
    assert_eq!(seen.recv().await, Some(None), "the end gets through, too");
    counted(&proxy, "the end", |counts| counts.open == 0).await?;
    let expected = Counts { accepted: 1, round_trips: 256, to_server: 256, to_client: 256, ..Counts::default() };
    assert_eq!(proxy.counts(), expected);
    Ok(())
}

#[tokio::test]
async fn the_address_is_the_servers_with_the_proxys_port() -> Result<()> {
    let proxy = Proxy::start("mysql://root:p@ss@127.0.0.1:3306/shop?ssl-mode=disabled").await?;
    let port = authority(proxy.address()).and_then(|authority| authority.split(':').nth(1)).unwrap_or_default();
    assert_eq!(proxy.address(), format!("mysql://root:p@ss@127.0.0.1:{port}/shop?ssl-mode=disabled"));
    assert!(Proxy::start("mysql://root@localhost/shop").await.is_err(), "there is no port to stand before");
    Ok(())
}

#[tokio::test]
async fn latency_is_added_in_each_direction_and_bytes_keep_their_order() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    asked(&mut client, 0).await?;
    seen.recv().await;
    proxy.latency(Direction::ToServer, Duration::from_millis(300));
    proxy.latency(Direction::ToClient, Duration::from_millis(200));
    let start = Instant::now();
    client.write_all(&[1, 2]).await?;
    assert_eq!(seen.recv().await.flatten(), Some(1));
    assert!(start.elapsed() >= Duration::from_millis(300));
    assert_eq!((client.read_u8().await?, client.read_u8().await?), (1, 2));
    assert!(start.elapsed() >= Duration::from_millis(500));
    Ok(())
}

#[tokio::test]
async fn a_black_hole_to_the_server_holds_requests_back_until_it_is_healed() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    asked(&mut client, 1).await?;
    seen.recv().await;
    proxy.black_hole(Direction::ToServer);
    client.write_u8(2).await?;
    assert!(timeout(SOON, seen.recv()).await.is_err(), "the server has got what was held back");
    counted(&proxy, "a packet to be held", |counts| counts.held == 1).await?;
    proxy.heal();
    assert_eq!((seen.recv().await.flatten(), client.read_u8().await?), (Some(2), 2));
    Ok(())
}

#[tokio::test]
async fn a_black_hole_to_the_client_holds_replies_back_while_requests_get_through() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    asked(&mut client, 1).await?;
    seen.recv().await;
    proxy.black_hole(Direction::ToClient);
    client.write_u8(2).await?;
    assert_eq!(seen.recv().await.flatten(), Some(2));
    assert!(timeout(SOON, client.read_u8()).await.is_err(), "the reply has come");
    proxy.heal();
    assert_eq!(client.read_u8().await?, 2);
    Ok(())
}

#[tokio::test]
async fn a_black_hole_hides_that_a_client_has_gone() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    asked(&mut client, 1).await?;
    seen.recv().await;
    for direction in Direction::BOTH {
        proxy.black_hole(direction);
    }
    drop(client);
    assert!(timeout(SOON, seen.recv()).await.is_err(), "the server knows");
    proxy.heal();
    assert_eq!(seen.recv().await, Some(None));
    Ok(())
}

#[tokio::test]
async fn a_connection_that_is_opened_into_a_black_hole_reaches_nobody_before_it_is_healed() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    proxy.black_hole(Direction::ToServer);
    let mut client = TcpStream::connect(proxy.address()).await?;
    client.write_u8(7).await?;
    assert!(timeout(SOON, seen.recv()).await.is_err());
    proxy.heal();
    assert_eq!(client.read_u8().await?, 7);
    Ok(())
}

#[tokio::test]
async fn a_reset_ends_all_connections_on_both_sides_and_lets_new_ones_in() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut idle = TcpStream::connect(proxy.address()).await?;
    asked(&mut idle, 1).await?;
    seen.recv().await;
    proxy.black_hole(Direction::ToClient);
    let mut waiting = TcpStream::connect(proxy.address()).await?;
    idle.write_u8(2).await?;
    assert_eq!(seen.recv().await.flatten(), Some(2));
    proxy.reset();
    for client in [&mut idle, &mut waiting] {
        let error = client.read_u8().await.unwrap_err();
        assert!(is_reset(&error), "{error:?}");
    }
    assert_eq!(seen.recv().await, Some(None), "the server knows, too");
    proxy.heal();
    assert_eq!(asked(&mut TcpStream::connect(proxy.address()).await?, 3).await?, 3);
    let counts = proxy.counts();
    assert_eq!((counts.cut, counts.cut_in_flight), (2, 1), "the reply to 2 was due");
    Ok(())
}

#[tokio::test]
async fn a_connection_is_cut_after_so_many_bytes_and_the_next_one_as_well() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    asked(&mut client, 1).await?;
    seen.recv().await;
    proxy.cut(Direction::ToServer, Cut::After(3));
    for mut client in [client, TcpStream::connect(proxy.address()).await?] {
        client.write_all(&[1, 2, 3, 4]).await?;
        for byte in 1..=3 {
            assert_eq!(seen.recv().await.flatten(), Some(byte));
        }
        assert_eq!(seen.recv().await, Some(None), "the fourth did not get through");
        let mut rest = Vec::new();
        assert!(is_reset(&client.read_to_end(&mut rest).await.unwrap_err()));
    }
    assert_eq!(proxy.counts().cut, 2);
    Ok(())
}

/// How many of a hundred bytes, sent one by one, come back on each of five connections.
async fn survived(cut: Cut) -> Result<Vec<u8>> {
    let (server, _seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    proxy.cut(Direction::ToClient, cut);
    let mut all = Vec::new();
    for _ in 0..5 {
        let mut client = TcpStream::connect(proxy.address()).await?;
        let mut count = 0;
        while count < 100 && asked(&mut client, count).await.is_ok() {
            count += 1;
        }
        all.push(count);
    }
    Ok(all)
}

#[tokio::test]
async fn random_cuts_differ_between_connections_and_are_the_same_for_the_same_seed() -> Result<()> {
    let within = |seed| Cut::Within { bytes: 90, seed };
    let border = |seed| Cut::Border { chance: 0.1, seed };
    for cut in [within, border] as [fn(u64) -> Cut; 2] {
        let once = survived(cut(7)).await?;
        assert_eq!(once, survived(cut(7)).await?);
        assert_ne!(once, survived(cut(8)).await?);
        assert!(once.iter().any(|count| count != &once[0]), "{once:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_reply_is_cut_while_its_request_goes_through_and_only_so_often() -> Result<()> {
    let (server, mut seen) = echo().await?;
    let proxy = Proxy::start(&server).await?;
    proxy.cut_replies(2, |request| request.contains(&9));
    for _ in 0..2 {
        let mut client = TcpStream::connect(proxy.address()).await?;
        assert_eq!(asked(&mut client, 1).await?, 1);
        assert!(asked(&mut client, 9).await.is_err());
        assert_eq!(seen.recv().await.flatten(), Some(1));
        assert_eq!(seen.recv().await.flatten(), Some(9), "the request has gone through");
        seen.recv().await;
    }
    assert_eq!(asked(&mut TcpStream::connect(proxy.address()).await?, 9).await?, 9);
    let counts = proxy.counts();
    assert_eq!((counts.replies_cut, counts.cut, counts.cut_in_flight), (2, 2, 2));
    Ok(())
}

/// A client that does not wait for replies has several such requests in flight: its connection counts once.
#[tokio::test]
async fn of_each_connection_one_reply_is_cut() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let proxy = Proxy::start(&listener.local_addr()?.to_string()).await?;
    proxy.cut_replies(2, |request| request == [9]);
    for connection in 1..=2 {
        let mut client = TcpStream::connect(proxy.address()).await?;
        let (mut server, _) = listener.accept().await?;
        for _ in 0..3 {
            client.write_u8(9).await?;
            server.read_u8().await?;
        }
        server.write_u8(9).await?;
        assert!(client.read_u8().await.is_err());
        assert_eq!(proxy.counts().replies_cut, connection);
    }
    Ok(())
}

#[tokio::test]
async fn a_client_is_reset_while_the_server_is_down() -> Result<()> {
    let proxy = Proxy::start(&format!("127.0.0.1:{}", crate::servers::free_port()?)).await?;
    let mut client = TcpStream::connect(proxy.address()).await?;
    assert!(is_reset(&client.read_u8().await.unwrap_err()));
    assert_eq!(proxy.counts().cut, 0, "that is none of the proxy's faults");
    Ok(())
}

#[tokio::test]
async fn another_server_gets_the_connections_to_come() -> Result<()> {
    let ((first, mut seen_first), (second, mut seen_second)) = (echo().await?, echo().await?);
    let proxy = Proxy::start(&first).await?;
    let mut old = TcpStream::connect(proxy.address()).await?;
    asked(&mut old, 1).await?;
    proxy.retarget(&second)?;
    let mut new = TcpStream::connect(proxy.address()).await?;
    asked(&mut new, 2).await?;
    asked(&mut old, 3).await?;
    assert_eq!(seen_second.recv().await.flatten(), Some(2));
    assert_eq!([seen_first.recv().await.flatten(), seen_first.recv().await.flatten()], [Some(1), Some(3)]);
    ensure!(proxy.retarget("nowhere").is_err(), "an address without a port is taken");
    Ok(())
}
