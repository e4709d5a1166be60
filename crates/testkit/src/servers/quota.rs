//! Quotas of Kafka's clients. rdkafka has no call for them, so this writes the request itself.

use anyhow::{Result, ensure};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

/// `AlterClientQuotas`, in the last version without tagged fields.
const ALTER_CLIENT_QUOTAS: [i16; 2] = [49, 0];

/// Limits the clients with this id to a number of bytes a second that they produce.
///
/// # Errors
/// When the broker does not answer, or refuses.
pub async fn limit_producer(bootstrap: &str, client_id: &str, bytes: u32) -> Result<()> {
    let mut request = ALTER_CLIENT_QUOTAS.map(i16::to_be_bytes).concat();
    request.extend(7_i32.to_be_bytes());
    text(&mut request, "testkit")?;
    // One entry, for one entity, with one operation: to set and not to remove. The last byte: not only to validate.
    request.extend([0, 0, 0, 1, 0, 0, 0, 1]);
    text(&mut request, "client-id")?;
    text(&mut request, client_id)?;
    request.extend([0, 0, 0, 1]);
    text(&mut request, "producer_byte_rate")?;
    request.extend(f64::from(bytes).to_be_bytes());
    request.extend([0, 0]);
    let mut broker = TcpStream::connect(bootstrap).await?;
    broker.write_all(&u32::try_from(request.len())?.to_be_bytes()).await?;
    broker.write_all(&request).await?;
    let mut answer = vec![0; usize::try_from(broker.read_u32().await?)?];
    broker.read_exact(&mut answer).await?;
    // Behind the number of the request, the time of throttling, and the count of entries.
    let code = answer.get(12..14);
    ensure!(code == Some(&[0, 0]), "the broker refuses the quota: {answer:?}");
    Ok(())
}

fn text(request: &mut Vec<u8>, text: &str) -> Result<()> {
    request.extend(i16::try_from(text.len())?.to_be_bytes());
    request.extend(text.as_bytes());
    Ok(())
}
