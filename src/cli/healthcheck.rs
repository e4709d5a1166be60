use std::{net::SocketAddr, time::Duration};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::End;

/// Asks `/livez` of the relay on this machine.
pub(super) async fn healthcheck(listen: Option<SocketAddr>) -> End {
    let Some(listen) = listen else {
        eprintln!("http.listen is off or cannot be read: there is nothing to ask");
        return End::No;
    };
    match tokio::time::timeout(Duration::from_secs(3), ask(listen)).await {
        Ok(Ok(answer)) if answer.starts_with("HTTP/1.1 200") => End::Ok,
        Ok(Ok(answer)) => no(answer.lines().last().unwrap_or_default()),
        Ok(Err(error)) => no(&error.to_string()),
        Err(_) => no("no answer within 3 s"),
    }
}

fn no(why: &str) -> End {
    eprintln!("the relay is not well: {why}");
    End::No
}

async fn ask(listen: SocketAddr) -> std::io::Result<String> {
    let ip = if listen.ip().is_unspecified() { [127, 0, 0, 1].into() } else { listen.ip() };
    let mut stream = TcpStream::connect((ip, listen.port())).await?;
    stream.write_all(b"GET /livez HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}
